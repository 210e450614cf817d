package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
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
	begun map[string][]time.Time // by what they were told: when it was begun
	tasks map[string]string      // the task that it was
	good  map[string]int         // successes
}

// node does the work of one: it fails at times, and says what it was.
func (j *runJournal) node(t *agent.Task, fail bool) (fleet.Result, error) {
	name, _, _ := strings.Cut(t.Dispatch.Brief, "\n")
	j.mu.Lock()
	defer j.mu.Unlock()
	id := string(t.Dispatch.Task.TaskID)
	if was := j.tasks[name]; was != "" && was != id {
		return fleet.Result{}, &agent.Fail{Message: "two tasks, " + was + " and " + id}
	}
	j.tasks[name] = id
	j.begun[name] = append(j.begun[name], time.Now())
	if fail {
		return fleet.Result{}, &agent.Fail{Message: "not this time", Retryable: true}
	}
	j.good[name]++
	r := agent.Text("did " + name)
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
	j := &runJournal{begun: map[string][]time.Time{}, tasks: map[string]string{}, good: map[string]int{}}
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
			Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
				dice.Lock()
				fail := rng.IntN(10) == 0 && task.Dispatch.Attempt < 3
				dice.Unlock()
				return j.node(task, fail)
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
	deadline := time.Now().Add(5 * patience)
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
	first := f.askRun(t, "output", []byte(`{"run_id":"big"}`))
	again := f.askRun(t, "output", []byte(`{"run_id":"big"}`))
	file, err := os.ReadFile(filepath.Join(out, "results", "big.json"))
	if err != nil || !bytes.Equal(first, again) || !bytes.Equal(first, file) {
		t.Errorf("the documents differ: %d, %d and %d bytes, %v", len(first), len(again), len(file), err)
	}
	checkRun(t, definition, j, first)
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

// runOutput is the document of the run.
type runOutput struct {
	State   string `json:"state"`
	Tokens  int    `json:"tokens_spent"`
	Results []struct {
		Node string `json:"node"`
		runEnd
		Each []runEnd `json:"each"`
	} `json:"results"`
}

// runEnd is how a task has ended.
type runEnd struct {
	State  string    `json:"state"`
	Ended  time.Time `json:"ended"`
	Result struct {
		Output string `json:"output"`
	} `json:"result"`
}

// checkRun holds the agents' own journal against the definition and the
// document. A success counts once its record is stored: an agent whose router
// died before that may work again, but nobody does once it counts.
func checkRun(t *testing.T, d runGraph, j *runJournal, document []byte) {
	t.Helper()
	var out runOutput
	if err := json.Unmarshal(document, &out); err != nil {
		t.Fatal(err)
	}
	if out.State != "done" || len(out.Results) != len(d.Agents) || out.Tokens < 3*runNodes {
		t.Fatalf("the document says %s, %d results, %d tokens", out.State, len(out.Results), out.Tokens)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	ends := map[string]map[string]runEnd{} // of a node, by what its tasks are told
	for i, n := range d.Agents {
		ends[n.ID] = map[string]runEnd{n.ID: out.Results[i].runEnd}
		if n.FanOut != nil {
			ends[n.ID] = map[string]runEnd{}
			for k, e := range out.Results[i].Each {
				ends[n.ID][fmt.Sprintf("%s-%d", n.ID, k)] = e
			}
			if len(ends[n.ID]) != runItems {
				t.Errorf("the document has %d items, want %d", len(ends[n.ID]), runItems)
			}
		}
	}
	edges, extra := 0, 0
	for _, n := range d.Agents {
		for task, end := range ends[n.ID] {
			begun := j.begun[task]
			if end.State != "done" || end.Result.Output != "did "+task || j.good[task] == 0 {
				t.Errorf("%s: %s, %q, %d successes", task, end.State, end.Result.Output, j.good[task])
				continue
			}
			extra += j.good[task] - 1
			if last := begun[len(begun)-1]; last.After(end.Ended) {
				t.Errorf("%s was begun at %s, though it had succeeded at %s", task, last, end.Ended)
			}
			for _, dep := range n.Dependencies {
				for before, e := range ends[dep] {
					edges++
					if !begun[0].After(e.Ended) {
						t.Errorf("%s began at %s, before %s had succeeded at %s", task, begun[0], before, e.Ended)
					}
				}
			}
		}
	}
	t.Logf("%d edges hold; %d successes did not count and were worked for again", edges, extra)
}
