package sessions_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

const piece = "$O." + subjects.ObjectsOutputs + ".C.filler" // of an object that is none

// cramped is a fleet whose store of outputs has 1 MiB.
func cramped(t *testing.T) (*bus.Bus, caller) {
	t.Helper()
	b := bustest.New(t).Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{BucketMaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	start(t, b)
	return b, caller{t, b, "boss"}
}

// take takes room for outputs, so many bytes at a time, until there is none for
// as many.
func take(t *testing.T, b *bus.Bus, sizes ...int) {
	t.Helper()
	for _, size := range sizes {
		var err error
		for err == nil {
			_, err = b.Store(t.Context(), piece, make([]byte, size), "", nil)
		}
		if !errors.Is(err, bus.ErrFull) {
			t.Fatal(err)
		}
	}
}

// A session can be deleted when there is no room left for anything, and nothing
// of its outputs is.
func TestDeleteWithoutRoom(t *testing.T) {
	t.Parallel()
	b, boss := cramped(t)
	id := opened(boss).Session.SessionID
	must[handshake.Appended](boss, "append", said(id, strings.Repeat("x", 300_000)))
	take(t, b, 100_000, 10_000, 1000, 100, 10, 1)
	must[handshake.Deleted](boss, "delete", handshake.Ref{SessionID: id})
	left, err := b.Subjects(t.Context(), "OBJ_"+subjects.ObjectsOutputs, "$O."+subjects.ObjectsOutputs+".>")
	if err != nil || len(left) != 1 || left[piece] == 0 {
		t.Errorf("left is %v, %v, want nothing of the session", left, err)
	}
}

// An append that is repeated, and a part, keep what they have stored already,
// where there is no room for it a second time.
func TestRepeatWithoutRoom(t *testing.T) {
	t.Parallel()
	b, boss := cramped(t)
	id := opened(boss).Session.SessionID
	text := strings.Repeat("all is well. ", 20_000)
	req := said(id, text)
	req.Key = "once"
	must[handshake.Appended](boss, "append", req)
	stored := all(boss, id)[0].Entry.Stored
	if stored == nil {
		t.Fatal("the output is not stored apart")
	}
	take(t, b, 100_000, 10_000) // what is said of an object still has room
	part := handshake.Fetch{SessionID: id, Digest: stored.Digest}
	fetch := func() {
		t.Helper()
		if f := must[handshake.FetchReply](boss, "fetch", part); !bytes.Equal(f.Data, []byte(text)) {
			t.Errorf("fetched %d bytes, want %d", len(f.Data), len(text))
		}
	}
	if a := must[handshake.Appended](boss, "append", req); a.Version != 1 || !a.Duplicate {
		t.Errorf("the repeat is %+v, want version 1 again", a)
	}
	fetch()
	must[handshake.PutReply](boss, "put", handshake.Put{SessionID: id, Digest: stored.Digest, Data: []byte(text)})
	fetch()
	req.Key = "twice"
	if a := must[handshake.Appended](boss, "append", req); a.Version != 2 || a.Duplicate {
		t.Errorf("the same output by another append is %+v, want version 2", a)
	}
	fetch()
	other := said(id, strings.ToUpper(text))
	if e := refused(boss, "append", other, subjects.CodeRateLimited); !strings.Contains(e.Message, "outputs") {
		t.Errorf("refused as %v, want what is full", e)
	}
	fetch()
}

// A result whose output has no room is there without it, and keeps no other
// waiting.
func TestResultWithoutItsOutput(t *testing.T) {
	t.Parallel()
	b, boss := cramped(t)
	id, other := opened(boss).Session.SessionID, opened(boss).Session.SessionID
	take(t, b, 100_000, 10_000)
	ended(t, b, "t1", "boss", id, &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode(strings.Repeat("x", 300_000))})
	ended(t, b, "t2", "boss", other, &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode("here I am")})
	bustest.Eventually(t, "the result of t2", func() bool { return len(all(boss, other)) == 1 })
	records := all(boss, id)
	if len(records) != 1 || records[0].Entry.TaskID != "t1" || !records[0].Entry.Omitted || records[0].Entry.Stored != nil || len(records[0].Entry.Output) != 0 {
		t.Errorf("the context holds %s, want the result of t1 without its output", fleet.MustEncode(records))
	}
}

// What sessions held whose end was told while no worker was there goes once there
// is one, and what others hold does not.
func TestEndsWhileAway(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stop := start(t, b)
	boss := caller{t, b, "boss"}
	k, err := b.KV(t.Context(), subjects.BucketSessions)
	if err != nil {
		t.Fatal(err)
	}
	var ids []subjects.SessionID
	for range 4 {
		id := opened(boss).Session.SessionID
		must[handshake.Appended](boss, "append", said(id, strings.Repeat("x", 200_000)))
		ids = append(ids, id)
	}
	stop()
	for _, id := range ids[1:] {
		e, err := k.Get(t.Context(), string(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := k.DeleteRevision(t.Context(), e.Key, e.Revision); err != nil {
			t.Fatal(err)
		}
	}
	start(t, b)
	for stream, want := range map[string]int{subjects.StreamContext: 1, "OBJ_" + subjects.ObjectsOutputs: 2} { // data, and what is said of it
		bustest.Eventually(t, stream+" has what is of one session", func() bool {
			left, err := b.Subjects(t.Context(), stream, ">")
			return err == nil && len(left) == want
		})
	}
	if e := all(boss, ids[0])[0].Entry; e.Stored == nil || len(must[handshake.FetchReply](boss, "fetch", handshake.Fetch{SessionID: ids[0], Digest: e.Stored.Digest}).Data) != 200_000 {
		t.Errorf("the session that lives has %+v", e)
	}
}
