package run

import (
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
// failed, skipped (something that it needs has failed) or canceled.
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
	RunID      subjects.RunID    `json:"run_id"`
	From       subjects.AgentID  `json:"from"`
	State      State             `json:"state"`
	Created    time.Time         `json:"created"`
	Deadline   time.Time         `json:"deadline"`
	Ended      *time.Time        `json:"ended,omitempty"`
	Reason     *fleet.Reason     `json:"reason,omitempty"`
	Tokens     int64             `json:"tokens_spent"`
	Cancel     string            `json:"cancel,omitempty"` // somebody wants it canceled, and why
	Definition Definition        `json:"definition"`
	Nodes      map[NodeID]Status `json:"nodes"`
	Unknown    fleet.Unknown     `json:",unknown"`
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
}
