package runs

import (
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/subjects/run"
	"parley/workers"
)

// line is the data of a line of the audit about a run, or about a node of it.
type line struct {
	RunID   subjects.RunID `json:"run_id"`
	Kind    string         `json:"kind"` // start, pause, resume, cancel, retry, end, or skip and fail of a node
	State   run.State      `json:"state"`
	Node    run.NodeID     `json:"node,omitempty"`
	Code    subjects.Code  `json:"code,omitempty"`
	Message string         `json:"message,omitempty"`
	Tokens  int64          `json:"tokens_spent,omitzero"`
}

// told is what the audit is told of a call of who.
func told(r *run.Record, who subjects.AgentID, kind, why string) []byte {
	return workers.Line(r.SessionID, who, handshake.EventRun, line{RunID: r.RunID, Kind: kind, State: r.State, Message: workers.Clip(why)})
}

// toldOf is what it is told of what followed by itself: the run's end, and nodes
// that ended without a task. Of the others their tasks tell.
func toldOf(was, is *run.Record) (lines []byte) {
	add := func(l line) {
		l.RunID, l.Message = is.RunID, workers.Clip(l.Message)
		lines = append(lines, workers.Line(is.SessionID, is.From, handshake.EventRun, l)...)
	}
	for i := range is.Definition.Agents {
		name := is.Definition.Agents[i].Name()
		switch n := is.Nodes[name]; {
		case was.Nodes[name].State != run.Waiting || !n.State.Ended():
		case n.Reason != nil:
			add(line{Kind: "fail", Node: name, State: n.State, Code: n.Reason.Code, Message: n.Reason.Message})
		default:
			add(line{Kind: "skip", Node: name, State: n.State, Message: n.Note})
		}
	}
	if is.State.Ended() && !was.State.Ended() {
		end := line{Kind: "end", State: is.State, Tokens: is.Tokens}
		if is.Reason != nil {
			end.Code, end.Message = is.Reason.Code, is.Reason.Message
		}
		add(end)
	}
	return lines
}
