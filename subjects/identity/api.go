package identity

import (
	"slices"
	"strconv"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Bounds of requests.
const (
	maxNames  = 256
	maxName   = 256
	maxSecret = 1024
	// MaxOverlap is how long an old key may count beside a new one.
	MaxOverlap = 30 * 24 * time.Hour
)

// Add lets somebody in: identity add. With Update it changes what somebody may
// who is known already; the keys stay.
type Add struct {
	AgentID      subjects.AgentID `json:"agent_id"`
	Role         string           `json:"role,omitempty"` // absent: agent
	AgentType    string           `json:"agent_type,omitempty"`
	Signatures   string           `json:"signatures,omitempty"` // absent: v1
	AllowedHosts []string         `json:"allowed_hosts,omitzero"`
	Capabilities []string         `json:"capabilities,omitzero"`
	MCPServers   []string         `json:"mcp_servers,omitzero"`
	MaxTier      string           `json:"max_tier,omitempty"`
	Secret       []byte           `json:"secret,omitempty"` // one that is there already; absent: a new one
	Update       bool             `json:"update,omitzero"`
}

// Check settles the defaults and says what is wrong.
func (a *Add) Check(p *fleet.Problems) {
	agentID(p, a.AgentID)
	if a.Role == "" {
		a.Role = subjects.RoleAgent
	}
	if a.Signatures == "" {
		a.Signatures = V1
	}
	if !slices.Contains([]string{subjects.RoleAgent, subjects.RoleOrchestrator, subjects.RoleOperator}, a.Role) {
		p.Invalid("/role", "expected agent, orchestrator or operator")
	}
	if a.Signatures != V0 && a.Signatures != V1 {
		p.Invalid("/signatures", "expected v1 or v0")
	}
	if a.AgentType != "" && a.AgentType != "virtual" && a.AgentType != "registered" {
		p.Invalid("/agent_type", "expected virtual or registered")
	}
	names(p, "/allowed_hosts", a.AllowedHosts)
	names(p, "/capabilities", a.Capabilities)
	names(p, "/mcp_servers", a.MCPServers)
	if len(a.MaxTier) > maxName {
		p.Invalid("/max_tier", "expected at most %d bytes", maxName)
	}
	if a.Update && len(a.Secret) > 0 {
		p.Invalid("/secret", "an update keeps the keys: rotate gives a new one")
	}
	secret(p, a.Secret)
}

// Issued is an identity with a key, which is shown this once; no key for an
// update.
type Issued struct {
	Identity View   `json:"identity"`
	Key      string `json:"key,omitempty"` // <key id>.<secret>, see ParseKey
}

// Ref names an identity: identity get.
type Ref struct {
	AgentID subjects.AgentID `json:"agent_id"`
}

// Check says what is wrong.
func (r *Ref) Check(p *fleet.Problems) { agentID(p, r.AgentID) }

// List asks for all identities: identity list.
type List struct{}

// Check finds nothing wrong.
func (*List) Check(*fleet.Problems) {}

// ListReply is all identities, by name.
type ListReply struct {
	Identities []View `json:"identities"`
}

// Rotate gives an identity a new key: identity rotate. The old one counts until
// the overlap is over.
type Rotate struct {
	AgentID        subjects.AgentID `json:"agent_id"`
	OverlapSeconds float64          `json:"overlap_seconds,omitzero"`
	Secret         []byte           `json:"secret,omitempty"` // one that is there already; absent: a new one
}

// Check says what is wrong.
func (r *Rotate) Check(p *fleet.Problems) {
	agentID(p, r.AgentID)
	if r.OverlapSeconds < 0 || r.OverlapSeconds > MaxOverlap.Seconds() {
		p.Invalid("/overlap_seconds", "expected 0 to 30 days")
	}
	secret(p, r.Secret)
}

// Revoke lets somebody in no more: identity revoke. Adding them again with
// Update does not undo it; a new key does: identity rotate.
type Revoke struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Reason  string           `json:"reason,omitempty"`
}

// Check says what is wrong.
func (r *Revoke) Check(p *fleet.Problems) {
	agentID(p, r.AgentID)
	if len(r.Reason) > maxName {
		p.Invalid("/reason", "expected at most %d bytes", maxName)
	}
}

func agentID(p *fleet.Problems, id subjects.AgentID) {
	if _, err := subjects.ParseAgentID(string(id)); err != nil {
		p.Add(subjects.AsError(err).At("/agent_id"))
	}
}

func names(p *fleet.Problems, pointer string, list []string) {
	if len(list) > maxNames {
		p.Invalid(pointer, "expected at most %d entries", maxNames)
	}
	for i, name := range list {
		if name == "" || len(name) > maxName {
			p.Invalid(pointer+"/"+strconv.Itoa(i), "expected 1 to %d bytes", maxName)
			return
		}
	}
}

func secret(p *fleet.Problems, s []byte) {
	if s != nil && (len(s) < MinSecret || len(s) > maxSecret) {
		p.Invalid("/secret", "expected %d to %d bytes", MinSecret, maxSecret)
	}
}
