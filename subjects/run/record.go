package run

import (
	"bytes"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// TypeRecord is the message type of a Record.
const TypeRecord = "RUN_RECORD"

// State is how far a run, or a node of it, has come.
type State string

// The states. A run is running or paused until it ends as one of done, failed,
// canceled, expired; a node is waiting, or dispatched, until it ends as done,
// failed, skipped (something that it needs has failed, or it was not to be
// begun: its note says which) or canceled.
const (
	Running    State = "running"
	Paused     State = "paused"
	Waiting    State = "waiting"
	Dispatched State = "dispatched"
	Done       State = "done"
	Failed     State = "failed"
	Skipped    State = "skipped"
	Canceled   State = "canceled"
	Expired    State = "expired"
)

// Ended reports whether nothing follows.
func (s State) Ended() bool {
	switch s {
	case Done, Failed, Skipped, Canceled, Expired:
		return true
	default:
		return false
	}
}

// Record is how far a run has come: the truth about it.
type Record struct {
	fleet.Header
	RunID    subjects.RunID   `json:"run_id"`
	From     subjects.AgentID `json:"from"`
	State    State            `json:"state"`
	Created  time.Time        `json:"created"`
	Deadline time.Time        `json:"deadline"`
	Ended    *time.Time       `json:"ended,omitempty"`
	Reason   *fleet.Reason    `json:"reason,omitempty"`
	Tokens   int64            `json:"tokens_spent"`
	Cancel   string           `json:"cancel,omitempty"` // somebody wants it canceled, and why
	// SessionID is of the session in which the nodes work; absent where the
	// fleet has no sessions.
	SessionID subjects.SessionID `json:"session_id,omitempty"`
	// Traceparent is of whoever started it; absent: its trace is its own.
	Traceparent string `json:"traceparent,omitempty"`
	// Definition is what is to be done. In a stored record of a run under way
	// DefinitionHash may stand for it: its SHA-256, by which it is kept beside.
	Definition     Definition        `json:"definition,omitzero"`
	DefinitionHash string            `json:"definition_hash,omitempty"`
	Nodes          map[NodeID]Status `json:"nodes"`
	Unknown        fleet.Unknown     `json:",unknown"`
}

// Encode writes r with its definition as it was encoded before, which is most of
// a record and does not change with it; without it where a hash stands for it,
// until the run has ended.
func (r *Record) Encode(definition []byte) []byte {
	const name = `"definition":`
	as := *r
	if as.Definition = (Definition{}); r.DefinitionHash != "" && !r.State.Ended() {
		return fleet.MustEncode(&as)
	}
	as.Definition.TaskID = r.RunID // something, whose place it takes
	head, tail, _ := bytes.Cut(fleet.MustEncode(&as), append([]byte(name), fleet.MustEncode(&as.Definition)...))
	out := make([]byte, 0, len(head)+len(name)+len(definition)+len(tail))
	out = append(append(out, head...), name...)
	return append(append(out, definition...), tail...)
}

// Status is how far a node has come.
type Status struct {
	State      State            `json:"state"`
	Generation int              `json:"generation,omitzero"` // how often it was begun, retries of the run included
	TaskID     subjects.TaskID  `json:"task_id,omitempty"`   // of this generation
	AgentID    subjects.AgentID `json:"agent_id,omitempty"`
	Attempts   int              `json:"attempts,omitzero"`
	Tokens     int64            `json:"tokens_spent,omitzero"`
	Begun      *time.Time       `json:"begun,omitempty"`
	Ended      *time.Time       `json:"ended,omitempty"`
	Reason     *fleet.Reason    `json:"reason,omitempty"`
	Note       string           `json:"note,omitempty"`  // why it was skipped
	Items      *Items           `json:"items,omitempty"` // of a fan-out, once they are known
}

// Items counts the items of a fan-out. While it is under way the counts may lag.
type Items struct {
	Total  int `json:"total"`
	Done   int `json:"done"`
	Failed int `json:"failed"`
	Chunks int `json:"chunks"` // stored: what was stored later does not count
}

// Item is what became of one item of a fan-out, for good or for this
// generation.
type Item struct {
	Index int `json:"index"`
	Status
	// Result is what its task has come to; absent in what is stored when it is
	// large: then it is stored by itself.
	Result *fleet.Result `json:"result,omitempty"`
}

// Chunk is what of a fan-out is stored together: items in the order in which
// they ended.
type Chunk struct {
	Node  NodeID `json:"node"`
	Items []Item `json:"items"`
}

// Short is a reason as a record keeps it.
func Short(r *fleet.Reason) *fleet.Reason {
	const most = 200
	if r == nil || len(r.Message) <= most {
		return r
	}
	return &fleet.Reason{Code: r.Code, Message: strings.ToValidUTF8(r.Message[:most], "") + "…"}
}
