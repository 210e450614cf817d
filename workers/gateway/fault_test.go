package gateway

import (
	"context"
	"fmt"
	"testing"

	"parley/bus"
)

// Whoever is told that the fleet is unavailable is told when to come again.
func TestWhatIsUnavailableSaysWhenToRepeat(t *testing.T) {
	t.Parallel()
	for _, err := range []error{bus.ErrNoResponders, bus.ErrTimeout, bus.ErrClosed, errDraining, context.Canceled, context.DeadlineExceeded} {
		if f := asFault(fmt.Errorf("ask: %w", err)); f.kind != kindUnavailable || f.retry <= 0 {
			t.Errorf("%v is %s, repeat after %s; want %s and a time", err, f.kind.reason, f.retry, kindUnavailable.reason)
		}
	}
}
