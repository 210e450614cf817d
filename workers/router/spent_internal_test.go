package router

import (
	"testing"

	"parley/subjects/fleet"
)

// Every router knows by heartbeats what a running attempt has spent; of another
// attempt, or from another agent, it takes no word.
func TestHeartbeatSaysWhatIsSpent(t *testing.T) {
	t.Parallel()
	c := testCore()
	freeAgent(t, c)
	q := testRecord(t, "t", "", now0)
	c.apply(q, 1, now0)
	n := working(q, holder{"a", "main", 1}, now0)
	c.apply(n, 2, now0)
	for _, held := range []fleet.Holding{
		{TaskID: "t", Attempt: 1, TokensSpent: 1800}, {TaskID: "t", Attempt: 1, TokensSpent: 600},
		{TaskID: "t", Attempt: 2, TokensSpent: 9000}, {TaskID: "other", Attempt: 1, TokensSpent: 7},
	} {
		c.beat("a", "main", &fleet.Heartbeat{Epoch: 1, Holding: []fleet.Holding{held}}, now0)
	}
	c.noteSpent("t", "b", 1, 9000)
	w := &Worker{core: c}
	if got := w.spentSoFar(n); got != 1800 {
		t.Errorf("spent = %d, want 1800", got)
	}
	if got := w.spentSoFar(q); got != 0 {
		t.Errorf("spent by nobody = %d, want 0", got)
	}
}
