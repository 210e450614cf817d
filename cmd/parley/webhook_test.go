package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

const webhookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// outbox stores a delivery in the fleet at url.
func outbox(t *testing.T, url string, d fleet.Delivery) {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Store(t.Context(), subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(&d), string(d.DeliveryID), nil); err != nil {
		t.Fatal(err)
	}
}

func TestWebhookFromOutboxToReceiver(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	calls := make(chan http.Header, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls <- r.Header
		if !up.Load() {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(server.Close)
	s := newShell(t, "HOOK_SECRET="+webhookSecret, "HOOK_KEY=k-e-y")
	file := filepath.Join(s.home(), "webhooks.json")
	text := `{"endpoints":[{"name":"n8n","url":"` + server.URL + `/webhook/secret-path","secret_env":"HOOK_SECRET",
		"headers":[{"name":"X-N8N-Key","value_env":"HOOK_KEY"}],"allow":["127.0.0.1"],"timeout":"5s",
		"push":{"attempts":1,"base":"1s"},"human":{"steps":["1h"]}}]}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // no secret is in it
		t.Fatal(err)
	}
	j, url := s.up(t, "--webhooks-file", file, "--webhook-url", server.URL+"/human", "--webhook-allow", "127.0.0.1", "--webhook-check",
		"--webhook-secret", webhookSecret, "--webhook-header", "X-Human: call me")
	s.environ = append(s.environ, "NATS_URL="+url)
	outbox(t, url, fleet.Delivery{
		DeliveryID: "d1", Order: "t1", TaskID: "t1", Endpoint: "n8n", Body: json.RawMessage(`{"text":"call me"}`), Schedule: fleet.SchedulePush,
	})
	bustest.Eventually(t, "a dead letter", func() bool {
		return strings.Contains(s.run(t, "webhook", "ls", "--state", "dead").stdout, "d1")
	})
	if h := <-calls; h.Get("X-N8N-Key") != "k-e-y" || h.Get("webhook-id") != "d1" || h.Get("webhook-signature") == "" {
		t.Errorf("headers %v", h)
	}
	show := s.run(t, "webhook", "show", "d1")
	show.check(t, 0, "call me", "")
	for _, want := range []string{"dead", "n8n", "answered 400", "Attempts", "t1"} {
		if !strings.Contains(show.stdout, want) {
			t.Errorf("show has no %q:\n%s", want, show.stdout)
		}
	}
	s.run(t, "webhook", "status").check(t, 0, "1 attempts, 0 succeeded, 1 failed (0.0 %)", "")
	s.run(t, "webhook", "status", "-o", "json").check(t, 0, `"endpoint": "human"`, "")
	s.run(t, "webhook", "ls", "-o", "jsonl").check(t, 0, `"delivery_id":"d1"`, "")
	s.run(t, "webhook", "ls", "--task", "other").check(t, 0, "", "no deliveries")
	s.run(t, "webhook", "ls", "--state", "lost").check(t, 10, "", "pending, delivered, dead, dropped")
	s.run(t, "webhook", "show", "nothing").check(t, 19, "", "parley webhook ls")
	s.run(t, "webhook", "ls", "--as", "bob").check(t, 16, "", "operator")
	s.run(t, "webhook", "replay").check(t, 2, "", "--all")
	up.Store(true)
	s.run(t, "webhook", "replay", "d1").check(t, 0, "", "d1 is sent again")
	bustest.Eventually(t, "a delivery", func() bool {
		return strings.Contains(s.run(t, "webhook", "ls", "--state", "delivered").stdout, "d1")
	})
	s.run(t, "webhook", "replay", "d1").check(t, 19, "", "nothing left to send")
	s.run(t, "webhook", "replay", "--all", "--since", "1h").check(t, 0, "", "0 sent again")
	for len(calls) > 0 {
		<-calls
	}
	outbox(t, url, fleet.Delivery{DeliveryID: "d3", Order: "t2", Endpoint: "human", Body: json.RawMessage(`1`)})
	if h := <-calls; h.Get("X-Human") != "call me" || h.Get("webhook-id") != "d3" || h.Get("webhook-signature") == "" {
		t.Errorf("headers %v", h)
	}
	outbox(t, url, fleet.Delivery{DeliveryID: "d2", Order: "t1", Endpoint: "nowhere", Body: json.RawMessage(`1`)})
	bustest.Eventually(t, "a delivery that waits", func() bool {
		return strings.Contains(s.run(t, "webhook", "show", "d2").stdout, "not configured")
	})
	s.run(t, "webhook", "drop", "d2").check(t, 0, "", "d2 is given up")
	s.run(t, "webhook", "ls", "--state", "dropped").check(t, 0, "d2", "")
	for _, secret := range []string{"k-e-y", webhookSecret, "secret-path"} {
		for _, out := range []string{show.stdout, j.stderr.String(), s.run(t, "webhook", "ls", "-o", "json").stdout, s.run(t, "webhook", "status", "-o", "json").stdout} {
			if strings.Contains(out, secret) {
				t.Errorf("%s is told:\n%s", secret, out)
			}
		}
	}
}

func TestWebhookSettingsAreChecked(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	file := filepath.Join(s.home(), "webhooks.json")
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"open to others": {`{"endpoints":[{"name":"a","url":"https://a.example","secret":"` + webhookSecret + `"}]}`, 0o640, "chmod 600"},
		"open header":    {`{"endpoints":[{"name":"a","url":"https://a.example","headers":[{"name":"X","value":"hunter2"}]}]}`, 0o644, "chmod 600"},
		"unknown member": {`{"endpoints":[{"name":"a","uri":"https://a.example"}]}`, 0o600, `unknown field "uri"`},
		"no variable":    {`{"endpoints":[{"name":"a","url_env":"NO_SUCH_URL"}]}`, 0o600, "NO_SUCH_URL"},
		"two secrets":    {`{"endpoints":[{"name":"a","secret":"` + webhookSecret + `","secret_env":"HOME"}]}`, 0o600, "use one of them"},
		"bad secret":     {`{"endpoints":[{"name":"a","secret":"hunter2"}]}`, 0o600, "whsec_"},
		"bad allow":      {`{"allow":["http://x"]}`, 0o600, "neither a host"},
		"twice":          {`{"endpoints":[{"name":"a"},{"name":"a"}]}`, 0o600, "twice"},
		"bad schedule":   {`{"endpoints":[{"name":"a","push":{"attempts":3}}]}`, 0o600, "base or steps"},
	} {
		if err := os.WriteFile(file, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, tt.mode); err != nil {
			t.Fatal(err)
		}
		out := s.run(t, "up", "--port", "-1", "--http", "off", "--sync=1m", "--webhooks-file", file)
		if out.code != exitUsage || !strings.Contains(out.stderr, tt.says) || strings.Contains(out.stderr, "hunter2") || strings.Contains(out.stderr, webhookSecret) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", name, out.code, exitUsage, tt.says, out.stderr)
		}
	}
	s.run(t, "up", "--webhook-retries", "0").check(t, exitUsage, "", "--webhook-retries")
	help := s.run(t, "up", "--help", "--webhook-secret", "hunter2")
	if strings.Contains(help.stdout, "hunter2") {
		t.Error("help shows a secret")
	}
}

// The guide's file is one that is read.
func TestWebhookGuideFile(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no JSON in the guide")
	}
	s := newShell(t, "ONCALL_URL=https://oncall.example/hook", "ONCALL_KEY=k")
	secret := filepath.Join(s.home(), "secret")
	if err := os.WriteFile(secret, []byte(webhookSecret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.home(), "webhooks.json")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/run/secrets/oncall", secret)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, url := s.up(t, "--webhooks-file", file)
	s.environ = append(s.environ, "NATS_URL="+url)
	s.run(t, "webhook", "status").check(t, 0, "oncall", "")
}
