package runs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers/runs"
)

const chain = `{"task_id":"%s","agents":[
	{"id":"a","brief":"a","dependencies":[]},
	{"id":"b","brief":"b","dependencies":["a"]},
	{"id":"c","brief":"c","dependencies":["a"]},
	{"id":"d","brief":"d ${b}","dependencies":["b","c"]}]}`

// Several workers carry out many runs, each node once, while somebody pauses
// and resumes them, so that their writes collide.
func TestWorkersShareRuns(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	serve(t, runs.Config{Bus: b})
	serve(t, runs.Config{Bus: b})
	stop := serve(t, runs.Config{Bus: b})
	var ids []subjects.RunID
	for i := range 12 {
		ids = append(ids, start(t, b, fmt.Sprintf(chain, fmt.Sprintf("r%d", i))))
	}
	stop() // what it drove is the others' now
	for _, id := range ids {
		for range 5 {
			for _, verb := range []string{"pause", "resume"} {
				if _, err := ask[run.Record](t, b, verb, &run.Ref{RunID: id}); err != nil {
					t.Errorf("%s: %v", verb, err)
				}
			}
		}
	}
	for _, id := range ids {
		until(t, b, id, run.Done)
		if a, again := document(t, b, id), document(t, b, id); !bytes.Equal(a, again) {
			t.Errorf("the document of %s changes", id)
		}
	}
	if n := k.count(func(*job) bool { return true }); n != 4*len(ids) {
		t.Errorf("%d tasks were dispatched, want %d", n, 4*len(ids))
	}
	last := output(t, b, ids[0]).Results[3]
	if last.Node != "d" || !strings.HasPrefix(string(last.Result.Output), `"did d did b`) {
		t.Errorf("d came to %s", last.Result.Output)
	}
}

// A worker that comes later goes on where the records are, though it has heard
// of nothing.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	stop := serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(chain, "late"))
	bustest.Eventually(t, "a is dispatched", func() bool { return len(k.briefs()) == 1 })
	stop()
	k.change(func() {
		k.deaf = true
		k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) { return said("did " + d.Brief), true }
	})
	k.end(k.order[0], said("a, at last"))
	k.change(func() { k.deaf = false })
	serve(t, runs.Config{Bus: b})
	r := until(t, b, id, run.Done)
	if n := len(k.briefs()); n != 4 || r.Nodes["a"].Generation != 1 {
		t.Errorf("%d tasks, a was begun %d times", n, r.Nodes["a"].Generation)
	}
}

// A long definition is kept beside the records of a run under way, and read from
// there by whoever takes over; the last record has it again.
func TestLongDefinition(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	stop := serve(t, runs.Config{Bus: b})
	brief := strings.Repeat("long ", 2000)
	definition := fmt.Sprintf(`{"task_id":"long","agents":[{"id":"a","brief":%q,"dependencies":[]},{"id":"b","brief":"b","dependencies":["a"]}]}`, brief)
	id := start(t, b, definition)
	bustest.Eventually(t, "a is dispatched", func() bool { return len(k.briefs()) == 1 })
	stored := func() *run.Record {
		t.Helper()
		m, err := b.Last(t.Context(), subjects.StreamRuns, subjects.Run(id))
		if err != nil {
			t.Fatal(err)
		}
		r, err := run.DecodeRecord(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := stored(); r.DefinitionHash == "" || len(r.Definition.Agents) > 0 {
		t.Errorf("the record has the hash %q and %d nodes", r.DefinitionHash, len(r.Definition.Agents))
	}
	stop()
	k.change(func() {
		k.deaf = true
		k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return said("did it"), true }
	})
	k.end(k.order[0], said("a, at last"))
	k.change(func() { k.deaf = false })
	serve(t, runs.Config{Bus: b})
	if r := until(t, b, id, run.Done); r.Definition.Agents[0].Brief != brief {
		t.Errorf("its first brief is %.20q…", r.Definition.Agents[0].Brief)
	}
	if r := stored(); r.Definition.Agents[0].Brief != brief {
		t.Errorf("the last record's first brief is %.20q…", r.Definition.Agents[0].Brief)
	}
	start(t, b, definition) // once more: it is the same
}

// A worker may die when a record says that a node has ended, and its result is
// not stored yet: whoever takes over gets it from the task, for those that
// follow and for the document.
func TestTakeOverWithoutResults(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	held := make(chan struct{})
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		if brief, _, _ := strings.Cut(d.Brief, "\n"); brief == "c" {
			<-held
		}
		return said("did " + d.Brief), true
	}
	stop := serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(chain, "torn"))
	bustest.Eventually(t, "b is done", func() bool { return get(t, b, id).Nodes["b"].State == run.Done })
	stop()
	for _, node := range []run.NodeID{"a", "b"} {
		if err := b.Purge(t.Context(), subjects.StreamRuns, subjects.RunResult(id, runs.TaskID(id, node, 1))); err != nil {
			t.Fatal(err)
		}
	}
	close(held)
	serve(t, runs.Config{Bus: b})
	until(t, b, id, run.Done)
	for i, want := range []string{`"did a"`, `"did b\n`, `"did c\n`, `"did d did b\n`} {
		if r := output(t, b, id).Results[i]; r.Result == nil || !strings.HasPrefix(string(r.Result.Output), want) {
			t.Errorf("%s came to %+v, want %s…", r.Node, r.Result, want)
		}
	}
}

// The end of a run's time is the same for a worker that was started in the
// middle of it: its tasks are canceled then.
func TestDeadlineOverARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
		stop := serve(t, runs.Config{Bus: b})
		began := time.Now()
		id := start(t, b, `{"task_id":"slow","timeout":20,"agents":[{"id":"a","dependencies":[]},{"id":"b","dependencies":["a"]}]}`)
		time.Sleep(8 * time.Second)
		stop()
		time.Sleep(2 * time.Second)
		serve(t, runs.Config{Bus: b})
		time.Sleep(5 * time.Second)
		if r := get(t, b, id); r.State != run.Running {
			t.Fatalf("after 15 s the run is %s", r.State)
		}
		r := until(t, b, id, run.Expired)
		if took := r.Ended.Sub(began); took < 19*time.Second || took > 25*time.Second {
			t.Errorf("it ended after %s", took)
		}
		if n := k.count(func(j *job) bool { return j.canceled }); n != 1 || r.Nodes["a"].State != run.Canceled || r.Nodes["b"].State != run.Skipped {
			t.Errorf("%d tasks canceled, %+v", n, r.Nodes)
		}
	})
}

// What a node says of its task is in its dispatch.
func TestNodeIsAnOrdinaryTask(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	s := newSessions(t, b)
	serve(t, runs.Config{Bus: b})
	id := start(t, b, `
task_id: full
task_type: orchestration
priority: high
timeout: 600
token_budget: 5000
shared_data: {site: lab}
agents:
  - id: a
    agent_id: echo
    alternatives: [other]
    timeout: 30
    max_retries: 7
    token_budget: 100
    on_blocked: wait
    on_failure: escalate
    result_schema: {type: string}
    dependencies: []
    brief: first
  - id: b
    requirements: {required_mcp: [git], required_capabilities: [terminal], model_tier: opus, clean_repo: true, labels: {site: lab}}
    dependencies: [a]
`)
	r := until(t, b, id, run.Done)
	a, n := k.tasks[runs.TaskID(id, "a", 1)].dispatch, k.tasks[runs.TaskID(id, "b", 1)].dispatch
	want := fleet.Task{
		TaskID: runs.TaskID(id, "a", 1), Priority: fleet.High, Type: run.Orchestration, Agent: "echo", Alternatives: []subjects.AgentID{"other"},
		TimeoutSeconds: 30, MaxRetries: new(7), TokenBudget: 100, OnBlocked: fleet.OnBlockedWait, Escalate: fleet.EscalateAlways,
		ResultSchema: json.RawMessage(`{"type":"string"}`), RunID: id, NodeID: "a", RunBudget: 5000, SessionID: theSession,
	}
	if got, want := string(fleet.MustEncode(&a.Task)), string(fleet.MustEncode(&want)); got != want {
		t.Errorf("a's task is\n%s, want\n%s", got, want)
	}
	if !a.Deadline.Equal(r.Deadline) || !strings.HasPrefix(a.Brief, "first\n") {
		t.Errorf("a is %q, until %s", a.Brief, a.Deadline)
	}
	q := n.Requirements
	if len(q.RequiredMCP) != 1 || len(q.RequiredCapabilities) != 1 || q.ModelTier != "opus" || !q.CleanRepo || q.Labels["site"] != "lab" || n.Task.Escalate != fleet.EscalateNever {
		t.Errorf("b requires %+v", q)
	}
	for _, want := range []string{`"previous_results":[{"agent_id":"w","node":"a","status":"done","output":"did first`, `"shared_data":{"site":"lab"}`} {
		if !strings.Contains(n.Brief, want) {
			t.Errorf("b is told %q, which lacks %s", n.Brief, want)
		}
	}
	if r.SessionID != theSession || s.created != 1 || len(s.appends) != 1 || string(s.appends[0].SharedData["site"]) != `"lab"` {
		t.Errorf("session %s, %d created, appended %+v", r.SessionID, s.created, s.appends)
	}
}

// What can begin at the same moment is dispatched in the order of sequence.
func TestSequence(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	serve(t, runs.Config{Bus: b})
	d := &run.Definition{}
	for i := range 40 {
		d.Agents = append(d.Agents, run.Node{ID: run.NodeID(fmt.Sprint("n", i)), Brief: strconv.Itoa(40 - i), Sequence: 40 - i, Dependencies: []run.NodeID{}})
	}
	until(t, b, start(t, b, string(fleet.MustEncode(d))), run.Done)
	for i, brief := range k.briefs() {
		if brief != strconv.Itoa(i+1) {
			t.Fatalf("they were dispatched in the order %v", k.briefs())
		}
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		r := said("")
		if r.Output = json.RawMessage(`{"score":7,"ok":true}`); strings.HasPrefix(d.Brief, "bad") {
			r = broke("no")
		}
		return r, true
	}
	serve(t, runs.Config{Bus: b})
	r := until(t, b, start(t, b, `
task_id: when
shared_data: {least: 5}
agents:
  - {id: review, brief: x, dependencies: []}
  - {id: good, brief: x, dependencies: [review], when: outputs.review.score >= shared.least && outputs.review.ok}
  - {id: poor, brief: x, dependencies: [review], when: outputs.review.score < shared.least}
  - {id: mend, brief: x, dependencies: [poor]}
  - {id: join, brief: "${mend}${good/score}", dependencies: [good, mend]}
  - {id: bad, brief: bad, dependencies: [], on_failure: continue}
  - {id: alarm, brief: x, dependencies: [bad], when: 'status.bad == "failed"'}
  - {id: odd, brief: x, dependencies: [review], on_failure: continue, when: outputs.review.score.x > 1}
`), run.Done)
	for id, want := range map[run.NodeID]run.State{
		"review": run.Done, "good": run.Done, "poor": run.Skipped, "mend": run.Skipped, "join": run.Done, "bad": run.Failed, "alarm": run.Done, "odd": run.Failed,
	} {
		if got := r.Nodes[id]; got.State != want || want == run.Skipped && got.Note == "" {
			t.Errorf("%s is %s (%s, %+v), want %s", id, got.State, got.Note, got.Reason, want)
		}
	}
	if !slices.Contains(k.briefs(), "7") {
		t.Errorf("join was not told 7, but %q", k.briefs())
	}
}

// Documents are left below the directory, whole, and of any size.
func TestDocument(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return said(strings.Repeat("long ", 75_000)), true }
	dir := t.TempDir()
	serve(t, runs.Config{Bus: b, OutputDir: dir})
	id := start(t, b, `{"agents":[{"id":"a","dependencies":[]},{"id":"b","dependencies":[]},{"id":"c","dependencies":["a","b"]}],"output_location":"x/y.json"}`)
	until(t, b, id, run.Done)
	file, err := os.ReadFile(filepath.Join(dir, "x", "y.json"))
	got := document(t, b, id)
	if err != nil || !bytes.Equal(got, file) || len(got) < 1_100_000 {
		t.Errorf("document of %d bytes, file of %d, %v", len(got), len(file), err)
	}
	if _, err := ask[run.Output](t, b, "output", &run.Ref{RunID: id}); subjects.CodeOf(err) != subjects.CodePayloadTooLarge {
		t.Errorf("output = %v, want payload_too_large", err)
	}
	if files, err := os.ReadDir(filepath.Join(dir, "x")); err != nil || len(files) != 1 {
		t.Errorf("left %v, %v", files, err)
	}
	var o run.Output
	if err := json.Unmarshal(got, &o); err != nil {
		t.Fatal(err)
	}
	if o.Type != run.TypeOutput || len(o.Results) != 3 || o.Results[2].Result == nil || o.Tokens != 6 {
		t.Errorf("the document is %+v", o)
	}
	for _, at := range []string{"../x.json", "/tmp/x.json", "x/../../y", "."} {
		if _, err := ask[run.Started](t, b, "start", fmt.Appendf(nil, `{"agents":[{"id":"a"}],"output_location":%q}`, at)); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
			t.Errorf("output_location %s: %v", at, err)
		}
	}
	if _, err := ask[run.Started](t, b, "start", []byte(`{"agents":[{"id":"a"}]}`)); err != nil {
		t.Error(err)
	}
}
