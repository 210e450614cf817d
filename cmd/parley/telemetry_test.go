package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"parley/bus/bustest"
)

// scrape reads the page of metrics of a fleet.
func scrape(t *testing.T, http1 string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, http1+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestThePageOfMetrics: what a fleet does is on the page of its HTTP port.
func TestThePageOfMetrics(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, url := s.up(t)
	s.environ = append(s.environ, "NATS_URL="+url)
	s.agent(t, "echo", "--", "cat")
	bustest.Eventually(t, "an agent", func() bool { return strings.Contains(s.run(t, "agent", "ls").stdout, "echo") })
	s.run(t, "task", "send", "--wait", "--priority", "high", "hello").check(t, 0, "hello", "")
	s.run(t, "task", "send", "--mcp", "moon", "--on-blocked", "wait", "for ever")
	page := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(j.stdout.String())
	for _, want := range []string{
		`parley_tasks_total{outcome="done",priority="high"} 1`, `parley_tasks_received_total{priority="normal"} 1`,
		`parley_attempts_total{code="ok",level="0"} 1`, `parley_task_wait_seconds_count{priority="high"} 1`,
		`parley_tasks{state="queued"} 1`, `parley_queue_depth{class="mcp=`, `parley_agents{state="idle",tier="none"} 1`,
		`parley_workers{worker="router"} 1`, `parley_workers{worker="escalation"} 1`, `parley_waiting_for_human 0`, `parley_leases 0`,
		`parley_source_up{source="router"} 1`, `parley_source_up{source="webhooks"} 1`, `parley_source_up{source="registry"} 1`,
		`parley_source_up{source="escalation"} 1`, `parley_source_up{source="jetstream"} 1`,
		`parley_stream_messages{stream="FLEET_TASKS"}`, `parley_build_info{`, `go_goroutines`,
	} {
		var text string
		bustest.Eventually(t, want, func() bool {
			text = scrape(t, page)
			return strings.Contains(text, want)
		})
	}
}
