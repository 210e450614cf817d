package runs_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"parley/subjects/run"
	"parley/workers/runs"
)

// model is the simple scheduler: it looks at all nodes again and again, in the
// order of their sequence, and knows no records.
type model struct {
	d       *run.Definition
	fails   map[run.NodeID]bool
	holds   map[run.NodeID]bool // of those with a condition
	begun   []run.NodeID
	state   map[run.NodeID]run.State // of those that are not waiting
	failing bool
}

// settle lets everything happen that follows by itself, and gives what begins.
func (m *model) settle() (begins []run.NodeID) {
	for again := true; again && !m.failing; {
		again = false
		for i := range m.d.Agents {
			n := &m.d.Agents[i]
			if m.state[n.ID] != "" || slices.Contains(begins, n.ID) || !m.ready(n) {
				continue
			}
			skipped := len(n.Dependencies) > 0
			for _, dep := range n.Dependencies {
				skipped = skipped && m.state[dep] == run.Skipped
			}
			if skipped || n.When != "" && !m.holds[n.ID] {
				m.state[n.ID], again = run.Skipped, true
			} else {
				begins = append(begins, n.ID)
			}
		}
	}
	for _, id := range begins {
		m.state[id] = run.Dispatched
	}
	m.begun = append(m.begun, begins...)
	if m.failing {
		for _, n := range m.d.Agents {
			if m.state[n.ID] == "" {
				m.state[n.ID] = run.Skipped
			}
		}
	}
	return begins
}

func (m *model) ready(n *run.Node) bool {
	for _, dep := range n.Dependencies {
		switch m.state[dep] {
		case run.Done, run.Skipped:
		case run.Failed:
			if m.node(dep).OnFailure != run.OnFailureContinue {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func (m *model) node(id run.NodeID) *run.Node {
	i := slices.IndexFunc(m.d.Agents, func(n run.Node) bool { return n.ID == id })
	return &m.d.Agents[i]
}

func (m *model) end(id run.NodeID) run.State {
	m.state[id] = run.Done
	if m.fails[id] {
		m.state[id] = run.Failed
		m.failing = m.failing || m.node(id).OnFailure != run.OnFailureContinue
	}
	return m.state[id]
}

// step asks Next, and answers what it asks about conditions.
func step(t *rapid.T, r *run.Record, m *model, ended []runs.Outcome) runs.Plan {
	news := runs.News{Ended: ended, Verdicts: map[run.NodeID]runs.Verdict{}}
	for range len(m.d.Agents) + 1 {
		p := runs.Next(r, news, taskOf, t0)
		if len(p.Ask) == 0 {
			return p
		}
		for _, id := range p.Ask {
			if _, twice := news.Verdicts[id]; twice || m.node(id).When == "" {
				t.Fatalf("asks about %s, twice %v", id, twice)
			}
			news.Verdicts[id] = runs.Verdict{Begin: m.holds[id]}
		}
	}
	t.Fatal("it asks and asks")
	return runs.Plan{}
}

// Whatever ends in whatever order, and whatever conditions say: what begins,
// and when, is what the model says, in the order of sequence; so is how
// everything ends.
func TestScheduleAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := graph(t)
		if circular(d) {
			t.Skip("circular")
		}
		m := &model{d: d, fails: map[run.NodeID]bool{}, holds: map[run.NodeID]bool{}, state: map[run.NodeID]run.State{}}
		for _, n := range d.Agents {
			m.fails[n.ID] = rapid.IntRange(0, 5).Draw(t, "fails") == 0
			m.holds[n.ID] = rapid.Bool().Draw(t, "holds")
		}
		r := record(d)
		ended, tokens := []runs.Outcome(nil), int64(0)
		for range 3*len(d.Agents) + 3 {
			p := step(t, r, m, ended)
			ended = nil
			if p.Record == nil {
				break
			}
			want := m.settle()
			checkBegun(t, d, p.Dispatch, want)
			if again := step(t, p.Record, m, nil); again.Record != nil {
				t.Fatalf("a second look changes something: %+v", again)
			}
			r = p.Record
			compare(t, r, m)
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
				o := runs.Outcome{Node: id, TaskID: r.Nodes[id].TaskID, Status: run.Status{State: m.end(id), Tokens: 1}}
				tokens++
				ended = append(ended, o, o) // it may be heard twice
			}
		}
		want := run.Done
		if m.failing {
			want = run.Failed
		}
		if r.State != want || (r.Reason != nil) != m.failing || r.Tokens != tokens {
			t.Fatalf("the run is %s (%+v) with %d tokens, want %s with %d", r.State, r.Reason, r.Tokens, want, tokens)
		}
		if m.failing {
			retry(t, r, m)
		}
	})
}

func checkBegun(t *rapid.T, d *run.Definition, got, want []run.NodeID) {
	a, b := slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(a, b) {
		t.Fatalf("dispatched %v, want %v", got, want)
	}
	m := model{d: d}
	for i := 1; i < len(got); i++ {
		if m.node(got[i-1]).Sequence > m.node(got[i]).Sequence {
			t.Fatalf("dispatched %v, not in the order of sequence", got)
		}
	}
}

func compare(t *rapid.T, r *run.Record, m *model) {
	for _, n := range m.d.Agents {
		want := m.state[n.ID]
		if want == "" {
			want = run.Waiting
		}
		if got := r.Nodes[n.ID].State; got != want {
			t.Fatalf("%s is %s, want %s", n.ID, got, want)
		}
	}
}

// retry runs a failed run again, now well: what succeeded is not begun again,
// and everything ends as in the model of a run in which nothing fails.
func retry(t *rapid.T, r *run.Record, m *model) {
	again := runs.Retry(r, t0.Add(time.Hour))
	if again == nil {
		t.Fatal("a failed run cannot be retried")
	}
	well := &model{d: m.d, holds: m.holds, state: map[run.NodeID]run.State{}}
	for id, s := range m.state {
		if s == run.Done {
			well.state[id] = s
		}
	}
	var ended []runs.Outcome
	for range 3*len(r.Nodes) + 3 {
		p := step(t, again, well, ended)
		ended = nil
		if p.Record == nil {
			break
		}
		checkBegun(t, m.d, p.Dispatch, well.settle())
		again = p.Record
		for id, n := range again.Nodes {
			if n.State != run.Dispatched {
				continue
			}
			if r.Nodes[id].State == run.Done || n.Generation != r.Nodes[id].Generation+1 || n.TaskID == r.Nodes[id].TaskID {
				t.Fatalf("%s is begun as %+v after %+v", id, n, r.Nodes[id])
			}
			ended = append(ended, runs.Outcome{Node: id, TaskID: n.TaskID, Status: run.Status{State: well.end(id)}})
		}
	}
	compare(t, again, well)
	if again.State != run.Done || runs.Retry(again, t0) != nil {
		t.Fatalf("retried, the run is %s, and could be retried %v", again.State, runs.Retry(again, t0) != nil)
	}
}
