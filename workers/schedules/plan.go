package schedules

import (
	"slices"
	"time"

	"parley/bus/plant"
	"parley/subjects/schedule"
)

// advance is a record at a time; nil if nothing changes. underWay says that what
// was begun last goes on. What is to be begun then is Last, without a time at
// which it was begun; what is to be canceled before that is Cancel.
//
// It is not for records that have something to begin still.
func advance(r *schedule.Record, c schedule.Clock, now time.Time, underWay bool) *schedule.Record {
	next := *r
	next.Waiting = slices.Clone(r.Waiting)
	passed := next.State == schedule.Active && tick(&next, c, now)
	queued := len(next.Waiting)
	switch {
	case queued == 0:
	case !underWay || next.Definition.Overlap == schedule.Cancel:
		if underWay {
			next.Cancel = next.Last.ID
		}
		next.Last = &next.Waiting[0]
		next.Waiting = next.Waiting[1:]
	default: // a call to run now waits whatever the policy is, and so does what waited before
		if next.Definition.Overlap == schedule.Skip {
			next.Waiting = slices.DeleteFunc(next.Waiting, func(f schedule.Firing) bool { return !f.Manual })
		}
		next.Waiting = next.Waiting[:min(len(next.Waiting), schedule.MaxWaiting)]
		next.Skipped += queued - len(next.Waiting)
	}
	if next.State == schedule.Active && next.Next == nil {
		next.State = schedule.Ended
	}
	if !passed && queued == len(next.Waiting) && next.State == r.State {
		return nil
	}
	return &next
}

// tick takes in the times that have passed, and reports whether any has. The
// last of them waits to be begun, unless it was missed.
func tick(r *schedule.Record, c schedule.Clock, now time.Time) bool {
	last, n := c.Passed(r.Reckoned, now)
	if n == 0 {
		return false
	}
	r.Reckoned = last
	r.Next = due(c, last)
	if d := &r.Definition; d.Missed == schedule.SkipThem && now.Sub(last) > d.Grace() || plant.Bug("tick_lost") && last.Unix()/5%2 == 0 {
		r.Missed += n
		return true
	}
	r.Missed += n - 1
	r.Waiting = append(r.Waiting, r.Due(last))
	return true
}

// due is the next time after t; nil: there is none.
func due(c schedule.Clock, t time.Time) *time.Time {
	next := c.Next(t)
	if next.IsZero() {
		return nil
	}
	return &next
}

// pause has nothing more begin by the clock; what waits by it is left out.
func pause(r *schedule.Record) *schedule.Record {
	if r.State != schedule.Active {
		return nil
	}
	next := *r
	next.State, next.Next = schedule.Paused, nil
	next.Waiting = slices.DeleteFunc(slices.Clone(r.Waiting), func(f schedule.Firing) bool { return !f.Manual })
	next.Skipped += len(r.Waiting) - len(next.Waiting)
	return &next
}

// resume goes on with the first time after now: those of the pause were not
// missed.
func resume(r *schedule.Record, c schedule.Clock, now time.Time) *schedule.Record {
	if r.State != schedule.Paused {
		return nil
	}
	next := *r
	next.State, next.Reckoned, next.Next = schedule.Active, now, due(c, now)
	if next.Next == nil {
		next.State = schedule.Ended
	}
	return &next
}

// runNow has something begun that is called id; nil if it was asked for before,
// ok false if too much waits already.
func runNow(r *schedule.Record, id string, now time.Time) (next *schedule.Record, ok bool) {
	switch {
	case slices.Contains(r.Asked, id):
		return nil, true
	case len(r.Waiting) >= schedule.MaxWaiting:
		return nil, false
	}
	c := *r
	c.Waiting = append(slices.Clone(r.Waiting), schedule.Firing{ID: id, Time: now, Manual: true})
	c.Asked = append(slices.Clone(r.Asked[max(0, len(r.Asked)-schedule.MaxAsked+1):]), id)
	return &c, true
}
