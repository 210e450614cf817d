package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"parley/bus/bustest"
)

func TestMetricsAddUp(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, url := s.up(t, "--metrics-log", "--metrics-interval", "50ms", "--log-format", "json")
	s.environ = append(s.environ, "NATS_URL="+url)
	s.run(t, "metrics").check(t, 0, "Tasks:       0 received, 0 completed, 0 canceled, 0 failed", "")
	s.agent(t, "echo", "--", "cat")
	bustest.Eventually(t, "an agent", func() bool { return strings.Contains(s.run(t, "agent", "ls").stdout, "echo") })
	s.run(t, "task", "send", "--wait", "hello").check(t, 0, "hello", "")
	sent := s.run(t, "task", "send", "--mcp", "none", "--on-blocked", "wait", "for ever")
	id := strings.TrimSpace(sent.stdout)
	s.run(t, "task", "send", "--on-blocked", "wait", "--mcp", "none", "for ever, too")
	s.run(t, "task", "cancel", id)
	want := regexp.MustCompile(`^Uptime:      [0-9hms]+
Webhooks:    0 attempts, 0 success, 0 failed \(100\.0 %\)
Tasks:       3 received, 1 completed, 1 canceled, 0 failed
Queue depth: 1
$`)
	if got := s.run(t, "metrics"); got.code != 0 || !want.MatchString(got.stdout) {
		t.Errorf("metrics: %d\n%s%s\nafter %+v", got.code, got.stdout, got.stderr, sent)
	}
	var r map[string]any
	got := s.run(t, "metrics", "-o", "json")
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r["tasks_received"] != 3.0 || r["queue_depth"] != 1.0 || r["routers"] != 1.0 || r["webhook_success_rate"] != 1.0 {
		t.Errorf("metrics: %v in %s", err, got.stdout)
	}
	bustest.Eventually(t, "a line in the log", func() bool {
		return strings.Contains(j.stderr.String(), `"tasks_received":3,"tasks_completed":1,"tasks_canceled":1,"tasks_failed":0,"queue_depth":1`)
	})
}
