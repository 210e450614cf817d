//go:build linux

package main

import (
	"slices"
	"strings"
	"time"

	"parley/test/rig"
)

// What follows from the counters of a task.
const (
	attemptsMost  = 100 // of a task
	lossesDefault = 3   // in a row
	lossesTimes   = 4   // so many times as many in all
)

// checkPools checks what is promised of work whose agents are killed, paused,
// restarted and limited.
func (f *findings) checkPools() {
	for id, list := range f.records {
		if list[0].Facts.From != forger {
			f.checkCounters(id, list)
		}
	}
	f.checkToil()
	y := f.yardOf()
	y.checkPromptly()
	y.checkAccounts()
	y.checkLosses()
	y.checkShown()
	y.checkFair()
}

// toiled counts the tasks to whose agents nothing happens but that they are killed,
// paused, limited and restarted, and those of them that are done.
func (f *findings) toiled() (all, done int) {
	for _, o := range f.ops {
		if o.Op != "dispatch" || o.Text != toil || !o.ok() {
			continue
		}
		all++
		if last := f.records.Last(o.ID); last.State == "done" {
			done++
		}
	}
	return all, done
}

// checkToil checks that such tasks are done in time, and that no human had to see to
// any.
func (f *findings) checkToil() {
	for _, o := range f.ops {
		if o.Op != "dispatch" || o.Text != toil || !o.ok() {
			continue
		}
		f.counts["tasks of agents that are killed, paused and limited"]++
		list := f.records[o.ID]
		if len(list) == 0 {
			continue // see checkTasks
		}
		if last := &list[len(list)-1]; last.State != "done" {
			f.fault("26 done", o.ID, "it is %s (%s) after %d attempts, and its agents were only killed, paused and limited", last.State, last.Reason.Code, last.Attempt)
		} else if took := last.Stored.Sub(list[0].Stored); took > toilTime {
			f.fault("26 done", o.ID, "it took %s", took.Round(time.Second))
		}
		if slices.ContainsFunc(list, func(r rig.Record) bool { return r.Kind == "human" }) {
			f.fault("26 done", o.ID, "a human was asked, and its agents were only killed, paused and limited")
		}
	}
}

// checkCounters recomputes the counters of a task, and checks that it ends when they
// say so, and not before.
func (f *findings) checkCounters(id string, list []rig.Record) {
	var c rig.Counters
	known := map[int]bool{}
	most := lossesDefault
	if n := list[0].Facts.Policy.MaxLosses; n > 0 {
		most = n
	}
	for i := range list {
		r := &list[i]
		lost, late := false, r.State == "expired"
		for _, a := range r.Facts.Attempts {
			switch {
			case known[a.Attempt]:
			case a.Code == "agent_lost" && !late:
				c.Losses++
				c.LossesTotal++
				lost = true
				f.counts["losses"]++
			case a.Level == 1:
				c.Retries++
			}
			known[a.Attempt] = true
		}
		last := lastAttempt(r)
		switch r.Kind {
		case "artifact", "question": // it has got somewhere
			c.Losses = 0
		case "resumed": // a human's word begins anew
			c.Losses, c.LossesTotal = 0, 0
		case "working": // who was lost may be back with it
			back := rig.Counters{Retries: c.Retries, Losses: max(c.Losses-1, 0), LossesTotal: max(c.LossesTotal-1, 0)}
			if last.Code == "agent_lost" && last.AgentID == r.AgentID && last.InstanceID == r.InstanceID && last.Epoch == r.Epoch && r.Facts.Counters == back {
				c = back
			}
		}
		if r.Facts.Counters != c && !late {
			f.fault("29 counters", id, "seq %d (%s) counts %+v, want %+v", r.Seq, r.Kind, r.Facts.Counters, c)
			c = r.Facts.Counters
		}
		if r.Attempt > attemptsMost {
			f.fault("28 ends", id, "seq %d is of attempt %d, and %d may be", r.Seq, r.Attempt, attemptsMost)
		}
		if lost {
			f.checkSuspect(id, r, c, most)
		}
	}
}

// checkSuspect checks what follows the loss that record r tells of.
func (f *findings) checkSuspect(id string, r *rig.Record, c rig.Counters, most int) {
	over := r.Terminal() || r.Kind == "human"
	must := c.Losses >= most || c.LossesTotal >= lossesTimes*most
	if must {
		f.counts["suspects"]++
	}
	switch {
	case must && !over:
		f.fault("28 ends", id, "seq %d is loss %d in a row and %d in all, %d may be, and it goes on", r.Seq, c.Losses, c.LossesTotal, most)
	case !must && over && r.Reason.Code == "agent_lost" && r.Attempt < attemptsMost:
		f.fault("28 ends", id, "seq %d is loss %d in a row and %d in all, %d may be, and it is given up", r.Seq, c.Losses, c.LossesTotal, most)
	}
}

// How long a task may wait, with nothing wrong, for somebody who has a free slot,
// and how long it takes until agents are themselves again to whom something happened.
const (
	promptMost = 10 * time.Second
	mendTakes  = 15 * time.Second
	missTakes  = 5 * time.Second // until everybody knows that they are not
)

// checkPromptly checks that no task of a pool waits while somebody who may have it
// has a free slot.
func (y *yard) checkPromptly() {
	idle := map[string]spans{} // when an instance could have taken something
	for p := range y.actors {
		a := y.actors[p]
		wrong := slices.Concat(y.full[p], y.dead[p].later(0, mendTakes), y.rests[a.ID], y.closed(accountOf(&a)), y.down)
		idle[p] = wrong.union().not()
	}
	gone := map[string]spans{} // when an agent is not there for those who ask for it, by id
	for p := range y.actors {
		a := y.actors[p]
		away := slices.Concat(y.dead[p].later(missTakes, 0), y.closed(accountOf(&a)).later(missTakes, 0)).union()
		if was, known := gone[a.ID]; known {
			away = away.both(was)
		}
		gone[a.ID] = away
	}
	for _, o := range y.f.ops {
		if o.Op != "dispatch" || o.Text != toil && o.Text != doomed || !o.ok() {
			continue
		}
		list := y.f.records[o.ID]
		for i := range list {
			r := &list[i]
			if r.State != "queued" {
				continue
			}
			from, to := r.Stored, y.last
			if r.Facts.NotBefore != nil && r.Facts.NotBefore.After(from) {
				from = *r.Facts.NotBefore
			}
			if i+1 < len(list) {
				to = list[i+1].Stored
			}
			if to.Sub(from) > promptMost {
				y.checkIdle(r, from, to, idle, gone)
			}
			if to.After(from) {
				y.f.counts["waits for an agent"]++
			}
		}
	}
}

// checkIdle checks that nobody who may have a task is idle while it waits.
func (y *yard) checkIdle(r *rig.Record, from, to time.Time, idle, gone map[string]spans) {
	wait := spans{{from.UnixNano(), to.UnixNano()}}
	policy := &r.Facts.Policy
	for p := range y.actors {
		a := y.actors[p]
		may := wait
		switch {
		case policy.Agent == "":
			for name, value := range r.Facts.Requirements.Labels {
				if a.Labels[name] != value {
					may = nil
				}
			}
		case policy.Agent == a.ID:
		case slices.Contains(policy.Alternatives, a.ID):
			may = may.both(gone[policy.Agent])
		default:
			may = nil
		}
		for _, d := range may.both(idle[p]) {
			if long := time.Duration(d[1] - d[0]); long > promptMost {
				y.f.fault("27 promptly", r.TaskID, "it waits from seq %d on for %s, and %s had nothing to do for %s of that", r.Seq,
					to.Sub(from).Round(time.Millisecond), strings.TrimSuffix(p, "/"), long.Round(time.Millisecond))
				return
			}
		}
	}
}
