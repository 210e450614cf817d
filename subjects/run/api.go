package run

import (
	"encoding/json"
	"strings"
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
// cancel, with a reason. The reply is a Record, or an Output.
type Ref struct {
	RunID  subjects.RunID `json:"run_id"`
	Reason string         `json:"reason,omitempty"`
}

// Check adds every problem of r.
func (r *Ref) Check(p *fleet.Problems) { token(p, "/run_id", string(r.RunID), true) }

// List is the reply to run list, the latest first.
type List struct {
	Runs []Summary `json:"runs"`
}

// Summary is a run in a list.
type Summary struct {
	RunID       subjects.RunID   `json:"run_id"`
	From        subjects.AgentID `json:"from"`
	State       State            `json:"state"`
	Description string           `json:"description,omitempty"`
	Created     time.Time        `json:"created"`
	Nodes       int              `json:"nodes"`
	Done        int              `json:"done"`
	Tokens      int64            `json:"tokens_spent"`
}

// Output is the one document that a run ends with.
type Output struct {
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
}

// Previous is what a node is told of one that it depends on: S2's context.
type Previous struct {
	AgentID subjects.AgentID `json:"agent_id"`
	Node    NodeID           `json:"node"`
	Status  State            `json:"status"`
	Output  json.RawMessage  `json:"output,omitzero"`
	Reason  *fleet.Reason    `json:"reason,omitempty"`
}

// Text is an output as a text quotes it: a text as it is, any other JSON as
// JSON.
func Text(output json.RawMessage) string {
	var s string
	if json.Unmarshal(output, &s) == nil {
		return s
	}
	return string(output)
}

// Quote replaces each ${node} in a brief.
func Quote(brief string, outputs map[NodeID]string) string {
	if !strings.Contains(brief, "${") {
		return brief
	}
	pairs := make([]string, 0, 2*len(outputs))
	for n, text := range outputs {
		pairs = append(pairs, "${"+string(n)+"}", text)
	}
	return strings.NewReplacer(pairs...).Replace(brief)
}

// DecodeRecord reads a record, which the fleet's own workers write.
func DecodeRecord(data []byte) (*Record, error) {
	r, err := fleet.DecodeReply[Record](data)
	if err != nil {
		return nil, err
	}
	return &r, nil
}
