package router

import (
	"context"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// lapsed has agent a hold task t, and its lease end: the effect is to be carried
// out.
func lapsed(t *testing.T, w *Worker) (gone lost, beat func()) {
	t.Helper()
	w.with(func(c *core, now time.Time) {
		s := c.x.find("t")
		c.lose("t", c.hot[s], "it is silent", now)
		c.x.at(s).flags &^= acting
		c.ticked = now
		c.tick(now)
		for _, e := range c.take() {
			if l, ok := e.(lost); ok {
				gone = l
			}
		}
	})
	if gone.task != "t" {
		t.Fatal("nobody is declared lost")
	}
	return gone, func() {
		w.with(func(c *core, now time.Time) {
			c.beat("a", "main", &fleet.Heartbeat{Epoch: 1, Holding: []fleet.Holding{{TaskID: "t", Attempt: 1}}}, now)
		})
	}
}

// Whoever is heard after its lease has ended, and before that is recorded, keeps
// its task. While the records are out of reach, nobody is declared lost.
func TestNobodyIsLostWhoIsHeard(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	dispatched(t, b, "t")
	cur, err := w.reread(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	a, err := fleet.DecodeAnnounce([]byte(`{"type":"SESSION_ANNOUNCE","worker":{"agent_id":"a","epoch":1},"heartbeat_seconds":600,"capabilities":{"tools":[],"mcp_servers":[]},"mcp_health":{},"session":{"active_tasks":0}}`))
	if err != nil {
		t.Fatal(err)
	}
	w.with(func(c *core, now time.Time) { c.announce(a, now, now); c.take() }) // it is not offered the task
	anotherStores(t, b, cur, working(cur.ev, holder{"a", "main", 1}, w.now()))
	bustest.Eventually(t, "the record to be read", func() bool { return w.state(func() bool { return w.tail == 2 }) })
	if _, err := b.Subscribe(subjects.Control("a", "main"), "", func(m bus.Msg) { _ = m.Respond([]byte(`{"ok":true}`), nil) }); err != nil {
		t.Fatal(err)
	}
	state := func() fleet.State {
		t.Helper()
		v, err := w.reread(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		return v.ev.State
	}

	l, beat := lapsed(t, w)
	beat()
	if w.lose(t.Context(), l); state() != fleet.StateWorking {
		t.Fatalf("it is %s, though its holder was heard", state())
	}

	l, _ = lapsed(t, w)
	w.with(func(c *core, _ time.Time) { c.settled = true })
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	w.lose(cut, l)
	if w.state(func() bool { return w.core.settled }) {
		t.Error("a router that cannot read the records does not listen anew")
	}
	if w.lose(t.Context(), l); state() != fleet.StateWorking {
		t.Errorf("it is %s, though the router has not listened since", state())
	}

	l, _ = lapsed(t, w)
	w.lose(t.Context(), l)
	if v, err := w.reread(t.Context(), "t"); err != nil || v.ev.State != fleet.StateQueued || v.ev.Reason.Code != subjects.CodeAgentLost {
		t.Errorf("its holder is silent, and it is %+v, %v", v.ev, err)
	}
}

// A record that cannot be read tells nothing of who else is alive.
func TestARecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	dispatched(t, b, "t")
	cur, err := w.reread(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	anotherStores(t, b, cur, working(cur.ev, holder{"a", "main", 1}, w.now()))
	bustest.Eventually(t, "the record to be read", func() bool { return w.state(func() bool { return w.tail == 2 }) })
	if _, err := b.Store(t.Context(), subjects.Task("t"), []byte("no record"), "", nil); err != nil {
		t.Fatal(err)
	}
	l, _ := lapsed(t, w)
	w.with(func(c *core, _ time.Time) { c.settled = true })
	if w.lose(t.Context(), l); !w.state(func() bool { return w.core.settled }) {
		t.Error("nobody is missed any more, for one record")
	}
}

// What a router has heard of is there, whatever a leader that is behind says.
func TestATaskThatTheLeaderDoesNotKnow(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	w.with(func(c *core, now time.Time) { c.apply(testRecord(t, "t", "", now), 1000, now); c.take() })
	if v, err := w.reread(t.Context(), "t"); subjects.CodeOf(err) != subjects.CodeUnavailable {
		t.Errorf("read %+v, %v; want unavailable", v, err)
	}
}
