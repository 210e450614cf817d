package runs_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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
