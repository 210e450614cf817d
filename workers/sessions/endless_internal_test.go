package sessions

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/sessions/secrets"
)

// endless never comes to the end of a text that says so.
type endless struct{ scanner }

func (e endless) JSON(ctx context.Context, data []byte) ([]byte, []secrets.Finding, bool, error) {
	if bytes.Contains(data, []byte("endless")) {
		<-ctx.Done()
		return nil, nil, false, ctx.Err()
	}
	return e.scanner.JSON(ctx, data)
}

// running is a worker that serves, with a scanner that may be endless.
func running(t *testing.T, b *bus.Bus) *Worker {
	t.Helper()
	w, err := New(Config{Bus: b, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	w.scanner = endless{w.scanner}
	bustest.Serve(t, w)
	return w
}

// begun is a new session of boss.
func begun(t *testing.T, w *Worker) subjects.SessionID {
	t.Helper()
	v, err := w.create(t.Context(), "boss", &handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "single-agent"}})
	if err != nil {
		t.Fatal(err)
	}
	return v.(*handshake.Opened).Session.SessionID //nolint:forcetypeassert // what create answers
}

// finish stores the outcome of a task, as a router does.
func finish(t *testing.T, b *bus.Bus, task subjects.TaskID, id subjects.SessionID, output string) {
	t.Helper()
	ev := &fleet.Event{
		TaskID: task, Seq: 1, Kind: fleet.KindOutcome, State: fleet.StateDone, AgentID: "worker", Time: time.Now().UTC(),
		Data: fleet.Data{Result: fleet.MustEncode(&fleet.Result{
			Status: fleet.StatusDone, Output: fleet.MustEncode(output), NextSteps: []string{output},
		})},
		Facts: fleet.Facts{From: "boss", SessionID: id}, WriteID: string(task),
	}
	if _, err := b.Store(t.Context(), subjects.Task(task), fleet.MustEncode(ev), "", bus.Header{
		subjects.HeaderKind: {ev.Kind}, subjects.HeaderSession: {string(id)},
	}); err != nil {
		t.Fatal(err)
	}
}

// TestOneResultStopsNoOther: a result that nobody can look through in time is
// appended without what it says, and one whose context cannot be read is left
// out; those of other sessions go on.
func TestOneResultStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		w := running(t, b)
		long, broken, other := begun(t, w), begun(t, w), begun(t, w)
		if _, err := b.Store(t.Context(), subjects.Context(broken), []byte("{}"), "", nil); err != nil {
			t.Fatal(err)
		}
		without(t, b, "KV_"+subjects.BucketScratch) // nor does it matter that no position is kept
		finish(t, b, "t1", long, "endless")
		finish(t, b, "t2", broken, "lost")
		finish(t, b, "t3", other, "here I am")
		time.Sleep(2 * time.Minute)
		for id, check := range map[subjects.SessionID]func(e handshake.Entry) bool{
			long: func(e handshake.Entry) bool {
				return e.TaskID == "t1" && e.Omitted && e.Output == nil && e.Findings == nil
			},
			other: func(e handshake.Entry) bool { return e.TaskID == "t3" && string(e.Output) == `"here I am"` },
		} {
			r, err := w.read(t.Context(), id, 0, 10)
			if err != nil || len(r.Records) != 1 || !check(r.Records[0].Entry) {
				t.Errorf("context %s, %v", fleet.MustEncode(r), err)
			}
		}
	})
}

// TestEndlessAppend: who appends what nobody can look through in time is told so.
func TestEndlessAppend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := running(t, bustest.NewFake(t).Bus(t))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := w.appendEntry(ctx, "boss", &handshake.Append{
			SessionID: begun(t, w), Entry: handshake.Entry{Status: "completed", Output: fleet.MustEncode("endless")},
		})
		if subjects.CodeOf(err) != subjects.CodePayloadTooLarge || ctx.Err() != nil {
			t.Errorf("append = %v (%v), want payload_too_large within a minute", err, ctx.Err())
		}
	})
}

// busy takes a second of the only processor there is.
type busy struct {
	scanner
	processor chan struct{}
}

func (b busy) JSON(ctx context.Context, data []byte) ([]byte, []secrets.Finding, bool, error) {
	for range 10 {
		b.processor <- struct{}{}
		<-time.After(100 * time.Millisecond)
		<-b.processor
		if ctx.Err() != nil {
			return nil, nil, false, ctx.Err()
		}
	}
	return b.scanner.JSON(ctx, data)
}

// TestManyAppendsAtOnce: what others append makes nothing too large.
func TestManyAppendsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := running(t, bustest.NewFake(t).Bus(t))
		w.scanner = busy{w.scanner, make(chan struct{}, 1)}
		id := begun(t, w)
		var wg sync.WaitGroup
		var done, later atomic.Int64
		for range 40 {
			wg.Go(func() {
				_, err := w.appendEntry(t.Context(), "boss", &handshake.Append{SessionID: id, Entry: handshake.Entry{Status: "completed"}})
				switch {
				case err == nil:
					done.Add(1)
				case subjects.CodeOf(err) == subjects.CodeRateLimited:
					later.Add(1)
				default:
					t.Errorf("append = %v", err)
				}
			})
		}
		wg.Wait()
		if done.Load() < 10 || later.Load() < 10 {
			t.Errorf("%d are appended, %d are to come later", done.Load(), later.Load())
		}
	})
}

// TestTurns: only so many wait for a turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1)
		first, err := turns.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		begin := time.Now()
		for range maxTurns {
			wg.Go(func() {
				if _, err := turns.take(t.Context()); subjects.CodeOf(err) != subjects.CodeRateLimited || time.Since(begin) != bus.StoreTime {
					t.Errorf("after %s: %v", time.Since(begin), err)
				}
			})
		}
		synctest.Wait()
		if _, err := turns.take(t.Context()); subjects.CodeOf(err) != subjects.CodeRateLimited || time.Since(begin) != 0 {
			t.Errorf("one more, after %s: %v", time.Since(begin), err)
		}
		wg.Wait()
		first()
		if _, err := turns.take(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// without deletes a stream: what would write to it finds nobody there.
func without(t *testing.T, b *bus.Bus, stream string) {
	t.Helper()
	if _, err := b.Request(t.Context(), "$JS.API.STREAM.DELETE."+stream, nil, nil); err != nil {
		t.Fatal(err)
	}
}

// TestCallsEndWithoutAStore: what cannot be stored is refused, in time for who
// asks.
func TestCallsEndWithoutAStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		w := running(t, b)
		id := begun(t, w)
		entry := &handshake.Append{SessionID: id, Entry: handshake.Entry{Status: "completed"}}
		if _, err := w.appendEntry(t.Context(), "boss", entry); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			stream, verb string
			request      any
		}{
			{subjects.StreamContext, "append", entry},
			{"KV_" + subjects.BucketSessions, "create", &handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "single-agent"}}},
		} {
			without(t, b, c.stream)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			m, err := b.Request(ctx, subjects.API("boss", "session", c.verb), fleet.MustEncode(c.request), nil)
			cancel()
			if err != nil {
				t.Errorf("session %s = %v", c.verb, err)
				continue
			}
			if _, err = fleet.DecodeReply[fleet.Unknown](m.Data); subjects.CodeOf(err) != subjects.CodeUnavailable {
				t.Errorf("session %s = %v, want unavailable", c.verb, err)
			}
		}
	})
}

// TestNoNewKey: while no key can be stored the old one signs on as long as its
// tokens count, and checks wait for nothing.
func TestNoNewKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNoNewKey)
}

func testNoNewKey(t *testing.T) {
	t.Helper()
	b := bustest.NewFake(t).Bus(t)
	kv, err := b.KV(t.Context(), subjects.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	r := newKeyring(kv, func() time.Time { return now })
	if err := r.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	const id = subjects.SessionID("a2a-20251122T120000Z-7f3a9c21")
	without(t, b, "KV_"+subjects.BucketWorkers)
	now = now.Add(keyLife + time.Minute)
	first, at := r.keys[0].ID, now
	valid := handshake.NewToken(r.keys, id, at.Add(handshake.TokenLife))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		token, err := r.token(ctx, id, at.Add(handshake.TokenLife))
		if err != nil || handshake.TokenKey(token) != first || handshake.CheckToken(r.keys, id, token, at) != nil {
			t.Errorf("token = %v, want one of the old key", err)
		}
	}()
	var longest time.Duration
	for going := true; going; {
		select {
		case <-done:
			going = false
		default:
		}
		begin := time.Now()
		if err := r.check(ctx, id, valid, at); err != nil {
			t.Errorf("check = %v", err)
			break
		}
		longest = max(longest, time.Since(begin))
		<-time.After(10 * time.Millisecond)
	}
	<-done
	if longest > time.Second {
		t.Errorf("a check waited %s for a key to be stored", longest)
	}
	if err := r.check(ctx, id, strings.Replace(valid, first, "ffffffff", 1), at); err == nil || ctx.Err() != nil {
		t.Errorf("check of a token of no key = %v", err)
	}
	begin := time.Now()
	if _, err := r.token(ctx, id, at.Add(handshake.TokenLife)); err != nil || time.Since(begin) > keyTry/2 {
		t.Errorf("the next token comes after %s, %v", time.Since(begin), err)
	}
	now = now.Add(handshake.TokenLife)
	if _, err := r.token(ctx, id, now.Add(handshake.TokenLife)); err == nil {
		t.Error("a key signs whose tokens outlast it")
	}
}
