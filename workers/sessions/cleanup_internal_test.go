package sessions

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// behind is a worker that has heard of no session.
func behind(t *testing.T, b *bus.Bus) *Worker {
	t.Helper()
	w, err := New(Config{Bus: b, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// holds reports whether there are a context and an output of a session; it has
// both, or none.
func holds(t *testing.T, w *Worker, id subjects.SessionID) bool {
	t.Helper()
	contexts, err := w.bus.Subjects(t.Context(), subjects.StreamContext, subjects.Context(id))
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := w.outputsBySession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(contexts) != len(outputs[id]) {
		t.Errorf("session %s has %d contexts and %d outputs", id, len(contexts), len(outputs[id]))
	}
	return len(contexts) > 0
}

// TestOnlyTheStoreEndsSessions: what a worker that is behind does not know of, or
// takes for over, is dropped only where the store has no such session.
func TestOnlyTheStoreEndsSessions(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w := behind(t, b)
	const live, gone = subjects.SessionID("a2a-20251122T120000Z-7f3a9c21"), subjects.SessionID("a2a-20251122T120000Z-7f3a9c22")
	rev, err := w.sessions.Create(t.Context(), string(live), fleet.MustEncode(&handshake.Session{SessionID: live, Orchestrator: "boss"}), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []subjects.SessionID{live, gone} {
		if _, err := b.Store(t.Context(), subjects.Context(id), []byte("{}"), "", nil); err != nil {
			t.Fatal(err)
		}
		if err := w.outputs.Put(t.Context(), partName(id, "sha256:0", 0), bytes.NewReader([]byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	w.sweep(t.Context())
	if !holds(t, w, live) || holds(t, w, gone) {
		t.Error("want what is of the session that lives, and nothing of the other")
	}
	w.known[live] = stored{at: w.now().Add(-handshake.SessionLife - time.Hour)} // and another worker has renewed it
	w.drop(t.Context(), w.expired(w.now()))
	if !holds(t, w, live) || len(w.known) != 1 {
		t.Error("a session that was renewed is dropped")
	}
	w.onSession(bus.Entry{Key: string(live), Deleted: true})
	w.drop(t.Context(), w.takeEnded())
	if !holds(t, w, live) {
		t.Error("a session that is in the store is dropped")
	}
	if err := w.sessions.DeleteRevision(t.Context(), string(live), rev); err != nil {
		t.Fatal(err)
	}
	w.known[live] = stored{at: w.now().Add(-handshake.SessionLife - time.Hour)}
	w.drop(t.Context(), w.expired(w.now()))
	if holds(t, w, live) || len(w.known) != 0 {
		t.Error("a session that is over is not dropped")
	}
}

// TestWatchWaitsForNobody: however many sessions have ended, the watch goes on
// while what they held is being dropped.
func TestWatchWaitsForNobody(t *testing.T) {
	t.Parallel()
	w, err := New(Config{Bus: &bus.Bus{}})
	if err != nil {
		t.Fatal(err)
	}
	const many = 5000
	for i := range many {
		w.onSession(bus.Entry{Key: fmt.Sprint("session", i), Deleted: true})
	}
	<-w.ends
	if n := len(w.takeEnded()); n != many {
		t.Errorf("%d are to be dropped, want %d", n, many)
	}
}

// TestWaitersLeaveRoom: reads that wait for news never take every place; who has
// something to read need not wait.
func TestWaitersLeaveRoom(t *testing.T) {
	t.Parallel()
	w := behind(t, bustest.New(t).Bus(t))
	bustest.Serve(t, w)
	v, err := w.create(t.Context(), "boss", &handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "single-agent"}})
	if err != nil {
		t.Fatal(err)
	}
	id := v.(*handshake.Opened).Session.SessionID //nolint:forcetypeassert // what create answers
	w.waiting.Store(maxWaiting)
	read := func() error {
		_, err := w.readContext(t.Context(), t.Context(), "boss", &handshake.Read{SessionID: id, WaitSeconds: handshake.MaxWait})
		return err
	}
	if e := subjects.AsError(read()); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds == 0 {
		t.Errorf("one reader more = %v, want rate_limited, and when to repeat it", e)
	}
	if _, err := w.appendEntry(t.Context(), "boss", &handshake.Append{SessionID: id, Entry: handshake.Entry{Status: "completed"}}); err != nil {
		t.Fatal(err)
	}
	if err := read(); err != nil {
		t.Errorf("a reader with something to read = %v", err)
	}
	if n := w.waiting.Load(); n != maxWaiting {
		t.Errorf("%d wait afterwards, want %d", n, maxWaiting)
	}
	if places := w.service(t.Context()).Concurrency; places <= maxWaiting {
		t.Errorf("%d places, %d may wait", places, maxWaiting)
	}
}

// TestKeysByTheServersClocks: how old a key is, is for the clock that all workers
// share. Here it is two days behind the machine's.
func TestKeysByTheServersClocks(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	kv, err := b.KV(t.Context(), subjects.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(-48 * time.Hour).UTC()
	r := newKeyring(kv, func() time.Time { return now })
	if err := r.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	const id = subjects.SessionID("a2a-20251122T120000Z-7f3a9c21")
	first := r.keys[0].ID
	for _, c := range []struct {
		later time.Duration
		keys  int
		first bool // it still signs
	}{{0, 1, true}, {keyLife - time.Minute, 1, true}, {2 * time.Minute, 2, false}, {keyLife, 2, false}} {
		now = now.Add(c.later)
		token, err := r.token(t.Context(), id, now.Add(handshake.TokenLife))
		if err != nil {
			t.Fatal(err)
		}
		if signs := handshake.TokenKey(token) == first; len(r.keys) != c.keys || signs != c.first {
			t.Errorf("%s later: %d keys, the first one signs: %t; want %d, %t", c.later, len(r.keys), signs, c.keys, c.first)
		}
		if !r.keys[0].Created.Before(time.Now().Add(-time.Hour)) && c.later < keyLife {
			t.Errorf("a key is of %s, want it by the clock that is shared", r.keys[0].Created)
		}
	}
}
