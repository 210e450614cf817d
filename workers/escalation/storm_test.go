package escalation_test

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

var stormFlag = flag.Int("storm", 3000, "tasks of TestStorm")

// TestStorm: thousands of tasks fail at once for two causes while nobody takes
// any call. They are two alerts, each called as often as its chain says and not
// as often as it has tasks; none is lost; and one answer is about all of them.
func TestStorm(t *testing.T) {
	t.Parallel()
	n := *stormFlag
	if testing.Short() {
		n = 500
	}
	w := newWorld(t, bustest.New(t))
	for range 2 {
		w.worker(escalation.Config{Chain: quick("dead")})
	}
	ids := make(chan int)
	var writers sync.WaitGroup
	for range 64 {
		writers.Go(func() {
			for i := range ids {
				agent := subjects.AgentID("a")
				if i%10 == 0 {
					agent = "b"
				}
				w.wait(subjects.TaskID(fmt.Sprintf("t%d", i)), agent, subjects.CodeAgentError)
			}
		})
	}
	for i := range n {
		ids <- i
	}
	close(ids)
	writers.Wait()
	byAgent := func() map[string]fleet.Alert {
		m := map[string]fleet.Alert{}
		for _, a := range w.list() {
			m[a.Group["agent"]] = a
		}
		return m
	}
	eventually(t, "every task is part of an alert", func() bool {
		m := byAgent()
		return m["a"].Count == n-n/10 && m["b"].Count == n/10
	})
	if got := len(w.escalations()); got != n {
		t.Errorf("%d escalations are kept, want %d", got, n)
	}
	eventually(t, "both alerts are called", func() bool { return byAgent()["a"].Calls > 0 && byAgent()["b"].Calls > 0 })
	if l := w.list(); len(l) != 2 || l[0].Calls != 1 || l[1].Calls != 1 {
		t.Errorf("%d alerts, called %d and %d times; want 2, called once", len(l), l[0].Calls, l[1].Calls)
	}
	seen := map[subjects.DeliveryID]bool{}
	for _, d := range w.deliveries() {
		if seen[d.DeliveryID] {
			t.Errorf("delivery %s is there twice", d.DeliveryID)
		}
		seen[d.DeliveryID] = true
		if len(d.Body) > 20<<10 {
			t.Errorf("a call has %d bytes", len(d.Body))
		}
	}
	if len(seen) != 2 {
		t.Errorf("%d deliveries, want one for each alert", len(seen))
	}
	a := byAgent()["a"].AlertID
	go func() { // it outlasts a request's time
		_ = w.bus.Publish(subjects.API("operator", "escalation", "retry"), fleet.MustEncode(fleet.EscalationAnswer{ID: a}), nil)
	}()
	eventually(t, "one answer lets all of them go on", func() bool { return byAgent()["a"].State == fleet.AlertResolved })
	tasks := map[subjects.TaskID]bool{}
	for _, r := range w.resumed() {
		tasks[r.TaskID] = true
	}
	if len(tasks) != n-n/10 || byAgent()["b"].Count != n/10 {
		t.Errorf("%d tasks went on and %d wait, want %d and %d", len(tasks), byAgent()["b"].Count, n-n/10, n/10)
	}
}

// eventually waits longer than bustest.Eventually does: for thousands.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(5 * bustest.Patience)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit.C:
			t.Fatalf("%s: not in time", what)
		case <-tick.C:
		}
	}
}
