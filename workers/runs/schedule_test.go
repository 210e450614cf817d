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
			OnFailure: rapid.SampledFrom([]string{"", run.OnFailureFail, run.OnFailureContinue}).Draw(t, "on_failure"),
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

// Whatever ends in whatever order: a node begins once, after all that it
// depends on has ended well (or may fail), everything that can begin begins at
// once and in the order of sequence, and the run ends as the model says.
func TestScheduleAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := graph(t)
		if circular(d) {
			t.Skip("circular")
		}
		r := record(d)
		fails := map[run.NodeID]bool{}
		byName := map[run.NodeID]*run.Node{}
		for i := range d.Agents {
			byName[d.Agents[i].ID] = &d.Agents[i]
			fails[d.Agents[i].ID] = rapid.IntRange(0, 5).Draw(t, "fails") == 0
		}
		begun, over := map[run.NodeID]int{}, map[run.NodeID]bool{}
		broken := false
		var outcomes []runs.Outcome
		for range 3 * len(d.Agents) {
			p := runs.Next(r, runs.News{Ended: outcomes}, taskOf, t0)
			outcomes = nil
			if p.Record == nil {
				break
			}
			if again := runs.Next(p.Record, runs.News{}, taskOf, t0); len(again.Dispatch) > 0 {
				t.Fatalf("a second look dispatches %v", again.Dispatch)
			}
			r = p.Record
			check(t, p.Dispatch, &model{byName, begun, over, fails}, broken)
			var under []run.NodeID
			for _, n := range d.Agents {
				if r.Nodes[n.ID].State == run.Dispatched {
					under = append(under, n.ID)
				}
			}
			if len(under) == 0 {
				break
			}
			for _, id := range under[:rapid.IntRange(1, len(under)).Draw(t, "ended")] {
				o := runs.Outcome{Node: id, TaskID: r.Nodes[id].TaskID, Status: run.Status{State: run.Done, Tokens: 1}}
				if fails[id] {
					o.Status.State = run.Failed
					broken = broken || byName[id].OnFailure != run.OnFailureContinue
				}
				over[id] = true
				outcomes = append(outcomes, o, o) // it may be heard twice
			}
		}
		want := run.Done
		if broken {
			want = run.Failed
		}
		if r.State != want || (r.Reason != nil) != broken || r.Tokens != int64(len(over)) {
			t.Fatalf("the run is %s (%+v) with %d tokens, want %s with %d", r.State, r.Reason, r.Tokens, want, len(over))
		}
		if !broken && len(begun) != len(d.Agents) {
			t.Fatalf("%d of %d nodes were begun", len(begun), len(d.Agents))
		}
		if broken {
			retry(t, r, fails)
		}
	})
}

// model is what the test knows of a run.
type model struct {
	byName      map[run.NodeID]*run.Node
	begun       map[run.NodeID]int
	over, fails map[run.NodeID]bool
}

// check compares what is begun with the model: all that can be, and nothing
// else.
func check(t *rapid.T, got []run.NodeID, m *model, broken bool) {
	byName, begun, over, fails := m.byName, m.begun, m.over, m.fails

	want := map[run.NodeID]bool{}
	for id, n := range byName {
		ready := begun[id] == 0 && !broken
		for _, dep := range n.Dependencies {
			ready = ready && over[dep] && (!fails[dep] || byName[dep].OnFailure == run.OnFailureContinue)
		}
		if ready {
			want[id] = true
		}
	}
	if len(got) != len(want) {
		t.Fatalf("dispatched %v, want %v", got, want)
	}
	for i, id := range got {
		begun[id]++
		if !want[id] || begun[id] > 1 {
			t.Fatalf("dispatched %s", id)
		}
		if i > 0 && byName[got[i-1]].Sequence > byName[id].Sequence {
			t.Fatalf("dispatched %v, not in the order of sequence", got)
		}
	}
}

// retry runs a failed run again: what succeeded is not begun again.
func retry(t *rapid.T, r *run.Record, fails map[run.NodeID]bool) {
	again := runs.Retry(r, t0.Add(2*time.Hour))
	if again == nil {
		t.Fatal("a failed run cannot be retried")
	}
	for range 3 * len(r.Nodes) {
		var outcomes []runs.Outcome
		for id, n := range again.Nodes {
			if n.State == run.Dispatched {
				if r.Nodes[id].State == run.Done {
					t.Fatalf("%s had succeeded and is begun again", id)
				}
				if n.Generation != r.Nodes[id].Generation+1 || n.TaskID == r.Nodes[id].TaskID {
					t.Fatalf("%s is begun as %+v after %+v", id, n, r.Nodes[id])
				}
				outcomes = append(outcomes, runs.Outcome{Node: id, TaskID: n.TaskID, Status: run.Status{State: run.Done}})
			}
		}
		p := runs.Next(again, runs.News{Ended: outcomes}, taskOf, t0)
		if p.Record == nil {
			break
		}
		again = p.Record
	}
	if again.State != run.Done || runs.Retry(again, t0) != nil {
		t.Fatalf("retried, the run is %s (%v)", again.State, fails)
	}
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
