package router

import (
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// This file decides whether what an agent says of a task counts.

// standing says what a message of an attempt means against the record.
type standing int

const (
	counts    standing = iota // it is from the holder
	countsOld                 // from a past holder, and nobody else has taken the task over
	repeated                  // from whoever's result already became the outcome
	behind                    // it knows of an attempt that the record does not: read again
	late                      // anything else
)

// claim is what an agent says of itself when it reports on a task. Zero values
// are unsaid: a person at a terminal need not know them.
type claim struct {
	agent    subjects.AgentID
	instance subjects.InstanceID
	epoch    int64
	attempt  int
}

func (c claim) is(h holder, attempt int) bool {
	return c.agent == h.agent &&
		(c.instance == "" || c.instance == h.instance) &&
		(c.epoch == 0 || h.epoch == 0 || c.epoch == h.epoch) &&
		(c.attempt == 0 || c.attempt == attempt)
}

// stand judges c against the record e.
func stand(e *fleet.Event, c claim) standing {
	mine := c.is(holderOf(e), e.Attempt)
	switch {
	case e.State.Terminal() && mine && e.AgentID != "":
		return repeated
	case e.State.Terminal():
		return late
	case held(e) && mine:
		return counts
	case c.attempt > e.Attempt, c.attempt == 0 && e.State == fleet.StateQueued && past(e, c) == nil:
		return behind
	case !held(e) && past(e, c) != nil:
		return countsOld
	}
	return late
}

// past is the attempt that c held, or refused, if nobody else has held the task
// since; nil for none.
func past(e *fleet.Event, c claim) *fleet.Attempt {
	for i := range e.Facts.Attempts {
		a := &e.Facts.Attempts[len(e.Facts.Attempts)-1-i]
		switch {
		case a.Attempt == 0: // it was passed over
		case c.is(holder{a.AgentID, a.InstanceID, a.Epoch}, a.Attempt):
			return a
		case !a.Refused:
			return nil
		}
	}
	return nil
}

// mayHave reports whether the task waits, and its record lets agent have it now.
func mayHave(e *fleet.Event, agent subjects.AgentID, now time.Time) bool {
	n := need(e)
	return e.State == fleet.StateQueued && (e.Facts.NotBefore == nil || !e.Facts.NotBefore.After(now)) &&
		(len(n.Only) == 0 || slices.Contains(n.Only, agent)) && !slices.Contains(n.Exclude, agent)
}

// asOf is the record as it would be if attempt a had not ended.
func asOf(v *view, a *fleet.Attempt) *view {
	e := *v.ev
	e.AgentID, e.InstanceID, e.Epoch, e.Attempt = a.AgentID, a.InstanceID, a.Epoch, a.Attempt
	return &view{ev: &e, lastSeq: v.lastSeq, firstSeq: v.firstSeq, dispatch: v.dispatch}
}
