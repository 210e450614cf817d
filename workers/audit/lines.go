package audit

import (
	"encoding/json"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// details is the data of a line.
type details struct {
	TaskID    subjects.TaskID  `json:"task_id,omitempty"`
	RunID     subjects.RunID   `json:"run_id,omitempty"`
	Seq       uint64           `json:"seq,omitzero"` // of the task's record
	Kind      string           `json:"kind,omitempty"`
	State     fleet.State      `json:"state,omitempty"`
	Attempt   int              `json:"attempt,omitzero"`
	Priority  fleet.Priority   `json:"priority,omitempty"`
	Initiator subjects.AgentID `json:"initiator,omitempty"`
	Target    subjects.AgentID `json:"target,omitempty"`
	Instance  string           `json:"instance_id,omitempty"`
	Accepted  *bool            `json:"accepted,omitempty"`
	Status    string           `json:"status,omitempty"`
	Level     int              `json:"escalation_level,omitzero"`
	Original  subjects.AgentID `json:"original_agent,omitempty"`
	Code      subjects.Code    `json:"code,omitempty"`
	Message   string           `json:"message,omitempty"`
	Tokens    int64            `json:"tokens_spent,omitzero"`
	Version   uint64           `json:"version,omitzero"` // of a context
	Digest    string           `json:"digest,omitempty"`
	AgentID   subjects.AgentID `json:"agent_id,omitempty"`
	Verb      string           `json:"verb,omitempty"` // what a human decided
	By        string           `json:"by,omitempty"`   // who that was
}

// maxMessage is how much of what somebody says a line holds, in bytes.
const maxMessage = 200

func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "") + "…"
}

func line(at time.Time, id subjects.SessionID, who subjects.AgentID, event string, d details) handshake.LogLine {
	return handshake.LogLine{Timestamp: at.UTC(), SessionID: id, AgentID: who, EventType: event, Data: fleet.MustEncode(d)}
}

// taskLines tells a record of a task. An offer that was accepted is a handshake
// and the start of the work; an attempt that failed is its end, and what the
// ladder answers an escalation.
func taskLines(e *fleet.Event) []handshake.LogLine {
	f := &e.Facts
	base := details{TaskID: e.TaskID, RunID: f.RunID, Seq: e.Seq, Kind: e.Kind, State: e.State, Attempt: e.Attempt}
	if e.Reason != nil {
		base.Code, base.Message = e.Reason.Code, clip(e.Reason.Message)
	}
	tell := func(who subjects.AgentID, event string, d details) handshake.LogLine {
		return line(e.Time, f.SessionID, who, event, d)
	}
	switch e.Kind {
	case fleet.KindWorking:
		shake := details{TaskID: e.TaskID, Seq: e.Seq, Attempt: e.Attempt, Initiator: f.From, Target: e.AgentID}
		ack, start := shake, base
		ack.Accepted = new(true)
		start.Instance = string(e.InstanceID)
		return []handshake.LogLine{
			tell(f.From, handshake.EventInit, shake), tell(e.AgentID, handshake.EventAck, ack),
			tell(e.AgentID, handshake.EventExecutionStart, start),
		}
	case fleet.KindRetry, fleet.KindReroute, fleet.KindHuman, fleet.KindReturned:
		if n := len(f.Attempts); n > 0 {
			return attemptLines(&f.Attempts[n-1], base, tell)
		}
	case fleet.KindOutcome:
		base.Tokens = f.TokensSpent
		if e.AgentID != "" {
			base.Status = "failed"
			if e.State == fleet.StateDone || e.State == fleet.StatePartial {
				base.Status = "completed"
			}
			return []handshake.LogLine{tell(e.AgentID, handshake.EventExecutionComplete, base)}
		}
	case fleet.KindAnswer:
		if a := e.Data.Answer; a != nil && a.From != "" {
			return []handshake.LogLine{tell(a.From, handshake.EventTask, base)}
		}
	case fleet.KindQuestion, fleet.KindArtifact:
		if e.AgentID != "" {
			return []handshake.LogLine{tell(e.AgentID, handshake.EventTask, base)}
		}
	case fleet.KindResumed:
		if h := f.Human; h != nil {
			base.Verb, base.By = h.Verb, clip(h.By)
		}
	case fleet.KindQueued:
		base.Priority = f.Priority
	}
	return []handshake.LogLine{tell(f.From, handshake.EventTask, base)}
}

// attemptLines tells that an attempt failed, and which level of the ladder
// answers it; none when it was handed back.
func attemptLines(last *fleet.Attempt, base details, tell func(subjects.AgentID, string, details) handshake.LogLine) []handshake.LogLine {
	end := base
	end.Attempt, end.Code, end.Message, end.Tokens, end.Status = last.Attempt, last.Code, clip(last.Message), last.Tokens, "failed"
	lines := []handshake.LogLine{tell(last.AgentID, handshake.EventExecutionComplete, end)}
	if last.Level > 0 {
		up := base
		up.Level, up.Original = last.Level, last.AgentID
		lines = append(lines, tell(last.AgentID, handshake.EventEscalation, up))
	}
	return lines
}

// contextLines tells a version of a context.
func contextLines(r *handshake.Record) []handshake.LogLine {
	d := details{Version: r.Version, Status: r.Entry.Status, TaskID: r.Entry.TaskID}
	if r.Entry.Stored != nil {
		d.Digest = r.Entry.Stored.Digest
	}
	return []handshake.LogLine{line(r.Time, r.SessionID, r.Entry.AgentID, handshake.EventContext, d)}
}

// agentLines tells what an operator did to an agent. That a drain is over says
// only of whom.
func agentLines(m bus.Msg) ([]handshake.LogLine, error) {
	const prefix = "$KV." + subjects.BucketAgents + "." + fleet.DrainKeyPrefix
	name, ok := strings.CutPrefix(m.Subject, prefix)
	if !ok {
		return nil, nil // a cool-down: the record of the attempt tells why
	}
	agent := subjects.AgentID(name)
	if len(m.Data) == 0 {
		return []handshake.LogLine{line(m.Time, "", agent, handshake.EventAgentResume, details{AgentID: agent})}, nil
	}
	var d fleet.AgentDrained
	if err := json.Unmarshal(m.Data, &d); err != nil {
		return nil, err
	}
	return []handshake.LogLine{line(m.Time, "", d.By, handshake.EventAgentDrain, details{AgentID: agent, Message: clip(d.Reason)})}, nil
}
