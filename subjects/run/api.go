package run

import (
	"encoding/json"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Requests and replies of the API, fleet.api.<from>.run.<verb>. Every reply may
// instead be an ErrorReply.

// Started is the reply to run start (whose request is a Definition).
type Started struct {
	RunID     subjects.RunID `json:"run_id"`
	State     State          `json:"state"`
	Duplicate bool           `json:"duplicate,omitzero"` // it was started before
}

// Ref asks about one run: run get, output, pause, resume, retry; and run
// cancel, with a reason. The reply is a Record, or an Output, which is refused
// as payload_too_large when it does not fit into a message: run part has it.
type Ref struct {
	RunID  subjects.RunID `json:"run_id"`
	Reason string         `json:"reason,omitempty"`
}

// Check adds every problem of r.
func (r *Ref) Check(p *fleet.Problems) { identifier(p, "/run_id", string(r.RunID), true) }

// PartRef asks for a part of the document of a run that has ended: run part.
type PartRef struct {
	RunID  subjects.RunID `json:"run_id"`
	Offset int64          `json:"offset,omitzero"` // in bytes
}

// Check adds every problem of r.
func (r *PartRef) Check(p *fleet.Problems) {
	identifier(p, "/run_id", string(r.RunID), true)
	p.Between("/offset", float64(r.Offset), 0, 1<<53-1)
}

// Part is the reply to run part: the document's bytes from the offset on. The
// parts of a document fit together whoever answers: its bytes are always the
// same.
type Part struct {
	RunID  subjects.RunID `json:"run_id"`
	Offset int64          `json:"offset"`
	Size   int64          `json:"size"` // of the whole
	Data   []byte         `json:"data"` // base64
}

// List is the reply to run list, the latest first.
type List struct {
	Runs []Summary `json:"runs"`
}

// Summary is a run in a list.
type Summary struct {
	RunID       subjects.RunID   `json:"run_id"`
	From        subjects.AgentID `json:"from"`
	State       State            `json:"state"`
	Description string           `json:"description,omitempty"` // its beginning
	Created     time.Time        `json:"created"`
	Nodes       int              `json:"nodes"`
	Done        int              `json:"done"`
	Tokens      int64            `json:"tokens_spent"`
}

// TypeOutput is the message type of an Output.
const TypeOutput = "RUN_OUTPUT"

// Output is the one document that a run ends with.
type Output struct {
	fleet.Header
	RunID       subjects.RunID `json:"run_id"`
	TaskType    string         `json:"task_type,omitempty"`
	Description string         `json:"description,omitempty"`
	State       State          `json:"state"`
	Reason      *fleet.Reason  `json:"reason,omitempty"`
	Created     time.Time      `json:"created"`
	Ended       time.Time      `json:"ended"`
	Tokens      int64          `json:"tokens_spent"`
	Results     []Result       `json:"results"` // in the order of the definition
}

// Result is what became of a node.
type Result struct {
	Node NodeID `json:"node"`
	Status
	Result *fleet.Result `json:"result,omitempty"`
	Each   []Item        `json:"each,omitzero"` // of a fan-out: its items, in their order
}

// Previous is what a node is told of one that it depends on: S2's context.
type Previous struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Node    NodeID           `json:"node"`
	Status  State            `json:"status"`
	Output  json.RawMessage  `json:"output,omitzero"`
	Reason  *fleet.Reason    `json:"reason,omitempty"`
}

// DecodeRecord reads a record, which the fleet's own workers write.
func DecodeRecord(data []byte) (*Record, error) {
	r, err := fleet.DecodeReply[Record](data)
	if err != nil {
		return nil, err
	}
	return &r, nil
}
