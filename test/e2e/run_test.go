package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

const runNodes = 200

// runJournal is what the agents of TestRun have done.
type runJournal struct {
	mu    sync.Mutex
	begun map[string]time.Time // by node: when it was begun for the first time
	good  map[string]time.Time // when it succeeded
	calls map[string]int       // successes
}

// node does the work of one: it fails at times, and says what it was.
func (j *runJournal) node(_ context.Context, t *agent.Task, fail bool) (fleet.Result, error) {
	name, _, _ := bytes.Cut([]byte(t.Dispatch.Brief), []byte("\n"))
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, again := j.begun[string(name)]; !again {
		j.begun[string(name)] = time.Now()
	}
	if fail {
		return fleet.Result{}, &agent.Fail{Message: "not this time", Retryable: true}
	}
	j.good[string(name)] = time.Now()
	j.calls[string(name)]++
	r := agent.Text("did " + string(name))
	r.TokensSpent = 3
	return r, nil
}

// A run of 200 nodes survives random failures and the deaths of all workers and
// of the broker: no node begins before those that it depends on, no success is
// worked for again, and there is one document, the same bytes at each look.
func TestRun(t *testing.T) {
	out := t.TempDir()
	f := newFleet(t, "registry")
	names := []string{"router", "runs"}
	n := 0
	serve := func(kind string) *process {
		n++
		return f.serve(fmt.Sprintf("%s-%d", kind, n), parleyBinary(t), kind, []string{"--run-output", out})
	}
	var all []*process
	for _, kind := range []string{"router", "router", "runs", "runs"} {
		all = append(all, serve(kind))
	}
	j := &runJournal{begun: map[string]time.Time{}, good: map[string]time.Time{}, calls: map[string]int{}}
	b, err := bus.Connect(t.Context(), bus.Config{URL: f.url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	life, end := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	defer agents.Wait()
	defer end()
	rng := rand.New(rand.NewPCG(*seedFlag, 9))
	var dice sync.Mutex
	for i := range 4 {
		w, newErr := agent.New(agent.Config{
			ID: subjects.AgentID(fmt.Sprintf("w%d", i)), Bus: b, Heartbeat: time.Second, MaxParallel: 8,
			Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
				dice.Lock()
				fail := rng.IntN(10) == 0 && task.Dispatch.Attempt < 3
				dice.Unlock()
				return j.node(ctx, task, fail)
			}),
		})
		if newErr != nil {
			t.Fatal(newErr)
		}
		agents.Go(func() {
			if err := w.Run(life); err != nil {
				t.Errorf("agent: %v", err)
			}
		})
	}
	definition := runDefinition(rng)
	data, err := json.Marshal(definition)
	if err != nil {
		t.Fatal(err)
	}
	f.askRun(t, "start", data)
	deadline := time.Now().Add(4 * time.Minute)
	for kills := 0; ; kills++ {
		pause := time.NewTimer(700 * time.Millisecond)
		<-pause.C
		var rec struct {
			State  string          `json:"state"`
			Reason json.RawMessage `json:"reason"`
		}
		if err := json.Unmarshal(f.askRun(t, "get", []byte(`{"run_id":"big"}`)), &rec); err != nil {
			t.Fatal(err)
		}
		if rec.State == "done" {
			t.Logf("done after %d kills", kills)
			break
		}
		if rec.State != "running" || time.Now().After(deadline) {
			t.Fatalf("the run is %s: %s", rec.State, rec.Reason)
		}
		switch k := kills % 6; {
		case k == 5:
			f.restartBroker("registry")
		case kills < 20:
			all[k%4].kill()
			all[k%4] = serve(names[k%4/2])
		}
	}
	end()
	agents.Wait()
	checkRun(t, definition, j)
	first := f.askRun(t, "output", []byte(`{"run_id":"big"}`))
	again := f.askRun(t, "output", []byte(`{"run_id":"big"}`))
	file, err := os.ReadFile(filepath.Join(out, "results", "big.json"))
	if err != nil || !bytes.Equal(first, again) || !bytes.Equal(first, file) {
		t.Errorf("the documents differ: %d, %d and %d bytes, %v", len(first), len(again), len(file), err)
	}
	checkRunOutput(t, first)
}

// askRun calls the runs' API until it answers.
func (f *testFleet) askRun(t *testing.T, verb string, data []byte) []byte {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		m, err := f.nc.Request("fleet.api.boss.run."+verb, data, 2*time.Second)
		if err == nil && !bytes.Contains(m.Data, []byte(`"unavailable"`)) {
			if bytes.HasPrefix(m.Data, []byte(`{"error"`)) {
				t.Fatalf("run %s: %s", verb, m.Data)
			}
			return m.Data
		}
		if time.Now().After(deadline) {
			t.Fatalf("run %s: %v", verb, err)
		}
		pause := time.NewTimer(100 * time.Millisecond)
		<-pause.C
	}
}

type runNode struct {
	ID           string   `json:"id"`
	Sequence     int      `json:"sequence"`
	Dependencies []string `json:"dependencies"`
	Brief        string   `json:"brief"`
	MaxRetries   int      `json:"max_retries"`
	OnFailure    string   `json:"on_failure"`
}

type runGraph struct {
	TaskID string    `json:"task_id"`
	Type   string    `json:"task_type"`
	Limit  int       `json:"timeout"`
	Agents []runNode `json:"agents"`
	Output string    `json:"output_location"`
}

func runDefinition(rng *rand.Rand) runGraph {
	d := runGraph{TaskID: "big", Type: "multi-agent-run", Limit: 600, Output: "results/big.json"}
	for i := range runNodes {
		n := runNode{ID: fmt.Sprintf("n%d", i), Sequence: i, Dependencies: []string{}, Brief: fmt.Sprintf("n%d", i), MaxRetries: 20, OnFailure: "fail"}
		seen := map[int]bool{}
		for range rng.IntN(4) {
			if i > 0 {
				dep := max(i-1-rng.IntN(40), 0)
				if !seen[dep] {
					seen[dep] = true
					n.Dependencies = append(n.Dependencies, fmt.Sprintf("n%d", dep))
				}
			}
		}
		d.Agents = append(d.Agents, n)
	}
	return d
}

// checkRun holds the agents' own journal against the definition.
func checkRun(t *testing.T, d runGraph, j *runJournal) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	twice := 0
	for _, n := range d.Agents {
		begun, ok := j.begun[n.ID]
		if !ok || j.good[n.ID].IsZero() {
			t.Errorf("%s was never done", n.ID)
			continue
		}
		if j.calls[n.ID] > 1 {
			twice++
			t.Errorf("%s succeeded %d times", n.ID, j.calls[n.ID])
		}
		for _, dep := range n.Dependencies {
			if !begun.After(j.good[dep]) {
				t.Errorf("%s began at %s, before %s had succeeded at %s", n.ID, begun, dep, j.good[dep])
			}
		}
	}
}

func checkRunOutput(t *testing.T, data []byte) {
	t.Helper()
	var out struct {
		State   string `json:"state"`
		Tokens  int    `json:"tokens_spent"`
		Results []struct {
			Node   string `json:"node"`
			State  string `json:"state"`
			Result struct {
				Output string `json:"output"`
			} `json:"result"`
		} `json:"results"`
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if out.State != "done" || len(out.Results) != runNodes || out.Tokens < 3*runNodes {
		t.Errorf("the document says %s, %d results, %d tokens", out.State, len(out.Results), out.Tokens)
	}
	for _, r := range out.Results {
		if r.State != "done" || r.Result.Output != "did "+r.Node {
			t.Errorf("%s: %s, %q", r.Node, r.State, r.Result.Output)
		}
	}
}
