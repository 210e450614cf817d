package e2e_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestSecretsStaySecret runs a fleet whose secrets are known, has it do work that
// succeeds and work that fails, and looks for the secrets wherever somebody
// might read them: what processes print and log, the list of processes, every
// stored message, and the audit.
func TestSecretsStaySecret(t *testing.T) {
	t.Parallel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	defer hook.Close()
	dir := t.TempDir()
	file := func(name, secret string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const (
		webhookSecret = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LTAx"
		linkKey       = "canary-of-the-link-key-0123456789"
		header        = "canary-of-the-webhook-header"
		path          = "/canary-of-the-webhook-url"
		bearer        = "canary-of-an-a2a-token-0123456789"
		password      = "canary-of-a-password"
	)
	g := newGuarded(t, []string{
		"PARLEY_WEBHOOK_URL_FILE=" + file("url", hook.URL+path), "PARLEY_WEBHOOK_SECRET_FILE=" + file("secret", webhookSecret),
		"PARLEY_WEBHOOK_HEADER=X-API-Key: " + header, "PARLEY_WEBHOOK_ALLOW=127.0.0.1", "PARLEY_LINK_KEY_FILE=" + file("link", linkKey),
		"PARLEY_A2A_TOKENS=" + file("tokens", "someone "+bearer), "PARLEY_GROUP_WAIT=10ms", "PARLEY_LOG_LEVEL=debug",
	}, "default")
	secrets := map[string]string{
		"webhook secret": webhookSecret, "link key": linkKey, "webhook header": header, "webhook address": path, "A2A token": bearer, "password": password,
	}
	for _, add := range [][]string{{"add-agent", "claude"}, {"add-agent", "clumsy"}, {"add-orchestrator", "boss"}} {
		g.must(g.run(nil, append([]string{"auth"}, add...)...))
	}
	seeds(t, g.auth, secrets)
	token := filepath.Join(dir, "token")

	g.agent("claude")
	g.start("agent-clumsy", []string{"PARLEY_CREDS=" + g.creds("default", "clumsy"), "PARLEY_SERVER=" + g.url, "PARLEY_LOG_LEVEL=debug"},
		"agent", "run", "--id", "clumsy", "--heartbeat", "500ms", "--data", filepath.Join(g.dir, "clumsy"), "--", "sh", "-c", "env; exit 3")
	g.eventually("the agents", func() bool {
		out := g.as("boss", "agent", "ls", "--live").stdout
		return strings.Contains(out, "claude") && strings.Contains(out, "clumsy")
	})
	var printed bytes.Buffer
	keep := func(d did) did {
		printed.WriteString(d.stdout + d.stderr)
		return d
	}
	session := strings.TrimSpace(keep(g.as("boss", "session", "create", "--token-file", token)).stdout)
	var err error
	if secrets["session token"], err = readFile(token); err != nil {
		t.Fatal(err)
	}
	keep(g.as("boss", "task", "send", "--wait", "--agent", "claude", "--session", session, "fine"))
	keep(g.as("boss", "task", "send", "--wait", "--agent", "clumsy", "--escalate", "always", "--max-retries", "0", "--for", "2s", "bad"))
	keep(g.as("boss", "task", "send", "--as", "claude", "forged"))
	g.eventually("a failing webhook", func() bool { return strings.Contains(g.as("operator", "webhook", "ls", "-o", "json").stdout, "500") })
	keep(g.as("operator", "webhook", "ls", "-o", "json"))
	keep(g.as("operator", "escalation", "ls", "-o", "json"))
	keep(g.as("operator", "webhook", "status", "-o", "json"))
	// Mistakes.
	keep(g.run([]string{"PARLEY_SERVER=nats://somebody:" + password + "@" + strings.TrimPrefix(g.url, "nats://")}, "task", "ls"))
	keep(g.run([]string{"PARLEY_SERVER=nats://somebody:" + password + "@127.0.0.1:1"}, "task", "ls"))
	keep(g.run([]string{"PARLEY_USER=x", "PARLEY_PASSWORD=" + password}, "task", "ls"))
	keep(g.run([]string{"PARLEY_SESSION_TOKEN_FILE=" + token, "PARLEY_CREDS=" + g.creds("default", "claude")}, "session", "get", session+"0"))
	keep(g.run([]string{"PARLEY_LINK_KEY=" + linkKey, "PARLEY_PASSWORD=" + password, "PARLEY_WEBHOOK_SECRET=" + webhookSecret}, "help", "env"))
	keep(g.run([]string{"PARLEY_LINK_KEY=" + linkKey, "PARLEY_WEBHOOK_SECRET=" + webhookSecret}, "up", "--help"))
	keep(g.run([]string{"PARLEY_LINK_KEY=" + linkKey}, "up", "--port", "x"))
	if printed.Len() < 1000 {
		t.Errorf("little was printed:\n%s", printed.String())
	}

	look(t, secrets, "what commands printed", printed.Bytes())
	out, _ := g.up.printed()
	look(t, secrets, "what up printed", []byte(out))
	logs, err := filepath.Glob(filepath.Join(g.dir, "*.log"))
	if err != nil || len(logs) < 3 {
		t.Fatalf("logs %q, %v", logs, err)
	}
	for _, l := range logs {
		data, err := os.ReadFile(l)
		if err != nil {
			t.Fatal(err)
		}
		look(t, secrets, filepath.Base(l), data)
	}
	look(t, secrets, "the list of processes", processes(t))
	look(t, secrets, "the audit", []byte(g.audit()))
	stored(t, g, secrets)
}

// look finds secrets in what somebody may read.
func look(t *testing.T, secrets map[string]string, where string, data []byte) {
	t.Helper()
	for name, secret := range secrets {
		if at := bytes.Index(data, []byte(secret)); at >= 0 {
			t.Errorf("%s has the %s: …%s…", where, name, data[max(0, at-150):min(len(data), at+20)])
		}
	}
}

// seeds adds every private key of a directory of identities.
func seeds(t *testing.T, dir string, secrets map[string]string) {
	t.Helper()
	seed := regexp.MustCompile(`\bS[OAU][A-Z2-7]{56}\b`)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		data, err := os.ReadFile(path)
		for _, s := range seed.FindAllString(string(data), -1) {
			secrets["key in "+filepath.Base(path)] = s
			if !strings.HasSuffix(path, ".nk") && !strings.HasSuffix(path, ".creds") {
				t.Errorf("%s holds a private key", path)
			}
		}
		return err
	})
	if err != nil || len(secrets) < 15 {
		t.Fatalf("%d secrets: %v", len(secrets), err)
	}
}

// processes are the command lines of all processes that can be seen.
func processes(t *testing.T) []byte {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, p := range paths {
		if data, err := os.ReadFile(p); err == nil { // it may have ended
			all = append(append(all, data...), '\n')
		}
	}
	if len(paths) > 0 && !bytes.Contains(all, []byte("parley")) {
		t.Error("no process of parley is seen")
	}
	return all
}

// stored looks into every message of every stream. The keys that workers share
// are in their bucket, and the session's token with the offer of its task.
func stored(t *testing.T, g *guarded, secrets map[string]string) {
	t.Helper()
	js, err := jetstream.New(g.connect("worker"))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for name := range streams(t, js) {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		state := s.CachedInfo().State
		for seq := state.FirstSeq; seq <= state.LastSeq && state.Msgs > 0; seq++ {
			m, err := s.GetMsg(t.Context(), seq)
			if err != nil {
				continue // removed
			}
			total++
			headers, err := json.Marshal(m.Header)
			if err != nil {
				t.Fatal(err)
			}
			look(t, secrets, name+" "+m.Subject, append(headers, m.Data...))
		}
	}
	if total < 20 {
		t.Errorf("%d messages are stored", total)
	}
}
