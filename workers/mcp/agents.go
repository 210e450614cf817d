package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

type agentsIn struct {
	AgentID subjects.AgentID `json:"agent_id,omitempty" jsonschema:"only this agent"`
	All     bool             `json:"all,omitempty" jsonschema:"also agents that are not live now"`
}

// agent is an agent as a model is shown it: all its instances in one.
type agent struct {
	AgentID      subjects.AgentID  `json:"agent_id"`
	Live         bool              `json:"live"`
	Free         int               `json:"free"` // tasks that it takes at once
	Active       int               `json:"active_tasks"`
	Instances    int               `json:"instances"`
	Model        string            `json:"model,omitempty"`
	ModelTier    string            `json:"model_tier,omitempty"`
	Skills       []string          `json:"skills,omitempty"`
	Capabilities []string          `json:"capabilities,omitempty"`
	MCPServers   map[string]string `json:"mcp_servers,omitempty"` // and their health
	Labels       map[string]string `json:"labels,omitempty"`
	Draining     bool              `json:"draining,omitempty"` // it takes no new tasks
	CoolUntil    *time.Time        `json:"cool_until,omitempty"`
	LastSeen     *time.Time        `json:"last_seen,omitempty"`
}

type agentsOut struct {
	Agents []*agent `json:"agents"`
	Gone   int      `json:"not_live,omitempty"` // left out
	Next   string   `json:"next,omitempty"`
}

func agents(ctx context.Context, c *caller, in *agentsIn, _ progress) (any, error) {
	all, err := fleet.AllAgents(fleet.AgentList{AgentID: in.AgentID}, func(q fleet.AgentList) (fleet.AgentListReply, error) {
		return ask[fleet.AgentListReply](ctx, c, "agent", "list", 0, q)
	})
	if err != nil {
		return nil, err
	}
	o := &agentsOut{Agents: []*agent{}}
	for _, a := range merged(all) {
		if a.Live || in.All || in.AgentID != "" {
			o.Agents = append(o.Agents, a)
		} else {
			o.Gone++
		}
	}
	switch {
	case len(o.Agents) == 0 && in.AgentID != "":
		return nil, &refusal{code: subjects.CodeNotFound, argument: "agent_id", message: "there is no such agent", remedy: "fleet_agents without agent_id lists those that there are"}
	case len(o.Agents) == 0:
		o.Next = "no agent is live: what you dispatch waits until one is; tell your user (parley agent run starts one)"
	}
	return o, nil
}

// merged makes one of all instances of each agent. A live one says how it is.
func merged(views []fleet.AgentView) []*agent {
	var list []*agent
	slices.SortStableFunc(views, func(a, b fleet.AgentView) int {
		return cmp.Or(cmp.Compare(a.Announce.Worker.AgentID, b.Announce.Worker.AgentID), cmp.Compare(rank(&a), rank(&b)))
	})
	for i := range views {
		v := &views[i]
		w := &v.Announce.Worker
		if len(list) == 0 || list[len(list)-1].AgentID != w.AgentID {
			a := &agent{
				AgentID: w.AgentID, Live: v.Live, Draining: v.Draining, Model: w.Model, ModelTier: w.ModelTier, Labels: w.Labels,
				Capabilities: v.Announce.Capabilities.Tools, Skills: skills(v.Announce.Capabilities.Skills),
				CoolUntil: v.CoolUntil, LastSeen: &v.LastSeen,
			}
			for _, name := range v.Announce.Capabilities.MCPServers {
				if a.MCPServers == nil {
					a.MCPServers = make(map[string]string)
				}
				a.MCPServers[name] = cmp.Or(v.Announce.MCPHealth[name], fleet.HealthUnknown)
			}
			list = append(list, a)
		}
		a := list[len(list)-1]
		if !v.Live {
			continue
		}
		a.Instances++
		a.Active += v.Active
		if !v.Draining {
			a.Free += max(0, cmp.Or(w.MaxParallel, 1)-v.Active)
		}
	}
	return list
}

// rank puts those first that can do most.
func rank(v *fleet.AgentView) int {
	switch {
	case v.Live && !v.Draining:
		return 0
	case v.Live:
		return 1
	}
	return 2
}

// skills is what an agent says of its skills, a line each.
func skills(list []json.RawMessage) []string {
	var out []string
	for _, raw := range list {
		var s struct {
			ID          string `json:"id"`
			Name        string `json:"name"`
			Description string `json:"description"`
		}
		if json.Unmarshal(raw, &s) == nil {
			out = append(out, line(cmp.Or(s.Name, s.ID)+": "+s.Description))
		}
	}
	return out
}
