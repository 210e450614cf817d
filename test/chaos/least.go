//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// least is how little a check may have looked at: it would find nothing where it
// looks at nothing.
type least struct {
	count     string // of findings.counts
	few, many int    // in a run of aWhile, and in a long one
	kind      string // of fault without which there is nothing to look at
}

// From how long a run on it must have looked at few of everything, and at many. A
// short one is for a bug that is planted, or for a look.
const (
	aWhile  = 4 * time.Minute
	longRun = 30 * time.Minute
)

// leasts are far below what is usual, for a machine that has other work, too: five
// minutes at 80 tasks a second have five to ten times as much, and so has an hour at 40.
// What is looked at only while nothing is wrong is wanted of a long run.
var leasts = []least{
	{"task records", 10_000, 50_000, ""}, // 1 to 5
	{"ends told", 200, 1000, ""},
	{"senders", 2500, 12_000, ""},      // 12
	{"retries put off", 200, 1000, ""}, // 5
	{"levels climbed", 300, 1500, ""},
	{"offers", 3000, 15_000, ""}, // 6
	{"offers that ask for somebody", 150, 700, ""},
	{"deadlines passed", 40, 200, ""}, // 7
	{"what was due with nothing wrong", 0, 1, ""},
	{"budgets", 2500, 12_000, ""},
	{"level 3", 20, 100, ""}, // 8
	{"times told of a wait", 60, 300, ""},
	{"webhook calls", 60, 300, ""},
	{"calls tried again", 15, 60, ""},
	{"answers and acknowledgements", 12, 60, ""},
	{"steps of keys", 1, 4, replaceKey},
	{"calls signed by two keys", 3, 20, replaceKey},
	{"tries after the end of a session", 30, 150, ""}, // 9
	{"contexts", 40, 200, ""},                         // 10
	{"appends", 120, 600, ""},
	{"audit lines", 15_000, 80_000, ""}, // 11
	{"lines stored with changes", 400, 2000, ""},
	{"changes that clients were told of", 50, 250, ""},
	{"dispatches by key", 150, 700, ""}, // 13
	{"keys misused", 60, 300, ""},
	{"letters", 500, 3000, ""}, // 14
	{"letters to nobody", 15, 80, ""},
	{"runs", 50, 250, ""}, // 15
	{"nodes after others", 60, 300, ""},
	{"documents read again", 20, 100, ""},
	{"secrets offered", 2500, 12_000, ""}, // 16
	{"secrets of sessions offered", 30, 150, ""},
	{"secrets asked for", 150, 900, ""},
	{"copies sent: append", 20, 100, ""}, // 17
	{"copies sent: decision", 8, 40, ""},
	{"copies sent: dispatch", 40, 200, ""},
	{"copies sent: failed result", 30, 150, ""},
	{"copies sent: letter", 30, 150, ""},
	{"copies sent: message of A2A", 4, 20, ""},
	{"copies sent: progress", 15, 70, ""},
	{"copies sent: receipt", 20, 100, ""},
	{"copies sent: result", 40, 200, ""},
	{"copies sent: run", 20, 100, ""},
	{"copies sent: schedule", 10, 40, ""},
	{"links used again", 10, 50, ""},
	{"answers of humans", 15, 80, ""},
	{"pieces of output", 60, 300, ""},
	{"charges", 250, 1200, ""}, // 19
	{"balances told", 30, 150, ""},
	{"tasks that share a budget", 80, 400, ""},
	{"tasks that share a budget, which is spent", 60, 300, ""},
	{"cancels", 50, 250, ""}, // 21
	{"agents told of a cancel", 0, 1, ""},
	{"A2A streams", 15, 60, ""}, // 22
	{"A2A streams taken up", 15, 60, ""},
	{"events of A2A streams", 80, 400, ""},
	{"dispatches over a limit", 40, 200, ""},
	{"dispatches that are too long", 5, 25, ""},
	{"silences", 0, 1, muteAgents}, // 24
	{"schedules", 8, 40, ""},       // S
	{"times of schedules", 25, 120, ""},
	{"processes at rest", 11, 11, ""}, // 25
	{"replicas", 6, 6, ""},            // R
	{"operations of L contexts", 400, 2000, ""},
	{"operations of L leases", 1500, 7000, ""},
	{"operations of L tasks", 5000, 25_000, ""},
	{"reads of tasks", 250, 1200, ""},
	{"tasks of agents that are killed, paused and limited", 200, 1000, ""}, // 26
	{"waits for an agent", 200, 1000, ""},                                  // 27
	{"losses", 30, 200, ""},                                                // 28, 29
	{"losses answered", 25, 150, ""},
	{"suspects", 4, 20, ""},
	{"limits of accounts", 2, 15, ""}, // 30
	{"probes of accounts", 1, 10, ""},
	{"executions of tasks of pools", 200, 1000, ""},                   // 31
	{"reasons of waiting told", 0, 20, ""},                            // 32
	{"starts while tasks of each priority wait", 20, 200, ""},         // 33
	{"kills of the leader with nothing else wrong", 1, 2, killLeader}, // G
}

// little says of what a run has had too little to prove anything.
func (s *settings) little(f *findings) (little []string) {
	want := func(have, least int, of string) {
		if have < least {
			little = append(little, fmt.Sprintf("%d %s, want %d", have, of, least))
		}
	}
	by, faults := f.done()
	want(f.counts["acknowledged dispatches"], 1, "acknowledged dispatches")
	want(faults, s.faults, "faults")
	want(len(by), s.kinds, "kinds of faults")
	want(f.counts["tasks"], s.tasks, "tasks")
	for _, k := range s.must {
		if by[k] == 0 {
			little = append(little, "no "+k)
		}
	}
	for _, l := range leasts {
		switch {
		case s.time < aWhile, l.kind != "" && by[l.kind] == 0:
		case s.time < longRun:
			want(f.counts[l.count], l.few, l.count)
		default:
			want(f.counts[l.count], l.many, l.count)
		}
	}
	return little
}

// mustHave is the flag that names kinds of faults.
func (s *settings) mustHave(names string) error {
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
			return fmt.Errorf("%q is no kind of fault", name)
		}
		s.must = append(s.must, name)
	}
	return nil
}

// possible is an error where the machine cannot do what must happen.
func (s *settings) possible(w *world) error {
	no := slices.DeleteFunc(refused(w), func(k string) bool { return !slices.Contains(s.must, k) })
	if len(no) > 0 {
		return fmt.Errorf("%w: this machine cannot do what must happen: %s", errLittle, strings.Join(no, ", "))
	}
	return nil
}

// What more is planned than must happen, since a fault that takes its time leaves
// no time for the next: so many kinds, and each that must so often.
const (
	kindsMore = 2
	mustTimes = 2
)

// good reports whether a plan is good for enough kinds of faults, and for those
// that must happen.
func (s *settings) good(list []fault) bool {
	by := map[string]int{}
	for _, f := range list {
		by[f.kind]++
	}
	for _, k := range s.must {
		if by[k] < mustTimes {
			return false
		}
	}
	return s.kinds == 0 || kindsIn(list) >= s.kinds+kindsMore
}
