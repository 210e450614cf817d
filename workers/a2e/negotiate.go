package a2e

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
)

// Names of the services that capabilities rest on.
const (
	serviceRouter   = "fleet"
	serviceSessions = "sessions"
	serviceRuns     = "runs"
)

// view is what the fleet has at one moment.
type view struct {
	agents   []fleet.AgentView // that are live and not draining
	services map[string]bool
}

// maxNamed is how many names the metadata of a capability lists.
const maxNamed = 32

// offer is what backs a capability: nothing if it names nobody.
type offer struct {
	key   string // what the names are
	names []string
	lacks string // why there is nothing
}

// negotiate says which of the capabilities asked for are there, in the order
// asked. Pure.
func negotiate(asked []a2e.Capability, v *view) (accepted []a2e.Accepted, some bool) {
	accepted = make([]a2e.Accepted, 0, len(asked))
	for _, c := range asked {
		o := v.offer(c)
		a := a2e.Accepted{Capability: c, Enabled: len(o.names) > 0, Metadata: map[string]json.RawMessage{}}
		if a.Enabled {
			some = true
			a.Metadata[o.key] = fleet.MustEncode(o.names[:min(len(o.names), maxNamed)])
		} else {
			a.Metadata["reason"] = fleet.MustEncode(o.lacks)
		}
		accepted = append(accepted, a)
	}
	return accepted, some
}

// offer says what backs c.
func (v *view) offer(c a2e.Capability) offer {
	tasks := v.services[serviceRouter]
	switch c {
	case a2e.Memory:
		return v.service(serviceSessions)
	case a2e.Chains:
		return v.service(serviceRuns)
	case a2e.Skill:
		return v.ofAgents(tasks, "skills", "no live agent has announced a skill", skillsOf)
	case a2e.Tools:
		return v.ofAgents(tasks, "tools", "no live agent has announced a tool", func(a *fleet.Announce) []string { return a.Capabilities.Tools })
	case a2e.Toolkits, a2e.MCP:
		return v.ofAgents(tasks, "servers", "no live agent has an MCP server that is well", healthyOf)
	case a2e.Env, a2e.Proc:
		return v.ofAgents(tasks, "agents", "no agent is live", nameOf)
	case a2e.MultiAgent:
		o := v.ofAgents(tasks, "agents", "no agent is live", nameOf)
		if len(o.names) == 1 {
			return offer{lacks: "only one agent is live"}
		}
		return o
	case a2e.Learning:
		return v.ofAgents(tasks, "agents", "no live agent has announced the tool learning", func(a *fleet.Announce) []string {
			if slices.Contains(a.Capabilities.Tools, string(a2e.Learning)) {
				return nameOf(a)
			}
			return nil
		})
	}
	return offer{lacks: "it is not known here"}
}

func (v *view) service(name string) offer {
	if !v.services[name] {
		return offer{lacks: "no worker " + name + " is live"}
	}
	return offer{key: "workers", names: []string{name}}
}

// ofAgents gathers what agents announce, each name once.
func (v *view) ofAgents(tasks bool, key, lacks string, has func(*fleet.Announce) []string) offer {
	if !tasks {
		return offer{lacks: "no router is live, so that no task would reach an agent"}
	}
	names := map[string]bool{}
	for i := range v.agents {
		for _, n := range has(&v.agents[i].Announce) {
			names[n] = true
		}
	}
	return offer{key: key, names: slices.Sorted(maps.Keys(names)), lacks: lacks}
}

func nameOf(a *fleet.Announce) []string { return []string{string(a.Worker.AgentID)} }

func healthyOf(a *fleet.Announce) (names []string) {
	for name, health := range a.MCPHealth {
		if health == fleet.HealthOK {
			names = append(names, name)
		}
	}
	return names
}

// skillsOf names the A2A skills of an agent by their ids.
func skillsOf(a *fleet.Announce) (names []string) {
	for _, raw := range a.Capabilities.Skills {
		var s struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &s) == nil && s.ID+s.Name != "" {
			if s.ID == "" {
				s.ID = s.Name
			}
			names = append(names, s.ID)
		}
	}
	return names
}

// noCaps is the refusal when none of the capabilities is there.
func noCaps(accepted []a2e.Accepted) error {
	var why []string
	for _, a := range accepted {
		var reason string
		if json.Unmarshal(a.Metadata["reason"], &reason) == nil {
			why = append(why, string(a.Capability)+": "+reason)
		}
	}
	if len(why) == 0 {
		why = []string{"the request asks for none"}
	}
	return subjects.Errorf(subjects.CodeNoCapableAgent, "none of the capabilities asked for is there; %s", strings.Join(why, "; ")).
		At("/agent_caps").WithRemedy("ask for others, or start an agent or worker that has them; parley agent ls shows who is live")
}

// needs are the capabilities of which a call needs one; nil: it needs none.
func needs(v a2e.Verb) []a2e.Capability {
	switch v {
	case a2e.Dispatch:
		return []a2e.Capability{a2e.Skill, a2e.Tools, a2e.Toolkits, a2e.Env, a2e.Proc, a2e.Learning, a2e.MCP, a2e.MultiAgent}
	case a2e.Run:
		return []a2e.Capability{a2e.Chains}
	case a2e.Context, a2e.Append:
		return []a2e.Capability{a2e.Memory}
	case a2e.Get, a2e.Cancel, a2e.Close:
	}
	return nil
}
