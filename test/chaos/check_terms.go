//go:build linux

package main

import (
	"math"
	"slices"
	"strings"
	"time"

	"parley/test/rig"
)

// apart is how far what two routers take for the time may differ: where a clock
// was wrong they have corrected what is more than a second.
func (f *findings) apart() time.Duration {
	for _, o := range f.faults {
		if o.Op == skewWorker {
			return 1500 * time.Millisecond
		}
	}
	return 50 * time.Millisecond
}

// checkTerms checks what else bounds attempts: a retry waits as long as its
// record says, which is as long as its policy says, levels are climbed one after
// the other, a budget that is spent buys nothing, and what is spent is counted
// once.
func (f *findings) checkTerms() {
	apart := f.apart()
	for id, list := range f.records {
		var spent int64
		var wait *time.Time
		for i := range list {
			r := &list[i]
			if r.Kind == "working" {
				if b := r.Facts.TokenBudget; b > 0 && spent >= b && r.Facts.Human == nil {
					f.fault("7 budget", id, "attempt %d was begun with %d of %d tokens spent", r.Attempt, spent, b)
				}
				if wait != nil && r.Time.Before(wait.Add(-apart)) {
					f.fault("5 backoff", id, "attempt %d was begun %s before the time that its retry was put off to", r.Attempt, wait.Sub(r.Time))
				}
			}
			if r.Facts.TokensSpent < spent {
				f.fault("7 budget", id, "seq %d says that %d tokens are spent, earlier it was %d", r.Seq, r.Facts.TokensSpent, spent)
			}
			spent, wait = r.Facts.TokensSpent, r.Facts.NotBefore
		}
		last := f.records.Last(id)
		if spent > 0 {
			f.counts["budgets"]++
		}
		if most := int64(rig.Tokens * last.Attempt); spent > most {
			f.fault("7 budget", id, "%d tokens are counted, and %d attempts spend %d at most", spent, last.Attempt, most)
		}
		f.checkLadder(id, list)
	}
}

// How long agents may be silent until no router offers them anything, and how
// long something else that went wrong explains that one does: it listens anew
// before it misses anybody.
const (
	silentMost   = 3 * time.Second // their lease of three heartbeats, and as much again
	silentExcuse = 8 * time.Second
)

// checkSilent checks that agents who miss their heartbeats are offered nothing,
// where nothing else goes wrong.
func (f *findings) checkSilent() {
	for _, o := range f.faults {
		if o.Op != muteAgents {
			continue
		}
		agents := strings.Replace(o.ID, "cast", "agent", 1) + "-"
		from := o.from + int64(silentMost)
		if f.away.meet(time.Unix(0, o.from).Add(-silentExcuse), time.Unix(0, o.to)) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(f.faults), func(x *op) bool { return x.Op == quietKind || x.Op == muteAgents })
		if o.to <= from || slices.ContainsFunc(others, func(x *op) bool {
			return x.from < o.to && min(x.to, math.MaxInt64-int64(silentExcuse))+int64(silentExcuse) > o.from
		}) {
			continue
		}
		f.counts["silences"]++
		for _, notes := range f.notes {
			for _, e := range notes {
				if e.What == rig.WasOffered && strings.HasPrefix(e.Agent, agents) && e.At > from && e.At < o.to {
					f.fault("24 silence", e.Task, "it was offered to %s, who had been silent for %s", e.Agent, time.Duration(e.At-o.from).Round(time.Millisecond))
				}
			}
		}
	}
}
