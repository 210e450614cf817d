package sessions_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/sessions"
)

// start runs a worker until the returned function ends it, or the test does.
func start(t *testing.T, b *bus.Bus) (stop func()) {
	t.Helper()
	w, err := sessions.New(sessions.Config{Bus: b, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return bustest.Serve(t, w)
}

// caller asks as somebody.
type caller struct {
	t  testing.TB
	b  *bus.Bus
	as subjects.AgentID
}

func (c caller) by(id subjects.AgentID) caller { c.as = id; return c }

// ask asks session.<verb>; a refusal is the error.
func ask[T any](c caller, verb string, req any) (T, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	again := func(m bus.Msg) bool {
		_, err := fleet.DecodeReply[fleet.Unknown](m.Data)
		return subjects.CodeOf(err) == subjects.CodeUnavailable
	}
	m, err := c.b.RequestUntil(ctx, subjects.API(c.as, "session", verb), fleet.MustEncode(req), nil, 20*time.Second, again)
	if err != nil {
		c.t.Errorf("session %s: %v", verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}

// must asks for what is not refused.
func must[T any](c caller, verb string, req any) T {
	c.t.Helper()
	v, err := ask[T](c, verb, req)
	if err != nil {
		c.t.Fatalf("session %s = %v", verb, err)
	}
	return v
}

// refused checks the code of a refusal.
func refused(c caller, verb string, req any, want subjects.Code) *subjects.Error {
	c.t.Helper()
	_, err := ask[fleet.Unknown](c, verb, req)
	if subjects.CodeOf(err) != want {
		c.t.Errorf("session %s %+v by %s = %v, want %s", verb, req, c.as, err, want)
	}
	return subjects.AsError(err)
}

// opened is a new session of boss.
func opened(c caller) handshake.Opened {
	c.t.Helper()
	return must[handshake.Opened](c, "create", handshake.Create{TaskMetadata: handshake.TaskMetadata{Type: "single-agent"}})
}

func said(id subjects.SessionID, output string) handshake.Append {
	return handshake.Append{SessionID: id, Entry: handshake.Entry{Status: "completed", Output: fleet.MustEncode(output)}}
}

// all reads a whole context, page by page.
func all(c caller, id subjects.SessionID) []handshake.Record {
	c.t.Helper()
	var list []handshake.Record
	for {
		after := uint64(len(list))
		r := must[handshake.ReadReply](c, "context", handshake.Read{SessionID: id, AfterVersion: after, Limit: 1000})
		list = append(list, r.Records...)
		if !r.More {
			return list
		}
	}
}
