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

// A run of runNodes nodes, one of which does runItems items.
const (
	runNodes = 200
	runItems = 60
)

// runJournal is what the agents of TestRun have done.
type runJournal struct {
	mu    sync.Mutex
	begun map[string]time.Time // by node: when it was begun for the first time
	good  map[string]time.Time // when it succeeded
	calls map[string][]string  // successes: task and attempt
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
	j.calls[string(name)] = append(j.calls[string(name)], fmt.Sprintf("%s attempt %d", t.Dispatch.Task.TaskID, t.Dispatch.Attempt))
	r := agent.Text("did " + string(name))
	r.TokensSpent = 3
	return r, nil
}

// A run of 200 nodes survives random failures and the deaths of all workers and
// of the broker: no node begins before those that it depends on, no success is
// worked for again, and there is one document, the same bytes at each look.
func TestRun(t *testing.T) {
	out := t.TempDir()
	f := newFleet(t, "registry,sessions")
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
	j := &runJournal{begun: map[string]time.Time{}, good: map[string]time.Time{}, calls: map[string][]string{}}
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
			ID: subjects.AgentID(fmt.Sprintf("w%d", i)), Bus: b, MaxParallel: 8,
			// These agents never die. However long a broker takes to come back on
			// a busy machine, nobody is to take them for lost.
			Heartbeat: 10 * time.Second,
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
			f.restartBroker("registry,sessions")
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
	FanOut       *runFan  `json:"fan_out,omitempty"`
}

type runFan struct {
	Items       []int `json:"items"`
	Concurrency int   `json:"concurrency"`
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
		if i == runNodes/3 {
			n.Brief, n.FanOut = n.ID+"-${index}", &runFan{Items: make([]int, runItems), Concurrency: 9}
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
	tasks := map[string][]string{} // of a node, by what they are told
	for _, n := range d.Agents {
		tasks[n.ID] = []string{n.Brief}
		if n.FanOut != nil {
			tasks[n.ID] = nil
			for i := range n.FanOut.Items {
				tasks[n.ID] = append(tasks[n.ID], fmt.Sprintf("%s-%d", n.ID, i))
			}
		}
	}
	edges := 0
	for _, n := range d.Agents {
		for _, task := range tasks[n.ID] {
			begun, ok := j.begun[task]
			if !ok || j.good[task].IsZero() {
				t.Errorf("%s was never done", task)
				continue
			}
			if len(j.calls[task]) > 1 {
				t.Errorf("%s succeeded %d times: %q", task, len(j.calls[task]), j.calls[task])
			}
			for _, dep := range n.Dependencies {
				for _, before := range tasks[dep] {
					edges++
					if !begun.After(j.good[before]) {
						t.Errorf("%s began at %s, before %s had succeeded at %s", task, begun, before, j.good[before])
					}
				}
			}
		}
	}
	t.Logf("%d edges", edges)
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
			Each []json.RawMessage `json:"each"`
		} `json:"results"`
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if out.State != "done" || len(out.Results) != runNodes || out.Tokens < 3*runNodes {
		t.Errorf("the document says %s, %d results, %d tokens", out.State, len(out.Results), out.Tokens)
	}
	items := 0
	for _, r := range out.Results {
		if r.Each != nil {
			items += len(r.Each)
			continue
		}
		if r.State != "done" || r.Result.Output != "did "+r.Node {
			t.Errorf("%s: %s, %q", r.Node, r.State, r.Result.Output)
		}
	}
	if items != runItems {
		t.Errorf("the document has %d items, want %d", items, runItems)
	}
}
