package runs_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers/runs"
)

var t0 = time.Unix(1_800_000_000, 0).UTC()

func taskOf(n run.NodeID, generation int) subjects.TaskID {
	return subjects.TaskID(fmt.Sprintf("%s-%d", n, generation))
}

// graph draws a definition, which may have circles.
func graph(t *rapid.T) *run.Definition {
	n := rapid.IntRange(1, 12).Draw(t, "nodes")
	forward := rapid.Bool().Draw(t, "acyclic")
	d := &run.Definition{}
	for i := range n {
		node := run.Node{
			ID: run.NodeID("n" + strconv.Itoa(i)), Sequence: rapid.IntRange(0, 3).Draw(t, "sequence"), Dependencies: []run.NodeID{},
			OnFailure: rapid.SampledFrom([]string{"", run.OnFailureFail, run.OnFailureContinue, run.OnFailureEscalate}).Draw(t, "on_failure"),
		}
		if rapid.IntRange(0, 2).Draw(t, "when") == 0 {
			node.When = "true"
		}
		for j := range n {
			if (!forward || j < i) && rapid.IntRange(0, 3).Draw(t, "edge") == 0 {
				node.Dependencies = append(node.Dependencies, run.NodeID("n"+strconv.Itoa(j)))
			}
		}
		d.Agents = append(d.Agents, node)
	}
	return d
}

// circular is the simple model of what a circle is: whatever remains when one
// takes away, again and again, what depends on nothing.
func circular(d *run.Definition) bool {
	left := map[run.NodeID][]run.NodeID{}
	for _, n := range d.Agents {
		left[n.ID] = n.Dependencies
	}
	for range d.Agents {
		for id, deps := range left {
			if !slices.ContainsFunc(deps, func(dep run.NodeID) bool { _, there := left[dep]; return there }) {
				delete(left, id)
			}
		}
	}
	return len(left) > 0
}

// A definition is refused exactly when it has a circle, and the circle that is
// named is one.
func TestCyclesAreFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := graph(t)
		_, err := run.Decode(fleet.MustEncode(d))
		if got := subjects.CodeOf(err) == subjects.CodeCycle; got != circular(d) || err != nil && !got {
			t.Fatalf("Decode = %v, circular = %v", err, circular(d))
		}
	})
}

func record(d *run.Definition) *run.Record {
	r := &run.Record{RunID: "r", State: run.Running, Created: t0, Deadline: t0.Add(time.Hour), Definition: *d, Nodes: map[run.NodeID]run.Status{}}
	for i := range d.Agents {
		r.Nodes[d.Agents[i].Name()] = run.Status{State: run.Waiting}
	}
	return r
}

func TestPauseDeadlineCancelBudget(t *testing.T) {
	t.Parallel()
	d := &run.Definition{TokenBudget: 10, Agents: []run.Node{{ID: "a"}, {ID: "b", Dependencies: []run.NodeID{"a"}}}}
	r := record(d)
	r.State = run.Paused
	if p := runs.Next(r, runs.News{}, taskOf, t0); p.Record != nil {
		t.Errorf("paused, and yet %+v", p)
	}
	r.State = run.Running
	r = runs.Next(r, runs.News{}, taskOf, t0).Record
	done := []runs.Outcome{{Node: "a", TaskID: "a-1", Status: run.Status{State: run.Done, Tokens: 10}}}
	if p := runs.Next(r, runs.News{Ended: []runs.Outcome{{Node: "a", TaskID: "a-0", Status: run.Status{State: run.Done}}}}, taskOf, t0); p.Record != nil {
		t.Errorf("an outcome of another task counts: %+v", p)
	}
	if p := runs.Next(r, runs.News{Ended: done}, taskOf, t0); p.Record.State != run.Failed || p.Record.Reason.Code != subjects.CodeBudgetExhausted || len(p.Dispatch) > 0 {
		t.Errorf("beyond the budget: %+v", p.Record)
	}
	if p := runs.Next(r, runs.News{}, taskOf, r.Deadline); p.Record.State != run.Expired || !slices.Equal(p.Cancel, []run.NodeID{"a"}) || p.Record.Nodes["b"].State != run.Skipped {
		t.Errorf("at the deadline: %+v", p)
	}
	if p := runs.Cancel(r, "enough", t0); p.Record.State != run.Canceled || !slices.Equal(p.Cancel, []run.NodeID{"a"}) || p.Record.Reason.Message != "enough" {
		t.Errorf("canceled: %+v", p)
	}
	if r.Nodes["a"].State != run.Dispatched {
		t.Error("Next or Cancel changed the record that it was given")
	}
}

func TestConditionThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	d := &run.Definition{Agents: []run.Node{{ID: "a", When: "1/0 > 0"}, {ID: "b", Dependencies: []run.NodeID{"a"}}, {ID: "c"}}}
	p := runs.Next(record(d), runs.News{Verdicts: map[run.NodeID]runs.Verdict{"a": {Err: "what is that?"}}}, taskOf, t0)
	if p.Record.State != run.Failed || p.Record.Nodes["a"].State != run.Failed || p.Record.Nodes["b"].State != run.Skipped || len(p.Dispatch) > 0 ||
		p.Record.Reason.Code != subjects.CodeInvalidMessage {
		t.Errorf("the run is %s: %+v", p.Record.State, p.Record.Nodes)
	}
}
