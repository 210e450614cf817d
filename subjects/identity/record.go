package identity

import (
	"fmt"
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Record is what the fleet keeps of an identity. A list that is absent allows
// everything, one that is empty nothing.
type Record struct {
	AgentID      subjects.AgentID `json:"agent_id"`
	Role         string           `json:"role"` // agent, orchestrator or operator
	AgentType    string           `json:"agent_type,omitempty"`
	Signatures   string           `json:"signatures"` // v1, or v0 which allows both
	Keys         []Sealed         `json:"keys"`       // the newest first
	AllowedHosts []string         `json:"allowed_hosts,omitzero"`
	Capabilities []string         `json:"capabilities,omitzero"`
	MCPServers   []string         `json:"mcp_servers,omitzero"`
	MaxTier      string           `json:"max_tier,omitempty"`
	Created      time.Time        `json:"created"`
	By           subjects.AgentID `json:"by"` // who added or changed it last
	Revoked      *Revoked         `json:"revoked,omitempty"`
}

// Sealed is a key whose secret only workers can open.
type Sealed struct {
	ID      string    `json:"id"`
	Secret  []byte    `json:"secret,omitempty"` // sealed
	Created time.Time `json:"created"`
	Until   time.Time `json:"until,omitzero"` // it counts no longer; absent: for good
}

// Revoked says why an identity counts no longer.
type Revoked struct {
	At     time.Time        `json:"at"`
	By     subjects.AgentID `json:"by"`
	Reason string           `json:"reason,omitempty"`
}

// Active are the keys that count at now, none of a revoked identity.
func (r *Record) Active(now time.Time) []Sealed {
	var keys []Sealed
	for _, k := range r.Keys {
		if r.Revoked == nil && (k.Until.IsZero() || now.Before(k.Until)) && len(keys) < MaxKeys {
			keys = append(keys, k)
		}
	}
	return keys
}

// Add makes k the key that signs; the one before it counts until overlap is
// over, those before that one no longer.
func (r *Record) Add(k Sealed, overlap time.Duration) {
	keys := []Sealed{k}
	for _, old := range r.Active(k.Created) {
		if until := k.Created.Add(overlap); old.Until.IsZero() || until.Before(old.Until) {
			old.Until = until
		}
		if overlap > 0 && len(keys) < MaxKeys {
			keys = append(keys, old)
		}
	}
	r.Keys = keys
}

// View is r without its secrets.
func (r *Record) View() View {
	v := View{Record: *r}
	v.Keys = slices.Clone(r.Keys)
	for i := range v.Keys {
		v.Keys[i].Secret = nil
	}
	return v
}

// View is a record for whoever may see it, without its secrets.
type View struct {
	Record
}

// tiers are the model tiers that can be compared, the least first.
var tiers = []string{"haiku", "sonnet", "opus"}

// Allows says whether the identity may announce a: nil, or forbidden with all
// that it may not.
func (r *Record) Allows(a *fleet.Announce) error {
	var first *subjects.Error
	refuse := func(pointer, format string, args ...any) {
		e := subjects.Errorf(subjects.CodeForbidden, format, args...).At(pointer)
		if first == nil {
			first = e.WithRemedy("announce less, or have an operator allow it: parley identity add --update")
			return
		}
		first.Also = append(first.Also, e)
	}
	if r.Revoked != nil {
		refuse("/worker/agent_id", "the identity %s is revoked", r.AgentID)
		return first
	}
	if r.Role != subjects.RoleAgent {
		refuse("/worker/agent_id", "the identity %s is of the role %s, which does no tasks", r.AgentID, r.Role)
	}
	outside(r.Capabilities, a.Capabilities.Tools, func(i int, name string) {
		refuse(fmt.Sprintf("/capabilities/tools/%d", i), "the identity %s has no capability %q", r.AgentID, name)
	})
	outside(r.MCPServers, a.Capabilities.MCPServers, func(i int, name string) {
		refuse(fmt.Sprintf("/capabilities/mcp_servers/%d", i), "the identity %s has no MCP server %q", r.AgentID, name)
	})
	if tier := a.Worker.ModelTier; r.MaxTier != "" && tier != "" && tier != r.MaxTier {
		most, has := slices.Index(tiers, r.MaxTier), slices.Index(tiers, tier)
		if most < 0 || has < 0 || has > most {
			refuse("/worker/model_tier", "the identity %s is of the tier %s at most, not %q", r.AgentID, r.MaxTier, tier)
		}
	}
	if first == nil {
		return nil
	}
	return first
}

// Claims says whether a connection may claim what its proof names.
func (r *Record) Claims(p *Proof) error {
	var refused error
	outside(r.Capabilities, p.Capabilities, func(i int, name string) {
		if refused == nil {
			refused = subjects.Errorf(subjects.CodeForbidden, "the identity %s has no capability %q", r.AgentID, name).
				At(fmt.Sprintf("/capabilities/%d", i)).WithRemedy("claim less, or have an operator allow it")
		}
	})
	return refused
}

// outside calls f for what is asked and not allowed.
func outside(allowed, asked []string, f func(i int, name string)) {
	if allowed == nil {
		return
	}
	for i, name := range asked {
		if !slices.Contains(allowed, name) {
			f(i, name)
		}
	}
}
