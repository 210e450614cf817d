package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/gateway/a2anats"
	"parley/workers/telemetry/otlptest"
)

// The trace of whoever calls.
const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
	callers      = "00-" + callersTrace + "-" + callersSpan + "-01"
)

// under draws the spans of a trace that are below one, and how each failed.
func under(all []otlptest.Span, trace, parent, indent string) string {
	var b strings.Builder
	for _, s := range all {
		if s.Trace != trace || s.Parent != parent {
			continue
		}
		b.WriteString(indent + s.Name)
		if s.Failed != "" {
			b.WriteString(" (" + s.Failed + ")")
		}
		b.WriteString("\n" + under(all, trace, s.ID, indent+"  "))
	}
	return b.String()
}

// ids are those of the spans of a name.
func ids(all []otlptest.Span, name string) (out []string) {
	for _, s := range all {
		if s.Name == name {
			out = append(out, s.ID)
		}
	}
	return out
}

// called is a receiver of webhooks that fails at first.
type called struct {
	*httptest.Server
	mu      sync.Mutex // guards what follows
	headers []string   // traceparent of each request
}

func takeCalls(t *testing.T) *called {
	t.Helper()
	c := new(called)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.headers = append(c.headers, r.Header.Get("Traceparent")); len(c.headers) == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *called) told() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.headers)
}

const wholeTrace = `task
  wait for an agent
  invoke_agent ann (agent_error)
  escalate to level 2
  wait for an agent
  invoke_agent bob (agent_error)
  escalate to level 2
  wait for an agent
  escalate to level 3
    webhook human
      POST (answered 502 Bad Gateway)
      POST
  wait for a human
  wait for an agent
  invoke_agent cleo
`

// TestTheWholeTrace: one trace from the A2A request over dispatch, offers,
// attempts, escalation and webhook to the result; what each is handed on names
// the span that it is below.
func TestTheWholeTrace(t *testing.T) {
	t.Parallel()
	otel, human := otlptest.New(t), takeCalls(t)
	s := newShell(t)
	j, url := s.up(t, "--otlp-endpoint", otel.URL, "--webhook-url", human.URL, "--webhook-secret", webhookSecret, "--webhook-allow", "127.0.0.1",
		"--webhook-base", "50ms", "--group-wait", "50ms", "--group-by", "task")
	s.environ = append(s.environ, "NATS_URL="+url)
	b, err := bus.Connect(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	var mu sync.Mutex // guards offers and handed
	offers, handed := []string{}, map[string]string{}
	sub, err := b.Subscribe("fleet.offer.*.*", "", func(m bus.Msg) {
		mu.Lock()
		defer mu.Unlock()
		offers = append(offers, m.Header.Get(subjects.HeaderTraceparent))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	hold := func(id subjects.AgentID, task *agent.Task) {
		mu.Lock()
		defer mu.Unlock()
		handed["invoke_agent "+string(id)] = task.Dispatch.Traceparent
	}
	for _, id := range []subjects.AgentID{"ann", "bob"} {
		works(t, url, agent.Config{ID: id, Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
			hold(id, task)
			return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
		})})
	}
	bustest.Eventually(t, "two agents", func() bool {
		return s.run(t, "agent", "get", "ann").code == 0 && s.run(t, "agent", "get", "bob").code == 0
	})

	page := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(j.stdout.String())
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page+"/a2a/message:send", strings.NewReader(
		`{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"go"}]},"configuration":{"returnImmediately":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("A2A-Version", "1.0")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "k1") // a repeated request may be of another trace
	req.Header.Set("Traceparent", callers)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	found := regexp.MustCompile(`"id":\s*"([^"]+)"`).FindSubmatch(body)
	if err != nil || found == nil {
		t.Fatalf("no task: %v\n%s", err, body)
	}
	id := string(found[1])
	bustest.Eventually(t, "the human is called, at the second try", func() bool { return len(human.told()) >= 2 })
	works(t, url, agent.Config{ID: "cleo", Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
		hold("cleo", task)
		return agent.Text("done"), nil
	})})
	bustest.Eventually(t, "cleo", func() bool { return s.run(t, "escalation", "reassign", id, "cleo").code == 0 })
	s.run(t, "task", "wait", id).check(t, 0, "done", "")

	// Whoever was asked first is ann here.
	drawn := ""
	bustest.Eventually(t, "the whole trace", func() bool {
		drawn = under(otel.Take(), callersTrace, callersSpan, "")
		if strings.Index(drawn, "invoke_agent bob") < strings.Index(drawn, "invoke_agent ann") {
			drawn = strings.NewReplacer("invoke_agent bob", "invoke_agent ann", "invoke_agent ann", "invoke_agent bob").Replace(drawn)
		}
		return drawn == wholeTrace || strings.Contains(drawn, "cleo") && strings.Contains(drawn, "POST\n") && len(drawn) > len(wholeTrace)
	})
	if diff := cmp.Diff(wholeTrace, drawn); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
	mu.Lock()
	defer mu.Unlock()
	spanOf := func(traceparent string) string {
		if !strings.HasPrefix(traceparent, "00-"+callersTrace+"-") {
			t.Errorf("%q is not of the caller's trace", traceparent)
			return ""
		}
		return traceparent[36:52]
	}
	for name, told := range handed {
		if got := ids(otel.Take(), name); len(got) != 1 || got[0] != spanOf(told) || !slices.Contains(offers, told) {
			t.Errorf("%s was told %s and offered one of %q; its span is %s", name, told, offers, got)
		}
	}
	posts := ids(otel.Take(), "POST")
	for _, told := range human.told() {
		if !slices.Contains(posts, spanOf(told)) {
			t.Errorf("the webhook was told %s; the spans are %s", told, posts)
		}
	}
	if len(handed) != 3 || len(posts) != 2 {
		t.Errorf("agents were handed %v; %d posts", handed, len(posts))
	}
}

// TestTracesComeIn: each door takes the caller's trace from the header, and a
// run passes it on to its tasks.
func TestTracesComeIn(t *testing.T) {
	t.Parallel()
	otel := otlptest.New(t)
	s := newShell(t)
	_, url := s.up(t, "--otlp-endpoint", otel.URL)
	s.environ = append(s.environ, "NATS_URL="+url, "TRACEPARENT="+callers)
	b := works(t, url, agent.Config{ID: "ann", Handler: agent.Echo{}})
	bustest.Eventually(t, "an agent", func() bool { return s.run(t, "agent", "get", "ann").code == 0 })
	header := bus.Header{subjects.HeaderTraceparent: {callers}}
	const alone = "task\n  wait for an agent\n  invoke_agent ann\n"
	wants := func(door, tree string) {
		t.Helper()
		got := ""
		bustest.Eventually(t, "the trace by "+door, func() bool { got = under(otel.Take(), callersTrace, callersSpan, ""); return got == tree })
		otel.Forget()
	}
	if _, err := b.Request(t.Context(), subjects.API("lead", "task", "dispatch"), []byte("by the api"), header); err != nil {
		t.Fatal(err)
	}
	wants("the api", alone)
	if _, err := b.Request(t.Context(), subjects.Dispatch("lead"), []byte("by the raw door"), header); err != nil {
		t.Fatal(err)
	}
	wants("the raw door", alone)
	s.run(t, "task", "send", "--id", "twice", "by the command line").check(t, 0, "", "")
	wants("the command line", alone)
	again := newShell(t, "NATS_URL="+url, "TRACEPARENT="+strings.Replace(callers, "4bf9", "5bf9", 1))
	again.run(t, "task", "send", "--id", "twice", "by the command line").check(t, 0, "", "")

	a2a := header
	a2a[a2anats.HeaderVersion] = []string{"1.0"}
	c, err := b.Converse(a2anats.Subject(a2anats.Root, "lead", "SendMessage"), []byte(`{"message":{"messageId":"m1","role":"ROLE_USER","parts":[{"text":"by nats"}]}}`), a2a)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Next(t.Context()); err != nil || m.Header.Get(a2anats.HeaderFrame) == a2anats.FrameError {
		t.Fatalf("%+v, %v", m, err)
	}
	c.Close()
	wants("A2A over NATS", alone)

	file := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(file, []byte("task_id: r1\nagents:\n  - {id: one, agent_id: ann, brief: one, dependencies: []}\n  - {id: two, agent_id: ann, brief: two, dependencies: [one]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "run", "start", file).check(t, 0, "", "")
	wants("a run", "run\n"+strings.Repeat("  task\n    wait for an agent\n    invoke_agent ann\n", 2))
}
