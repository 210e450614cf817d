package router_test

import (
	"testing"
	"testing/synctest"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

func TestQuestionAndAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testQuestionAndAnswer)
}

func testQuestionAndAnswer(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"timeout_seconds":60`))
	a.offered()
	ask := fleet.MustEncode(fleet.Progress{Attempt: 1, Epoch: a.epoch, Question: &fleet.Question{ID: "q1", Text: "which branch?"}})
	for range 2 {
		r, err := a.report(subjects.Progress("a", id), ask, id)
		if err != nil || r.State != fleet.StateInputRequired {
			t.Fatalf("question = %+v, %v", r, err)
		}
	}
	v := w.view(id)
	if v.State != fleet.StateInputRequired || v.Question == nil || v.Question.Text != "which branch?" {
		t.Errorf("view = %+v", v)
	}
	if _, err := call[fleet.TaskView](w, "boss", "task", "answer", fleet.TaskAnswer{TaskID: id, QuestionID: "other", Text: "x"}); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
		t.Errorf("answer to another question = %v", err)
	}
	for range 2 {
		if _, err := call[fleet.TaskView](w, "boss", "task", "answer", fleet.TaskAnswer{TaskID: id, QuestionID: "q1", Text: "main"}); err != nil {
			t.Fatal(err)
		}
	}
	if c := a.told(); c.Action != fleet.ActionInput || c.QuestionID != "q1" || c.Text != "main" {
		t.Errorf("told %+v", c)
	}
	art := fleet.MustEncode(fleet.Progress{Artifact: &fleet.Artifact{ArtifactID: "log", Parts: []fleet.Part{{Text: new("line")}}}})
	if _, err := a.report(subjects.Progress("a", id), art, id); err != nil {
		t.Fatal(err)
	}
	if _, err := a.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	if got, want := kinds(w.events(id)), "queued working question answer artifact outcome"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}

// TestProgressOfAnother: whoever asks for an answer is told whether the task is
// his.
func TestProgressOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testProgressOfAnother)
}

func testProgressOfAnother(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a, b := w.join("a", nil), w.join("b", nil)
	id := w.send(dispatchJSON("x", `"agent_id":"a"`))
	a.offered()
	step := fleet.MustEncode(fleet.Progress{Text: "half of it"})
	if r, err := a.report(subjects.Progress("a", id), step, id); err != nil || r.State != fleet.StateWorking {
		t.Errorf("the holder's progress = %+v, %v", r, err)
	}
	if r, err := b.report(subjects.Progress("b", id), step, id); subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("another's progress = %+v, %v; want late_result", r, err)
	}
	if got, want := kinds(w.events(id)), "queued working"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}

// TestHeardOnce: a copy of the message that an artifact or a question came by is
// no second one, in its attempt and after it; another message that says the same is.
func TestHeardOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testHeardOnce)
}

func testHeardOnce(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"max_retries":1,"timeout_seconds":60`))
	a.offered()
	say := func(messageID string, p fleet.Progress) error {
		p.Epoch = a.epoch
		m, err := w.bus.Request(t.Context(), subjects.Progress("a", id), fleet.MustEncode(p), bus.Header{"Nats-Msg-Id": {messageID}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = fleet.DecodeReply[fleet.ResultReply](m.Data)
		return err
	}
	piece := fleet.Progress{Attempt: 1, Artifact: &fleet.Artifact{ArtifactID: "log", Append: true, Parts: []fleet.Part{{Text: new("line")}}}}
	for _, messageID := range []string{"m1", "m2", "m1", "m2", "m2"} {
		if err := say(messageID, piece); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []string{"q1", "q2", "q1"} {
		if err := say(q, fleet.Progress{Attempt: 1, Question: &fleet.Question{ID: q, Text: "which?"}}); err != nil {
			t.Fatal(err)
		}
		if w.view(id).Question == nil {
			continue // asked and answered before
		}
		if _, err := call[fleet.TaskView](w, "boss", "task", "answer", fleet.TaskAnswer{TaskID: id, QuestionID: q, Text: "that"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	a.offered()
	if err := say("m1", piece); subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("an artifact of an earlier attempt: %v, want late_result", err)
	}
	piece.Attempt = 2
	if err := say("m1", piece); err != nil {
		t.Error(err)
	}
	if _, err := a.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	want := "queued working artifact artifact question answer question answer retry working artifact outcome"
	if got := kinds(w.events(id)); got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}
