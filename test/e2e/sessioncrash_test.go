package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// sessionPoints are the crash points of a session's life, but for those of its
// context, see appendPoints.
var sessionPoints = []string{
	"after_session_key", "after_session_create", "after_output", "after_output:2", "after_session_update", "after_position",
	"after_session_delete", "after_session_outputs",
}

// TestSessionCrash has the sessions worker die as it makes the first key, creates,
// renews and deletes sessions, puts outputs aside and notes how far it has read
// the ends of tasks, and another one take over, or lose acknowledgements. A
// session that was created is there once, with the result of each of its tasks
// once; of one that was deleted there is nothing.
func TestSessionCrash(t *testing.T) {
	sweep(t, sessionPoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry,router")
		f.man(t, &sleeper{done: map[string]int{}})
		first := f.serve("sessions-1", crashBinary(t), "sessions", nil, crashEnv(point))
		b, err := bus.Connect(t.Context(), bus.Config{URL: f.url, Name: "boss", ConnectTimeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		caller := sessionCaller{t, b, 2 * time.Second}
		var l lives
		acted := make(chan error, 1)
		go func() { acted <- l.live(t.Context(), f, caller) }()
		if dies(t, first, point) {
			f.serve("sessions-2", parleyBinary(t), "sessions", nil)
		}
		if err := <-acted; err != nil {
			t.Fatal(err)
		}
		l.check(t, f, caller)
		// Whoever is not told that a session was created makes another one. Where
		// nobody died nobody had to.
		if list := mustSession[handshake.ListReply](caller, "list", handshake.List{}); point == lostAcks && len(list.Sessions) != 1 {
			t.Errorf("the sessions are %+v, want one", list.Sessions)
		}
		checkLost(t, first, point, "$KV.FLEET_SESSIONS.")
	})
}

// lives are two sessions: one that is deleted, and one that is kept, and the
// tasks that were done in it.
type lives struct {
	gone, kept subjects.SessionID
	tasks      int
}

func (l *lives) live(ctx context.Context, f *testFleet, c sessionCaller) error {
	for _, id := range []*subjects.SessionID{&l.gone, &l.kept} {
		opened, err := askSession[handshake.Opened](c, "create", handshake.Create{})
		if err != nil {
			return err
		}
		*id = opened.Session.SessionID
	}
	part := []byte("a part of an output")
	sum := sha256.Sum256(part)
	put := handshake.Put{SessionID: l.gone, Digest: "sha256:" + hex.EncodeToString(sum[:]), Data: part}
	if _, err := askSession[handshake.PutReply](c, "put", put); err != nil {
		return err
	}
	entry := handshake.Entry{Status: "completed", Output: fleet.MustEncode(strings.Repeat("a long output ", handshake.MaxInline/10))}
	if _, err := askSession[handshake.Appended](c, "append", handshake.Append{SessionID: l.gone, Key: "long", Entry: entry}); err != nil {
		return err
	}
	if _, err := askSession[handshake.Opened](c, "update", handshake.Update{SessionID: l.gone, TaskID: "renewed"}); err != nil {
		return err
	}
	if v, err := askSession[handshake.View](c, "get", handshake.Ref{SessionID: l.gone}); err != nil || v.Session.TaskID != "renewed" || v.Version != 1 {
		return fmt.Errorf("the session is %+v: %w", v, err)
	}
	if err := l.work(ctx, f); err != nil {
		return err
	}
	_, err := askSession[handshake.Deleted](c, "delete", handshake.Ref{SessionID: l.gone})
	if subjects.CodeOf(err) == subjects.CodeNotFound {
		return nil // it was deleted, and nobody said so
	}
	return err
}

// work has tasks done until it is noted how far their ends were read.
func (l *lives) work(ctx context.Context, f *testFleet) error {
	js, err := jetstream.New(f.nc)
	if err != nil {
		return err
	}
	kv, err := js.KeyValue(ctx, subjects.BucketScratch)
	if err != nil {
		return err
	}
	for sender := (boss{NC: f.nc, Name: "boss"}); ; l.tasks++ {
		if _, err := kv.Get(ctx, "sessions"); err == nil && l.tasks > 0 {
			return nil
		}
		task := map[string]any{"task": map[string]any{"task_id": fmt.Sprint("t", l.tasks), "session_id": l.kept}, "brief": "look"}
		if _, err := sender.Call(ctx, "task", "dispatch", task); err != nil {
			return err
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// check looks at what is left.
func (l *lives) check(t *testing.T, f *testFleet, c sessionCaller) {
	t.Helper()
	if _, err := askSession[handshake.View](c, "get", handshake.Ref{SessionID: l.gone}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("a session that was deleted: %v", err)
	}
	until(t, "nothing left of the session that was deleted", func() bool {
		objects, err := c.b.Objects(t.Context(), subjects.ObjectsOutputs)
		if err != nil {
			t.Fatal(err)
		}
		names, err := objects.Names(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, string(l.gone)) }) &&
			len(f.subjects(t, subjects.StreamContext, subjects.Context(l.gone))) == 0
	})
	var page handshake.ReadReply
	until(t, "the results of all tasks", func() bool {
		page = mustSession[handshake.ReadReply](c, "context", handshake.Read{SessionID: l.kept, Limit: 1000})
		return len(page.Records) >= l.tasks
	})
	of := map[subjects.TaskID]int{}
	for _, r := range page.Records {
		of[r.Entry.TaskID]++
	}
	if len(of) != l.tasks || len(page.Records) != l.tasks {
		t.Errorf("%d tasks have the results %v", l.tasks, of)
	}
	list := mustSession[handshake.ListReply](c, "list", handshake.List{})
	times := map[subjects.SessionID]int{}
	for _, v := range list.Sessions {
		times[v.Session.SessionID]++
	}
	if times[l.kept] != 1 || times[l.gone] != 0 {
		t.Errorf("the sessions are %+v, want %s once, and no %s", list.Sessions, l.kept, l.gone)
	}
}
