//go:build linux

package main

import (
	"slices"
	"strings"
	"time"
)

// neverSent is how long after it was asked for a task of A2E may begin and still
// count: what was not begun by then counts no longer.
const neverSent = 30 * time.Second

// floodsMany are so many dispatches of bursts that some must have been refused.
const floodsMany = 10 * floodAtOnce

// checkLimits checks what is answered over a limit: an error that says so, and
// then nothing was stored, or that it is done, and then it is (which is checked of
// all that is acknowledged); and never silence.
func (f *findings) checkLimits() {
	var answered, refused int
	down := f.downtime()
	asked := map[string]*op{}
	for _, o := range f.ops {
		if o.Op != "dispatch" || o.Text != flooded {
			continue
		}
		asked[o.ID] = o
		long := o.Session == ""
		if o.end.What != wasInfo {
			answered++
		}
		switch stored := len(f.records[o.ID]) > 0; {
		case o.ok() && long:
			f.fault("22 limits", o.ID, "it is longer than a record may be, and was acknowledged")
		case o.end.What == wasInfo && o.end.Code == "":
			// The run ended before the answer.
		case o.end.What == wasInfo && strings.Contains(o.end.Code, "deadline exceeded") && !down.meet(time.Unix(0, o.from), time.Unix(0, o.from).Add(floodTry)):
			f.fault("22 limits", o.ID, "nobody answered it within %s, and nothing explains that", floodTry)
		case o.end.What != wasFail:
		case stored:
			f.fault("22 limits", o.ID, "it was refused (%s), and is stored", o.end.Code)
		case long && o.end.Code == "payload_too_large":
			f.counts["dispatches that are too long"]++
			refused++
		case !long && o.end.Code == "rate_limited":
			f.counts["dispatches over a limit"]++
			refused++
		case long && o.end.Code == "rate_limited": // the disk is nearly full
		case !long && (o.end.Code == "session_expired" || o.end.Code == "forbidden"):
			// It began while there was nothing to be had.
		default:
			f.fault("22 limits", o.ID, "it was refused as %s", o.end.Code)
		}
	}
	if answered > floodsMany && refused == 0 {
		f.fault("22 limits", "all", "of %d dispatches of bursts none was refused", answered)
	}
	f.checkAtOnce(asked)
}

// checkAtOnce checks that no session has more under way than it may: from the
// first record of its tasks to their last.
func (f *findings) checkAtOnce(asked map[string]*op) {
	type change struct {
		at   time.Time
		by   int
		task string
	}
	sessions := map[string][]change{}
	for id, o := range asked {
		list := f.records[id]
		if len(list) == 0 || o.Session == "" || list[0].Stored.Sub(time.Unix(0, o.from)) > neverSent {
			continue
		}
		sessions[o.Session] = append(sessions[o.Session], change{list[0].Stored, 1, id})
		if last := f.records.Last(id); last.Terminal() {
			sessions[o.Session] = append(sessions[o.Session], change{last.Stored, -1, id})
		}
	}
	for session, list := range sessions {
		slices.SortFunc(list, func(a, b change) int {
			if c := a.at.Compare(b.at); c != 0 {
				return c
			}
			return a.by - b.by
		})
		under := 0
		for _, c := range list {
			if under += c.by; under > floodMost {
				f.fault("22 limits", c.task, "with it %d tasks of session %s are under way, and %d may be", under, session, floodMost)
				break
			}
		}
	}
}
