package registry

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

func TestFiguresCountInstances(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	v := newView(now)
	add := func(agent subjects.AgentID, tier string, active int, mcp fleet.MCPHealth, seen time.Time) {
		a := &fleet.Announce{MCPHealth: mcp}
		a.Worker.ModelTier, a.Session.ActiveTasks = tier, active
		v.announced(key{agent, "main"}, a, seen, now)
	}
	add("idle", "opus", 0, fleet.MCPHealth{"git": "ok"}, now)
	add("idle2", "opus", 0, fleet.MCPHealth{"git": "ok", "db": "error"}, now)
	add("busy", "", 1, nil, now)
	add("cooling", "opus", 0, nil, now)
	add("drained", "opus", 0, nil, now)
	add("lost", "opus", 0, fleet.MCPHealth{"git": "ok"}, now.Add(-time.Hour))
	add("left", "opus", 0, nil, now.Add(-time.Hour))
	v.instances[key{"left", "main"}].draining = true // it said so
	add("long lost", "opus", 0, nil, now.Add(-time.Hour-time.Second))
	v.cool("cooling", &fleet.AgentCooling{Until: now.Add(time.Minute)})
	v.drain("drained", &fleet.AgentDrained{By: "op"}, now)
	want := fleet.AgentFigures{
		Agents: []fleet.AgentCount{{State: "busy", Tier: "none", N: 1}, {State: "cooling", Tier: "opus", N: 1}, {State: "draining", Tier: "opus", N: 1}, {State: "idle", Tier: "opus", N: 2}, {State: "lost", Tier: "opus", N: 1}},
		MCP:    []fleet.MCPCount{{Name: "db", Health: "error", N: 1}, {Name: "git", Health: "ok", N: 2}},
	}
	if diff := cmp.Diff(want, v.figures(now)); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
}

// TestFiguresAreBounded: whatever agents announce, the figures stay small.
func TestFiguresAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	v := newView(now)
	const n = 200
	for i := range n {
		a := &fleet.Announce{MCPHealth: fleet.MCPHealth{fmt.Sprintf("mcp%d", i): "ok", "git": "ok"}}
		a.Worker.ModelTier = fmt.Sprintf("tier%d", i)
		v.announced(key{subjects.AgentID(fmt.Sprintf("a%d", i)), "main"}, a, now, now)
	}
	f := v.figures(now)
	if len(f.Agents) != maxTiers+1 || len(f.MCP) != maxMCP+1 {
		t.Errorf("%d counts of agents and %d of MCP servers, want %d and %d", len(f.Agents), len(f.MCP), maxTiers+1, maxMCP+1)
	}
	agents, servers, git := 0, 0, 0
	for _, c := range f.Agents {
		agents += c.N
	}
	for _, c := range f.MCP {
		servers += c.N
		if c.Name == "git" {
			git = c.N
		}
	}
	if agents != n || servers != 2*n || git != n {
		t.Errorf("they count %d agents, %d servers, %d of git; want %d, %d, %d", agents, servers, git, n, 2*n, n)
	}
}
