package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

func input(id subjects.TaskID, question, text string) fleet.Control {
	return fleet.Control{Action: fleet.ActionInput, TaskID: id, QuestionID: question, Text: text}
}

func TestQuestion(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		first, err := task.Ask(ctx, "which branch?")
		if err != nil {
			return fleet.Result{}, err
		}
		second, err := task.AskFor(ctx, fleet.Question{ID: "q2", Text: "sure?"})
		if err != nil {
			return fleet.Result{}, err
		}
		_, err = task.AskFor(ctx, fleet.Question{ID: "q2", Text: "again?"})
		if err == nil {
			return fleet.Result{}, errors.New("a question was asked twice")
		}
		return agent.Text(first.Text + " " + second.Text), nil
	})})
	a.give(dispatch("t1", "x"))
	asked := next(t, "the question", r.progresses)
	q := asked.Question
	if q == nil || q.Text != "which branch?" || q.ID == "" || asked.Attempt != 1 || asked.Epoch != a.Epoch() {
		t.Fatalf("asked %+v", asked)
	}
	if p := a.tell(input("t1", "other", "no")); p.OK || p.Error == nil || p.Error.Code != subjects.CodeNotFound {
		t.Errorf("INPUT for another question = %+v, want not_found", p)
	}
	if p := a.tell(input("t2", q.ID, "no")); p.OK {
		t.Errorf("INPUT for another task = %+v, want not_found", p)
	}
	for range 2 { // the second is a repeat
		if p := a.tell(input("t1", q.ID, "main")); !p.OK {
			t.Errorf("INPUT = %+v, want ok", p)
		}
	}
	next(t, "the second question", r.progresses)
	if p := a.tell(input("t1", q.ID, "a late repeat")); !p.OK {
		t.Errorf("INPUT = %+v, want ok", p)
	}
	a.tell(input("t1", "q2", "yes"))
	if got := output(t, r.result("t1")); got != "main yes" {
		t.Errorf("output = %q, want %q", got, "main yes")
	}
}

// The attempt's clock stands while a question is open, and runs on afterwards.
func TestQuestionStopsTheClock(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		if _, err := task.AskFor(ctx, fleet.Question{ID: "q", Text: "?"}); err != nil {
			return fleet.Result{}, err
		}
		<-ctx.Done()
		return fleet.Result{}, ctx.Err()
	})})
	d := dispatch("t1", "x")
	d.Task.TimeoutSeconds = 0.4
	a.give(d)
	next(t, "the question", r.progresses)
	drained(r.beats)
	for range 8 { // twice the time-out passes
		next(t, "a heartbeat", r.beats)
	}
	select {
	case x := <-r.results:
		t.Fatalf("the attempt ended while its question was open: %+v", x.Error)
	default:
	}
	a.tell(input("t1", "q", "go on"))
	if got := r.result("t1"); code(got) != subjects.CodeAgentTimeout {
		t.Errorf("code = %s, want agent_timeout", code(got))
	}
}

// A new attempt knows nothing of a question, so it is asked again.
func TestQuestionIsAskedAgainByANewAttempt(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		answer, err := task.Ask(ctx, "?")
		return agent.Text(answer.Text), err
	})})
	a.give(dispatch("t1", "x"))
	q := next(t, "the question", r.progresses).Question
	a.give(again(dispatch("t1", "x"), 2))
	p := await(t, "the question again", r.progresses, func(p fleet.Progress) bool { return p.Attempt == 2 })
	if p.Question == nil || p.Question.ID != q.ID {
		t.Errorf("asked %+v, want question %s again", p.Question, q.ID)
	}
	a.tell(input("t1", q.ID, "yes"))
	if got := r.result("t1"); got.Attempt != 2 || output(t, got) != "yes" {
		t.Errorf("result = attempt %d, %s, want 2, yes", got.Attempt, got.Output)
	}
}

func TestReportsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	r.refuse(subjects.Errorf(subjects.CodeSuperseded, "not yours"))
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		if _, err := task.Ask(ctx, "?"); subjects.CodeOf(err) != subjects.CodeSuperseded {
			t.Errorf("Ask = %v, want superseded", err)
		}
		if err := task.Artifact(ctx, fleet.Artifact{}); subjects.CodeOf(err) != subjects.CodeSuperseded {
			t.Errorf("Artifact = %v, want superseded", err)
		}
		huge := fleet.Artifact{Parts: []fleet.Part{{Text: new(strings.Repeat("x", fleet.MaxMessage))}}}
		if err := task.Artifact(ctx, huge); subjects.CodeOf(err) != subjects.CodePayloadTooLarge {
			t.Errorf("Artifact of 1 MiB = %v, want payload_too_large", err)
		}
		return agent.Text("x"), nil
	})})
	a.give(dispatch("t1", "x"))
	r.result("t1")
}

func TestCancelEndsAQuestion(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	ended := make(chan error, 1)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		_, err := task.Ask(ctx, "?")
		ended <- err
		return fleet.Result{}, err
	})})
	a.give(dispatch("t1", "x"))
	next(t, "the question", r.progresses)
	a.cancel("t1", 1, subjects.CodeCanceled)
	if err := next(t, "the end", ended); !errors.Is(err, agent.ErrCanceled) {
		t.Errorf("Ask = %v, want ErrCanceled", err)
	}
	a.gone()
}

func TestProgress(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{MinProgress: time.Hour, Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
		task.Progress("first", 0, 0)
		task.Progress("second", 10, 100)
		task.Progress("third", -1, 0)
		task.Progress("", 250, 0)
		return agent.Text("x"), nil
	})})
	a.give(dispatch("t1", "x"))
	p := next(t, "the first report", r.progresses)
	if p.Text != "first" || *p.Percent != 0 || p.TokensSpent != nil || p.TaskID != "t1" || p.Attempt != 1 {
		t.Errorf("first report = %+v", p)
	}
	p = next(t, "the rest in one", r.progresses)
	if p.Text != "third" || *p.Percent != 100 || *p.TokensSpent != 100 {
		t.Errorf("second report = %s %v %v, want third 100 100", p.Text, *p.Percent, *p.TokensSpent)
	}
	r.result("t1")
}

func TestTaskByHand(t *testing.T) {
	t.Parallel()
	task := &agent.Task{Dispatch: dispatch("t1", "brief")}
	task.Progress("x", 1, 1)
	if err := task.Artifact(t.Context(), fleet.Artifact{}); err != nil {
		t.Errorf("Artifact = %v", err)
	}
	if _, err := task.Ask(t.Context(), "?"); err == nil {
		t.Error("Ask without anybody = nil, want an error")
	}
	got, err := agent.Echo{}.Handle(t.Context(), task)
	if err != nil || string(got.Output) != `"brief"` {
		t.Errorf("Echo = %s, %v", got.Output, err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	for name, c := range map[string]agent.Config{
		"id":       {ID: "not an id", Bus: r.own, Handler: agent.Echo{}},
		"reserved": {ID: "router", Bus: r.own, Handler: agent.Echo{}},
		"instance": {ID: "a", Instance: "a.b", Bus: r.own, Handler: agent.Echo{}},
		"bus":      {ID: "a", Handler: agent.Echo{}},
		"handler":  {ID: "a", Bus: r.own},
		"parallel": {ID: "a", Bus: r.own, Handler: agent.Echo{}, MaxParallel: -1},
		"beat":     {ID: "a", Bus: r.own, Handler: agent.Echo{}, Heartbeat: time.Millisecond},
		"skill":    {ID: "a", Bus: r.own, Handler: agent.Echo{}, Skills: []json.RawMessage{json.RawMessage(`"no"`)}},
		"skill 2":  {ID: "a", Bus: r.own, Handler: agent.Echo{}, Skills: []json.RawMessage{json.RawMessage(`{`)}},
		"mcp":      {ID: "a", Bus: r.own, Handler: agent.Echo{}, MCP: agent.MCPConfig{Servers: []agent.MCPServer{{Name: "x"}}}},
	} {
		if _, err := agent.New(c); err == nil {
			t.Errorf("%s: New = nil, want an error", name)
		}
	}
}

// The example's agent does what it says.
func TestExample(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- shout(ctx, r.own) }()
	x := next(t, "the announce", r.announces)
	if _, err := r.b.Request(ctx, subjects.Offer("shouter", x.Worker.InstanceID), fleet.MustEncode(dispatch("t1", "hello")), nil); err != nil {
		t.Fatal(err)
	}
	if got := output(t, r.result("t1")); got != "HELLO" {
		t.Errorf("output = %q, want HELLO", got)
	}
	cancel()
	if err := next(t, "the end", done); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestFollowUp(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		if len(task.Dispatch.Messages) != 1 {
			return fleet.Result{}, errors.New("the offer's follow-up is missing")
		}
		var all []string
		for n := range 3 {
			m, err := task.FollowUp(ctx, n)
			if err != nil {
				return fleet.Result{}, err
			}
			all = append(all, m.Text)
		}
		return agent.Text(strings.Join(all, " ")), nil
	})})
	d := dispatch("t1", "x")
	d.Messages = []fleet.Message{{ID: "m0", Text: "before"}}
	a.give(d)
	for _, c := range []fleet.Control{{ID: "m0", Text: "before"}, {ID: "m1", Text: "one"}, {ID: "m1", Text: "one"}, {ID: "m2", Text: "two"}} {
		c.Action, c.TaskID = fleet.ActionInput, "t1"
		if p := a.tell(c); !p.OK {
			t.Errorf("INPUT %s = %+v, want ok", c.ID, p)
		}
	}
	if got := output(t, r.result("t1")); got != "before one two" {
		t.Errorf("output = %q, want %q: each once, in order", got, "before one two")
	}
}
