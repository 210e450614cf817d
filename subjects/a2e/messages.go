package a2e

import (
	"encoding/json"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Version is the protocol version that Parley writes. Every 1.x is accepted.
const Version = "1.0"

// Message types.
const (
	TypeRequest  = "handshake/req"
	TypeResponse = "handshake/resp"
	TypeCall     = "call/req" // this and what follows: added
	TypeReply    = "call/resp"
)

// DefaultMaxParallel is how many tasks a session may have under way at a time.
const DefaultMaxParallel = 4

// Capability is something that an environment can have.
type Capability string

// The capabilities, a closed set.
const (
	Skill      Capability = "skill"
	Tools      Capability = "tools"
	Toolkits   Capability = "toolkits"
	Env        Capability = "env"
	Proc       Capability = "proc"
	Memory     Capability = "memory"
	Learning   Capability = "learning"
	Chains     Capability = "chains"
	MCP        Capability = "mcp"
	MultiAgent Capability = "multi_agent"
)

// Capabilities lists them, in the order of the source.
func Capabilities() []Capability {
	return []Capability{Skill, Tools, Toolkits, Env, Proc, Memory, Learning, Chains, MCP, MultiAgent}
}

// Why a handshake is refused, a closed set.
const (
	ReasonAuth    = "auth_failed"
	ReasonVersion = "version_mismatch"
	ReasonNoCaps  = "no_caps"
	ReasonServer  = "server_error"
)

// Header is how every message begins.
type Header struct {
	A2E  string  `json:"a2e"`
	Type string  `json:"type"`
	ID   string  `json:"id"`
	TS   float64 `json:"ts"` // Unix seconds
}

// Request asks to be let in: handshake/req.
type Request struct {
	Header
	AgentID   subjects.AgentID `json:"agent_id"`
	AgentCaps []Capability     `json:"agent_caps"` // what the agent would like to use
	AuthToken string           `json:"auth_token,omitempty"`
	Unknown   fleet.Unknown    `json:",unknown"`
}

// Response answers a Request: handshake/resp.
type Response struct {
	Header
	ReqID        string          `json:"req_id"`
	SessionID    string          `json:"session_id,omitempty"` // one token
	AcceptedCaps []Accepted      `json:"accepted_caps"`
	MaxParallel  int             `json:"max_parallel,omitzero"`
	OK           bool            `json:"ok"`
	Reason       string          `json:"reason,omitempty"` // when not ok: one of the four
	Error        *subjects.Error `json:"error,omitempty"`  // added: the reason in full
	Unknown      fleet.Unknown   `json:",unknown"`
}

// Accepted says whether a capability that was asked for is there, and as what.
type Accepted struct {
	Capability Capability                 `json:"capability"`
	Enabled    bool                       `json:"enabled"`
	Metadata   map[string]json.RawMessage `json:"metadata"`
	Unknown    fleet.Unknown              `json:",unknown"`
}

// Verb is what a call asks for.
type Verb string

// The calls of a session.
const (
	Dispatch Verb = "dispatch" // params: TASK_DISPATCH; result: TaskView
	Run      Verb = "run"      // params: TASK_DEFINITION; result: Started
	Get      Verb = "get"      // params: a task_id or run_id; result: TaskView or RUN_RECORD
	Cancel   Verb = "cancel"   // params: a task_id or run_id, a reason; result: TaskView or RUN_RECORD
	Context  Verb = "context"  // params: Read, without its session; result: ReadReply
	Append   Verb = "append"   // params: Append, without its session; result: Appended
	Close    Verb = "close"    // the end of the session
)

// Verbs lists the calls.
func Verbs() []Verb { return []Verb{Dispatch, Run, Get, Cancel, Context, Append, Close} }

// Work names the task or the run that a get or a cancel is about: exactly one.
type Work struct {
	TaskID subjects.TaskID `json:"task_id,omitempty"`
	RunID  subjects.RunID  `json:"run_id,omitempty"`
	Reason string          `json:"reason,omitempty"` // cancel: why
}

// Check adds every problem of w.
func (w *Work) Check(p *fleet.Problems) {
	switch {
	case (w.TaskID == "") == (w.RunID == ""):
		p.Invalid("/task_id", "expected either a task_id or a run_id")
	case w.TaskID != "":
		_, err := subjects.ParseTaskID(string(w.TaskID))
		p.ID("/task_id", err)
	default:
		_, err := subjects.ParseRunID(string(w.RunID))
		p.ID("/run_id", err)
	}
}

// MaxWait is how long an answer may be waited for over HTTP and NATS, in
// seconds.
const MaxWait = 60

// Call is one call of a session: call/req.
type Call struct {
	Header
	SessionID string          `json:"session_id,omitempty"` // absent on a connection, which has one session
	Call      Verb            `json:"call"`
	Params    json.RawMessage `json:"params,omitzero"`
	// WaitSeconds is how long dispatch and get wait for the task's end. Absent:
	// dispatch waits for it on a connection, and 4 s otherwise; get does not.
	WaitSeconds *float64      `json:"wait_seconds,omitempty"`
	Unknown     fleet.Unknown `json:",unknown"`
}

// Reply answers a Call: call/resp.
type Reply struct {
	Header
	ReqID   string          `json:"req_id"`
	OK      bool            `json:"ok"`
	Result  json.RawMessage `json:"result,omitzero"`
	Error   *subjects.Error `json:"error,omitempty"`
	Unknown fleet.Unknown   `json:",unknown"`
}
