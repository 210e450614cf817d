package fleet

import (
	"encoding/json"
	"time"

	"parley/subjects"
)

// Message types of the wire, as in the sources.
const (
	TypeAnnounce  = "SESSION_ANNOUNCE"
	TypeHeartbeat = "HEARTBEAT"
	TypeDispatch  = "TASK_DISPATCH"
	TypeResult    = "TASK_RESULT"
	TypeAck       = "HANDSHAKE_ACK"
	TypeProgress  = "TASK_PROGRESS"
	TypeControl   = "CONTROL"
	TypeEvent     = "TASK_EVENT"
)

// Version is the protocol version that Parley writes. Every 2.x is accepted.
const Version = "2.0"

// Bounds of every message.
const (
	MaxMessage = 1 << 20 // bytes, hints and JSON alike
	MaxDepth   = 64      // levels of nesting
)

// Unknown keeps the members of an object that this version does not know.
type Unknown = map[string]json.RawMessage

// Header is how every message begins. Both are optional on input: the subject
// says what a message is, and an absent version is Version.
type Header struct {
	Type            string `json:"type,omitempty"`
	ProtocolVersion string `json:"protocol_version,omitempty"`
}

// Announce is SESSION_ANNOUNCE: what an agent instance can do and how well it
// is. Source: S1, with Parley's additions marked.
type Announce struct {
	Header
	Worker           Worker       `json:"worker"`
	Capabilities     Capabilities `json:"capabilities"`
	MCPHealth        MCPHealth    `json:"mcp_health,omitempty"`
	Session          SessionState `json:"session,omitzero"`
	HeartbeatSeconds *float64     `json:"heartbeat_seconds,omitempty"` // added; absent 10, 0 = none
	TTLSeconds       float64      `json:"ttl_seconds,omitzero"`        // added; life without heartbeats, absent 3600
	Draining         bool         `json:"draining,omitzero"`           // added
	MCPProbedAt      ProbeTimes   `json:"mcp_probed_at,omitempty"`     // added
	Unknown          Unknown      `json:",unknown"`
}

// Worker is the agent instance that announces.
type Worker struct {
	AgentID       subjects.AgentID    `json:"agent_id"`
	Model         string              `json:"model,omitempty"`
	ModelTier     string              `json:"model_tier,omitempty"`
	ContextWindow int64               `json:"context_window,omitzero"` // tokens
	InstanceID    subjects.InstanceID `json:"instance_id,omitempty"`   // added; absent "main"
	Epoch         int64               `json:"epoch,omitzero"`          // added; start time, ns
	MaxParallel   int                 `json:"max_parallel,omitzero"`   // added; absent 1
	MaxMessages   int                 `json:"max_messages,omitzero"`   // added; of other agents, at once; absent 1
	Labels        map[string]string   `json:"labels,omitempty"`        // added
	AgentType     string              `json:"agent_type,omitempty"`    // added; virtual | registered
	Unknown       Unknown             `json:",unknown"`
}

// Labels of a Worker that have a meaning of their own.
const (
	LabelAccount = "account" // the account with a model's provider that its limits hold for
	LabelHost    = "host"    // the machine that it runs on
)

// Capabilities lists what an agent has.
type Capabilities struct {
	Tools      []string          `json:"tools"`
	MCPServers []string          `json:"mcp_servers"`
	Skills     []json.RawMessage `json:"skills,omitzero"` // added; A2A skills
	Unknown    Unknown           `json:",unknown"`
}

// MCPHealth is the health of each MCP server by name.
type MCPHealth map[string]string

// ProbeTimes is when each MCP server was last probed.
type ProbeTimes map[string]time.Time

// Values of MCPHealth.
const (
	HealthOK       = "ok"
	HealthDegraded = "degraded"
	HealthTimeout  = "timeout"
	HealthError    = "error"
	HealthUnknown  = "unknown"
)

// SessionState is what the agent is in the middle of.
type SessionState struct {
	ContextID    string     `json:"context_id,omitempty"`
	ActiveTasks  int        `json:"active_tasks"`
	RepoState    *RepoState `json:"repo_state,omitempty"`
	SessionFresh bool       `json:"session_fresh"`
	Unknown      Unknown    `json:",unknown"`
}

// RepoState is the state of the agent's git work tree.
type RepoState struct {
	Branch  string  `json:"branch"`
	Clean   bool    `json:"clean"`
	Unknown Unknown `json:",unknown"`
}

// Heartbeat says that an instance lives and what it holds. It is not kept.
type Heartbeat struct {
	Header
	Epoch       int64     `json:"epoch"`
	ActiveTasks int       `json:"active_tasks"`
	Holding     []Holding `json:"holding,omitempty"`
	MCPHealth   MCPHealth `json:"mcp_health,omitempty"` // only what changed
	Draining    bool      `json:"draining,omitzero"`
	Unknown     Unknown   `json:",unknown"`
}

// Holding is one task that an agent has in hand.
type Holding struct {
	TaskID  subjects.TaskID `json:"task_id"`
	Attempt int             `json:"attempt"`
	OfferID string          `json:"offer_id,omitempty"` // of an offer by which it was accepted
	// TokensSpent is what the attempt has spent so far, as far as it is known.
	TokensSpent int64 `json:"tokens_spent,omitzero"`
}

// Dispatch is TASK_DISPATCH: a task and its terms. An offer is the same message
// with Attempt (and Context, Tried) set. Source: S1.
type Dispatch struct {
	Header
	Task         Task         `json:"task"`
	Requirements Requirements `json:"requirements"`
	Deadline     *time.Time   `json:"deadline,omitempty"` // RFC 3339; absent 72 h from acceptance
	Brief        string       `json:"brief"`
	Input        *Input       `json:"input,omitempty"`       // added; rich input from A2A
	Traceparent  string       `json:"traceparent,omitempty"` // added; the W3C trace that it belongs to

	From    subjects.AgentID `json:"from,omitempty"`   // added, offers only: who dispatched
	Attempt int              `json:"attempt,omitzero"` // added, offers only: from 1
	Epoch   int64            `json:"epoch,omitzero"`   // added, offers only: of the instance that is meant; an older one is silent
	// OfferID is added, in offers only: this offer's own, which no other has. A
	// CANCEL of it names it.
	OfferID string          `json:"offer_id,omitempty"`
	Context json.RawMessage `json:"context,omitzero"` // added, offers only: the session's context
	Tried   []Tried         `json:"tried,omitempty"`  // added, offers only: what was tried before
	// TokensLeft is added, in offers only: what the attempt may spend of the
	// token budgets of its task, session and run; absent: there are none.
	TokensLeft int64 `json:"tokens_left,omitzero"`
	// Messages are added, in offers only: the follow-ups so far.
	Messages []Message    `json:"messages,omitempty"`
	Human    *HumanAnswer `json:"human,omitempty"` // added, offers only: what a human said who was asked
	// SessionToken is added, offers only: what the session is used with.
	SessionToken string  `json:"session_token,omitempty"`
	Unknown      Unknown `json:",unknown"`
}

// Task is the identity, the terms and the policy of a dispatch.
type Task struct {
	TaskID         subjects.TaskID    `json:"task_id,omitempty"`
	Priority       Priority           `json:"priority,omitempty"`       // absent normal
	ReplySchema    string             `json:"reply_schema,omitempty"`   // prose | structured | json; absent prose
	TokenBudget    int64              `json:"token_budget,omitzero"`    // 0 = none
	Type           string             `json:"type,omitempty"`           // this and all below: added
	TimeoutSeconds float64            `json:"timeout_seconds,omitzero"` // per attempt; absent 3600
	MaxRetries     *int               `json:"max_retries,omitempty"`    // absent 3
	MaxLosses      int                `json:"max_losses,omitzero"`      // lost agents in a row before a human decides; 1 to 100, absent 3
	Agent          subjects.AgentID   `json:"agent,omitempty"`          // pin
	Alternatives   []subjects.AgentID `json:"alternatives,omitempty"`
	OnBlocked      string             `json:"on_blocked,omitempty"`   // reroute | wait | fail | escalate
	Escalate       string             `json:"escalate,omitempty"`     // auto | always | never
	AlertRepeat    float64            `json:"alert_repeat,omitzero"`  // seconds; absent 1800
	GiveUpAfter    float64            `json:"give_up_after,omitzero"` // seconds; absent 86400
	ResultSchema   json.RawMessage    `json:"result_schema,omitzero"`
	SessionID      subjects.SessionID `json:"session_id,omitempty"`
	SessionBudget  int64              `json:"session_token_budget,omitzero"` // of all tasks of the session together; 0 = none
	IdempotencyKey string             `json:"idempotency_key,omitempty"`
	RunID          subjects.RunID     `json:"run_id,omitempty"`
	RunBudget      int64              `json:"run_token_budget,omitzero"` // of all tasks of the run together; 0 = none
	Unknown        Unknown            `json:",unknown"`
}

// Requirements is what an agent must have to be offered a task.
type Requirements struct {
	RequiredMCP          []string          `json:"required_mcp"`
	RequiredCapabilities []string          `json:"required_capabilities"`
	ModelTier            string            `json:"model_tier,omitempty"` // added; the least
	CleanRepo            bool              `json:"clean_repo,omitzero"`  // added
	Labels               map[string]string `json:"labels,omitempty"`     // added; all must match
	Unknown              Unknown           `json:",unknown"`
}

// Input is rich input; Brief is its text.
type Input struct {
	MessageID string          `json:"message_id,omitempty"`
	ContextID string          `json:"context_id,omitempty"`
	Parts     []Part          `json:"parts,omitempty"`
	Metadata  json.RawMessage `json:"metadata,omitzero"`
	// Extensions and ReferenceTaskIDs are A2A's; AcceptedOutputModes are the
	// media types that the sender would like to get.
	Extensions          []string `json:"extensions,omitempty"`
	ReferenceTaskIDs    []string `json:"reference_task_ids,omitempty"`
	AcceptedOutputModes []string `json:"accepted_output_modes,omitempty"`
	Unknown             Unknown  `json:",unknown"`
}

// Part is an A2A part: exactly one of Text, Data, URL, Raw.
type Part struct {
	Text      *string         `json:"text,omitzero"`
	Data      json.RawMessage `json:"data,omitzero"`
	URL       string          `json:"url,omitempty"`
	Raw       string          `json:"raw,omitempty"` // base64
	MediaType string          `json:"mediaType,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	Unknown   Unknown         `json:",unknown"`
}

// Ack is the reply to an offer. {"accepted":true} is enough; a refusal without
// a reason is agent_busy.
type Ack struct {
	Header
	Accepted          bool    `json:"accepted"`
	Epoch             int64   `json:"epoch,omitzero"`
	EstimatedDuration float64 `json:"estimated_duration,omitzero"` // seconds
	Reason            *Reason `json:"reason,omitempty"`            // why not accepted
	RetryAfterSeconds float64 `json:"retry_after_seconds,omitzero"`
	// ResetAt and LimitTier say more of a rate_limited: see ResultError.
	ResetAt   *time.Time `json:"reset_at,omitempty"`
	LimitTier string     `json:"limit_tier,omitempty"`
	Unknown   Unknown    `json:",unknown"`
}

// Reason is a code with its sentence.
type Reason struct {
	Code    subjects.Code `json:"code"`
	Message string        `json:"message,omitempty"`
	Unknown Unknown       `json:",unknown"`
}

// Progress is TASK_PROGRESS. Artifacts and questions become records; the rest
// is heard live and not kept.
type Progress struct {
	Header
	TaskID      subjects.TaskID `json:"task_id,omitempty"`
	Attempt     int             `json:"attempt,omitzero"`
	Epoch       int64           `json:"epoch,omitzero"`
	Text        string          `json:"text,omitempty"`
	Percent     *float64        `json:"percent,omitempty"`
	TokensSpent *int64          `json:"tokens_spent,omitempty"`
	Artifact    *Artifact       `json:"artifact,omitempty"`
	Question    *Question       `json:"question,omitempty"`
	Unknown     Unknown         `json:",unknown"`
}

// Artifact is a piece of output, whole or in chunks.
type Artifact struct {
	ArtifactID string  `json:"artifact_id"`
	Name       string  `json:"name,omitempty"`
	Parts      []Part  `json:"parts"`
	Append     bool    `json:"append,omitzero"`
	LastChunk  bool    `json:"last_chunk,omitzero"`
	Unknown    Unknown `json:",unknown"`
}

// Question is what an agent needs to know before it can go on.
type Question struct {
	ID      string  `json:"id"`
	Text    string  `json:"text"`
	Parts   []Part  `json:"parts,omitempty"`
	Unknown Unknown `json:",unknown"`
}

// Status is how an attempt ended.
type Status string

// The statuses of TASK_RESULT.
const (
	StatusDone    Status = "done"
	StatusBlocked Status = "blocked"
	StatusError   Status = "error"
	StatusPartial Status = "partial"
)

// Result is TASK_RESULT: how an attempt ended, or (with State set) how the task
// did. Source: S1. BlockedReason is always written, null when not blocked.
type Result struct {
	Header
	TaskID        subjects.TaskID `json:"task_id,omitempty"`
	Status        Status          `json:"status"`
	TokensSpent   int64           `json:"tokens_spent"`
	NextSteps     []string        `json:"next_steps"`
	BlockedReason *string         `json:"blocked_reason"`
	Artifacts     json.RawMessage `json:"artifacts,omitzero"` // an object

	Attempt      int                 `json:"attempt,omitzero"` // this and all below: added
	Epoch        int64               `json:"epoch,omitzero"`
	AgentID      subjects.AgentID    `json:"agent_id,omitempty"`
	InstanceID   subjects.InstanceID `json:"instance_id,omitempty"`
	TokensSource string              `json:"tokens_source,omitempty"` // reported | measured
	Error        *ResultError        `json:"error,omitempty"`
	Remaining    []string            `json:"remaining,omitempty"` // required when partial
	Output       json.RawMessage     `json:"output,omitzero"`     // text or any JSON
	Parts        []Part              `json:"parts,omitempty"`
	AsMessage    bool                `json:"as_message,omitzero"`
	State        State               `json:"state,omitempty"`
	Unknown      Unknown             `json:",unknown"`
}

// ResultError is why an attempt failed.
type ResultError struct {
	Code              subjects.Code `json:"code"`
	Message           string        `json:"message"`
	Retryable         bool          `json:"retryable"`
	RetryAfterSeconds float64       `json:"retry_after_seconds,omitzero"`
	// HTTPStatus is what the model's API answered, when that is the reason.
	HTTPStatus int `json:"http_status,omitzero"`
	// ResetAt is when a rate_limited ends, by the clock of whoever set the limit.
	ResetAt *time.Time `json:"reset_at,omitempty"`
	// LimitTier is the model tier that the limit holds for; absent: all tiers.
	LimitTier string  `json:"limit_tier,omitempty"`
	Unknown   Unknown `json:",unknown"`
}

// Control is what a router tells an instance. The reply is a ControlReply.
type Control struct {
	Header
	Action     string          `json:"action"` // CANCEL | DRAIN | RESUME | INPUT
	TaskID     subjects.TaskID `json:"task_id,omitempty"`
	Attempt    int             `json:"attempt,omitzero"`
	OfferID    string          `json:"offer_id,omitempty"` // CANCEL: of what this offer alone began; absent: of the attempt and those before
	Reason     *Reason         `json:"reason,omitempty"`
	QuestionID string          `json:"question_id,omitempty"` // INPUT: the answer to this question,
	ID         string          `json:"id,omitempty"`          // or the follow-up of this id
	Text       string          `json:"text,omitempty"`
	Parts      []Part          `json:"parts,omitempty"`
	Unknown    Unknown         `json:",unknown"`
}

// Actions of Control.
const (
	ActionCancel = "CANCEL"
	ActionDrain  = "DRAIN"
	ActionResume = "RESUME"
	ActionInput  = "INPUT"
)

// ControlReply says that a control message was taken.
type ControlReply struct {
	OK      bool            `json:"ok"`
	Error   *subjects.Error `json:"error,omitempty"`
	Unknown Unknown         `json:",unknown"`
}

// Priority orders the tasks that wait.
type Priority string

// The priorities; "urgent" is read as critical.
const (
	Critical Priority = "critical"
	High     Priority = "high"
	Normal   Priority = "normal"
	Low      Priority = "low"
)

// Values of Task.OnBlocked and Task.Escalate, and of Task.ReplySchema.
const (
	OnBlockedReroute  = "reroute"
	OnBlockedWait     = "wait"
	OnBlockedFail     = "fail"
	OnBlockedEscalate = "escalate"

	EscalateAuto   = "auto"
	EscalateAlways = "always"
	EscalateNever  = "never"

	ReplyProse      = "prose"
	ReplyStructured = "structured"
	ReplyJSON       = "json"
)

// Defaults of what a dispatch or an announce leaves out.
const (
	DefaultTimeout    = time.Hour
	DefaultDeadline   = 72 * time.Hour
	MaxDeadline       = 30 * 24 * time.Hour
	DefaultMaxRetries = 3
	DefaultMaxLosses  = 3
	// KeepEnded is how long a task's records are kept after its outcome, unless
	// more tasks have ended than routers are to keep.
	KeepEnded = 24 * time.Hour
	// KeepOverdue is how long a task that has no outcome is kept after its
	// deadline, for routers that were away to end it.
	KeepOverdue = 30 * 24 * time.Hour
	// DefaultAlertRepeat is how often humans are told again of what waits for
	// them, DefaultGiveUpAfter how long it waits.
	DefaultAlertRepeat = 30 * time.Minute
	DefaultGiveUpAfter = 24 * time.Hour
	DefaultHeartbeat   = 10 * time.Second
	DefaultTTL         = time.Hour
	// MissedHeartbeats is how many an instance may miss before its leases end.
	MissedHeartbeats = 3
)
