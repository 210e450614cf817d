package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"parley/test/deploy"
)

// reload has servers read their files again, as SIGHUP does.
func reload(t *testing.T, all []*server.Server) {
	t.Helper()
	for _, ns := range all {
		if err := ns.Reload(); err != nil {
			t.Fatalf("%s: %v", ns.Name(), err)
		}
	}
}

// whole waits until every server has the others.
func whole(t *testing.T, all []*server.Server) {
	t.Helper()
	wait(t, "a whole cluster", func() bool {
		for _, ns := range all {
			if v, err := ns.Routez(nil); err != nil || len(others(v)) != 2 {
				return false
			}
		}
		return true
	})
}

func others(v *server.Routez) map[string]bool {
	names := map[string]bool{}
	for _, r := range v.Routes {
		names[r.RemoteName] = true
	}
	return names
}

// presented is the number of the certificate that a node shows.
func presented(t *testing.T, nc *nats.Conn) string {
	t.Helper()
	state, err := nc.TLSConnectionState()
	if err != nil {
		t.Fatal(err)
	}
	return state.PeerCertificates[0].SerialNumber.String()
}

// TestRotateCertificates replaces the servers' certificates, and their authority,
// as the guide on operating says. Who is connected stays so, and routes come back.
func TestRotateCertificates(t *testing.T) {
	s := site(t)
	nodes := []string{"cluster-1", "cluster-2", "cluster-3"}
	all := run(t, s, nodes...)
	whole(t, all)
	worker := connect(t, s, nodes[0], deploy.Worker)
	first := presented(t, worker)

	dir := filepath.Dir(s.CA)
	former := read(t, s.CA)
	next := deploy.NewAuthority(t, t.TempDir())
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("ca.crt", former+read(t, filepath.Join(next, "ca.crt"))) // 1. everybody trusts both
	reload(t, all)
	put("server.crt", read(t, filepath.Join(next, "server.crt"))) // 2. certificates of the new one
	put("server.key", read(t, filepath.Join(next, "server.key")))
	reload(t, all)
	second := presented(t, connect(t, s, nodes[1], deploy.Worker))
	if second == first {
		t.Errorf("after the reload the server still shows certificate %s", first)
	}
	put("ca.crt", read(t, filepath.Join(next, "ca.crt"))) // 3. and nobody the former
	reload(t, all)
	whole(t, all)
	connect(t, s, nodes[2], deploy.Worker)
	if !worker.IsConnected() || worker.Stats().Reconnects > 0 {
		t.Error("a client was thrown out on the way")
	}
	stream(t, worker, 3)
	old := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(old, []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect(s.URL(nodes[0]), nats.UserInfo(deploy.Worker, deploy.Password(deploy.Worker)), nats.RootCAs(old)); err == nil {
		nc.Close()
		t.Error("the former authority still counts")
	}
}

// TestWhoIsNotAsked: where callout.conf is included, users with passwords get in by
// its list alone, and a server that runs does not read that again.
func TestWhoIsNotAsked(t *testing.T) {
	s := site(t)
	s.Ask("single")
	dir := filepath.Dir(s.Config("single"))
	change := func(name, old, to string) {
		t.Helper()
		path := filepath.Join(dir, name)
		was := read(t, path)
		if !strings.Contains(was, old) {
			t.Fatalf("%s has no %s", name, old)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(was, old, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const line = "{ user: claude, password: $NATS_CLAUDE_PASSWORD, include permissions/claude.conf }"
	second := func(name string) string {
		return strings.NewReplacer("user: claude,", "user: "+name+",", "$NATS_CLAUDE_PASSWORD", "another-password").Replace(line) + "\n"
	}
	change("accounts.conf", line, line+"\n"+second("claude-2")+second("claude-3"))
	change("callout.conf", "claude,", "claude, claude-2,")
	ns := run(t, s, "single")[0]
	nc, err := dial(s, "single", "claude-2", "another-password")
	if err != nil {
		t.Fatalf("the user who is in the list: %v", err)
	}
	nc.Close()
	if nc, err := dial(s, "single", "claude-3", "another-password"); err == nil {
		nc.Close()
		t.Error("the user who is not in the list gets in: the guide need not speak of it")
	}
	change("callout.conf", "claude-2,", "claude-2, claude-3,")
	if err := ns.Reload(); err == nil || !strings.Contains(err.Error(), "AuthCallout") {
		t.Errorf("the server has read its list again, as the guide says that it does not: %v", err)
	}
}

// TestRotatePassword gives an agent a new password with no gap: a second user of
// the same rights, then the first one goes.
func TestRotatePassword(t *testing.T) {
	s := site(t)
	all := run(t, s, "single")
	file := filepath.Join(filepath.Dir(s.Config("single")), "accounts.conf")
	shipped := read(t, file)
	const line = "{ user: claude, password: $NATS_CLAUDE_PASSWORD, include permissions/claude.conf }"
	if !strings.Contains(shipped, line) {
		t.Fatalf("accounts.conf has no line %s", line)
	}
	second := strings.NewReplacer("user: claude,", "user: claude-2,", "$NATS_CLAUDE_PASSWORD", "another-password").Replace(line)
	change := func(to string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.Replace(shipped, line, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		reload(t, all)
	}
	gone := make(chan struct{})
	before, err := dial(s, "single", deploy.Claude, deploy.Password(deploy.Claude), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(gone) }))
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	change(line + "\n" + second)
	if !before.IsConnected() {
		t.Error("the agent is thrown out although its password still counts")
	}
	after, err := dial(s, "single", "claude-2", "another-password", nats.CustomInboxPrefix("_INBOX_claude"))
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	heard, err := connect(t, s, "single", deploy.Worker).SubscribeSync("fleet.heartbeat.claude.*")
	if err != nil {
		t.Fatal(err)
	}
	change(second)
	wait(t, "the end of the first connection", func() bool {
		select {
		case <-gone:
			return true
		default:
			return false
		}
	})
	if nc, err := dial(s, "single", deploy.Claude, deploy.Password(deploy.Claude)); err == nil {
		nc.Close()
		t.Error("the former password still counts")
	}
	wait(t, "a heartbeat of claude by the second user", func() bool {
		if err := after.Publish("fleet.heartbeat.claude.main", nil); err != nil {
			t.Fatal(err)
		}
		_, err := heard.NextMsg(time.Second)
		return err == nil
	})
}
