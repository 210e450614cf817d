package router

import (
	"slices"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// A task that another router has given to anybody meanwhile is not given up for
// the agent that it was to be tried again by.
func TestForsakenOnce(t *testing.T) {
	t.Parallel()
	e := working(testRecord(t, "x", `,"max_retries":1`, now0), holder{"a", "1", 1}, now0)
	e, action := failed(e, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
	if e.Kind != fleet.KindRetry {
		t.Fatalf("a failure worth another try is answered by %T", action)
	}
	e, _ = forsaken(e, settings{}, now0)
	if e == nil || e.Kind != fleet.KindReroute || len(need(e).Only) > 0 {
		t.Fatalf("its agent is gone, and the record is %+v", e)
	}
	if n, action := forsaken(e, settings{}, now0); n != nil {
		t.Errorf("once more, and it is %s: %T", n.State, action)
	}
}

// What its agent handed back as it stopped, before it was gone, is as if it had
// not been: the task that it was to try again goes to its alternatives. One that
// waits until it can be done goes on waiting.
func TestForsakenAfterItWasHandedBack(t *testing.T) {
	t.Parallel()
	h := holder{"a", "1", 1}
	again := func(terms string) *fleet.Event {
		t.Helper()
		e := working(testRecord(t, "x", `,"agent":"a","max_retries":2`+terms, now0), h, now0)
		e, _ = failed(e, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
		return working(e, h, now0)
	}
	e, action := failed(again(`,"alternatives":["b"]`), failure{code: subjects.CodeAgentBusy}, settings{}, now0)
	if e.Kind != fleet.KindReturned {
		t.Fatalf("what is handed back is answered by %T", action)
	}
	n, _ := forsaken(e, settings{}, now0)
	if n == nil || n.Kind != fleet.KindReroute || !slices.Equal(need(n).Only, []subjects.AgentID{"b"}) {
		t.Fatalf("its agent is gone, and the record is %+v", n)
	}
	if n, action := forsaken(n, settings{}, now0); n != nil {
		t.Errorf("once more, and it is %s: %T", n.State, action)
	}
	e, action = failed(again(`,"on_blocked":"wait"`), failure{code: subjects.CodeMCPUnhealthy}, settings{}, now0)
	if e.Kind != fleet.KindReroute {
		t.Fatalf("what is blocked is answered by %T", action)
	}
	if n, action := forsaken(e, settings{}, now0); n != nil {
		t.Errorf("what waits for its agent is %s: %T", n.State, action)
	}
}
