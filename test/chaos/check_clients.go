//go:build linux

package main

import (
	"math"
	"slices"
	"time"

	"parley/test/rig"
)

// How long it may take, with nothing wrong, until nobody begins what is canceled,
// and until who is at work on it is told: who was not reached, once he has named
// it in his heartbeats for 5 s.
const (
	begunMost = 3 * time.Second
	toldMost  = 10 * time.Second
)

// checkCancels checks that once a client knows that his task is canceled nobody
// begins it, and that who is at work on it is told.
func (f *findings) checkCancels() {
	canceled := map[string]*op{}
	for _, o := range f.ops {
		if o.Op == "cancel" && o.ok() && o.end.State == "canceled" && canceled[o.ID] == nil {
			canceled[o.ID] = o
		}
	}
	f.counts["cancels"] = len(canceled)
	works, last := map[string]*rig.Entry{}, int64(0) // by execution: where its agent is
	down := f.downtime()
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			last = max(last, e.At)
			o := canceled[e.Task]
			if o == nil {
				continue
			}
			switch {
			case e.What == rig.WasBegun:
				works[e.Nonce] = e
				if quiet := down.quiet(time.Unix(0, o.to), time.Unix(0, e.At)); e.At > o.to && quiet > begunMost {
					f.fault("21 cancel", e.Task, "%s began it %s after its client knew that it is canceled", e.Agent, time.Duration(e.At-o.to).Round(time.Millisecond))
				}
			case e.What == rig.WasEnded && works[e.Nonce] != nil:
				f.checkStop(o, works[e.Nonce], e.At, down)
				delete(works, e.Nonce)
			}
		}
	}
	for _, e := range works { // never ended, as far as anybody knows
		f.checkStop(canceled[e.Task], e, last, down)
	}
}

// checkStop checks that an execution that began before a cancel ended soon after
// it: nothing must be wrong from its beginning on.
func (f *findings) checkStop(o *op, began *rig.Entry, ended int64, down spans) {
	if ended < o.to || down.meet(time.Unix(0, began.At), time.Unix(0, o.to).Add(toldMost)) {
		return
	}
	f.counts["agents told of a cancel"]++
	if late := time.Duration(ended - o.to); late > toldMost {
		f.fault("21 cancel", o.ID, "%s went on with attempt %d for %s after its client knew that it is canceled", began.Agent, began.Attempt, late.Round(time.Millisecond))
	}
}

// checkReads checks what clients see who ask how far a task is: a record that is
// there, and, with nothing wrong, what was acknowledged, and never less than before.
func (f *findings) checkReads() {
	down := f.downtime()
	type seen struct {
		version uint64
		at      int64
	}
	before := map[string]seen{}
	acked := map[string]int64{}
	for _, o := range f.ops {
		// By the raw door it is no record yet, and nobody is told a state.
		if (o.Op == "dispatch" || o.Op == "again") && o.ok() && o.end.State != "" && acked[o.end.ID] == 0 {
			acked[o.end.ID] = o.to
		}
	}
	looks := slices.DeleteFunc(slices.Clone(f.ops), func(o *op) bool { return o.Op != "look" || o.to == math.MaxInt64 })
	for _, o := range looks {
		wrong := down.meet(time.Unix(0, o.from), time.Unix(0, o.to))
		switch v, list := o.end.Version, f.records[o.ID]; {
		case o.end.Code == "not_found" && acked[o.ID] != 0 && acked[o.ID] < o.from && !wrong:
			f.fault("L reads", o.ID, "it was acknowledged, and %s was told later that it does not exist", o.Client)
		case !o.ok():
		case v == 0 || v > uint64(len(list)) || list[v-1].State != o.end.State:
			f.fault("L reads", o.ID, "%s was told that record %d says %s, which it does not", o.Client, v, o.end.State)
		default:
			f.counts["reads of tasks"]++
			if was := before[o.ID]; v < was.version && was.at < o.from && !wrong {
				f.fault("L reads", o.ID, "%s was told of record %d, and then of record %d", o.Client, was.version, v)
			}
			before[o.ID] = seen{v, o.to}
		}
	}
}
