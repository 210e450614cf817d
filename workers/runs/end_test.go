package runs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// The document of a run is heard after its last record.
func TestOutputIsHeard(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	newDesk(t, b)
	serve(t, runs.Config{Bus: b})
	const n = 10
	heard := make(chan bus.Msg, n)
	sub, err := b.Subscribe(subjects.RunEventPattern, "", func(m bus.Msg) {
		if m.Header.Get(subjects.HeaderKind) == "output" {
			heard <- m
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		until(t, b, start(t, b, fmt.Sprintf(chain, fmt.Sprintf("r%d", i))), run.Done)
	}
	for i := range n {
		select {
		case m := <-heard:
			var o run.Output
			if err := json.Unmarshal(m.Data, &o); err != nil || len(o.Results) != 4 {
				t.Errorf("heard %s, %v", m.Data, err)
			}
		case <-time.After(bustest.Patience):
			t.Fatalf("%d documents of %d were heard", i, n)
		}
	}
}

// However often a run is retried, it has its time-out once more and no longer.
func TestRetriesHaveTheSameTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return broke("no"), true }
		serve(t, runs.Config{Bus: b})
		id := start(t, b, `{"timeout":60,"agents":[{"id":"a","dependencies":[]}]}`)
		for range 3 {
			until(t, b, id, run.Failed)
			time.Sleep(10 * time.Minute)
			r, err := ask[run.Record](t, b, "retry", &run.Ref{RunID: id})
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(r.Deadline); left < 50*time.Second || left > time.Minute {
				t.Errorf("it has %s, want a minute", left)
			}
		}
	})
}

// A run whose document cannot be written where it is to be ends all the same,
// and can be canceled.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o750); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		serve(t, runs.Config{Bus: b, OutputDir: dir})
		id := start(t, b, `{"agents":[{"id":"a","dependencies":[]}],"output_location":"taken"}`)
		time.Sleep(5 * time.Minute)
		if r := get(t, b, id); r.State != run.Done {
			t.Errorf("after 5 min the run is %s", r.State)
		}
		if o := output(t, b, id); len(o.Results) != 1 || o.Results[0].Result == nil {
			t.Errorf("its document is %+v", o)
		}
		k.change(func() { k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false } })
		id = start(t, b, `{"agents":[{"id":"a","dependencies":[]}],"output_location":"taken"}`)
		if _, err := ask[run.Record](t, b, "cancel", &run.Ref{RunID: id}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if r := get(t, b, id); r.State != run.Canceled {
			t.Errorf("5 min after the cancel the run is %s", r.State)
		}
	})
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left %v, %v", files, err)
	}
}

// What a worker has written counts for it, also where it gave up on a write that
// was stored after all: its owner carries out a cancel that came in that way.
func TestOwnRecordThatCameLate(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k := newDesk(t, b)
	k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
	serve(t, runs.Config{Bus: b, ID: "one"})
	id := start(t, b, `{"agents":[{"id":"a","dependencies":[]}]}`)
	bustest.Eventually(t, "a is dispatched", func() bool { return len(k.briefs()) == 1 })
	records, stop := b.Records(subjects.StreamRuns, bus.CommitDirect)
	defer stop()
	bustest.Eventually(t, "the cancel is stored", func() bool {
		m, err := b.Last(t.Context(), subjects.StreamRuns, subjects.Run(id))
		if err != nil {
			t.Fatal(err)
		}
		r, err := run.DecodeRecord(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		r.Cancel = "canceled"
		_, err = records.Write(t.Context(), bus.Record{
			Subject: m.Subject, Expected: m.Seq, WriteID: fmt.Sprint("late-", m.Seq), Data: r.Encode(fleet.MustEncode(&r.Definition)),
			Header: bus.Header{subjects.HeaderWriter: {"one"}, subjects.HeaderKind: {string(r.State)}},
		})
		return err == nil
	})
	until(t, b, id, run.Canceled)
	if n := k.count(func(j *job) bool { return j.canceled }); n != 1 {
		t.Errorf("%d tasks were canceled", n)
	}
}

// A run ends by its deadline though what it is to dispatch is refused for now,
// again and again: as soon as nothing of that can be stored any more.
func TestDeadlineOfWhatIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		k := newDesk(t, b)
		k.refuse = func(*fleet.Dispatch) error { return subjects.Errorf(subjects.CodeUnavailable, "not now") }
		serve(t, runs.Config{Bus: b})
		id := start(t, b, `{"timeout":20,"agents":[{"id":"a","dependencies":[]}]}`)
		time.Sleep(55 * time.Second)
		if r := get(t, b, id); r.State != run.Expired {
			t.Errorf("after 55 s of 20 the run is %s", r.State)
		}
	})
}

// A run that has begun without a session gets one, once sessions are there, and
// no more than one, also where its record cannot be stored for a while.
func TestSessionThatComesLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Connect(t)
		if err := b.Provision(t.Context(), bus.Provisioning{RunsMaxBytes: 64 << 10}); err != nil {
			t.Fatal(err)
		}
		k := newDesk(t, b)
		k.work = func(*fleet.Dispatch) (*fleet.Result, bool) { return nil, false }
		serve(t, runs.Config{Bus: b})
		id := start(t, b, `{"agents":[{"id":"a","dependencies":[]}]}`)
		time.Sleep(31 * time.Second)
		if r := get(t, b, id); r.Nodes["a"].State != run.Dispatched || r.SessionID != "" {
			t.Fatalf("a is %s, in the session %q", r.Nodes["a"].State, r.SessionID)
		}
		records, stop := b.Records(subjects.StreamRuns, bus.CommitDirect)
		defer stop()
		var err error
		for n := 0; err == nil && n < 10_000; n++ {
			id := fmt.Sprint("w", n)
			_, err = records.Write(t.Context(), bus.Record{
				Subject: subjects.RunResult("other", subjects.TaskID(id)), WriteID: id, Data: fleet.MustEncode(strings.Repeat("x", 100)),
			})
		}
		if !errors.Is(err, bus.ErrFull) {
			t.Fatalf("fill the stream: %v", err)
		}
		s := newSessions(t, b)
		time.Sleep(time.Minute)
		if r := get(t, b, id); r.SessionID != "" {
			t.Fatalf("the run has the session %q, and no room", r.SessionID)
		}
		if err := b.Purge(t.Context(), subjects.StreamRuns, subjects.RunResult("other", "*")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r := get(t, b, id)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.created != 1 || r.SessionID != theSession {
			t.Errorf("%d sessions were created, the run has %q", s.created, r.SessionID)
		}
	})
}
