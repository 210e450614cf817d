package router_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

func TestARestartForgetsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testARestartForgetsNothing)
}

func testARestartForgetsNothing(t *testing.T) {
	t.Helper()
	w := newWorld(t, 0)
	stop := w.router("first")
	a := w.join("a", func(ann *fleet.Announce) { ann.Worker.MaxParallel = 2 })
	running := w.send(dispatchJSON("x", ""))
	asking := w.send(dispatchJSON("x", ""))
	for range 2 {
		a.offered()
	}
	q := fleet.MustEncode(fleet.Progress{Question: &fleet.Question{ID: "q", Text: "?"}})
	if _, err := a.report(subjects.Progress("a", asking), q, asking); err != nil {
		t.Fatal(err)
	}
	var queued []subjects.TaskID
	for i := range 30 {
		queued = append(queued, w.send(dispatchJSON("x", fmt.Sprintf(`"task_id":"q-%d"`, i))))
	}
	retry := w.join("flaky", func(ann *fleet.Announce) {
		ann.Capabilities, ann.MCPHealth = fleet.Capabilities{Tools: []string{"flaky"}}, nil
	})
	again := w.send(`{"task":{"task_id":"retry"},"requirements":{"required_capabilities":["flaky"]},"brief":"x"}`)
	retry.offered()
	if _, err := retry.result(again, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	done := w.send(`{"task":{"task_id":"done"},"requirements":{"required_capabilities":["flaky"]},"brief":"x"}`)
	for range 2 {
		d := retry.offered()
		if _, err := retry.result(d.Task.TaskID, fleet.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	missed := w.send2(dispatchJSON("x", `"task_id":"by-the-raw-door"`)) // while nobody routes
	w.router("second")
	if v := w.view(running); v.State != fleet.StateWorking || v.AgentID != "a" {
		t.Errorf("running task is %s by %s", v.State, v.AgentID)
	}
	if v := w.view(asking); v.State != fleet.StateInputRequired || v.Question == nil {
		t.Errorf("asking task is %s", v.State)
	}
	if v := w.outcome(done); v.State != fleet.StateDone {
		t.Errorf("done task is %s", v.State)
	}
	if _, err := call[fleet.TaskView](w, "boss", "task", "answer", fleet.TaskAnswer{TaskID: asking, Text: "yes"}); err != nil {
		t.Fatal(err)
	}
	if c := a.told(); c.Action != fleet.ActionInput || c.TaskID != asking {
		t.Errorf("told %+v", c)
	}
	for _, id := range []subjects.TaskID{running, asking} {
		if _, err := a.result(id, fleet.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	var order []subjects.TaskID
	for range len(queued) + 1 {
		d := a.offered()
		order = append(order, d.Task.TaskID)
		if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt}); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range queued {
		if at := slices.Index(order, id); at < 0 || at > i+8 { // two slots, and a busy machine
			t.Errorf("task %s, queued as number %d, was started as number %d", id, i, at)
		}
	}
	for _, id := range append(queued, running, asking, missed, again) {
		if v := w.outcome(id); v.State != fleet.StateDone {
			t.Errorf("task %s is %s", id, v.State)
		}
		w.events(id)
	}
}

// send2 dispatches by the raw door.
func (w *world) send2(dispatch string) subjects.TaskID {
	w.t.Helper()
	d, err := fleet.DecodeDispatch([]byte(dispatch))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.bus.Store(w.t.Context(), subjects.Dispatch("boss"), []byte(dispatch), "", nil); err != nil {
		w.t.Fatal(err)
	}
	return d.Task.TaskID
}

func TestPrioritiesShareWithoutStarving(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testPrioritiesShareWithoutStarving)
}

func testPrioritiesShareWithoutStarving(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	first := w.send(dispatchJSON("x", ""))
	a.offered()
	for i := range 15 {
		w.send(dispatchJSON("x", fmt.Sprintf(`"task_id":"low-%d","priority":"low"`, i)))
		w.send(dispatchJSON("x", fmt.Sprintf(`"task_id":"critical-%d","priority":"urgent"`, i)))
	}
	if _, err := a.result(first, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	low, at := 0, 0
	for i := range 16 {
		d := a.offered()
		if d.Task.Priority == fleet.Low {
			low++
			at = i
		}
		if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt}); err != nil {
			t.Fatal(err)
		}
	}
	if low < 1 || low > 2 || low == 2 && at < 9 {
		t.Errorf("%d low tasks among the first 16, the last at %d; want one in nine", low, at)
	}
}

func TestTooManyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTooManyWaiting)
}

func testTooManyWaiting(t *testing.T) {
	t.Helper()
	w := newWorld(t, 0)
	r, err := router.New(router.Config{Bus: w.srv.Connect(t), MaxQueued: 3})
	if err != nil {
		t.Fatal(err)
	}
	w.run(r)
	a := w.join("a", nil)
	busy := w.send(dispatchJSON("x", ""))
	a.offered()
	bustest.Eventually(t, "it works", func() bool { return w.view(busy).State == fleet.StateWorking })
	byID, byKey := dispatchJSON("x", `"task_id":"mine"`), dispatchJSON("x", `"idempotency_key":"mine"`)
	accepted := []subjects.TaskID{w.send(byID), w.send(byKey), w.send(dispatchJSON("x", ""))}
	for i, again := range []string{byID, byKey} {
		if n, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(again)); err != nil || !n.Duplicate || n.TaskID != accepted[i] {
			t.Errorf("a repeat while there is no room = %+v, %v, want task %s", n, err, accepted[i])
		}
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("x", "")))
	if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds <= 0 {
		t.Fatalf("the fourth that waits = %v, want rate_limited with retry-after", err)
	}
	raw := w.send2(dispatchJSON("x", `"task_id":"waits-outside"`))
	if _, err := a.result(busy, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		d := a.offered()
		if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt}); err != nil {
			t.Fatal(err)
		}
	}
	if v := w.outcome(raw); v.State != fleet.StateDone {
		t.Errorf("the task that waited in the inbox is %s", v.State)
	}
}
