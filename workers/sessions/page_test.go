package sessions_test

import (
	"encoding/json"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// counted is a server of which it is counted how much it sends.
type counted struct {
	server interface{ InProcessConn() (net.Conn, error) }
	bytes  *atomic.Int64
}

type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) InProcessConn() (net.Conn, error) {
	conn, err := c.server.InProcessConn()
	return &countedConn{conn, c.bytes}, err
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// TestAPageCostsAPage: whoever reads a page of a large context has the worker read
// about as much, wherever it begins.
func TestAPageCostsAPage(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	came := new(atomic.Int64)
	c := s.Config()
	c.URL, c.InProcess = "", counted{s.NATS(0), came}
	worker, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	start(t, worker)
	boss := caller{t, b, "boss"}
	id := opened(boss).Session.SessionID
	const versions = 120
	text := strings.Repeat("x", 127<<10)
	for range versions {
		must[handshake.Appended](boss, "append", said(id, text))
	}
	for _, after := range []uint64{0, 99, 119} {
		before := came.Load()
		r := must[handshake.ReadReply](boss, "context", handshake.Read{SessionID: id, AfterVersion: after, Limit: 100})
		if n := uint64(len(r.Records)); n == 0 || r.Records[0].Version != after+1 || r.More != (after+n < versions) {
			t.Errorf("a page after %d has %d records, more %v", after, n, r.More)
		}
		if cost := came.Load() - before; cost > 8<<20 {
			t.Errorf("a page after %d had the worker read %d bytes, want 8 MiB at most", after, cost)
		}
	}
	if got := all(boss, id); len(got) != versions || got[versions-1].Version != versions {
		t.Errorf("%d versions, want %d", len(got), versions)
	}
}

// TestTooLargeForTheServer: a version that would be larger than a message may be is
// refused as that, and not as what may be repeated.
func TestTooLargeForTheServer(t *testing.T) {
	t.Parallel()
	b := bustest.New(t, bustest.MaxPayload(1<<20)).Bus(t)
	start(t, b)
	req := said(opened(caller{t, b, "boss"}).Session.SessionID, "x")
	share := func(n int) []byte {
		req.SharedData = map[string]json.RawMessage{"a": fleet.MustEncode(strings.Repeat("x", n))}
		return fleet.MustEncode(req)
	}
	m, err := b.Request(t.Context(), subjects.API("boss", "session", "append"), share(1<<20-len(share(0))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.DecodeReply[fleet.Unknown](m.Data); subjects.CodeOf(err) != subjects.CodePayloadTooLarge {
		t.Errorf("append = %v, want payload_too_large", err)
	}
}
