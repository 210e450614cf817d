package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers/agent"
)

// runPoints are the crash points of the runs worker.
var runPoints = []string{
	"after_run_record", "before_run_result", "before_run_record:2", "after_run_record:2", "after_run_record:3", "after_run_chunk",
}

// crew does the nodes of TestRunCrash.
type crew struct {
	held chan struct{} // closed when items may end

	mu   sync.Mutex
	done map[string]int // by what was told
}

func (c *crew) Handle(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	name, _, _ := strings.Cut(t.Dispatch.Brief, "\n")
	if strings.HasPrefix(name, "item") && name != "item 2" {
		select {
		case <-c.held:
		case <-ctx.Done():
			return fleet.Result{}, ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[name]++
	if name == "item 2" {
		return fleet.Result{}, &agent.Fail{Message: "not this one"}
	}
	return agent.Text("did " + name), nil
}

// TestRunCrash has the runs worker die at every one of its steps, and another
// one take over, or lose acknowledgements: no node is done twice, no result is lost, and a node that fails
// ends when all that was begun of it has, whoever began it.
func TestRunCrash(t *testing.T) {
	sweep(t, runPoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry,router,sessions")
		c := &crew{held: make(chan struct{}), done: map[string]int{}}
		f.man(t, c)
		first := f.serve("runs-1", crashBinary(t), "runs", nil, crashEnv(point))
		f.askRun(t, "start", []byte(`{"task_id":"r","agents":[
				{"id":"a","brief":"a","dependencies":[]},
				{"id":"b","brief":"b ${a}","dependencies":["a"]},
				{"id":"e","brief":"item ${index}","dependencies":["b"],"max_retries":0,"fan_out":{"items":[0,0,0,0,0,0]}}]}`))
		if dies(t, first, point) {
			f.serve("runs-2", parleyBinary(t), "runs", nil)
		}
		f.askRun(t, "get", []byte(`{"run_id":"r"}`))
		if point == "after_run_chunk" {
			// Time to end the node too early.
			pause := time.NewTimer(time.Second)
			<-pause.C
		}
		close(c.held)
		var rec *run.Record
		until(t, "the end of the run", func() bool {
			var err error
			if rec, err = run.DecodeRecord(f.askRun(t, "get", []byte(`{"run_id":"r"}`))); err != nil {
				t.Fatal(err)
			}
			return rec.State.Ended()
		})
		checkCrew(t, f, c, rec)
		checkLost(t, first, point, "fleet.run.")
	})
}

func checkCrew(t *testing.T, f *testFleet, c *crew, rec *run.Record) {
	t.Helper()
	if i := rec.Nodes["e"].Items; rec.State != run.Failed || i == nil || i.Done != 5 || i.Failed != 1 {
		t.Errorf("the run is %s, its items %+v; want failed, with 5 done and 1 failed", rec.State, rec.Nodes["e"].Items)
	}
	var o run.Output
	if err := json.Unmarshal(f.askRun(t, "output", []byte(`{"run_id":"r"}`)), &o); err != nil {
		t.Fatal(err)
	}
	for k, want := range []string{`"did a"`, `"did b did a"`} {
		if r := o.Results[k]; r.State != run.Done || r.Result == nil || string(r.Result.Output) != want {
			t.Errorf("node %s is %s with %+v, want %s", r.Node, r.State, r.Result, want)
		}
	}
	if n := len(o.Results[2].Each); n != 6 {
		t.Errorf("the document has %d items, want 6", n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range 6 {
		if name := fmt.Sprint("item ", i); c.done[name] != 1 {
			t.Errorf("%s was done %d times", name, c.done[name])
		}
	}
	if c.done["a"] != 1 || c.done["b did a"] != 1 {
		t.Errorf("done: %v", c.done)
	}
}

// man runs the agent isa until the test ends.
func (f *testFleet) man(t *testing.T, h agent.Handler) {
	t.Helper()
	agentIn(t, f.url, agent.Config{ID: "isa", Heartbeat: time.Second, MaxParallel: 8, Handler: h})
}
