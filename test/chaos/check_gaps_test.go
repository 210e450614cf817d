//go:build linux

package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

// killed is what is left behind where the leader is killed at second 100 after
// a second of calm, and a dispatch waits for 9 s.
func killed() *findings {
	f := &findings{counts: map[string]int{}}
	for s := range 300 {
		if s > 101 && s < 110 {
			continue
		}
		f.ops = append(f.ops, &op{line: line{Client: "boss0", Op: "dispatch"}, end: line{What: wasOK}, from: at(s), to: at(s) + int64(time.Millisecond)})
	}
	f.ops = append(f.ops, &op{line: line{Client: "boss0", Op: "dispatch"}, end: line{What: wasOK}, from: at(102), to: at(110)})
	planFault(f, killLeader, 100, 108)
	return f
}

// silent has nobody's dispatch acknowledged between two seconds, though somebody
// asks.
func silent(f *findings, from, to int) {
	f.ops = slices.DeleteFunc(f.ops, func(o *op) bool { return o.to > at(from) && o.to < at(to) })
	f.ops = append(f.ops, &op{line: line{Client: "boss1", Op: "dispatch"}, end: line{What: wasOK}, from: at(from), to: at(to)})
}

func plantedInGaps() []planting {
	const want = "G gap: 09:01:40: after the kill of the stream's leader no dispatch was acknowledged for "
	return []planting{
		{"a long one", want, func(f *findings) { silent(f, 101, 113) }},
		{"one that begins later", want, func(f *findings) { silent(f, 106, 118) }},
		{"beside what becomes of workers and agents", want, func(f *findings) {
			silent(f, 101, 113)
			planFault(f, killWorker, 98, 103)
			planFault(f, pauseAgents, 102, 104)
			planFault(f, quietKind, 90, 120)
		}},
		{"long after another fault", want, func(f *findings) {
			silent(f, 101, 113)
			planFault(f, powerAll, 80, 94)
		}},
		{"before another fault", want, func(f *findings) {
			silent(f, 101, 130)
			planFault(f, cutServer, 115, 120)
		}},
	}
}

// TestCheckerExcusesGaps: a gap that something else explains is not called a
// violation, nor a time in which nobody asks.
func TestCheckerExcusesGaps(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		alone int // kills that are looked at
		plant func(f *findings)
	}{
		"nobody asks": {1, func(f *findings) {
			f.ops = slices.DeleteFunc(f.ops, func(o *op) bool { return o.to > at(101) && o.to < at(130) })
		}},
		"another fault just before": {0, func(f *findings) {
			silent(f, 101, 130)
			planFault(f, cutServer, 90, 96)
		}},
		"another kill just before": {1, func(f *findings) {
			silent(f, 101, 130)
			planFault(f, killLeader, 89, 97)
		}},
		"a link that is cut meanwhile": {0, func(f *findings) {
			silent(f, 101, 130)
			planFault(f, cutZone, 105, 109)
		}},
		"another fault without end": {0, func(f *findings) {
			silent(f, 101, 130)
			planFault(f, pauseServer, 20, 20)
			f.faults[1].to = math.MaxInt64
		}},
		"a machine that is away meanwhile": {0, func(f *findings) {
			silent(f, 101, 130)
			f.away = spans{{at(108), at(109)}}
		}},
		"a dispatch that nobody repeats": {1, func(f *findings) {
			silent(f, 101, 130)
			last := f.ops[len(f.ops)-1]
			last.from = at(125)
		}},
		"no kill at all": {0, func(f *findings) {
			silent(f, 101, 130)
			f.faults = nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := killed()
			tt.plant(f)
			if found := verdict(f, (*findings).checkGaps); found != "" || f.counts["kills of the leader with nothing else wrong"] != tt.alone {
				t.Errorf("%d kills are looked at, want %d:\n%s", f.counts["kills of the leader with nothing else wrong"], tt.alone, found)
			}
		})
	}
}
