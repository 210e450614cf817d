package runs_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers/runs"
)

// New runs are refused once the store is full to 80 %; those under way have the
// rest, and end.
func TestRoomForRunsUnderWay(t *testing.T) {
	t.Parallel()
	const room = 512 << 10
	b := bustest.New(t).Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{RunsMaxBytes: room}); err != nil {
		t.Fatal(err)
	}
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	serve(t, runs.Config{Bus: b})
	id := start(t, b, fmt.Sprintf(chain, "held"))
	bustest.Eventually(t, "a is dispatched", func() bool { return len(k.briefs()) == 1 })
	records, stop := b.Records(subjects.StreamRuns, bus.CommitDirect)
	defer stop()
	for n := 0; ; n++ {
		s, err := b.StreamState(t.Context(), subjects.StreamRuns)
		if err != nil {
			t.Fatal(err)
		}
		if s.Bytes > room*8/10 {
			break
		}
		_, err = records.Write(t.Context(), bus.Record{
			Subject: subjects.RunResult("other", subjects.TaskID(fmt.Sprint("t", n))), WriteID: fmt.Sprint("w", n),
			Data: fleet.MustEncode(strings.Repeat("x", 10_000)),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := ask[run.Started](t, b, "start", fmt.Appendf(nil, chain, "more"))
	if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds <= 0 {
		t.Errorf("start = %v, want rate_limited, and when to repeat it", err)
	}
	if again, err := ask[run.Started](t, b, "start", fmt.Appendf(nil, chain, "held")); err != nil || again.RunID != id || !again.Duplicate {
		t.Errorf("start of what was begun = %+v, %v, want a duplicate of %s", again, err, id)
	}
	k.change(func() {
		k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) { return said("did " + d.Brief), true }
	})
	k.end(k.order[0], said("a, at last"))
	until(t, b, id, run.Done)
}

// A run is kept for seven days after its end, and as long as it goes on.
func TestEndedRunsAreKept(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"agents":[{"id":"a","dependencies":[]}]}`)
	bustest.Eventually(t, "a is dispatched", func() bool { return len(k.briefs()) == 1 })
	kept := func(want string) {
		t.Helper()
		m, err := b.Last(t.Context(), subjects.StreamRuns, subjects.Run(id))
		if err != nil {
			t.Fatal(err)
		}
		if ttl := m.Header.Get("Nats-TTL"); ttl != want {
			t.Errorf("its last record is kept for %q, want %q", ttl, want)
		}
	}
	kept("")
	k.end(k.order[0], said("it"))
	until(t, b, id, run.Done)
	kept("604800s")
}

// What came before is told up to 512 KiB; of what does not fit there is a note.
func TestLongResultsAreNoted(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	long := strings.Repeat("x", 300<<10)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return said(long), true }
	serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"agents":[{"id":"a","dependencies":[]},{"id":"b","dependencies":[]},{"id":"c","brief":"sum up","dependencies":["a","b"]}]}`)
	until(t, b, id, run.Done)
	brief, block, _ := strings.Cut(k.tasks[runs.TaskID(id, "c", 1)].dispatch.Brief, "\n\n# What came before (JSON)\n\n")
	var told struct {
		Results []run.Previous `json:"previous_results"`
	}
	if err := json.Unmarshal([]byte(block), &told); err != nil || brief != "sum up" || len(told.Results) != 2 {
		t.Fatalf("c is told %q and %d results, %v", brief, len(told.Results), err)
	}
	if got := string(told.Results[0].Output); got != `"`+long+`"` {
		t.Errorf("the first result has %d bytes, want it whole", len(got))
	}
	if got := told.Results[1]; got.Node != "b" || got.Status != run.Done || string(got.Output) != `"(307202 bytes: see the output of the run)"` {
		t.Errorf("the second result is %.100s of %s, want a note", got.Output, got.Node)
	}
}

// What the briefs of all items quote alike is looked up once.
//
//nolint:paralleltest // it measures what the process allocates
func TestItemsQuoteTheSameOnce(t *testing.T) {
	const n = 100
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	words := slices.Repeat([]int{1000}, 150_000)
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		r := said("did " + d.Brief)
		if d.Brief == "words" {
			r.Output = fleet.MustEncode(words)
		}
		return r, true
	}
	serve(t, runs.Config{Bus: b})
	items := strings.TrimSuffix(strings.Repeat("1,", n), ",")
	var from, to runtime.MemStats
	runtime.ReadMemStats(&from)
	id := start(t, b, `{"agents":[{"id":"w","brief":"words","dependencies":[]},
		{"id":"e","brief":"${w/7} ${index}","dependencies":["w"],"fan_out":{"items":[`+items+`]}}]}`)
	until(t, b, id, run.Done)
	runtime.ReadMemStats(&to)
	if brief := k.tasks[runs.ItemID(id, "e", 1, 7)].dispatch.Brief; !strings.HasPrefix(brief, "1000 7\n") {
		t.Errorf("an item is told %.50q", brief)
	}
	if mb := (to.TotalAlloc - from.TotalAlloc) >> 20; mb > 300 {
		t.Errorf("%d items took %d MB", n, mb)
	}
}

// A brief that comes to more than a message holds ends its node, or its item, and
// nothing of it is dispatched.
func TestBriefThatGrows(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	long := strings.Repeat("x", 100<<10)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return said(long), true }
	serve(t, runs.Config{Bus: b})
	r := until(t, b, start(t, b, fmt.Sprintf(`{"agents":[
		{"id":"a","brief":"a","dependencies":[]},
		{"id":"b","brief":%q,"dependencies":["a"],"on_failure":"continue"},
		{"id":"each","brief":%q,"dependencies":[],"on_failure":"continue","fan_out":{"items":[%q]}}]}`,
		strings.Repeat("${a}", 100), strings.Repeat("${item}", 100), long)), run.Done)
	for _, node := range []run.NodeID{"b", "each"} {
		if n := r.Nodes[node]; n.State != run.Failed || n.Reason == nil || n.Reason.Code != subjects.CodePayloadTooLarge {
			t.Errorf("%s is %s (%+v), want payload_too_large", node, n.State, n.Reason)
		}
	}
	if n := len(k.briefs()); n != 1 {
		t.Errorf("%d tasks, want that of a alone", n)
	}
}

// A task that no message holds once it is JSON is refused for good.
func TestTaskBeyondAMessage(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return said(strings.Repeat("\x01", 170_000)), true } // six bytes each
	serve(t, runs.Config{Bus: b})
	r := until(t, b, start(t, b, `{"agents":[{"id":"a","dependencies":[]},{"id":"b","brief":"${a}${a}${a}${a}${a}","dependencies":["a"]}]}`), run.Failed)
	if n := r.Nodes["b"]; n.State != run.Failed || n.Reason == nil || n.Reason.Code != subjects.CodePayloadTooLarge {
		t.Errorf("b is %s (%+v), want payload_too_large", n.State, n.Reason)
	}
}

// A retry ends while the results that it builds on are kept, and its document
// can be read for as long as any other.
func TestRetriesWhileResultsAreKept(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return broke("no"), true }
	serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"timeout":2592000,"agents":[{"id":"a","dependencies":[]}]}`)
	until(t, b, id, run.Failed)
	rewrite(t, b, id, func(r *run.Record) { r.Created = r.Created.Add(-30 * day) })
	r, err := ask[run.Record](t, b, "retry", &run.Ref{RunID: id})
	if err != nil {
		t.Fatal(err)
	}
	if kept := r.Deadline.Sub(r.Created); kept != 33*day {
		t.Errorf("it may go on until %s after its start, want 33 days", kept)
	}
	until(t, b, id, run.Failed)
	rewrite(t, b, id, func(r *run.Record) { r.Created = r.Created.Add(-4 * day) })
	if _, err := ask[run.Record](t, b, "retry", &run.Ref{RunID: id}); subjects.CodeOf(err) != subjects.CodeDeadlineExceeded {
		t.Errorf("retry after 34 days = %v, want deadline_exceeded", err)
	}
}

// A run that has the name of an earlier one, whose record is not kept any more,
// has nothing of that one's results.
func TestNameOfAnEarlierRun(t *testing.T) {
	t.Parallel()
	const definition = `{"task_id":"weekly","agents":[{"id":"a","brief":"BRIEF","dependencies":[]},
		{"id":"each","brief":"BRIEF ${item}","dependencies":["a"],"fan_out":{"items":[1,2]}}]}`
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		stop := serve(t, runs.Config{Bus: b})
		for _, week := range []string{"first", "second"} {
			id := start(t, b, strings.ReplaceAll(definition, "BRIEF", week))
			until(t, b, id, run.Done)
			if s := start(t, b, strings.ReplaceAll(definition, "BRIEF", week)); s != id {
				t.Errorf("its repeat is %s", s)
			}
			for _, r := range output(t, b, id).Results {
				if text := string(fleet.MustEncode(r)); !strings.Contains(text, week) {
					t.Errorf("in the %s week %s says %s", week, r.Node, text)
				}
			}
			time.Sleep(2 * time.Hour)
			stop()
			k.change(func() { clear(k.tasks) })
			if err := b.Purge(t.Context(), subjects.StreamRuns, subjects.Run(id)); err != nil { // as its time does
				t.Fatal(err)
			}
			stop = serve(t, runs.Config{Bus: b})
		}
	})
}

// Nothing begins without the inputs that it was to have: where they are lost it
// fails, and says why.
func TestLostResults(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	held := make(chan struct{})
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) {
		if brief, _, _ := strings.Cut(d.Brief, "\n"); brief == "slow" {
			<-held
		}
		return said("did it"), true
	}
	stop := serve(t, runs.Config{Bus: b})
	id := start(t, b, `{"agents":[
		{"id":"a","brief":"a","dependencies":[]},
		{"id":"each","brief":"item","dependencies":[],"fan_out":{"items":[1,2]}},
		{"id":"slow","brief":"slow","dependencies":[]},
		{"id":"plain","brief":"plain","dependencies":["a","slow"],"on_failure":"continue"},
		{"id":"cond","brief":"cond","dependencies":["a","slow"],"on_failure":"continue","when":"outputs.a == nil"},
		{"id":"fan","brief":"fan","dependencies":["a","slow"],"on_failure":"continue","fan_out":{"from":"a"}},
		{"id":"sum","brief":"sum","dependencies":["each","slow"],"on_failure":"continue"}]}`)
	bustest.Eventually(t, "a and each are done, slow is under way", func() bool {
		r := get(t, b, id)
		return r.Nodes["a"].State == run.Done && r.Nodes["each"].State == run.Done && slices.Contains(k.briefs(), "slow")
	})
	stop()
	if err := b.Purge(t.Context(), subjects.StreamRuns, subjects.RunResult(id, "*")); err != nil {
		t.Fatal(err)
	}
	k.change(func() { delete(k.tasks, runs.TaskID(id, "a", 1)); k.order = nil })
	close(held)
	serve(t, runs.Config{Bus: b})
	r := until(t, b, id, run.Done)
	for node, code := range map[run.NodeID]subjects.Code{
		"plain": subjects.CodeNotFound, "cond": subjects.CodeInvalidMessage, "fan": subjects.CodeNotFound, "sum": subjects.CodeNotFound,
	} {
		if n := r.Nodes[node]; n.State != run.Failed || n.Reason == nil || n.Reason.Code != code || !strings.Contains(n.Reason.Message, "is not kept any more") {
			t.Errorf("%s is %s (%+v), want failed by %s", node, n.State, n.Reason, code)
		}
	}
	if briefs := k.briefs(); len(briefs) > 0 {
		t.Errorf("began %q", briefs)
	}
}

// However long the descriptions of runs are, they can be listed.
func TestListOfLongDescriptions(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	serve(t, runs.Config{Bus: b})
	long := strings.Repeat("ü", 450<<10)
	for i := range 5 {
		start(t, b, fmt.Sprintf(`{"task_id":"r%d","description":%q,"agents":[{"id":"a","brief":"a"}]}`, i, long))
	}
	l, err := ask[run.List](t, b, "list", struct{}{})
	if err != nil || len(l.Runs) != 5 {
		t.Fatalf("%d runs, %v, want 5", len(l.Runs), err)
	}
	for _, s := range l.Runs {
		if d := s.Description; len(d) > 300 || !strings.HasPrefix(d, "üü") || !strings.HasSuffix(d, "ü…") {
			t.Errorf("a description has %d bytes: %.20q", len(d), d)
		}
	}
	if r := get(t, b, l.Runs[0].RunID); r.Definition.Description != long {
		t.Errorf("the record has %d bytes of the description", len(r.Definition.Description))
	}
}
