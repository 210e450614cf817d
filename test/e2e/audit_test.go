package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"parley/subjects/handshake"
)

// TestAuditOfChanges has people change runs, schedules, silences and agents, and
// looks for the line of each: there once, under the name of who did it, also
// after the process that stored the change was killed.
func TestAuditOfChanges(t *testing.T) {
	t.Parallel()
	g := newSessions(t)
	definition := filepath.Join(g.dir, "run.yaml")
	if err := os.WriteFile(definition, []byte("task_type: multi-agent-run\nagents:\n  - agent_id: nobody-yet\n    brief: wait\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(g.must(g.as("boss", "run", "start", definition)))
	g.must(g.as("boss", "run", "pause", id))
	g.must(g.as("operator", "run", "resume", id))
	g.must(g.as("operator", "run", "cancel", id))
	g.must(g.as("boss", "schedule", "create", "weekly", "--every", "168h", "mesh", "--to", "claude", "good morning"))
	g.must(g.as("boss", "schedule", "pause", "weekly"))
	g.must(g.as("boss", "schedule", "resume", "weekly"))
	g.must(g.as("boss", "schedule", "run-now", "weekly"))
	g.must(g.as("operator", "escalation", "silence", "code=agent_error", "--for", "1h", "--reason", "it is known"))
	g.must(g.as("operator", "escalation", "silence", "code=agent_lost", "--for", "5s", "--reason", "soon over"))
	g.must(g.as("operator", "agent", "drain", "claude"))
	want := []string{
		"run boss start", "run boss pause", "run operator resume", "run operator cancel", "run boss end",
		"schedule boss create", "schedule boss pause", "schedule boss resume", "schedule boss run", "schedule boss begin",
		"silence operator set", "silence operator set", "silence escalation expire", "agent_drain operator ",
	}
	lines := func() map[string]int {
		got := map[string]int{}
		for text := range strings.Lines(g.audit()) {
			l, err := handshake.DecodeLogLine([]byte(text))
			if err != nil {
				t.Fatalf("the line %s: %v", text, err)
			}
			var d struct {
				Kind string `json:"kind"`
			}
			if err := json.Unmarshal(l.Data, &d); err != nil {
				t.Fatal(err)
			}
			got[fmt.Sprintf("%s %s %s", l.EventType, l.AgentID, d.Kind)]++
		}
		return got
	}
	all := func(want []string) func() bool {
		return func() bool {
			got := lines()
			for _, l := range want {
				if got[l] == 0 {
					return false
				}
			}
			return true
		}
	}
	g.eventually("every change in the audit", all(want))
	g.restart()
	g.must(g.as("boss", "schedule", "rm", "weekly"))
	g.must(g.as("operator", "agent", "resume", "claude"))
	want = append(want, "schedule boss remove", "agent_resume operator ")
	g.eventually("what was changed after the restart", all(want))
	count := map[string]int{}
	for _, l := range want {
		count[l]++
	}
	for l, n := range lines() {
		if count[l] > 0 && n != count[l] {
			t.Errorf("%d lines %q, want %d", n, l, count[l])
		}
	}
	if out := g.must(g.as("operator", "audit", "verify")); !strings.Contains(out, "nothing was changed") {
		t.Errorf("audit verify: %s", out)
	}
}
