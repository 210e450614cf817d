package router_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

func TestSilenceEndsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSilenceEndsTheLease)
}

func testSilenceEndsTheLease(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	a.stop()
	b := w.join("b", nil)
	if d := b.offered(); d.Task.TaskID != id || d.Attempt != 2 || d.Tried[0].Code != subjects.CodeAgentLost {
		t.Errorf("offer = %+v", d)
	}
	bustest.Eventually(t, "the record names b", func() bool { return w.view(id).AgentID == "b" })
	a.bus = w.srv.Connect(t)
	_, err := a.result(id, fleet.Result{Attempt: 1, Epoch: a.epoch})
	if !errors.Is(err, &subjects.Error{Code: subjects.CodeLateResult}) {
		t.Errorf("the lost agent's result = %v, want late_result", err)
	}
	if _, err := b.result(id, fleet.Result{Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	if v := w.outcome(id); v.State != fleet.StateDone || v.AgentID != "b" || v.Attempt != 2 {
		t.Errorf("outcome = %+v", v)
	}
}

func TestAPastHolderCountsWhileNobodyTookOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAPastHolderCountsWhileNobodyTookOver)
}

func testAPastHolderCountsWhileNobodyTookOver(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	w.join("b", nil)
	if _, err := call[fleet.AgentListReply](w, "operator", "agent", "drain", fleet.AgentDrain{AgentID: "b"}); err != nil {
		t.Fatal(err)
	}
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	a.stop()
	bustest.Eventually(t, "the lease ends", func() bool { return w.view(id).State == fleet.StateQueued })
	a.bus = w.srv.Connect(t)
	if r, err := a.result(id, fleet.Result{Attempt: 1, Epoch: a.epoch}); err != nil || r.State != fleet.StateDone {
		t.Errorf("result = %+v, %v; want it to count", r, err)
	}
	if v := w.outcome(id); v.AgentID != "a" {
		t.Errorf("outcome = %+v", v)
	}
}

// Whoever refuses a task has not taken it over.
func TestAPastHolderCountsAfterARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAPastHolderCountsAfterARefusal)
}

func testAPastHolderCountsAfterARefusal(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"on_blocked":"wait"`))
	a.offered()
	a.stop()
	b := w.join("b", nil)
	why := "server git does not answer"
	b.answers(func(fleet.Dispatch) any {
		return fleet.Result{
			Header: fleet.Header{Type: fleet.TypeResult}, Status: fleet.StatusBlocked, BlockedReason: &why,
			Error: &fleet.ResultError{Code: subjects.CodeMCPUnhealthy, Message: why},
		}
	})
	b.offered()
	bustest.Eventually(t, "b has refused", func() bool { return len(w.view(id).Attempts) == 2 })
	a.bus = w.srv.Connect(t)
	for range 2 {
		if r, err := a.result(id, fleet.Result{Attempt: 1, Epoch: a.epoch}); err != nil || r.State != fleet.StateDone {
			t.Errorf("result = %+v, %v; want it to count", r, err)
		}
	}
	if v := w.outcome(id); v.AgentID != "a" || v.Attempt != 1 {
		t.Errorf("outcome = attempt %d by %s, want the first, by a", v.Attempt, v.AgentID)
	}
}

func TestANewerEpochEndsTheLeaseAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testANewerEpochEndsTheLeaseAtOnce)
}

func testANewerEpochEndsTheLeaseAtOnce(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"alternatives":["b"],"agent":"a"`))
	a.offered()
	a.stop()
	<-time.After(time.Millisecond) // or its epoch is the same
	again := w.join("a", nil)
	if d := again.offered(); d.Task.TaskID != id || d.Attempt != 2 || !strings.Contains(d.Tried[0].Message, "restarted") {
		t.Errorf("offer = %+v", d)
	}
}

func TestCancelReachesTheHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testCancelReachesTheHolder)
}

func testCancelReachesTheHolder(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	bustest.Eventually(t, "the record names the holder", func() bool { return w.view(id).State == fleet.StateWorking })
	v, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: id, Reason: "changed my mind"})
	if err != nil || v.State != fleet.StateCanceled {
		t.Fatalf("cancel = %+v, %v", v, err)
	}
	if c := a.told(); c.Action != fleet.ActionCancel || c.TaskID != id || c.Reason.Code != subjects.CodeCanceled {
		t.Errorf("told %+v", c)
	}
	if r, err := a.result(id, fleet.Result{Attempt: 1, Epoch: a.epoch}); err != nil || r.State != fleet.StateCanceled {
		t.Errorf("the holder's result after the cancel = %+v, %v; want the final state", r, err)
	}
	again, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: id})
	if err != nil || again.State != fleet.StateCanceled {
		t.Errorf("cancel again = %+v, %v", again, err)
	}
	if v := w.outcome(id); v.State != fleet.StateCanceled || v.Result.Error.Code != subjects.CodeCanceled || v.Result.Status != fleet.StatusError {
		t.Errorf("outcome = %+v", v.Result)
	}
}

func TestAnotherRouterTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnotherRouterTakesOver)
}

func testAnotherRouterTakesOver(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	stop := w.router("second")
	w.router("third")
	a := w.join("a", func(ann *fleet.Announce) { ann.Worker.MaxParallel = 5 })
	var ids []subjects.TaskID
	for i := range 40 {
		ids = append(ids, w.send(dispatchJSON("x", fmt.Sprintf(`"agent":"a","alternatives":["alt-%d"]`, i%8))))
	}
	stop()
	for range ids {
		d := a.offered()
		if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt, Epoch: a.epoch}); err != nil {
			t.Errorf("result of %s: %v", d.Task.TaskID, err)
		}
	}
	for _, id := range ids {
		if v := w.outcome(id); v.State != fleet.StateDone {
			t.Errorf("task %s is %s", id, v.State)
		}
		w.events(id)
	}
}

func TestWorkThatNoRecordNamesIsRecalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testWorkThatNoRecordNamesIsRecalled)
}

func testWorkThatNoRecordNamesIsRecalled(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	a.mu.Lock()
	a.holding["ghost"] = 1
	a.mu.Unlock()
	if c := a.told(); c.Action != fleet.ActionCancel || c.TaskID != "ghost" || c.OfferID != "offer-of-ghost" || c.Reason.Code != subjects.CodeSuperseded {
		t.Errorf("told %+v, want a CANCEL of the offer that the heartbeat names", c)
	}
}

// TestAcceptanceThatIsNoHandshake says which member of it is wrong.
func TestAcceptanceThatIsNoHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	a.answers(func(fleet.Dispatch) any { return map[string]string{"accepted": "true"} })
	id := w.send(dispatchJSON("x", `"agent":"a","escalate":"never"`))
	v := w.outcome(id)
	if v.State != fleet.StateError || !strings.Contains(v.Reason.Message, "/accepted") || strings.Contains(v.Reason.Message, "/status") {
		t.Errorf("outcome = %s, %+v; want an error at /accepted", v.State, v.Reason)
	}
}

func TestAnOfferThatTimesOutIsRecalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnOfferThatTimesOutIsRecalled)
}

func testAnOfferThatTimesOutIsRecalled(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	a.answers(func(fleet.Dispatch) any { return nil })
	id := w.send(dispatchJSON("x", ""))
	first := a.offered()
	if c := a.told(); c.Action != fleet.ActionCancel || c.TaskID != id || first.OfferID == "" || c.OfferID != first.OfferID {
		t.Errorf("told %+v, want a CANCEL of offer %q", c, first.OfferID)
	}
	if second := a.offered(); second.Attempt != first.Attempt || second.OfferID == "" || second.OfferID == first.OfferID {
		t.Errorf("offer %q of attempt %d, then %q of attempt %d; want another offer of the same attempt", first.OfferID, first.Attempt, second.OfferID, second.Attempt)
	}
	if v := w.view(id); v.State != fleet.StateQueued || v.Attempt != 0 {
		t.Errorf("view = %+v, want queued and no attempt counted", v)
	}
	a.answers(nil)
	if d := a.offered(); d.Attempt != 1 {
		t.Errorf("offered attempt %d", d.Attempt)
	}
}

// An offer names the process that it is meant for, whatever the dispatch says.
func TestAnOfferNamesItsProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnOfferNamesItsProcess)
}

func testAnOfferNamesItsProcess(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(`{"epoch":9000000000000000000,"attempt":7,"task":{"agent":"a"},"brief":"x"}`)
	if d := a.offered(); d.Task.TaskID != id || d.Epoch != a.epoch || d.Attempt != 1 {
		t.Errorf("offered %s, attempt %d, for epoch %d; want %s, 1, %d", d.Task.TaskID, d.Attempt, d.Epoch, id, a.epoch)
	}
}
