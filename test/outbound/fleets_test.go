package outbound_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// local is an agent of the fleet behind a gateway.
func local(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	verb, rest, _ := strings.Cut(t.Dispatch.Brief, " ")
	switch verb {
	case "ask":
		a, err := t.Ask(ctx, "which one?")
		return agent.Text(a.Text), err
	case "hang":
		<-ctx.Done()
		return fleet.Result{}, context.Cause(ctx)
	case "fail":
		return fleet.Result{TokensSpent: 3}, &agent.Fail{Code: subjects.CodeBudgetExhausted, Message: "too dear"}
	case "block":
		return fleet.Result{}, agent.Blocked("not mine")
	case "partial":
		return fleet.Result{
			Status: fleet.StatusPartial, Output: json.RawMessage(`"half"`), TokensSpent: 12,
			Remaining: []string{"the rest"}, NextSteps: []string{"go on"},
		}, nil
	case "hear":
		m, err := t.FollowUp(ctx, 0)
		return agent.Text(m.Text), err
	case "chunks":
		for i, text := range strings.Fields(rest) {
			if err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Parts: []fleet.Part{{Text: &text}}, Append: i > 0}); err != nil {
				return fleet.Result{}, err
			}
		}
	}
	return agent.Text(t.Dispatch.Brief), nil
}

// TestFleetBehindFleet has a whole fleet serve in another one, by its gateway.
func TestFleetBehindFleet(t *testing.T) {
	t.Parallel()
	far, near := newWorld(t), newWorld(t)
	far.agent("worker", agent.Config{Handler: agent.HandlerFunc(local)})
	near.remote("fleet", far.gateway()+"/agents/worker/.well-known/agent-card.json")
	r := near.result(near.dispatch("hello there"), fleet.StateDone)
	if output(r) != "hello there" {
		t.Errorf("output %s", r.Output)
	}
	id := near.dispatch("chunks a b")
	if r := near.result(id, fleet.StateDone); !strings.HasSuffix(output(r), "chunks a b") {
		t.Errorf("output %s", r.Output)
	}
	if got := near.artifacts(id); got != "log:a log:+b" {
		t.Errorf("artifacts %q", got)
	}
	r = near.result(near.dispatch("partial"), fleet.StatePartial)
	if r.TokensSpent != 12 || strings.Join(r.Remaining, "") != "the rest" || strings.Join(r.NextSteps, "") != "go on" {
		t.Errorf("partial %+v", r)
	}
	r = near.result(near.dispatch("fail"), fleet.StateError)
	if r.Error == nil || r.Error.Code != subjects.CodeBudgetExhausted {
		t.Errorf("failed with %+v", r.Error)
	}
	near.until(near.dispatch("block"), fleet.StateBlocked)
	id = near.dispatch("ask")
	near.until(id, fleet.StateInputRequired)
	must[fleet.TaskView](near, "task", "answer", fleet.TaskAnswer{TaskID: id, Text: "blue"})
	if r := near.result(id, fleet.StateDone); output(r) != "blue" {
		t.Errorf("output %s", r.Output)
	}
	id = near.dispatch("hear")
	near.until(id, fleet.StateWorking)
	must[fleet.TaskView](near, "task", "message", fleet.TaskMessage{TaskID: id, Text: "more"})
	if r := near.result(id, fleet.StateDone); output(r) != "more" {
		t.Errorf("output %s", r.Output)
	}
	id = near.dispatch("hang")
	bustest.Eventually(t, "the far task", func() bool { return far.count(fleet.StateWorking) == 1 })
	must[fleet.TaskView](near, "task", "cancel", fleet.TaskCancel{TaskID: id})
	bustest.Eventually(t, "the far task is canceled", func() bool { return far.count(fleet.StateWorking) == 0 && far.count(fleet.StateCanceled) == 1 })
}

// count is how many tasks are in a state.
func (w *world) count(state fleet.State) int {
	return must[fleet.TaskListReply](w, "task", "list", fleet.TaskList{State: state}).Total
}

// TestCycle has two fleets that know each other, and nobody else: a task does
// not go round for ever.
func TestCycle(t *testing.T) {
	t.Parallel()
	one, two := newWorld(t), newWorld(t)
	first, second := one.gateway(), two.gateway()
	one.remote("two", second)
	two.remote("one", first)
	r := one.result(one.dispatch("hello"), fleet.StateError)
	if r.Error == nil || !strings.Contains(r.Error.Message, "circles") {
		t.Errorf("failed with %+v", r.Error)
	}
	if n, m := one.count("")+two.count(""), one.count(fleet.StateError); n > 3 || m == 0 {
		t.Errorf("%d tasks, %d failed in the first fleet", n, m)
	}
}
