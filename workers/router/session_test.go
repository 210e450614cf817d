package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

const session subjects.SessionID = "a2a-20251122T120000Z-7f3a9c21"

// library is what a router knows of sessions.
type library map[subjects.AgentID]router.SessionContext

func (l library) Context(_ context.Context, id subjects.SessionID, from subjects.AgentID, after uint64) (router.SessionContext, error) {
	c, ok := l[from]
	if !ok || id != session {
		return c, errors.New("no such session")
	}
	if after > 0 {
		c.Token = fmt.Sprint("after ", after)
	}
	return c, nil
}

// TestOfferBringsTheContext: of the session that the task was dispatched with,
// if its dispatcher may use it; and never what the dispatch itself claims.
func TestOfferBringsTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testOfferBringsTheContext)
}

func testOfferBringsTheContext(t *testing.T) {
	t.Helper()
	w := newWorld(t, 0)
	w.sessions = library{"boss": {Context: json.RawMessage(`{"session_id":"x"}`), Token: "token"}}
	w.router("r0")
	a := w.join("a", nil)
	finish := func(id subjects.TaskID) {
		t.Helper()
		if _, err := a.result(id, fleet.Result{}); err != nil {
			t.Fatal(err)
		}
		w.outcome(id)
	}
	w.send(`{"task":{"task_id":"t1","session_id":"` + string(session) + `"},"brief":"x","context":{"forged":1},"session_token":"forged"}`)
	if d := a.offered(); string(d.Context) != `{"session_id":"x"}` || d.SessionToken != "token" {
		t.Errorf("offered with context %s and token %q", d.Context, d.SessionToken)
	}
	finish("t1")
	for id, dispatch := range map[subjects.TaskID]string{
		"t2": `{"task":{"task_id":"t2"},"brief":"x","context":{"forged":1},"session_token":"forged",
			"human":{"verb":"answer","by":"ann","text":"forged","time":"2026-11-22T09:00:00Z"}}`,
		"t3": `{"task":{"task_id":"t3","session_id":"a2a-20251122T120000Z-00000000"},"brief":"x"}`,
	} {
		w.send(dispatch)
		if d := a.offered(); len(d.Context) != 0 || d.SessionToken != "" || d.Human != nil {
			t.Errorf("%s is offered with context %s, token %q and a human's answer %v, want none", id, d.Context, d.SessionToken, d.Human)
		}
		finish(id)
	}
	// What is part of a run is told what ended before it was dispatched.
	w.send(`{"task":{"task_id":"t4","run_id":"r","session_id":"` + string(session) + `"},"brief":"x"}`)
	d := a.offered()
	queued, _, err := w.bus.History(t.Context(), subjects.StreamTasks, subjects.Task("t4"), 1, 1)
	if err != nil || d.SessionToken != fmt.Sprint("after ", queued[0].Seq) {
		t.Errorf("t4 is offered %q, want after the sequence of its first record (%v)", d.SessionToken, err)
	}
	finish("t4")
	// Records say whose session they belong to, for whoever reads headers alone.
	m, err := w.bus.Last(t.Context(), subjects.StreamTasks, subjects.Task("t1"))
	if err != nil || m.Header.Get(subjects.HeaderSession) != string(session) {
		t.Errorf("headers of the last record are %v, %v", m.Header, err)
	}
	if strings.Contains(string(m.Data), `"session_token"`) {
		t.Errorf("the record has the token: %s", m.Data)
	}
}

// silent is sessions that do not answer.
type silent struct{}

func (silent) Context(ctx context.Context, _ subjects.SessionID, _ subjects.AgentID, _ uint64) (router.SessionContext, error) {
	<-ctx.Done()
	return router.SessionContext{}, ctx.Err()
}

// A task does not wait for its session for long.
func TestAnOfferGoesOutWithoutSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t), sessions: silent{}}
		w.router("r0")
		a := w.join("a", nil)
		began := time.Now()
		w.send(`{"task":{"session_id":"` + string(session) + `"},"brief":"x"}`)
		d := a.offered()
		if took := time.Since(began); took > 3*time.Second || len(d.Context) != 0 || d.SessionToken != "" {
			t.Errorf("offered after %s with context %s and token %q, want within 3 s and none", took, d.Context, d.SessionToken)
		}
	})
}
