package router_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

// stuck is a task that waits for a human after agent a failed it.
func stuck(t *testing.T, terms string) (*world, *agent, subjects.TaskID) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"escalate":"always","max_retries":0,"agent":"a"`+terms))
	a.offered()
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	v := w.view(id)
	if v.State != fleet.StateInputRequired || v.Await != fleet.AwaitHuman || v.AgentID != "" || v.AlertAt == nil || v.GiveUpAt == nil {
		t.Fatalf("task = %+v, want it to wait for a human, with nobody holding it", v)
	}
	return w, a, id
}

func resume(w *world, from subjects.AgentID, r fleet.TaskResume) (fleet.TaskView, error) {
	w.t.Helper()
	return call[fleet.TaskView](w, from, "task", "resume", r)
}

func TestHumanDecides(t *testing.T) {
	t.Parallel()
	done := fleet.Result{Status: fleet.StatusDone, TokensSpent: 5}
	runFake(t, "retry", func(t *testing.T) {
		w, a, id := stuck(t, "")
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry}); err != nil {
			t.Fatal(err)
		}
		if d := a.offered(); d.Attempt != 2 || len(d.Tried) != 1 || d.Tried[0].Attempt != 1 || d.Human == nil || d.Human.By != "operator" {
			t.Errorf("offer after retry = attempt %d, tried %+v, human %+v", d.Attempt, d.Tried, d.Human)
		}
		// What fails then is the human's again, at once.
		if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
			t.Fatal(err)
		}
		if v := w.view(id); v.Await != fleet.AwaitHuman || v.Human != nil {
			t.Errorf("task = %+v, want it to wait for a human again", v)
		}
	})
	runFake(t, "answer", func(t *testing.T) {
		w, a, id := stuck(t, "")
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbAnswer, Text: "use port 81"}); err != nil {
			t.Fatal(err)
		}
		if d := a.offered(); d.Human == nil || d.Human.Text != "use port 81" {
			t.Errorf("offer = %+v, want the human's text", d.Human)
		}
		if _, err := a.result(id, done); err != nil {
			t.Fatal(err)
		}
		if v := w.outcome(id); v.State != fleet.StateDone || v.TokensSpent != 15 {
			t.Errorf("outcome = %s, %d tokens; want done, 15", v.State, v.TokensSpent)
		}
	})
	runFake(t, "reassign", func(t *testing.T) {
		w, _, id := stuck(t, "")
		_, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbReassign, AgentID: "b"})
		if e := subjects.AsError(err); err == nil || e.Code != subjects.CodeNotFound || e.Pointer != "/agent_id" {
			t.Errorf("reassign to a stranger = %v, want not_found at /agent_id", err)
		}
		b := w.join("b", nil)
		bustest.Eventually(t, "b is known", func() bool {
			_, err = resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbReassign, AgentID: "b"})
			return err == nil
		})
		b.offered()
		if _, err := b.result(id, done); err != nil {
			t.Fatal(err)
		}
		if v := w.outcome(id); v.State != fleet.StateDone || v.AgentID != "b" {
			t.Errorf("outcome = %s by %s, want done by b", v.State, v.AgentID)
		}
	})
	runFake(t, "complete", func(t *testing.T) {
		w, _, id := stuck(t, `,"result_schema":{"type":"integer"}`)
		r := fleet.TaskResume{TaskID: id, Verb: fleet.VerbComplete, By: "ann"}
		r.Result = []byte(`{"status":"done","tokens_spent":0,"next_steps":[],"output":"no"}`)
		if _, err := resume(w, "operator", r); subjects.CodeOf(err) != subjects.CodeResultInvalid {
			t.Errorf("a result that breaks the schema = %v, want result_invalid", err)
		}
		r.Result = []byte(`{"status":"blocked","tokens_spent":0,"next_steps":[],"blocked_reason":"x"}`)
		if _, err := resume(w, "operator", r); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
			t.Errorf("a result that is none = %v, want invalid_message", err)
		}
		r.Result = []byte(`{"status":"done","tokens_spent":0,"next_steps":[],"output":42}`)
		if _, err := resume(w, "escalation", r); err != nil {
			t.Fatal(err)
		}
		v := w.outcome(id)
		if v.State != fleet.StateDone || string(v.Result.Output) != "42" || v.Human == nil || v.Human.By != "ann" || v.TokensSpent != 10 {
			t.Errorf("outcome = %+v by %+v, want done with 42 by ann", v, v.Human)
		}
		_, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry})
		if e := subjects.AsError(err); e.Code != subjects.CodeLateResult || !strings.Contains(e.Message, "ann answered") {
			t.Errorf("a late answer = %v, want late_result that names ann", err)
		}
	})
	runFake(t, "cancel", func(t *testing.T) {
		w, _, id := stuck(t, "")
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbCancel, Text: "not wanted"}); err != nil {
			t.Fatal(err)
		}
		if v := w.outcome(id); v.State != fleet.StateCanceled || !strings.Contains(v.Reason.Message, "not wanted") {
			t.Errorf("outcome = %+v, want canceled, with the reason", v.Reason)
		}
	})
	runFake(t, "nobody else may", func(t *testing.T) {
		w, _, id := stuck(t, "")
		if _, err := resume(w, "boss", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry}); subjects.CodeOf(err) != subjects.CodeForbidden {
			t.Errorf("the task's owner = %v, want forbidden", err)
		}
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: "none", Verb: fleet.VerbRetry}); subjects.CodeOf(err) != subjects.CodeNotFound {
			t.Errorf("an unknown task = %v, want not_found", err)
		}
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Seq: 1, Verb: fleet.VerbRetry}); subjects.CodeOf(err) != subjects.CodeLateResult {
			t.Errorf("an answer to another record = %v, want late_result", err)
		}
	})
}

// TestTwoHumansAtOnce: one decides, the other is told who did; a repeat of the
// one who did is the same answer.
func TestTwoHumansAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTwoHumansAtOnce)
}

func testTwoHumansAtOnce(t *testing.T) {
	t.Helper()
	w, _, id := stuck(t, "")
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = resume(w, "escalation", fleet.TaskResume{
				TaskID: id, Verb: fleet.VerbCancel, By: fmt.Sprintf("human%d", i), AnswerID: fmt.Sprintf("n%d", i),
			})
		})
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case subjects.CodeOf(err) != subjects.CodeLateResult || !strings.Contains(err.Error(), "human"):
			t.Errorf("human %d: %v, want one winner, the others told who", i, err)
		}
	}
	if _, err := resume(w, "escalation", fleet.TaskResume{
		TaskID: id, Verb: fleet.VerbCancel, By: fmt.Sprintf("human%d", won), AnswerID: fmt.Sprintf("n%d", won),
	}); err != nil {
		t.Errorf("the winner again = %v, want the same answer", err)
	}
	if got, want := kinds(w.events(id)), "queued working human outcome"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}

// TestAnswerComesAgain: an answer whose repeat comes only when its task waits for
// a human again is the first one still; another with its id is refused.
func TestAnswerComesAgain(t *testing.T) {
	t.Parallel()
	w, a, id := stuck(t, "")
	answer := fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry, AnswerID: "n1"}
	for _, duplicate := range []bool{false, true} {
		v, err := resume(w, "operator", answer)
		if err != nil || v.Duplicate != duplicate {
			t.Fatalf("answer = duplicate %t, %v; want %t", v.Duplicate, err, duplicate)
		}
	}
	a.offered()
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{0, 3, w.view(id).Seq} {
		answer.Seq = seq
		if v, err := resume(w, "operator", answer); err != nil || !v.Duplicate || v.Await != fleet.AwaitHuman {
			t.Errorf("the repeat for record %d = %+v, %v; want the first answer, and the task to wait", seq, v, err)
		}
	}
	answer.Seq, answer.Verb = 0, fleet.VerbCancel
	if _, err := resume(w, "operator", answer); subjects.CodeOf(err) != subjects.CodeIdempotencyConflict {
		t.Errorf("another answer of that id = %v, want idempotency_conflict", err)
	}
	// Who answers what he saw before is told that it is over.
	_, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Seq: 3, Verb: fleet.VerbRetry, AnswerID: "n2"})
	if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeLateResult || !strings.Contains(e.Message, "since its record 6") {
		t.Errorf("an answer to the wait before = %v, want late_result that names the wait there is", err)
	}
	if got, want := kinds(w.events(id)), "queued working human resumed working human"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
	// Of many answers the latest are remembered.
	for i := range fleet.MaxDecisions + 2 {
		if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry, AnswerID: fmt.Sprintf("more%d", i)}); err != nil {
			t.Fatal(err)
		}
		a.offered()
		if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
			t.Fatal(err)
		}
	}
	events := w.events(id)
	if n := len(events[len(events)-1].Facts.Decisions); n != fleet.MaxDecisions {
		t.Errorf("%d answers are remembered, want %d", n, fleet.MaxDecisions)
	}
}

func TestNoHumanAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNoHumanAnswers)
}

func testNoHumanAnswers(t *testing.T) {
	t.Helper()
	w, _, id := stuck(t, `,"give_up_after":0.3`)
	v := w.outcome(id)
	if v.State != fleet.StateError || v.Reason.Code != subjects.CodeAgentError || !strings.Contains(v.Reason.Message, "no human answered") {
		t.Errorf("outcome = %s, %+v; want error that says that nobody answered", v.State, v.Reason)
	}
}

// TestBudgetNeedsAHuman: with the budget spent the next attempt is a human's to
// allow, and what was spent before counts.
func TestBudgetNeedsAHuman(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBudgetNeedsAHuman)
}

func testBudgetNeedsAHuman(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"escalate":"always","token_budget":15`))
	for range 2 {
		a.offered()
		if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
			t.Fatal(err)
		}
	}
	v := w.view(id)
	if v.Await != fleet.AwaitHuman || v.Reason.Code != subjects.CodeBudgetExhausted || v.TokensSpent != 20 {
		t.Fatalf("task = %+v, want it to wait with budget_exhausted, 20 tokens", v)
	}
	if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry}); err != nil {
		t.Fatal(err)
	}
	if d := a.offered(); d.Attempt != 3 {
		t.Errorf("attempt %d is offered, want 3", d.Attempt)
	}
}

// TestSpentLate: an attempt that timed out tells late what it spent.
func TestSpentLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSpentLate)
}

func testSpentLate(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"escalate":"always","max_retries":0,"agent":"a","timeout_seconds":0.2`))
	a.offered()
	bustest.Eventually(t, "the attempt times out", func() bool { return w.view(id).Await == fleet.AwaitHuman })
	late := failed(subjects.CodeAgentError, false)
	late.Attempt, late.TokensSpent = 1, 70
	for range 3 { // it repeats until it is answered
		if _, err := a.result(id, late); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := kinds(w.events(id)), "queued working human spent"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
	v := w.view(id)
	if v.TokensSpent != 70 || v.Attempts[0].Tokens != 70 {
		t.Errorf("tokens = %d, attempt %+v; want 70, once", v.TokensSpent, v.Attempts[0])
	}
	// It waits as before: who answers what was asked is not late.
	if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Seq: 3, Verb: fleet.VerbRetry}); err != nil {
		t.Errorf("an answer afterwards: %v", err)
	}
}

// TestInvalidWhileAHumanIsAsked: what a past holder hands in does not change what
// the human was asked, unless it is the result.
func TestInvalidWhileAHumanIsAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testInvalidWhileAHumanIsAsked)
}

func testInvalidWhileAHumanIsAsked(t *testing.T) {
	t.Helper()
	w, a, id := stuck(t, `,"result_schema":{"type":"integer"}`)
	before := w.events(id)[2]
	_, err := a.result(id, fleet.Result{Attempt: 1, TokensSpent: 10, Output: []byte(`"no"`)})
	if subjects.CodeOf(err) != subjects.CodeResultInvalid {
		t.Errorf("result = %v, want result_invalid", err)
	}
	events := w.events(id)
	if last := events[len(events)-1]; last.Seq != before.Seq || last.Facts.AskedSeq != before.Seq || len(last.Facts.Attempts) != 1 {
		t.Errorf("record %d asks since %d, after %d attempts; want %d", last.Seq, last.Facts.AskedSeq, len(last.Facts.Attempts), before.Seq)
	}
	if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Seq: before.Seq, Verb: fleet.VerbRetry}); err != nil {
		t.Errorf("an answer afterwards: %v", err)
	}
}

func TestPolicyIsFixed(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	w := &world{t: t, srv: srv, bus: srv.Bus(t)}
	retries := 7
	r, err := router.New(router.Config{
		Bus: srv.Connect(t), Backoff: escalation.Backoff{},
		Policy: router.Policy{MaxRetries: &retries, OnBlocked: fleet.OnBlockedWait, Escalate: fleet.EscalateNever, AlertRepeat: time.Minute, GiveUpAfter: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.run(r)
	id := w.send(dispatchJSON("x", ""))
	got := w.events(id)[0].Facts.Policy
	if got.MaxRetries != 7 || got.OnBlocked != fleet.OnBlockedWait || got.Escalate != fleet.EscalateNever || got.AlertRepeat != 60 || got.GiveUpAfter != 3600 {
		t.Errorf("policy = %+v, want the fleet's", got)
	}
	id = w.send(dispatchJSON("x", `"max_retries":0,"on_blocked":"fail","escalate":"auto","alert_repeat":5,"give_up_after":6`))
	got = w.events(id)[0].Facts.Policy
	if got.MaxRetries != 0 || got.OnBlocked != fleet.OnBlockedFail || got.Escalate != fleet.EscalateAuto || got.AlertRepeat != 5 || got.GiveUpAfter != 6 {
		t.Errorf("policy = %+v, want the dispatch's", got)
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("x", `"give_up_after":-1`)))
	if e := subjects.AsError(err); err == nil || e.Pointer != "/task/give_up_after" {
		t.Errorf("a negative give_up_after = %v, want it refused where it is", err)
	}
}
