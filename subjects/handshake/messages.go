package handshake

import (
	"encoding/json"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Message types of the session protocol.
const (
	TypeInit     = "handshake_init"
	TypeAck      = "handshake_ack"
	TypeExchange = "context_exchange"
)

// Version is the protocol version that Parley writes. Every 1.x is accepted.
const Version = "1.0.0"

// Kinds of agent.
const (
	Virtual    = "virtual"
	Registered = "registered"
)

// Header is how every message begins.
type Header struct {
	ProtocolVersion string `json:"protocol_version"`
	MessageType     string `json:"message_type"`
}

// Session is the record of a session.
type Session struct {
	SessionID    subjects.SessionID `json:"session_id"`
	Orchestrator subjects.AgentID   `json:"orchestrator"` // its owner
	CreatedAt    time.Time          `json:"created_at"`
	ExpiresAt    time.Time          `json:"expires_at"` // of its token
	TaskID       subjects.TaskID    `json:"task_id,omitempty"`
	TaskMetadata TaskMetadata       `json:"task_metadata"`
	Unknown      fleet.Unknown      `json:",unknown"`
}

// TaskMetadata is what the session is for.
type TaskMetadata struct {
	Type     string        `json:"type,omitempty"`
	Priority string        `json:"priority,omitempty"`
	Timeout  float64       `json:"timeout,omitzero"` // seconds
	Unknown  fleet.Unknown `json:",unknown"`
}

// Party is one side of a handshake.
type Party struct {
	AgentID      subjects.AgentID `json:"agent_id"`
	AgentType    string           `json:"agent_type,omitempty"` // virtual | registered
	Status       string           `json:"status,omitempty"`     // ack: ready
	Capabilities []string         `json:"capabilities,omitzero"`
	Unknown      fleet.Unknown    `json:",unknown"`
}

// StatusReady is the Party.Status of who can begin.
const StatusReady = "ready"

// Init is phase 1: who asks whom to do what.
type Init struct {
	Header
	SessionID subjects.SessionID `json:"session_id"`
	Initiator Party              `json:"initiator"`
	Target    Party              `json:"target"`
	Task      Task               `json:"task"`
	Context   InitContext        `json:"context"`
	Timestamp time.Time          `json:"timestamp"`
	Unknown   fleet.Unknown      `json:",unknown"`
}

// Task is the task of a handshake.
type Task struct {
	TaskID      subjects.TaskID `json:"task_id"`
	Description string          `json:"description"`
	Priority    string          `json:"priority,omitempty"`
	Timeout     float64         `json:"timeout,omitzero"` // seconds
	Unknown     fleet.Unknown   `json:",unknown"`
}

// InitContext is the context that an Init brings.
type InitContext struct {
	PreviousAgents []Entry                    `json:"previous_agents"`
	SharedData     map[string]json.RawMessage `json:"shared_data"`
	Unknown        fleet.Unknown              `json:",unknown"`
}

// Ack is phase 2: whether the target takes it on.
type Ack struct {
	Header
	SessionID         subjects.SessionID `json:"session_id"`
	Target            Party              `json:"target"`
	Accepted          bool               `json:"accepted"`
	EstimatedDuration float64            `json:"estimated_duration,omitzero"` // seconds
	Reason            *fleet.Reason      `json:"reason,omitempty"`            // added: why not
	Timestamp         time.Time          `json:"timestamp"`
	Unknown           fleet.Unknown      `json:",unknown"`
}

// Exchange is phase 3: what came before, for whoever begins.
type Exchange struct {
	Header
	SessionID subjects.SessionID `json:"session_id"`
	Context   ExchangeContext    `json:"context"`
	Timestamp time.Time          `json:"timestamp"`
	Unknown   fleet.Unknown      `json:",unknown"`
}

// ExchangeContext is the context of an Exchange.
type ExchangeContext struct {
	PreviousResults []PreviousResult           `json:"previous_results"`
	SharedData      map[string]json.RawMessage `json:"shared_data"`
	Constraints     *Constraints               `json:"constraints,omitempty"`
	Unknown         fleet.Unknown              `json:",unknown"`
}

// PreviousResult is one result in an Exchange: the place of an output, or the
// output itself.
type PreviousResult struct {
	AgentID   subjects.AgentID `json:"agent_id"`
	Output    json.RawMessage  `json:"output,omitzero"`
	Timestamp time.Time        `json:"timestamp"`
	Unknown   fleet.Unknown    `json:",unknown"`
}

// Constraints bound the work of who reads them.
type Constraints struct {
	MaxExecutionTime     float64       `json:"max_execution_time,omitzero"` // seconds
	RequiredOutputFormat string        `json:"required_output_format,omitempty"`
	OutputLocation       string        `json:"output_location,omitempty"`
	Unknown              fleet.Unknown `json:",unknown"`
}

// ContextView is the context of a session as its agents read it.
type ContextView struct {
	SessionID subjects.SessionID `json:"session_id"`
	Context   Context            `json:"context"`
	Unknown   fleet.Unknown      `json:",unknown"`
}

// Context is what the agents of a session know of each other's work.
type Context struct {
	PreviousAgents []Entry                    `json:"previous_agents"`
	SharedData     map[string]json.RawMessage `json:"shared_data"`
	Constraints    *Constraints               `json:"constraints,omitempty"`
	Metadata       map[string]json.RawMessage `json:"metadata,omitempty"`
	Version        uint64                     `json:"version,omitzero"` // added: of the last entry
	Unknown        fleet.Unknown              `json:",unknown"`
}

// Entry is what one agent did.
type Entry struct {
	AgentID       subjects.AgentID `json:"agent_id"`
	ExecutionTime time.Time        `json:"execution_time"`
	OutputFile    string           `json:"output_file,omitempty"`
	Status        string           `json:"status"`
	Findings      json.RawMessage  `json:"findings,omitzero"` // an object

	Version uint64          `json:"version,omitzero"`  // this and all below: added
	TaskID  subjects.TaskID `json:"task_id,omitempty"` // the task whose result it is
	Output  json.RawMessage `json:"output,omitzero"`   // inline, text or any JSON
	Stored  *Stored         `json:"stored,omitempty"`  // a large output, by reference
	Omitted bool            `json:"omitted,omitzero"`  // findings and output are left out here for their size
	Unknown fleet.Unknown   `json:",unknown"`
}

// Stored says where a large output is: in parts, read one by one.
type Stored struct {
	Digest  string        `json:"digest"` // sha256:<hex> of the whole
	Size    int64         `json:"size"`   // bytes
	Unknown fleet.Unknown `json:",unknown"`
}

// Identity is who an agent is, as it authenticates.
type Identity struct {
	AgentID      subjects.AgentID `json:"agent_id"`
	AgentType    string           `json:"agent_type"`
	Signature    string           `json:"signature"`
	Capabilities []string         `json:"capabilities"`
	AllowedHosts []string         `json:"allowed_hosts"`
	Version      string           `json:"version"`
	Unknown      fleet.Unknown    `json:",unknown"`
}

// LogLine is one line of the log.
type LogLine struct {
	Timestamp time.Time          `json:"timestamp"`
	SessionID subjects.SessionID `json:"session_id"` // "" for what belongs to none
	AgentID   subjects.AgentID   `json:"agent_id"`
	EventType string             `json:"event_type"`
	Data      json.RawMessage    `json:"data"` // an object
	Unknown   fleet.Unknown      `json:",unknown"`
}

// Event types of a LogLine.
const (
	EventInit              = "handshake_init"
	EventAck               = "handshake_ack"
	EventExchange          = "context_exchange"
	EventExecutionStart    = "execution_start"
	EventExecutionComplete = "execution_complete"
	EventEscalation        = "escalation"
)

// Event types that are added to those of the source.
const (
	EventTask          = "task" // any other record of a task
	EventSessionCreate = "session_create"
	EventSessionUpdate = "session_update"
	EventSessionDelete = "session_delete"
	EventContext       = "context_append"
	EventRefused       = "access_refused" // a token or a caller that does not count
	EventAuthGranted   = "auth_granted"   // a connection was let in
	EventAuthRefused   = "auth_refused"   // a connection, a message or an announce was not
	EventIdentity      = "identity_change"
	EventAgentDrain    = "agent_drain"
	EventAgentForget   = "agent_forget"
	EventAgentResume   = "agent_resume"
	EventAgentLift     = "agent_lift" // an operator ended the limits of an account
	EventSessionExpire = "session_expire"
	EventRun           = "run"         // what its kind says has happened to a run, or to a node of one
	EventSchedule      = "schedule"    // to a schedule
	EventAlert         = "alert"       // to an alert
	EventSilence       = "silence"     // to a silence
	EventWebhook       = "webhook"     // to a delivery
	EventDeadLetter    = "dead_letter" // to a message that nobody could handle
)
