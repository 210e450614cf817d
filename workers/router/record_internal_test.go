package router

import (
	"testing"
	"time"

	"parley/subjects/fleet"
)

// The outcome outlives every record before it, and a task without one lives
// until a router that was away has had time to come back.
func TestHowLongRecordsAreKept(t *testing.T) {
	t.Parallel()
	for _, deadline := range []time.Duration{0, time.Second, 72 * time.Hour, fleet.MaxDeadline} {
		first := testRecord(t, "t", "", now0)
		first.Facts.Deadline = now0.Add(deadline)
		for _, works := range []time.Duration{0, time.Second, 72 * time.Hour} {
			begins := working(first, holder{"a", "main", 1}, now0.Add(works))
			for _, ends := range []time.Duration{0, 1500 * time.Millisecond, fleet.MaxDeadline, fleet.MaxDeadline + fleet.KeepOverdue} {
				last := done(begins, &fleet.Result{Status: fleet.StatusDone}, begins.Time.Add(ends))
				goes := last.Time.Add(ttl(last))
				for _, e := range []*fleet.Event{first, begins} {
					before := e.Time.Add(ttl(e))
					if !goes.After(before.Add(time.Second)) { // whole seconds
						t.Errorf("deadline %s, work after %s, end %s later: the outcome goes at %s, %s at %s", deadline, works, ends, goes, e.Kind, before)
					}
					if before.Before(e.Facts.Deadline.Add(fleet.KeepOverdue)) {
						t.Errorf("deadline %s: %s goes %s after it", deadline, e.Kind, before.Sub(e.Facts.Deadline))
					}
				}
			}
		}
	}
}
