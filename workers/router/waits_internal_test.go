package router

import (
	"testing"
	"time"

	"parley/subjects/fleet"
)

// asks counts how often it is asked what becomes of a task that nobody could do.
func (c *core) asks() (n int) {
	for _, e := range c.take() {
		if _, ok := e.(unschedulable); ok {
			n++
		}
	}
	return n
}

// hopelessTask is a core with a task that nobody could do, which has been asked about.
func hopelessTask(t *testing.T) (*core, *fleet.Event) {
	t.Helper()
	c := testCore()
	c.ticked = now0
	q := testRecord(t, "t", "", now0)
	c.apply(q, 1, now0)
	if n := c.asks(); n != 1 {
		t.Fatalf("asked about %d times, want once", n)
	}
	return c, q
}

// What a human has tried once more is the human's again, where still nobody
// could do it.
func TestHopelessAfterAHuman(t *testing.T) {
	t.Parallel()
	c, q := hopelessTask(t)
	human, action := judgeNobody(q, []fleet.Reason{}, settings{human: true}, now0)
	if human == nil || !waitsForHuman(human) {
		t.Fatalf("that nobody could do it is answered by %T, want that a human is asked", action)
	}
	c.apply(human, 2, now0)
	c.apply(resumed(human, &fleet.HumanAnswer{Verb: fleet.VerbRetry}, nil, now0), 3, now0)
	if n := c.asks(); n != 1 {
		t.Errorf("asked about %d times after the human's answer, want once", n)
	}
}

// What a router was not sure of as it listened anew is asked once it is.
func TestHopelessAgainOnceSettled(t *testing.T) {
	t.Parallel()
	c, q := hopelessTask(t)
	c.listen(now0)
	if _, still := c.isUnschedulable(q); still {
		t.Fatal("it is believed while the router listens")
	}
	for now := now0; !now.After(now0.Add(31 * time.Second)); now = now.Add(tickEvery) {
		c.tick(now)
	}
	if n := c.asks(); n != 1 {
		t.Errorf("asked about %d times once the router has listened, want once", n)
	}
}

// What could not be recorded is asked again after a rest.
func TestHopelessUntilItIsStored(t *testing.T) {
	t.Parallel()
	c, _ := hopelessTask(t)
	c.askAgain("t", now0)
	for now := now0; !now.After(now0.Add(askAgainAfter + time.Second)); now = now.Add(tickEvery) {
		c.tick(now)
	}
	if n := c.asks(); n != 1 {
		t.Errorf("asked about %d times after a rest, want once", n)
	}
}
