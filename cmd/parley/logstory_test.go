package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// underKey complains of lines that name an id, and not under its key.
func underKey(t *testing.T, logs, key, id string) {
	t.Helper()
	for line := range strings.Lines(logs) {
		if !strings.Contains(line, id) {
			continue
		}
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("no JSON: %s", line)
			continue
		}
		if l[key] != id {
			t.Errorf("%s is not under %s: %s", id, key, line)
		}
	}
}

// TestTheLogTellsAStory: whoever follows one task, run or message by its id
// finds the whole story, from every worker, under one key.
func TestTheLogTellsAStory(t *testing.T) {
	t.Parallel()
	human := takeCalls(t)
	s := newShell(t)
	j, url := s.up(t, "--log-format", "json", "--log-level", "debug", "--webhook-url", human.URL, "--webhook-secret", webhookSecret,
		"--webhook-allow", "127.0.0.1", "--webhook-base", "50ms", "--group-wait", "50ms", "--group-by", "task")
	s.environ = append(s.environ, "NATS_URL="+url)
	agents := new(lines)
	tries := 0
	works(t, url, agent.Config{
		ID: "ann", Log: slog.New(slog.NewJSONHandler(agents, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
			if task.ID() != "the-task" {
				return agent.Text("ok"), nil
			}
			if tries++; tries == 1 {
				return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
			}
			return agent.Text("done"), nil
		}),
	})
	bustest.Eventually(t, "ann", func() bool { return s.run(t, "agent", "get", "ann").code == 0 })

	s.run(t, "task", "send", "--id", "the-task", "--agent", "ann", "go").check(t, 0, "", "")
	bustest.Eventually(t, "the human is called, at the second try", func() bool { return len(human.told()) >= 2 })
	bustest.Eventually(t, "an answer", func() bool { return s.run(t, "escalation", "retry", "the-task").code == 0 })
	s.run(t, "task", "wait", "the-task").check(t, 0, "done", "")
	file := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(file, []byte("task_id: the-run\nagents:\n  - {id: one, agent_id: ann, brief: one, dependencies: []}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "run", "start", file).check(t, 0, "", "")

	all := func() string { return j.stderr.String() + agents.String() }
	for _, c := range []struct {
		key, id string
		want    []string
	}{
		{"task_id", "the-task", []string{
			"router: record stored queued", "router: record stored working", "router: record stored human", "router: record stored resumed",
			"router: record stored outcome", "agent: accepted", "agent: task failed", "agent: result was taken",
			"escalation: a task waits for a human", "escalation: alert", "webhooks: webhook failed, tried again", "webhooks: webhook delivered",
		}},
		{"run_id", "the-run", []string{"router: record stored queued", "router: record stored outcome", "runs: run ended"}},
	} {
		bustest.Eventually(t, "the whole story of "+c.id, func() bool {
			said := strings.Join(storyOf(all(), c.id), "\n")
			return !slices.ContainsFunc(c.want, func(w string) bool { return !strings.Contains(said, w) })
		})
		underKey(t, all(), c.key, c.id)
	}
	of := fleet.TraceOf(subjects.TaskID("the-task"), "").TraceID()
	if n := strings.Count(all(), `"trace_id":"`+of+`"`); n < 7 {
		t.Errorf("%d lines have the trace's id", n)
	}
}

// storyOf are the lines that name id anywhere.
func storyOf(logs, id string) (said []string) {
	for line := range strings.Lines(logs) {
		var l struct{ Component, Msg, Kind string }
		if strings.Contains(line, `"`+id+`"`) && json.Unmarshal([]byte(line), &l) == nil {
			said = append(said, strings.TrimSpace(l.Component+": "+l.Msg+" "+l.Kind))
		}
	}
	return said
}
