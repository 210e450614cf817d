package sessions_test

import (
	"fmt"
	"slices"
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// TestJunkInAContext: what a stranger puts among the versions of a context is
// skipped: it can be read and added to, by workers that begin anew as well.
func TestJunkInAContext(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	stop := start(t, s.Connect(t))
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	far := handshake.Record{SessionID: id, Version: 99, Entry: handshake.Entry{AgentID: "eve", Status: "completed"}}
	other := far
	other.SessionID, other.Version = id[:len(id)-1]+"x", 1
	var want []string
	add := func() {
		t.Helper()
		for _, data := range [][]byte{nil, []byte("junk"), []byte("{}"), []byte("[]"), fleet.MustEncode(&far), fleet.MustEncode(&other)} {
			if _, err := b.Store(t.Context(), subjects.Context(id), data, "", nil); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprint("output ", len(want))
			must[handshake.Appended](boss, "append", said(id, text))
			want = append(want, fmt.Sprintf("%q", text))
		}
	}
	read := func() {
		t.Helper()
		var got []string
		for _, r := range all(boss, id) {
			got = append(got, string(r.Entry.Output))
		}
		if !slices.Equal(got, want) {
			t.Errorf("read %v, want %v", got, want)
		}
	}
	add()
	read()
	for after := range uint64(len(want)) {
		r := must[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, AfterVersion: after})
		if len(r.Records) != len(want)-int(after) || r.Records[0].Version != after+1 {
			t.Errorf("after %d: %d versions", after, len(r.Records))
		}
	}
	stop()
	start(t, s.Connect(t))
	read()
	add()
	add()
	read()
}

// TestJunkKeys: keys of tokens that somebody has overwritten are replaced, and
// the worker serves.
func TestJunkKeys(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "junk", "[]", "[null]", `[{"id":"","secret":"","created":"0001-01-01T00:00:00Z"}]`} {
		s := bustest.New(t)
		b := s.Bus(t)
		kv, err := b.KV(t.Context(), subjects.BucketWorkers)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "session-keys", []byte(text)); err != nil {
			t.Fatal(err)
		}
		start(t, b)
		if o := opened(caller{t, b, "boss"}); o.Session.SessionID == "" {
			t.Errorf("%q: no session", text)
		}
	}
}
