package e2e_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestLostAcknowledgements plays every scenario with a router that is told of
// the first try of each write that it timed out, although it was done. Each
// story ends as if nothing had happened.
func TestLostAcknowledgements(t *testing.T) {
	crashBinary(t) // before the clocks run
	two := make(chan struct{}, 2)
	var mu sync.Mutex
	lost := map[string]bool{} // kinds of records
	t.Run("play", func(t *testing.T) {
		for _, sc := range scenarios {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				two <- struct{}{}
				defer func() { <-two }()
				kinds := sc.play(t, crashEnv(lostAcks), nil)
				mu.Lock()
				defer mu.Unlock()
				for _, k := range kinds {
					lost[k] = true
				}
			})
		}
	})
	for _, kind := range sourceKinds(t, "../../subjects/fleet/event.go") {
		if why := unreachable["before_store_"+kind]; !lost[kind] && why == "" {
			t.Errorf("no acknowledgement of a record %s was lost", kind)
		}
	}
}

// lostAcks stands in the place of a crash point for a worker that lives on, and
// is told of the first try of every write that it timed out.
const lostAcks = "lost acknowledgements"

// sweep plays something once for each of the points at which a worker dies, and
// once with one that loses acknowledgements.
func sweep(t *testing.T, points []string, play func(t *testing.T, point string)) {
	t.Helper()
	crashBinary(t) // before the clocks run
	two := make(chan struct{}, 2)
	for _, point := range append(slices.Clip(points), lostAcks) {
		if *pointFlag != "" && point != *pointFlag {
			continue
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			two <- struct{}{}
			defer func() { <-two }()
			play(t, point)
		})
	}
}

// crashEnv is the setting that has a worker of crashBinary die at point.
func crashEnv(point string) string {
	if point == lostAcks {
		return "PARLEY_LOSE_ACKS=first"
	}
	return "PARLEY_CRASH_AT=" + point
}

// dies waits until a worker has died at point, and says so; one that only loses
// acknowledgements does not.
func dies(t *testing.T, p *process, point string) bool {
	t.Helper()
	if point == lostAcks {
		return false
	}
	if !p.ended(patience) {
		t.Fatalf("%s is never passed\n%s", point, tail(p.log, 4000))
	}
	if !p.killed() {
		t.Fatalf("the worker did not die of SIGKILL: %s\n%s", p.ending(), tail(p.log, 4000))
	}
	return true
}

// checkLost fails a test whose worker was to lose acknowledgements, and lost
// none of a write to a subject that begins so.
func checkLost(t *testing.T, p *process, point, subject string) {
	t.Helper()
	log, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	if point == lostAcks && !strings.Contains(string(log), "lost acknowledgement of "+subject) {
		t.Errorf("%s lost no acknowledgement of %s\n%s", p.name, subject, tail(p.log, 4000))
	}
}

var lostLine = regexp.MustCompile(`(?m)^lost acknowledgement of \S+ (\w+)$`)

// lostKinds are the kinds of records whose acknowledgement a process lost.
func lostKinds(t *testing.T, p *process) (kinds []string) {
	t.Helper()
	log, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range lostLine.FindAllSubmatch(log, -1) {
		kinds = append(kinds, string(m[1]))
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}
