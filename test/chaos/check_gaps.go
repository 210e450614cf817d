//go:build linux

package main

import (
	"slices"
	"time"
)

// gapMost is how long it may take, once the stream's leader is killed, until
// dispatches are acknowledged again: the servers' election, 4 to 9 s. aloneFor is
// how long before the kill nothing else may be wrong with servers or links: what
// was done to them earlier has been mended by then, and a write gone through.
const (
	gapMost  = 10 * time.Second
	aloneFor = 5 * time.Second
)

// gap is a time in which no dispatch was acknowledged.
type gap struct{ from, to int64 } // ns

func (g gap) long() time.Duration { return time.Duration(g.to - g.from).Round(time.Millisecond) }

// acked is when dispatches were acknowledged, in order.
func (f *findings) acked() (acks []int64) {
	for _, o := range f.ops {
		if o.Op == "dispatch" && o.ok() {
			acks = append(acks, o.to)
		}
	}
	slices.Sort(acks)
	return acks
}

// longest is the longest gap that has begun by to, as far as it is after from.
func longest(acks []int64, from, to int64) (most gap) {
	for i := 1; i < len(acks); i++ {
		if g := (gap{max(acks[i-1], from), acks[i]}); acks[i] >= from && acks[i-1] <= to && g.to-g.from > most.to-most.from {
			most = g
		}
	}
	return most
}

// afterKill is the gap that the kill of the stream's leader made: it begins
// before that is mended.
func afterKill(acks []int64, o *op) gap {
	return longest(acks, o.from, min(o.from+int64(gapMost), o.to))
}

// checkGaps checks that dispatches are acknowledged again soon after the stream's
// leader was killed, where nothing else was wrong with servers, links or the machine.
// What becomes of a worker is no excuse: there are three routers, and a door without.
func (f *findings) checkGaps() {
	acks := f.acked()
	down := append(spans(nil), f.away...) // and of all faults, each kill among them
	for _, o := range f.faults {
		if hurtsServers(o.Op) {
			down = append(down, [2]int64{o.from, o.to})
		}
	}
	for _, o := range f.faults {
		if o.Op != killLeader {
			continue
		}
		g := afterKill(acks, o)
		others := slices.DeleteFunc(slices.Clone(down), func(d [2]int64) bool { return d == [2]int64{o.from, o.to} })
		if g == (gap{}) || others.meet(time.Unix(0, o.from).Add(-aloneFor), time.Unix(0, min(g.to, g.from+int64(gapMost)))) {
			continue
		}
		f.counts["kills of the leader with nothing else wrong"]++
		if g.long() > gapMost && f.waited(g) {
			f.fault("G gap", time.Unix(0, o.from).UTC().Format("15:04:05"), "after the kill of the stream's leader no dispatch was acknowledged for %s", g.long())
		}
	}
}

// hurtsServers reports whether a kind of fault is one of servers, or of links.
func hurtsServers(kind string) bool {
	for _, k := range kinds {
		if k.name == kind {
			return !k.people || k.net
		}
	}
	return kind != quietKind
}

// waited reports whether somebody waited for an acknowledgement for as long as a
// gap may be: who asks once does not.
func (f *findings) waited(g gap) bool {
	return slices.ContainsFunc(f.ops, func(o *op) bool {
		return o.Op == "dispatch" && o.ok() && o.Text != flooded && o.to >= g.to && o.from <= g.to-int64(gapMost)
	})
}

// tellGaps says how long no dispatch was acknowledged: at all, and after the
// stream's leader was killed.
func (f *findings) tellGaps() {
	acks := f.acked()
	if len(acks) == 0 {
		return
	}
	var kills []time.Duration
	last := acks[0] // fault: what is begun after it is a straggler's
	for _, o := range f.faults {
		if last = max(last, o.from); o.Op == killLeader {
			kills = append(kills, afterKill(acks, o).long())
		}
	}
	say("longest time without an acknowledged dispatch: %s", longest(acks, acks[0], last).long())
	slices.Sort(kills)
	if n := len(kills); n > 0 {
		say("after the kill of the stream's leader (%d times): least %s, median %s, most %s", n, kills[0], kills[n/2], kills[n-1])
	}
}
