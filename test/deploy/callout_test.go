package deploy_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"testing"
	"time"

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
	defer b.Close()
	if err := b.Provision(t.Context(), bus.Provisioning{MaxBytes: 64 << 20, BucketMaxBytes: 8 << 20, Room: 4 << 30}); err != nil {
		t.Fatal(err)
	}
	ids, err := callout.Open(t.Context(), b, callout.Terms{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w, err := callout.New(callout.Config{Bus: b, Identities: ids, Issuer: s.Issuer, Account: "FLEET"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	}()
	bustest.Eventually(t, "a callout worker that serves", func() bool { return w.Ready() == nil })

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
	c.Credentials = prove(identity.Key{ID: key.ID, Secret: make([]byte, 32)})
	if _, err := bus.Connect(t.Context(), c); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("with a wrong key: %v, want ErrDenied", err)
	}
	identities(t, s, "single") // as before
}
