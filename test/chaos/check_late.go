//go:build linux

package main

import (
	"time"

	"parley/test/rig"
)

// clockSlack is how far two clocks of one machine, and a write on its way, differ.
const clockSlack = 2 * time.Second

// endMost is how long what is due may take with nothing wrong: a router that
// does not own a task is 2 s later than the one that does.
const endMost = 10 * time.Second

// checkDeadlines checks that no attempt begins after the deadline, that nothing
// is done after it, and that who is late ends as expired: not before it, and
// soon after it.
func (f *findings) checkDeadlines() {
	// What becomes of agents keeps nobody from ending a task, nor does nonsense.
	down := f.downtime(killAgents, pauseAgents, muteAgents, skewAgents, garbage)
	for id, list := range f.records {
		deadline := list[0].Facts.Deadline
		for i := range list {
			r := &list[i]
			if r.Kind == "working" && !deadline.IsZero() && r.Time.After(deadline) {
				f.fault("7 deadline", id, "attempt %d was begun %s after the deadline", r.Attempt, r.Time.Sub(deadline))
			}
			if (r.State == "done" || r.State == "partial") && !deadline.IsZero() && r.Time.After(deadline) {
				f.fault("7 deadline", id, "it is %s, %s after the deadline", r.State, r.Time.Sub(deadline))
			}
			if r.State == "expired" {
				f.counts["deadlines passed"]++
				if r.Stored.Before(deadline.Add(-clockSlack)) {
					f.fault("7 deadline", id, "it expired %s before its deadline", deadline.Sub(r.Stored))
				}
			}
			if i+1 < len(list) {
				f.checkLate(id, r, &list[i+1], down)
			}
		}
	}
}

// checkLate checks that what is due of a task by its record r happens soon, in
// the record after it, once nothing is wrong. That something happens at all is
// checked elsewhere.
func (f *findings) checkLate(id string, r, then *rig.Record, down spans) {
	due := r.Facts.Deadline
	for _, t := range []*time.Time{r.Facts.AttemptEnds, r.Facts.GiveUpAt} {
		if t != nil && (due.IsZero() || t.Before(due)) {
			due = *t
		}
	}
	if due.IsZero() {
		return
	}
	if due.Before(r.Stored) { // a dispatch that waited in the inbox, say
		due = r.Stored
	}
	if !then.Stored.Before(due) && !down.meet(due, due.Add(endMost)) {
		f.counts["what was due with nothing wrong"]++
	}
	if then.Stored.Sub(due) <= endMost {
		return
	}
	if quiet := down.quiet(due, then.Stored); quiet > endMost {
		f.fault("7 deadline", id, "something was due at seq %d, and seq %d came %s later, with nothing wrong for %s of that",
			r.Seq, then.Seq, then.Stored.Sub(due).Round(time.Millisecond), quiet.Round(time.Millisecond))
	}
}
