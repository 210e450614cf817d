package router_test

import (
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// What the running attempt said that it has spent counts when its task is
// canceled.
func TestCanceledHasSpent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	bustest.Eventually(t, "the record names the holder", func() bool { return w.view(id).State == fleet.StateWorking })
	for _, tokens := range []int64{600, 1800} {
		p := fleet.MustEncode(fleet.Progress{Attempt: 1, Epoch: a.epoch, TokensSpent: &tokens})
		if _, err := a.report(subjects.Progress("a", id), p, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: id}); err != nil {
		t.Fatal(err)
	}
	v := w.outcome(id)
	if v.TokensSpent != 1800 || v.Result.TokensSpent != 1800 {
		t.Errorf("outcome has %d tokens, its result %d; want 1800", v.TokensSpent, v.Result.TokensSpent)
	}
	events := w.events(id)
	if s := events[len(events)-1].Data.Spent; s == nil || s.AgentID != "a" || s.Attempt != 1 || s.Tokens != 1800 {
		t.Errorf("spent = %+v, want 1800 by a in attempt 1", s)
	}
}

// An offer says what its attempt may spend of all budgets.
func TestOfferSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"token_budget":1000,"run_id":"r","run_token_budget":5000,"max_retries":1`))
	if d := a.offered(); d.TokensLeft != 1000 {
		t.Errorf("offer has %d tokens left, want 1000", d.TokensLeft)
	}
	if _, err := a.result(id, fleet.Result{
		Status: fleet.StatusError, TokensSpent: 300, Attempt: 1, Epoch: a.epoch,
		Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: "no", Retryable: true},
	}); err != nil {
		t.Fatal(err)
	}
	if d := a.offered(); d.Attempt != 2 || d.TokensLeft != 700 {
		t.Errorf("offer of attempt %d has %d tokens left, want 700", d.Attempt, d.TokensLeft)
	}
	if _, err := a.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	w.send(dispatchJSON("y", `"run_id":"r","run_token_budget":400`))
	if d := a.offered(); d.TokensLeft != 100 {
		t.Errorf("offer has %d tokens left of its run, want 100", d.TokensLeft)
	}
	w.outcome(id)
}
