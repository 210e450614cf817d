package audit

import (
	"bytes"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
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
	Verb      string           `json:"verb,omitempty"` // what a human decided
	By        string           `json:"by,omitempty"`   // who that was
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
		base.Code, base.Message = e.Reason.Code, workers.Clip(e.Reason.Message)
	}
	if h := e.Data.Human; h != nil {
		base.Verb, base.By = h.Verb, workers.Clip(h.By)
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
	case fleet.KindRetry, fleet.KindReroute, fleet.KindHuman, fleet.KindReturned, fleet.KindLost:
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
	case fleet.KindQueued:
		base.Priority = f.Priority
	}
	return []handshake.LogLine{tell(f.From, handshake.EventTask, base)}
}

// attemptLines tells that an attempt failed, and which level of the ladder
// answers it; none when it was handed back.
func attemptLines(last *fleet.Attempt, base details, tell func(subjects.AgentID, string, details) handshake.LogLine) []handshake.LogLine {
	end := base
	end.Attempt, end.Code, end.Message, end.Tokens, end.Status = last.Attempt, last.Code, workers.Clip(last.Message), last.Tokens, "failed"
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

// toldLines reads the lines that were stored with a change.
func toldLines(m bus.Msg) (list []handshake.LogLine, err error) {
	for text := range bytes.Lines(m.Data) { // none in what marks the end of others
		l, err := handshake.DecodeLogLine(text)
		if err != nil {
			return nil, err
		}
		list = append(list, *l)
	}
	return list, nil
}

// sessionLines tells that a session is gone by its time, and what else was told
// of sessions.
func sessionLines(m bus.Msg) ([]handshake.LogLine, error) {
	id, ok := strings.CutPrefix(m.Subject, "$KV."+subjects.BucketSessions+".")
	if !ok {
		return toldLines(m)
	}
	s, err := subjects.ParseSessionID(id)
	if err != nil || m.Header.Get("Nats-Marker-Reason") != "MaxAge" {
		return nil, nil //nolint:nilerr // a record, or a key that is none of a session
	}
	return []handshake.LogLine{line(m.Time, s, "sessions", handshake.EventSessionExpire, details{})}, nil
}
