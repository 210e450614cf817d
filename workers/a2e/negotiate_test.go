package a2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
)

// fleetOf is a fleet with agents and services.
func fleetOf(agents []fleet.Announce, services ...string) *view {
	v := &view{services: map[string]bool{}}
	for _, s := range services {
		v.services[s] = true
	}
	for _, a := range agents {
		v.agents = append(v.agents, fleet.AgentView{Announce: a, Live: true})
	}
	return v
}

func announce(id subjects.AgentID, change ...func(*fleet.Announce)) fleet.Announce {
	a := fleet.Announce{Worker: fleet.Worker{AgentID: id}}
	for _, f := range change {
		f(&a)
	}
	return a
}

func tools(names ...string) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.Capabilities.Tools = names }
}

func skills(texts ...string) func(*fleet.Announce) {
	return func(a *fleet.Announce) {
		for _, s := range texts {
			a.Capabilities.Skills = append(a.Capabilities.Skills, json.RawMessage(s))
		}
	}
}

func servers(health fleet.MCPHealth) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.MCPHealth = health }
}

// TestNegotiate: for every capability, what backs it and what does not.
func TestNegotiate(t *testing.T) {
	t.Parallel()
	one, two := announce("ada"), announce("bob")
	all := []string{serviceRouter, serviceSessions, serviceRuns}
	for _, tt := range []struct {
		name   string
		c      a2e.Capability
		v      *view
		backed string // the metadata; empty: it is not there
	}{
		{"skills", a2e.Skill, fleetOf([]fleet.Announce{announce("ada", skills(`{"id":"review"}`, `{"name":"Deploy"}`, `{}`, `1`))}, all...), `{"skills":["Deploy","review"]}`},
		{"no skill", a2e.Skill, fleetOf([]fleet.Announce{one}, all...), ""},
		{"tools of all, once", a2e.Tools, fleetOf([]fleet.Announce{announce("ada", tools("edit", "read")), announce("bob", tools("edit"))}, all...), `{"tools":["edit","read"]}`},
		{"no tool", a2e.Tools, fleetOf([]fleet.Announce{one}, all...), ""},
		{"tools and no router", a2e.Tools, fleetOf([]fleet.Announce{announce("ada", tools("edit"))}, serviceSessions), ""},
		{"toolkits", a2e.Toolkits, fleetOf([]fleet.Announce{announce("ada", servers(fleet.MCPHealth{"git": "ok", "web": "timeout"}))}, all...), `{"servers":["git"]}`},
		{"mcp", a2e.MCP, fleetOf([]fleet.Announce{announce("ada", servers(fleet.MCPHealth{"git": "ok"}))}, all...), `{"servers":["git"]}`},
		{"sick mcp", a2e.MCP, fleetOf([]fleet.Announce{announce("ada", servers(fleet.MCPHealth{"git": "error"}))}, all...), ""},
		{"env", a2e.Env, fleetOf([]fleet.Announce{one}, all...), `{"agents":["ada"]}`},
		{"env of nobody", a2e.Env, fleetOf(nil, all...), ""},
		{"proc", a2e.Proc, fleetOf([]fleet.Announce{one}, serviceRouter), `{"agents":["ada"]}`},
		{"memory", a2e.Memory, fleetOf(nil, serviceSessions), `{"workers":["sessions"]}`},
		{"no memory", a2e.Memory, fleetOf([]fleet.Announce{one}, serviceRouter), ""},
		{"learning", a2e.Learning, fleetOf([]fleet.Announce{announce("ada", tools("learning")), two}, all...), `{"agents":["ada"]}`},
		{"no learning", a2e.Learning, fleetOf([]fleet.Announce{announce("ada", tools("tools")), two}, all...), ""},
		{"chains", a2e.Chains, fleetOf(nil, serviceRuns), `{"workers":["runs"]}`},
		{"no chains", a2e.Chains, fleetOf([]fleet.Announce{one}, serviceRouter, serviceSessions), ""},
		{"many", a2e.MultiAgent, fleetOf([]fleet.Announce{two, one}, all...), `{"agents":["ada","bob"]}`},
		{"one, twice", a2e.MultiAgent, fleetOf([]fleet.Announce{one, one}, all...), ""},
		{"many and no router", a2e.MultiAgent, fleetOf([]fleet.Announce{two, one}), ""},
	} {
		got, some := negotiate([]a2e.Capability{tt.c}, tt.v)
		if len(got) != 1 || got[0].Enabled != (tt.backed != "") || some != got[0].Enabled || got[0].Capability != tt.c {
			t.Errorf("%s: %+v, want enabled %v", tt.name, got, tt.backed != "")
			continue
		}
		if meta := string(fleet.MustEncode(got[0].Metadata)); tt.backed != "" && meta != tt.backed {
			t.Errorf("%s: metadata %s, want %s", tt.name, meta, tt.backed)
		} else if tt.backed == "" && !strings.Contains(meta, "reason") {
			t.Errorf("%s: no reason in %s", tt.name, meta)
		}
	}
}

func TestNegotiateKeepsOrderAndBounds(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 100 {
		many = append(many, strings.Repeat("x", i+1))
	}
	asked := []a2e.Capability{a2e.Memory, a2e.Tools, a2e.Learning}
	got, some := negotiate(asked, fleetOf([]fleet.Announce{announce("ada", tools(many...))}, serviceRouter))
	var order []a2e.Capability
	for _, a := range got {
		order = append(order, a.Capability)
	}
	var listed []string
	if err := json.Unmarshal(got[1].Metadata["tools"], &listed); err != nil || len(listed) != maxNamed || !some || !slices.Equal(order, asked) {
		t.Errorf("%d tools of %v, %v", len(listed), order, err)
	}
	got, some = negotiate(nil, fleetOf(nil))
	if err := noCaps(got); some || subjects.CodeOf(err) != subjects.CodeNoCapableAgent {
		t.Errorf("asked for nothing: %v %v", some, err)
	}
}

// TestEveryCapabilityIsKnown: none of the ten falls through, and each is what
// some call needs.
func TestEveryCapabilityIsKnown(t *testing.T) {
	t.Parallel()
	used := map[a2e.Capability]bool{}
	for _, v := range a2e.Verbs() {
		for _, c := range needs(v) {
			used[c] = true
		}
	}
	for _, c := range a2e.Capabilities() {
		if fleetOf(nil).offer(c).lacks == fleetOf(nil).offer("flying").lacks {
			t.Errorf("%s is not known", c)
		}
		if !used[c] {
			t.Errorf("no call needs %s", c)
		}
	}
}

// TestGuideHasTheTable: the guide says of every capability what backs it.
func TestGuideHasTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guide/a2e.md")
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, c := range a2e.Capabilities() {
		if !strings.Contains(string(page), "\n| `"+string(c)+"` |") {
			missing = append(missing, string(c))
		}
	}
	for _, v := range a2e.Verbs() {
		if !strings.Contains(string(page), "\n| `"+string(v)+"` |") {
			missing = append(missing, string(v))
		}
	}
	if diff := cmp.Diff([]string(nil), missing); diff != "" {
		t.Errorf("the guide lacks (-want +got):\n%s", diff)
	}
}
