package mesh

import (
	"encoding/json"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Message types of the wire.
const (
	TypeMessage = "MESH_MESSAGE"
	TypeAck     = "MESH_ACK"
)

// MessageID names a message among those of its sender. One NATS token.
type MessageID string

// ThreadID names a thread of messages. One NATS token.
type ThreadID string

// Action is what the receiver is to do with a message.
type Action string

// The actions. Absent is Info: nothing is asked for.
const (
	Do   Action = "do"
	Info Action = "info"
)

// Reply says whether an answer is expected.
type Reply string

// The values of Reply. Whatever is not clearly No is Yes.
const (
	Yes Reply = "yes"
	No  Reply = "no"
)

// UnmarshalJSON reads a Reply; unclear means yes.
func (r *Reply) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "null":
		*r = ""
	case `"no"`, "false":
		*r = No
	default:
		*r = Yes
	}
	return nil
}

// Defaults and bounds of messages.
const (
	MaxTTL              = 24 * time.Hour
	DefaultReplyTimeout = time.Hour
	DefaultMaxHops      = 8
)

// Message is MESH_MESSAGE. S3's tools call the receiver agent and the text
// message; both words are read. See To and Body.
type Message struct {
	fleet.Header
	MessageID  MessageID        `json:"message_id,omitempty"` // absent: derived
	From       subjects.AgentID `json:"from,omitempty"`       // the subject proves it
	SenderName string           `json:"sender_name,omitempty"`
	To         subjects.AgentID `json:"to,omitempty"`
	Agent      subjects.AgentID `json:"agent,omitempty"` // S3's word for to
	Action     Action           `json:"action,omitempty"`
	Reply      Reply            `json:"reply,omitempty"`
	Ref        MessageID        `json:"ref,omitempty"` // the message that this one answers
	ThreadID   ThreadID         `json:"thread_id,omitempty"`
	Hops       int              `json:"hops,omitzero"` // messages that led to this one
	Text       string           `json:"text,omitempty"`
	Message    string           `json:"message,omitempty"` // S3's word for text
	Data       json.RawMessage  `json:"data,omitzero"`
	Time       *time.Time       `json:"time,omitempty"`

	// Added: how long it may take, for whom it is sent, what it may cost.
	TTLSeconds          float64         `json:"ttl_seconds,omitzero"`           // until it is processed; absent and at most 24 h
	ReplyTimeoutSeconds float64         `json:"reply_timeout_seconds,omitzero"` // absent 1 h
	Collect             bool            `json:"collect,omitzero"`               // the sender fetches the answer with mesh wait
	TaskID              subjects.TaskID `json:"task_id,omitempty"`              // the task that it serves
	RunID               subjects.RunID  `json:"run_id,omitempty"`
	TokenBudget         int64           `json:"token_budget,omitzero"` // what its answer may cost; 0: no bound
	TokensSpent         int64           `json:"tokens_spent,omitzero"` // of an answer: what it has cost
	Error               *fleet.Reason   `json:"error,omitempty"`       // of an answer: there is none, and why
	Traceparent         string          `json:"traceparent,omitempty"` // the W3C trace that it belongs to

	// Deliveries only.
	Attempt   int           `json:"attempt,omitzero"`   // from 1
	Untrusted bool          `json:"untrusted,omitzero"` // text and data were written by an agent
	Unknown   fleet.Unknown `json:",unknown"`
}

// Receiver is who the message is for.
func (m *Message) Receiver() subjects.AgentID {
	if m.To != "" {
		return m.To
	}
	return m.Agent
}

// Body is what the message says.
func (m *Message) Body() string {
	if m.Text != "" {
		return m.Text
	}
	return m.Message
}

// TTL is how long the message may wait until it is processed.
func (m *Message) TTL() time.Duration {
	if m.TTLSeconds == 0 {
		return MaxTTL
	}
	return time.Duration(m.TTLSeconds * float64(time.Second))
}

// ReplyTimeout is how long an answer may take.
func (m *Message) ReplyTimeout() time.Duration {
	if m.ReplyTimeoutSeconds == 0 {
		return DefaultReplyTimeout
	}
	return time.Duration(m.ReplyTimeoutSeconds * float64(time.Second))
}

// State is how far a message has come.
type State string

// The states. Accepted means that the bus keeps it. Delivering is what mesh
// workers write down for each other before they hand it over.
const (
	Accepted   State = "accepted"
	Delivering State = "delivering"
	Delivered  State = "delivered"  // an instance has it
	Processed  State = "processed"  // the instance is done with it
	Answered   State = "answered"   // and the answer is on its way back
	Unanswered State = "unanswered" // no answer came in time
	Failed     State = "failed"     // the instance could not deal with it
	Expired    State = "expired"    // nobody took it in time
	Refused    State = "refused"    // by the mesh: see the reason
)

// Left reports whether nothing more will be delivered.
func (s State) Left() bool {
	switch s {
	case "", Accepted, Delivering, Delivered:
		return false
	default:
		return true
	}
}

// Ended reports whether s is the last state of a message; reply says whether
// an answer to it is expected.
func (s State) Ended(reply bool) bool { return s.Left() && (s != Processed || !reply) }

// Ack is MESH_ACK: how far a message has come. The last one of each message is
// kept, and is what the mesh itself goes by.
type Ack struct {
	fleet.Header
	MessageID   MessageID           `json:"message_id"`
	From        subjects.AgentID    `json:"from"`
	To          subjects.AgentID    `json:"to"`
	ThreadID    ThreadID            `json:"thread_id,omitempty"`
	State       State               `json:"state"`
	Attempt     int                 `json:"attempt,omitzero"` // deliveries begun
	InstanceID  subjects.InstanceID `json:"instance_id,omitempty"`
	Epoch       int64               `json:"epoch,omitzero"`
	Reason      *fleet.Reason       `json:"reason,omitempty"`
	ReplyID     MessageID           `json:"reply_id,omitempty"` // of the answer
	TokensSpent int64               `json:"tokens_spent,omitzero"`
	Time        time.Time           `json:"time"`
	Unknown     fleet.Unknown       `json:",unknown"`
}
