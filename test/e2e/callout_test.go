package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// calloutSite is a `parley up --callout` and its user's directory.
type calloutSite struct {
	t        *testing.T
	dir, url string
	up       *process
}

// cli runs the command line once, with the identity of a file.
func (s *calloutSite) cli(identity string, args ...string) (string, error) {
	s.t.Helper()
	return s.try(s.t.Context(), identity, args...)
}

func (s *calloutSite) try(ctx context.Context, identity string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, parleyBinary(s.t), args...)
	cmd.Dir = s.dir
	cmd.Env = bareEnv(s.dir, "PARLEY_SERVER="+s.url, "PARLEY_TIMEOUT=30s")
	if identity != "" {
		cmd.Env = append(cmd.Env, "PARLEY_IDENTITY="+identity)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *calloutSite) must(identity string, args ...string) string {
	s.t.Helper()
	out, err := s.cli(identity, args...)
	if err != nil {
		s.t.Fatalf("parley %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// until repeats ok until it is true.
func (s *calloutSite) until(what string, ok func() bool) {
	s.t.Helper()
	over, tick := time.NewTimer(patience), time.NewTicker(200*time.Millisecond)
	defer over.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-over.C:
			s.t.Fatalf("%s: not within time", what)
		case <-tick.C:
		}
	}
}

// TestCallout: an agent that has an identity and nothing else connects to a
// broker that asks, works with signed messages, is revoked, and is out.
func TestCallout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &calloutSite{t: t, dir: dir}
	s.up = start(t, dir, program{
		name: "up", path: parleyBinary(t), args: []string{"up", "--callout", "--port", "-1", "--http", "off", "-o", "json"},
		env: []string{"PARLEY_CALLOUT_TTL=5s", "PARLEY_REQUIRE_SIGNATURES=true", "PARLEY_REQUIRE_IDENTITY=true", "PARLEY_LOG_FORMAT=json"},
	})
	banner := s.up.waitOutput("the banner", func(out string) bool { return strings.Contains(out, "nats://") && strings.Contains(out, "}") })
	_, rest, _ := strings.Cut(banner, `"nats": "`)
	s.url, _, _ = strings.Cut(rest, `"`)
	operator := filepath.Join(dir, "data", "parley", "callout", "operator.identity.json")

	if out, err := s.cli("", "task", "ls"); err == nil || !strings.Contains(out, "auth_failed") {
		t.Errorf("without an identity: %v\n%s", err, out)
	}
	for _, name := range []string{operator, filepath.Join(filepath.Dir(operator), "issuer.nk"), filepath.Join(filepath.Dir(operator), "worker.nk")} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 600", name, info, err)
		}
	}
	s.must(operator, "identity", "add", "bot", "--host", "127.0.0.1", "--max-tier", "sonnet")
	s.must(operator, "identity", "add", "boss", "--role", "orchestrator")
	bot, boss := filepath.Join(dir, "bot.identity.json"), filepath.Join(dir, "boss.identity.json")
	if err := os.Chmod(boss, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := s.cli(boss, "task", "ls"); err == nil || !strings.Contains(out, "chmod 600") {
		t.Errorf("with a key that others may read: %v\n%s", err, out)
	}
	if err := os.Chmod(boss, 0o600); err != nil {
		t.Fatal(err)
	}
	agent := start(t, dir, program{
		name: "bot", path: parleyBinary(t), args: []string{"agent", "run", "--driver", "echo", "--heartbeat", "1s"},
		env: []string{"PARLEY_SERVER=" + s.url, "PARLEY_IDENTITY=" + bot, "PARLEY_LOG_FORMAT=json"},
	})
	if out := s.must(boss, "task", "send", "--wait", "say hello"); !strings.Contains(out, "say hello") {
		t.Errorf("the task came to %s", out)
	}
	// Its connection ends with its time, it proves itself anew, and works on.
	s.until("a second connection of bot", func() bool {
		out, err := s.cli(operator, "audit", "export")
		return err == nil && strings.Count(out, `"agent_id":"bot","event_type":"auth_granted"`) >= 2
	})
	if out := s.must(boss, "task", "send", "--wait", "say hello again"); !strings.Contains(out, "again") {
		t.Errorf("the task came to %s", out)
	}
	// Another program gets in by a password that counts once.
	password := strings.TrimSpace(s.must(boss, "identity", "password"))
	dial := func() error {
		nc, err := nats.Connect(s.url, nats.UserInfo("boss", password), nats.CustomInboxPrefix("_INBOX_boss"), nats.Timeout(20*time.Second))
		if err == nil {
			nc.Close()
		}
		return err
	}
	if err := dial(); err != nil {
		t.Errorf("by a fresh password: %v", err)
	}
	if err := dial(); err == nil {
		t.Error("the password counts twice")
	}

	s.must(operator, "identity", "revoke", "bot", "--reason", "test")
	s.until("bot to be out", func() bool {
		out, err := s.cli(operator, "audit", "export")
		return err == nil && strings.Contains(out, `"agent_id":"bot","event_type":"auth_refused"`)
	})
	s.until("bot to be lost", func() bool {
		out, err := s.cli(operator, "agent", "ls")
		return err == nil && strings.Contains(out, "0 live")
	})
	if !agent.runs() {
		t.Errorf("the agent ended: %s", agent.ending())
	}
	agent.kill()
	// No secret is in any log.
	for _, file := range []string{bot, boss, operator} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, key, _ := strings.Cut(string(data), `"key": "`)
		_, secret, _ := strings.Cut(strings.SplitN(key, `"`, 2)[0], ".")
		for _, name := range []string{"up.log", "bot.log"} {
			log, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || secret == "" || strings.Contains(string(log), secret) {
				t.Errorf("%s shows the secret of %s (%v)", name, file, err)
			}
		}
	}
}
