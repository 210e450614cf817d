package callout_test

import (
	"strconv"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/identity"
	"parley/workers/callout"
)

// Who connects is judged by the servers' clock, and so is dated what is kept of
// an identity, and until when a connection may last.
func TestServersClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.server.Config()
	c.User, c.Password = "worker", workerPassword
	b := w.server.ConnectAhead(t, c)
	w.run(t, b, open(t, b, callout.Terms{}))
	w.refused(t, prove("bot", w.add(t, identity.Add{AgentID: "bot"}), time.Now()), subjects.CodeAuthFailed)
	r, err := ask[identity.Issued](t, w.worker, "rotate", &identity.Rotate{AgentID: "bot", OverlapSeconds: 60})
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Now().AddDate(0, 6, 0)
	if keys := r.Identity.Keys; r.Identity.Created.Before(soon) || len(keys) != 2 || keys[0].Created.Before(soon) || keys[1].Until.Before(soon) {
		t.Errorf("the identity is dated by another clock than the servers': %+v", r.Identity)
	}
	k, err := identity.ParseKey(r.Key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.dial(t, prove("bot", k, bustest.Ahead(time.Now()))); err != nil {
		t.Errorf("connect, at the servers' time: %v", err)
	}
	v, err := ask[identity.View](t, w.worker, "revoke", &identity.Revoke{AgentID: "bot"})
	if err != nil || v.Revoked == nil || v.Revoked.At.Before(soon) {
		t.Errorf("revoke = %+v, %v", v.Revoked, err)
	}
}

// So is what is signed, and what this process signs.
func TestSignedByTheServersClock(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	plain := s.Bus(t)
	b := s.ConnectAhead(t, s.Config())
	ids := open(t, b, callout.Terms{Signed: true})
	f := &fleetOf{client: plain}
	var err error
	if f.key, err = ids.Issue(t.Context(), "bot", subjects.RoleAgent); err != nil {
		t.Fatal(err)
	}
	subject := subjects.API("bot", "task", "get")
	if _, err := b.Subscribe(subjects.APIPattern("task", "get"), "routers", func(m bus.Msg) { _ = m.Respond([]byte("{}"), nil) }); err != nil {
		t.Fatal(err)
	}
	signed := make(chan string, 1)
	listed := subjects.API("bot", "task", "list")
	if _, err := plain.Subscribe(listed, "", func(m bus.Msg) { signed <- m.Header.Get(subjects.HeaderTimestamp) }); err != nil {
		t.Fatal(err)
	}
	for _, each := range []*bus.Bus{b, plain} {
		if err := each.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if code := f.ask(t, subject, nil, f.signed(subject, nil, bustest.Ahead(time.Now()))); code != "" {
		t.Errorf("signed at the servers' time: %s", code)
	}
	if code := f.ask(t, subject, nil, f.signed(subject, nil, time.Now())); code != subjects.CodeAuthFailed {
		t.Errorf("signed a year before that: %q, want auth_failed", code)
	}
	if err := b.Publish(listed, []byte("{}"), nil); err != nil {
		t.Fatal(err)
	}
	if at, err := strconv.ParseInt(<-signed, 10, 64); err != nil || time.Until(time.Unix(at, 0)) < 300*24*time.Hour {
		t.Errorf("a worker signs at %s, %v", time.Unix(at, 0), err)
	}
}
