package router_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestFollowUps checks that every follow-up is a record, that the holder hears
// those that came after its offer and the next attempt finds all of them in its
// own, and that a repeat is the same message.
func TestFollowUps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFollowUps)
}

func testFollowUps(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	bob := w.join("bob", nil)
	id := w.send(`{"task":{"task_id":"f1"},"brief":"x","input":{"context_id":"c 1","parts":[{"text":"x"}]}}`)
	bob.offered()
	bustest.Eventually(t, "bob to hold the task", func() bool { return w.view(id).State == fleet.StateWorking })
	for range 2 {
		v, err := call[fleet.TaskView](w, "boss", "task", "message", fleet.TaskMessage{TaskID: id, ID: "m1", MessageID: "mine", Text: "and quickly"})
		if err != nil || v.TaskID != id {
			t.Fatalf("task message = %+v, %v", v, err)
		}
	}
	if c := bob.told(); c.Action != fleet.ActionInput || c.ID != "m1" || c.Text != "and quickly" {
		t.Errorf("the agent heard %+v, want the follow-up", c)
	}
	if _, err := call[fleet.TaskView](w, "mallory", "task", "message", fleet.TaskMessage{TaskID: id, Text: "x"}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("a stranger's follow-up = %v, want not_found", err)
	}
	if _, err := call[fleet.TaskView](w, "boss", "task", "message", fleet.TaskMessage{TaskID: id, Text: strings.Repeat("x", 200<<10)}); subjects.CodeOf(err) != subjects.CodePayloadTooLarge {
		t.Errorf("a huge follow-up = %v, want payload_too_large", err)
	}
	if _, err := bob.result(id, fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: "again", Retryable: true}}); err != nil {
		t.Fatal(err)
	}
	again := bob.offered()
	if len(again.Messages) != 1 || again.Messages[0].MessageID != "mine" || again.Messages[0].From != "boss" {
		t.Errorf("the second offer has the follow-ups %+v, want the one", again.Messages)
	}
	bustest.Eventually(t, "bob to hold it again", func() bool { return w.view(id).Attempt == 2 })
	if _, err := bob.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	if _, err := call[fleet.TaskView](w, "boss", "task", "message", fleet.TaskMessage{TaskID: id, Text: "late"}); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
		t.Errorf("a follow-up of an ended task = %v, want invalid_message", err)
	}
	records := w.events(id)
	for _, e := range records {
		if e.Facts.ContextID != "c 1" {
			t.Errorf("record %d has context %q", e.Seq, e.Facts.ContextID)
		}
	}
	if got, want := kinds(records), "queued working message retry working outcome"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}
