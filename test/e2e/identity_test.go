package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// TestIdentity goes through the life of identities: made, at work, refused as
// another, renewed, revoked while connected, expired.
func TestIdentity(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, nil, "default")
	for _, add := range [][]string{{"add-agent", "claude"}, {"add-agent", "gemini"}, {"add-orchestrator", "ci"}, {"add-human", "alice"}} {
		g.must(g.run(nil, append([]string{"auth"}, add...)...))
	}
	if d := g.run(nil, "auth", "add-agent", "claude"); d.code == 0 || !strings.Contains(d.stderr, "already exists") {
		t.Errorf("a second claude: exit %d %s", d.code, d.stderr)
	}
	claude := g.agent("claude")
	g.eventually("claude", func() bool { return strings.Contains(g.as("ci", "agent", "ls", "--live").stdout, "claude") })
	if out := g.must(g.as("ci", "task", "send", "--wait", "--agent", "claude", "say hello")); !strings.Contains(out, "say hello") {
		t.Errorf("the task came back as %s", out)
	}

	// As another: refused, told why, and audited under the name of who tried.
	d := g.as("gemini", "task", "send", "--as", "claude", "x")
	if d.code != 16 || !strings.Contains(d.stderr, "(forbidden)") {
		t.Errorf("gemini as claude: exit %d %s", d.code, d.stderr)
	}
	g.eventually("the refusal in the audit", func() bool {
		out := g.audit("--agent", "gemini")
		return strings.Contains(out, `"event_type":"access_refused"`) && strings.Contains(out, `"subject":"fleet.api.claude.task.dispatch"`)
	})
	if d := g.run([]string{"PARLEY_CREDS="}, "task", "ls"); d.code != 14 || !strings.Contains(d.stderr, "auth_failed") {
		t.Errorf("nobody: exit %d %s", d.code, d.stderr)
	}
	g.eventually("the stranger in the audit", func() bool {
		return strings.Contains(g.audit("--agent", "unknown"), `"code":"auth_failed","action":"connect"`)
	})

	// Renewed: both hold, until the former ones are revoked. An agent that runs
	// finds the new ones in its file.
	gemini := g.agent("gemini")
	g.eventually("gemini", func() bool { return strings.Contains(g.as("ci", "agent", "ls", "--live").stdout, "gemini") })
	old := filepath.Join(g.dir, "old.creds")
	data, err := os.ReadFile(g.creds("default", "gemini"))
	if err == nil {
		err = os.WriteFile(old, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	g.must(g.run(nil, "auth", "renew", "gemini"))
	before, err := nats.Connect(g.url, nats.UserCredentials(old), nats.NoReconnect())
	if err != nil {
		t.Fatalf("the former credentials: %v", err)
	}
	defer before.Close()
	now := g.connect("gemini", nats.NoReconnect())
	g.must(g.run(nil, "auth", "revoke", "gemini", "--former"))
	g.eventually("end of the former connection", before.IsClosed)
	g.eventually("gemini's return", func() bool { return strings.Contains(tail(gemini.log, 1<<16), "nats reconnected") })
	if out := g.must(g.as("ci", "task", "send", "--wait", "--agent", "gemini", "with new credentials")); !strings.Contains(out, "new credentials") {
		t.Errorf("the task came back as %s", out)
	}
	if !now.IsConnected() {
		t.Error("the new credentials were revoked with the former ones")
	}
	if _, err := nats.Connect(g.url, nats.UserCredentials(old)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("the former credentials: %v, want %v", err, nats.ErrAuthorization)
	}

	// Revoked while at work: thrown out, lost to the fleet, and out after a restart.
	if err := os.Link(g.creds("default", "claude"), filepath.Join(g.dir, "stolen.creds")); err != nil {
		t.Fatal(err)
	}
	g.must(g.run(nil, "auth", "revoke", "claude"))
	g.eventually("claude's end", func() bool { return strings.Contains(tail(claude.log, 1<<16), "authentication revoked") })
	g.eventually("claude lost", func() bool { return !strings.Contains(g.as("ci", "agent", "ls", "--live").stdout, "claude") })
	g.up.kill()
	keys, away := filepath.Join(g.auth, "keys"), filepath.Join(g.dir, "keys") // no server needs them
	if err := os.Rename(keys, away); err != nil {
		t.Fatal(err)
	}
	g.up = g.start("up-again", nil, g.up.cmd.Args[1:]...)
	g.up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "\n}") })
	if _, err := nats.Connect(g.url, nats.UserCredentials(filepath.Join(g.dir, "stolen.creds"))); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("revoked credentials after a restart: %v, want %v", err, nats.ErrAuthorization)
	}

	if d := g.run(nil, "auth", "add-agent", "x"); d.code == 0 || !strings.Contains(d.stderr, "the key is not here") {
		t.Errorf("an agent is added without keys: exit %d %s", d.code, d.stderr)
	}
	if err := os.Rename(away, keys); err != nil {
		t.Fatal(err)
	}

	// A human who was added is an operator since the restart.
	if out := g.must(g.as("alice", "task", "ls", "-o", "json")); !strings.Contains(out, "say hello") {
		t.Errorf("alice does not see ci's task:\n%s", out)
	}

	// Expired.
	g.must(g.run(nil, "auth", "add-agent", "guest", "--expires", "10s"))
	guest := g.connect("guest", nats.NoReconnect())
	g.eventually("the guest's end", guest.IsClosed)
	g.eventually("refusal of the guest", func() bool { // an expiry is in whole seconds
		nc, err := g.dial("guest", nats.NoReconnect())
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization)
	})
	if out := g.must(g.run(nil, "auth", "ls", "-o", "json")); strings.Count(out, `"revoked"`) != 2 || strings.Count(out, `"expired"`) != 1 {
		t.Errorf("the list is\n%s", out)
	}
}

// TestTenants runs two tenants on one cluster, by the configuration that parley
// auth writes: each with its own workers, and neither hears of the other.
func TestTenants(t *testing.T) {
	t.Parallel()
	g := newIdentities(t, "red", "blue")
	g.cluster()
	tenants := []string{"red", "blue"}
	workers := map[string]*nats.Conn{}
	heard := map[string]*nats.Subscription{}
	for _, tenant := range tenants {
		g.must(g.run([]string{"PARLEY_TENANT=" + tenant}, "auth", "add-agent", "bob"))
		g.must(g.run([]string{"PARLEY_TENANT=" + tenant}, "auth", "add-orchestrator", "ci"))
		g.eventually("the cluster for "+tenant, func() bool {
			nc, err := g.dial(tenant+"/worker", nats.MaxReconnects(-1))
			if err != nil {
				return false
			}
			t.Cleanup(nc.Close)
			workers[tenant] = nc
			heard[tenant], err = nc.SubscribeSync(">")
			return err == nil
		})
		g.start("serve-"+tenant, []string{"PARLEY_CREDS=" + g.creds(tenant, "worker"), "PARLEY_SERVER=" + g.url, "PARLEY_TIMEOUT=60s"},
			"serve", "--workers", "registry,router,sessions,audit", "--http", "off", "--replicas", "3", "--max-store", "128MiB")
	}
	for _, tenant := range tenants {
		g.agent(tenant + "/bob") // the same name in both
		g.eventually("bob of "+tenant, func() bool { return strings.Contains(g.as(tenant+"/ci", "agent", "ls", "--live").stdout, "bob") })
		if out := g.must(g.as(tenant+"/ci", "task", "send", "--wait", "--agent", "bob", "canary of "+tenant)); !strings.Contains(out, "canary of "+tenant) {
			t.Errorf("%s: %s", tenant, out)
		}
	}
	// A leaf node speaks as the one agent that it was let in for.
	g.must(g.run([]string{"PARLEY_TENANT=red"}, "auth", "add-leaf", "edge"))
	at := g.edge("red/edge")
	for _, name := range []string{"edge", "stranger"} {
		g.start("agent-"+name, []string{"PARLEY_SERVER=" + at, "PARLEY_TIMEOUT=30s"},
			"agent", "run", "--id", name, "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(g.dir, name))
	}
	g.eventually("the agent at the edge", func() bool { return strings.Contains(g.as("red/ci", "agent", "ls", "--live").stdout, "edge") })
	if out := g.must(g.as("red/ci", "task", "send", "--wait", "--agent", "edge", "at the edge")); !strings.Contains(out, "at the edge") {
		t.Errorf("the edge: %s", out)
	}
	if out := g.must(g.as("red/operator", "agent", "ls")); strings.Contains(out, "stranger") {
		t.Errorf("the leaf speaks as another:\n%s", out)
	}
	for i, tenant := range tenants {
		other := tenants[1-i]
		if err := workers[tenant].Flush(); err != nil {
			t.Fatal(err)
		}
		own := 0
		for {
			m, err := heard[tenant].NextMsg(200 * time.Millisecond)
			if err != nil {
				break
			}
			text := m.Subject + " " + string(m.Data)
			if strings.Contains(text, "canary of "+other) {
				t.Errorf("%s hears of %s: %s", tenant, other, text)
			}
			if strings.Contains(text, "canary of "+tenant) {
				own++
			}
		}
		if own == 0 {
			t.Errorf("%s does not hear its own canary: this test would notice nothing", tenant)
		}
		if out := g.must(g.as(tenant+"/operator", "task", "ls", "-o", "json")); strings.Contains(out, "canary of "+other) || !strings.Contains(out, "canary of "+tenant) {
			t.Errorf("%s lists\n%s", tenant, out)
		}
	}
}
