package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"parley/bus/bustest"
	"parley/subjects/fleet"
)

// TestTopDraws: what the view shows follows from what it was told, fits the
// terminal, and needs no colour.
func TestTopDraws(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 10, 0, time.UTC)
	figures := func(received uint64) fleet.Figures {
		return fleet.Figures{TaskFigures: fleet.TaskFigures{
			Since: at.Add(-time.Hour), Received: received, Completed: 7, Failed: 2, Canceled: 1, Queued: 5,
			States:  map[fleet.State]int{fleet.StateQueued: 5, fleet.StateWorking: 3, fleet.StateInputRequired: 1},
			Classes: []fleet.ClassFigures{{Class: `tier="opus"`, Depth: 4, OldestSeconds: 75.5}, {Class: "any\x1b[31m", Depth: 1, OldestSeconds: 2}},
			Waiting: []fleet.WaitingFigures{{Why: fleet.WaitBusy, Tasks: 1}, {Why: fleet.WaitLimited, Tasks: 4}},
			Limits: []fleet.LimitFigures{
				{Account: "claude", Reset: at.Add(2 * time.Hour), Tasks: 4, Late: 1},
				{Account: "free", Reset: at, Guessed: true},
			},
		}}
	}
	m := &top{ask: func() (*look, error) { return nil, errors.New("gone") }, every: time.Second, clock: func(t time.Time) string { return t.Format("15:04") }}
	tell := func(msg tea.Msg) tea.Cmd {
		_, cmd := m.Update(msg)
		return cmd
	}
	if got := m.View().Content; got != "Asking the fleet …\n" {
		t.Errorf("before the first look: %q", got)
	}
	tell(missed{errors.New("no\nrouter")})
	if got := m.render(); !strings.HasPrefix(got, "The fleet does not answer: no") || strings.Count(got, "\n") != 1 {
		t.Errorf("without an answer: %q", got)
	}
	tell(looked{&look{At: at.Add(-2 * time.Second), Tasks: figures(100), Routers: 2}})
	if got := m.render(); strings.Contains(got, "A second") || !strings.Contains(got, "no registry runs") || !strings.Contains(got, "no escalation worker runs") {
		t.Errorf("after one look there are no rates, and these workers are missing:\n%s", got)
	}
	if cmd := tell(looked{&look{
		At: at, Tasks: figures(150), Routers: 2, Escalated: &fleet.AlertFigures{Waiting: 6, Alerts: 2},
		Agents: &fleet.AgentFigures{
			Agents: []fleet.AgentCount{{State: "idle", Tier: "opus", N: 2}, {State: "idle", Tier: "none", N: 1}, {State: "lost", Tier: "opus", N: 9}},
			MCP:    []fleet.MCPCount{{Name: "git", Health: "ok", N: 3}, {Name: "db", Health: "error", N: 2}},
		},
	}}); cmd == nil {
		t.Error("it looks no more")
	}
	golden(t, "top", m.render())
	tell(tea.WindowSizeMsg{Width: 30, Height: 6})
	small := strings.Split(strings.TrimSuffix(m.render(), "\n"), "\n")
	if len(small) != 6 || small[5] != "…" {
		t.Errorf("on 6 lines it draws %d, the last %q", len(small), small[len(small)-1])
	}
	for _, l := range small {
		if n := len([]rune(l)); n > 30 {
			t.Errorf("a line of %d: %s", n, l)
		}
	}
	tell(missed{errors.New("gone")})
	if got := m.render(); !strings.Contains(got, "OLD: the fleet") {
		t.Errorf("what is old does not say so:\n%s", got)
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		cmd := tell(key)
		if cmd == nil {
			t.Errorf("%s does not quit", key)
			continue
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", key)
		}
	}
	if tell(tea.KeyPressMsg{Code: 'x', Text: "x"}) != nil {
		t.Error("x does something")
	}
	if _, ok := tell(another{})().(missed); !ok {
		t.Error("it does not look again")
	}
}

// TestTopOnce: without a terminal it shows once what is there.
func TestTopOnce(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	_, url := s.up(t)
	s.environ = append(s.environ, "NATS_URL="+url)
	s.run(t, "task", "send", "--mcp", "moon", "--on-blocked", "wait", "for ever")
	bustest.Eventually(t, "the task in its queue", func() bool { return strings.Contains(s.run(t, "top").stdout, `mcp="moon"`) })
	s.run(t, "top").check(t, 0, "Tasks             1 queued", "")
	s.run(t, "top", "-o", "json").check(t, 0, `"tasks_received": 1`, "")
	s.run(t, "top", "--every", "1ms").check(t, exitUsage, "", "--every")
}
