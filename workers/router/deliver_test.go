package router_test

import (
	"strings"
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Who adds to a task, or answers its question, learns when its agent gets it;
// an answer that one attempt got is told the next.
func TestDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.send(dispatchJSON("x", `"max_retries":1`))
	message := func(text string) fleet.TaskView {
		t.Helper()
		v, err := call[fleet.TaskView](w, "boss", "task", "message", fleet.TaskMessage{TaskID: id, Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := message("one"); v.Delivered != fleet.DeliveredNextAttempt {
		t.Errorf("nobody has the task: delivered = %q, want next_attempt", v.Delivered)
	}
	a := w.join("a", nil)
	if d := a.offered(); len(d.Messages) != 1 {
		t.Errorf("offer = %+v", d.Messages)
	}
	bustest.Eventually(t, "the record names the holder", func() bool { return w.view(id).State == fleet.StateWorking })
	a.says(fleet.DeliveredNow)
	if v := message("two"); v.Delivered != fleet.DeliveredNow {
		t.Errorf("delivered = %q, want now", v.Delivered)
	}
	ask := fleet.MustEncode(fleet.Progress{Attempt: 1, Epoch: a.epoch, Question: &fleet.Question{ID: "q1", Text: "which branch?"}})
	if _, err := a.report(subjects.Progress("a", id), ask, id); err != nil {
		t.Fatal(err)
	}
	a.says(fleet.DeliveredNextAttempt)
	v, err := call[fleet.TaskView](w, "boss", "task", "answer", fleet.TaskAnswer{TaskID: id, Text: "main"})
	if err != nil || v.Delivered != fleet.DeliveredNextAttempt {
		t.Errorf("answer = %q, %v; want next_attempt", v.Delivered, err)
	}
	if _, err := a.result(id, fleet.Result{
		Status: fleet.StatusError, Attempt: 1, Epoch: a.epoch,
		Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: "no", Retryable: true},
	}); err != nil {
		t.Fatal(err)
	}
	d := a.offered()
	if n := len(d.Messages); n != 3 || d.Messages[2].ID != "answer.q1" || !strings.HasSuffix(d.Messages[2].Text, ": main") || d.Messages[2].From != "boss" {
		t.Errorf("offer of attempt %d = %+v; want the answer last", d.Attempt, d.Messages)
	}
}
