package router_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	inSession = `,"session_id":"a2a-20260531T210000Z-7f3a9c21","session_token_budget":25`
	inRun     = `,"run_id":"r1","run_token_budget":25`
)

// TestSharedBudget: what the tasks of a session, or of a run, spend adds up over
// all routers, later ones included; once it has reached the ceiling no attempt
// begins without a human.
func TestSharedBudget(t *testing.T) {
	t.Parallel()
	for of, terms := range map[string]string{"session": inSession, "run": inRun} {
		runFake(t, of, func(t *testing.T) {
			w := newWorld(t, 2)
			a := w.join("a", nil)
			for range 3 { // 10 each, and one of them says so twice
				id := w.send(dispatchJSON("x", `"escalate":"always"`+terms))
				a.offered()
				for range 2 {
					if _, err := a.result(id, fleet.Result{Status: fleet.StatusDone, TokensSpent: 10, Attempt: 1}); err != nil {
						t.Fatal(err)
					}
				}
				w.outcome(id)
			}
			w.router("later")
			id := w.send(dispatchJSON("x", `"escalate":"always"`+terms))
			bustest.Eventually(t, "a human to be asked", func() bool { return w.view(id).Await == fleet.AwaitHuman })
			v := w.view(id)
			if v.Reason.Code != subjects.CodeBudgetExhausted || v.Attempt != 0 || !strings.Contains(v.Reason.Message, of+"'s token budget of 25 is spent (30)") {
				t.Errorf("task = attempt %d, %+v; want it barred", v.Attempt, v.Reason)
			}
			if len(v.Shared) != 1 || v.Shared[0] != (fleet.SharedBudget{Of: of, TokenBudget: 25, TokensSpent: 30}) {
				t.Errorf("shared budgets = %+v", v.Shared)
			}
			if _, err := resume(w, "operator", fleet.TaskResume{TaskID: id, Verb: fleet.VerbRetry}); err != nil {
				t.Fatal(err)
			}
			if d := a.offered(); d.Attempt != 1 || d.Human == nil {
				t.Errorf("after the human allowed it: %+v", d)
			}
			if _, err := a.result(id, fleet.Result{Status: fleet.StatusDone}); err != nil {
				t.Fatal(err)
			}
			// What has no ceiling of its own is not held back.
			free := w.send(dispatchJSON("x", `"escalate":"always"`+strings.Split(terms, `,"`+of+`_token`)[0]))
			if d := a.offered(); d.Task.TaskID != free {
				t.Errorf("offered %s, want %s", d.Task.TaskID, free)
			}
		})
	}
}

// TestSpentAfterTheEnd: what is spent on a task that has ended counts for its
// session, and changes nothing of the task.
func TestSpentAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSpentAfterTheEnd)
}

func testSpentAfterTheEnd(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"escalate":"always"`+inSession))
	a.offered()
	bustest.Eventually(t, "the record to say who holds it", func() bool { return w.view(id).State == fleet.StateWorking })
	if _, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.result(id, fleet.Result{Status: fleet.StatusDone, TokensSpent: 40, Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	v := w.view(id)
	if v.TokensSpent != 0 || v.State != fleet.StateCanceled || len(v.Shared) != 1 || v.Shared[0].TokensSpent != 40 {
		t.Errorf("task = %s, %d tokens, shared %+v; want it canceled with 0, and 40 in its session", v.State, v.TokensSpent, v.Shared)
	}
}

func TestSharedBudgetOfNothing(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"session", "run"} {
		_, err := fleet.DecodeDispatch([]byte(dispatchJSON("x", fmt.Sprintf(`"%s_token_budget":5`, of))))
		if e := subjects.AsError(err); err == nil || e.Pointer != "/task/"+of+"_token_budget" || e.Remedy == "" {
			t.Errorf("a budget without a %s = %v, want it refused where it is", of, err)
		}
	}
}
