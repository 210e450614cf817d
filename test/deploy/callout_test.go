package deploy_test

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/identity"
	"parley/test/deploy"
	"parley/workers/callout"
)

// TestCallout starts a server with callout.conf: who proves an identity gets in,
// and so do the users of accounts.conf.
func TestCallout(t *testing.T) {
	s := site(t)
	s.Ask("single")
	ns := run(t, s, "single")[0]
	safe(t, ns)
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.URL("single"), User: deploy.Worker, Password: deploy.Password(deploy.Worker), Name: "callout"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Provision(t.Context(), bus.Provisioning{MaxBytes: 64 << 20, BucketMaxBytes: 8 << 20, Room: 4 << 30}); err != nil {
		t.Fatal(err)
	}
	ids, err := callout.Open(t.Context(), b, callout.Terms{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w, err := callout.New(callout.Config{Bus: b, Identities: ids, Issuer: s.Issuer, Account: "CLIENTS"})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)

	key, err := ids.Issue(t.Context(), "bot", subjects.RoleAgent)
	if err != nil {
		t.Fatal(err)
	}
	prove := func(k identity.Key) func() (string, string) {
		return func() (string, string) {
			p := identity.Proof{AgentID: "bot", Timestamp: identity.Timestamp(time.Now()), Nonce: rand.Text()}
			p.Sign(k, identity.Connect, nil)
			return "bot", p.Password()
		}
	}
	c := bus.Config{URL: s.URL("single"), InboxPrefix: subjects.InboxPrefix("bot"), Credentials: prove(key)}
	agent, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	if _, err := agent.Store(t.Context(), subjects.Announce("bot", "main"), []byte("{}"), "", nil); err != nil {
		t.Errorf("announce in the fleet's account: %v", err)
	}
	walled(t, b, agent.Conn(), "bot")
	walled(t, b, connect(t, s, "single", deploy.Claude), deploy.Claude)
	c.Credentials = prove(identity.Key{ID: key.ID, Secret: make([]byte, 32)})
	if _, err := bus.Connect(t.Context(), c); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("with a wrong key: %v, want ErrDenied", err)
	}
	identities(t, s, "single") // as before
}

// walled has somebody write to a stream, with subjects of the workers as where
// the acknowledgement is to go: JetStream answers, and nothing is stored there.
func walled(t *testing.T, worker *bus.Bus, nc *nats.Conn, who string) {
	t.Helper()
	state := func(stream string) uint64 {
		s, err := worker.StreamState(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		return s.LastSeq
	}
	spoiled := []string{subjects.StreamTasks, subjects.StreamLog, "KV_" + subjects.BucketWorkers}
	var before []uint64
	for _, s := range spoiled {
		before = append(before, state(s))
	}
	own, announced := subjects.Announce(subjects.AgentID(who), "main"), state(subjects.StreamAnnounce)
	for _, target := range []string{"fleet.task.forged", "fleet.log.x." + who, "$KV." + subjects.BucketWorkers + ".forged", "$JS.API.STREAM.PURGE." + subjects.StreamAnnounce} {
		if err := nc.PublishRequest(own, target, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := nc.Request(own, []byte("{}"), patience); err != nil { // after those
		t.Fatalf("%s announces: %v", who, err)
	}
	if now := state(subjects.StreamAnnounce); now != announced+5 {
		t.Errorf("%s: %d announces are stored, want 5", who, now-announced)
	}
	for i, s := range spoiled {
		if now := state(s); now != before[i] {
			t.Errorf("%s has an acknowledgement stored in %s", who, s)
		}
	}
}
