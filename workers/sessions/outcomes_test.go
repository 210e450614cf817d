package sessions_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/sessions"
)

// ended stores the outcome of a task of from, as a router does.
func ended(t *testing.T, b *bus.Bus, task subjects.TaskID, from subjects.AgentID, id subjects.SessionID, r *fleet.Result) {
	t.Helper()
	records, stop := b.Records(subjects.StreamTasks, bus.CommitDirect)
	defer stop()
	ev := &fleet.Event{
		TaskID: task, Seq: 1, Kind: fleet.KindOutcome, State: fleet.StateDone, AgentID: "worker", Time: time.Now().UTC(),
		Data: fleet.Data{Result: fleet.MustEncode(r)}, Facts: fleet.Facts{From: from, SessionID: id}, WriteID: string(task),
	}
	_, err := records.Write(t.Context(), bus.Record{
		Subject: subjects.Task(task), WriteID: string(task), Data: fleet.MustEncode(ev),
		Header: bus.Header{subjects.HeaderKind: {ev.Kind}, subjects.HeaderSession: {string(id)}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestResultsAreAppended(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stop := start(t, b)
	start(t, b) // two follow: each result is there once
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	mine := opened(boss.by("eve")).Session.SessionID
	blocked := "no key"
	ended(t, b, "t1", "boss", id, &fleet.Result{
		Status: fleet.StatusDone, Output: fleet.MustEncode("all is well, and " + secret), NextSteps: []string{"rest"},
		Artifacts: json.RawMessage(`{"pr":7}`),
	})
	ended(t, b, "t2", "eve", id, &fleet.Result{Status: fleet.StatusDone}) // not eve's session
	ended(t, b, "t3", "boss", "a2a-20251122T120000Z-7f3a9c21", &fleet.Result{Status: fleet.StatusDone})
	ended(t, b, "t4", "boss", id, &fleet.Result{Status: fleet.StatusBlocked, BlockedReason: &blocked})
	ended(t, b, "t5", "eve", mine, &fleet.Result{Status: fleet.StatusDone})
	bustest.Eventually(t, "the last result", func() bool { return len(all(boss.by("eve"), mine)) == 1 })
	records := all(boss, id)
	if len(records) != 2 {
		t.Fatalf("%d entries, want those of t1 and t4", len(records))
	}
	e := records[0].Entry
	if e.TaskID != "t1" || e.AgentID != "worker" || e.Status != "completed" || strings.Contains(string(e.Output), secret) ||
		string(e.Output) != `"all is well, and [redacted: github-pat]"` || string(e.Findings) != `{"artifacts":{"pr":7},"next_steps":["rest"]}` {
		t.Errorf("entry %s", fleet.MustEncode(e))
	}
	// A task under the same id, once the records of the first have gone, has a result of its own.
	if err := b.Purge(t.Context(), subjects.StreamTasks, subjects.Task("t1")); err != nil {
		t.Fatal(err)
	}
	ended(t, b, "t1", "boss", id, &fleet.Result{Status: fleet.StatusDone})
	bustest.Eventually(t, "the second result of t1", func() bool { return len(all(boss, id)) == 3 })
	// A third one, which reads all again, adds nothing twice.
	stop()
	kv, err := b.KV(t.Context(), subjects.BucketScratch)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(t.Context(), "sessions"); err != nil {
		t.Fatal(err)
	}
	start(t, b)
	ended(t, b, "t6", "boss", id, &fleet.Result{Status: fleet.StatusDone})
	bustest.Eventually(t, "the result of t6", func() bool { return len(all(boss, id)) >= 4 })
	if got := all(boss, id); len(got) != 4 || got[3].Entry.TaskID != "t6" {
		t.Errorf("entries %s, want those of t1, t4, t1 and t6", fleet.MustEncode(got))
	}
}

// heard is a log of which each line is heard.
type heard chan string

func (h heard) Write(line []byte) (int, error) {
	select {
	case h <- string(line):
	default: // nobody waits for so many
	}
	return len(line), nil
}

// A result for which there is no room waits for some: it is appended once
// another session has ended.
func TestResultsWaitForRoom(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{BucketMaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	log := make(heard, 1000)
	w, err := sessions.New(sessions.Config{Bus: b, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	boss := caller{t, b, "boss"}
	id, long := opened(boss).Session.SessionID, opened(boss).Session.SessionID
	for size := 100_000; size > 0; size /= 10 {
		for full := false; !full; {
			_, err := ask[handshake.Appended](boss, "append", said(long, strings.Repeat("x", size)))
			if full = subjects.CodeOf(err) == subjects.CodeRateLimited; err != nil && !full {
				t.Fatal(err)
			}
		}
	}
	ended(t, b, "t1", "boss", id, &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode("here I am")})
	limit := time.After(bustest.Patience)
	for refused := false; !refused; {
		select {
		case line := <-log:
			refused = strings.Contains(line, "task_id=t1")
		case <-limit:
			t.Fatal("nothing is said of the result of t1")
		}
	}
	must[handshake.Deleted](boss, "delete", handshake.Ref{SessionID: long})
	bustest.Eventually(t, "the result of t1", func() bool { return len(all(boss, id)) == 1 })
}

// TestOfferContext: routers get the newest of a context, bounded, for whoever
// may use the session.
func TestOfferContext(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss, router := caller{t, b, "boss"}, caller{t, b, handshake.Router}
	id := opened(boss).Session.SessionID
	for range 10 {
		must[handshake.Appended](boss, "append", said(id, strings.Repeat("x", 20_000)))
	}
	req := handshake.OfferContext{SessionID: id, From: "boss"}
	r := must[handshake.OfferContextReply](router, "offer", req)
	view, err := fleet.DecodeStored[handshake.ContextView](r.Context)
	if err != nil {
		t.Fatal(err)
	}
	entries := view.Context.PreviousAgents
	if size := len(r.Context); size > 64<<10 || len(entries) != 10 || !entries[0].Omitted || entries[9].Omitted {
		t.Errorf("%d bytes with %d entries, want at most 64 KiB with the newest whole", size, len(entries))
	}
	must[handshake.View](boss.by("worker"), "get", handshake.Ref{SessionID: id, Token: r.Token})
	refused(boss, "offer", req, subjects.CodeForbidden)
	req.From = "eve"
	refused(router, "offer", req, subjects.CodeNotFound)
	req.From = "operator"
	must[handshake.OfferContextReply](router, "offer", req)
}

// An offer of what builds on others waits for their results, which are on their
// way, and for what never comes only a moment.
func TestOfferWaitsForResults(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	boss, router := caller{t, b, "boss"}, caller{t, b, handshake.Router}
	id := opened(boss).Session.SessionID
	offered := make(chan handshake.OfferContextReply, 1)
	asked := make(chan struct{})
	go func() {
		close(asked)
		r, err := ask[handshake.OfferContextReply](router, "offer", handshake.OfferContext{SessionID: id, From: "boss", AfterSeq: 2})
		if err != nil {
			t.Errorf("offer = %v", err)
		}
		offered <- r
	}()
	<-asked
	ended(t, b, "t1", "boss", id, &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode("first")})
	if r := <-offered; !strings.Contains(string(r.Context), "first") {
		t.Errorf("the offer has %s, without the result of t1", r.Context)
	}
	must[handshake.OfferContextReply](router, "offer", handshake.OfferContext{SessionID: id, From: "boss", AfterSeq: 1000})
}
