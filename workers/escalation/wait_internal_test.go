package escalation

import (
	"testing"
	"time"

	"parley/subjects/fleet"
)

// TestWaitsSince: what is said while a task waits for a human does not make it
// wait since then.
func TestWaitsSince(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 22, 20, 16, 32, 622_310_901, time.UTC)
	for name, tt := range map[string]struct{ said, repeat float64 }{
		"its own repeat": {4, 4},
		"a fraction":     {0.3, 0.3},
		"the usual":      {0, fleet.DefaultAlertRepeat.Seconds()},
	} {
		again := began.Add(time.Duration(tt.repeat * float64(time.Second)))
		e := &fleet.Event{
			Kind: fleet.KindSpent, State: fleet.StateInputRequired, Time: began.Add(time.Hour),
			Facts: fleet.Facts{AlertAt: &again, Policy: fleet.Policy{AlertRepeat: tt.said}},
		}
		if got := alertTask(e).Since; !got.Equal(began) {
			t.Errorf("%s: it waits since %s, want %s", name, got, began)
		}
	}
	if got := alertTask(&fleet.Event{Time: began}).Since; !got.Equal(began) {
		t.Errorf("a record that says nothing of a wait: since %s, want %s", got, began)
	}
}
