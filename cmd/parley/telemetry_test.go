package main

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"parley/bus/bustest"
)

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
	all := []string{
		`parley_tasks_total{outcome="done",priority="high"} 1`, `parley_tasks_received_total{priority="normal"} 1`,
		`parley_attempts_total{class="ok",code="ok",level="0"} 1`, `parley_task_wait_seconds_count{priority="high"} 1`,
		`parley_tasks{state="queued"} 1`, `parley_queue_depth{class="mcp=`, `parley_agents{state="idle",tier="none"} 1`,
		`parley_waiting_for_human 0`, `parley_leases 0`,
		`parley_source_up{source="router"} 1`, `parley_source_up{source="webhooks"} 1`, `parley_source_up{source="registry"} 1`,
		`parley_source_up{source="escalation"} 1`, `parley_source_up{source="jetstream"} 1`,
		`parley_stream_messages{stream="FLEET_TASKS"}`, `parley_build_info{`, `go_goroutines`,
	}
	for _, w := range workerNames() {
		all = append(all, `parley_workers{worker="`+w+`"} 1`)
	}
	for _, want := range all {
		var text string
		bustest.Eventually(t, want, func() bool {
			_, text = get(t, page+"/metrics")
			return strings.Contains(text, want)
		})
	}
}

// TestOneTrace: the caller's trace goes through the gateway into the task, from
// there to the agent, and the task is a part of it.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards sent
	var sent []byte
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, body...)
	}))
	defer receiver.Close()
	s := newShell(t)
	j, url := s.up(t, "--otlp-endpoint", receiver.URL, "--otlp-headers", "A=b")
	s.environ = append(s.environ, "NATS_URL="+url)
	s.agent(t, "tracer", "--", "sh", "-c", `cat >/dev/null; echo "it was told $TRACEPARENT"`)
	page := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(j.stdout.String())
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page+"/a2a/message:send", strings.NewReader(
		`{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"go"}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("A2A-Version", "1.0")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	told := regexp.MustCompile(`it was told 00-` + trace + `-([0-9a-f]{16})-01`).FindSubmatch(body)
	if err != nil || told == nil {
		t.Fatalf("the agent was not told the trace: %v\n%s", err, body)
	}
	attempt, err := hex.DecodeString(string(told[1]))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := hex.DecodeString(trace)
	bustest.Eventually(t, "the task's trace", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return bytes.Contains(sent, id) && bytes.Contains(sent, attempt) && bytes.Contains(sent, []byte("invoke_agent tracer"))
	})
	s = newShell(t)
	s.run(t, "up", "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m", "--otlp-endpoint", "here").check(t, exitUsage, "", "--otlp-endpoint")
	s.run(t, "up", "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m", "--otlp-endpoint", receiver.URL, "--otlp-headers", "secret").check(t, exitUsage, "", "NAME=VALUE")
}

// TestTheLogLevelPage: workers that run log more or less, as they are told.
func TestTheLogLevelPage(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, _ := s.up(t, "--log-format", "json")
	page := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(j.stdout.String())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, page+"/loglevel", strings.NewReader(`{"level":"error"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("PUT: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	if !strings.Contains(j.stderr.String(), `"msg":"log level set","level":"ERROR","was":"INFO"`) {
		t.Errorf("the log:\n%s", j.stderr.String())
	}
}
