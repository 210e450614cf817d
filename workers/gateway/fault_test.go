package gateway

import (
	"context"
	"fmt"
	"testing"

	"parley/bus"
	"parley/subjects"
)

// Whoever is told to come again is told when.
func TestUnavailableSaysWhen(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		bus.ErrNoResponders, bus.ErrTimeout, bus.ErrClosed, errDraining, context.Canceled, context.DeadlineExceeded,
		subjects.Errorf(subjects.CodeRateLimited, "too many").RetryAfter(1),
	} {
		f := asFault(fmt.Errorf("ask: %w", err))
		if f.kind != kindUnavailable && f.kind != kindRateLimited || f.retry <= 0 {
			t.Errorf("%v is %s, to be repeated after %s", err, f.kind.reason, f.retry)
		}
	}
}
