package e2e_test

import (
	"os"
	"regexp"
	"slices"
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
				kinds := sc.play(t, "PARLEY_LOSE_ACKS=first", nil)
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
