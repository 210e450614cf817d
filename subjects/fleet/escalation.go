package fleet

import (
	"encoding/json"
	"strings"
	"time"

	"parley/subjects"
)

// Escalation is the message `escalation` of the session protocol, field for
// field: a task was escalated. Kept on subjects.Escalation(Level, TaskID).
type Escalation struct {
	ProtocolVersion  string             `json:"protocol_version"`
	MessageType      string             `json:"message_type"`
	SessionID        subjects.SessionID `json:"session_id,omitempty"` // of the task, if it has one
	Level            int                `json:"escalation_level"`
	Reason           string             `json:"reason"`
	OriginalAgent    subjects.AgentID   `json:"original_agent"` // "" where nobody was tried
	Error            EscalationError    `json:"error"`
	AlternativeAgent subjects.AgentID   `json:"alternative_agent,omitempty"` // level 2, where one is named
	Timestamp        time.Time          `json:"timestamp"`

	TaskID  subjects.TaskID `json:"task_id,omitempty"` // this and all below: added
	Seq     uint64          `json:"seq,omitzero"`      // of the record that escalates
	Attempt int             `json:"attempt,omitzero"`
	State   State           `json:"state,omitempty"` // of the task
	// Traceparent is the escalation's in the task's trace.
	Traceparent string  `json:"traceparent,omitempty"`
	Unknown     Unknown `json:",unknown"`
}

// EscalationError is what went wrong. The source's codes are in capitals.
type EscalationError struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Details json.RawMessage `json:"details,omitzero"` // an object
	Unknown Unknown         `json:",unknown"`
}

// Constants of Escalation.
const (
	EscalationVersion = "1.0.0" // what is written; every 1.x is accepted
	EscalationType    = "escalation"

	ReasonAgentFailure = "agent_failure"
	ReasonTimeout      = "timeout"
	ReasonError        = "error"
)

// NewEscalation is the message of the record e, which escalates to level.
func NewEscalation(e *Event, level int) *Escalation {
	m := &Escalation{
		ProtocolVersion: EscalationVersion, MessageType: EscalationType,
		SessionID: e.Facts.SessionID, Level: level, Timestamp: e.Time, Reason: ReasonError,
		TaskID: e.TaskID, Seq: e.Seq, Attempt: e.Attempt, State: e.State, Traceparent: e.Called(),
	}
	var code subjects.Code
	if n := len(e.Facts.Attempts); n > 0 {
		last := e.Facts.Attempts[n-1]
		m.OriginalAgent, code, m.Error.Message = last.AgentID, last.Code, last.Message
	}
	if r := e.Reason; r != nil {
		code, m.Error.Message = r.Code, r.Message
	}
	switch code {
	case subjects.CodeAgentTimeout, subjects.CodeDeadlineExceeded:
		m.Reason = ReasonTimeout
	case subjects.CodeAgentError, subjects.CodeAgentLost, subjects.CodeResultInvalid:
		m.Reason = ReasonAgentFailure
	}
	if level == 2 && len(e.Facts.Policy.Alternatives) > 0 {
		m.AlternativeAgent = nextAlternative(e)
	}
	m.Error.Code = strings.ToUpper(string(code))
	m.Error.Details = MustEncode(struct {
		Tried []Tried `json:"tried,omitempty"`
	}{TriedIn(e, 20)})
	return m
}

func nextAlternative(e *Event) subjects.AgentID {
	tried := map[subjects.AgentID]bool{}
	for _, a := range e.Facts.Attempts {
		tried[a.AgentID] = true
	}
	for _, id := range e.Facts.Policy.Alternatives {
		if !tried[id] {
			return id
		}
	}
	return ""
}

// TriedIn tells the last attempts of a record, at most most.
func TriedIn(e *Event, most int) []Tried {
	attempts := e.Facts.Attempts[max(0, len(e.Facts.Attempts)-most):]
	out := make([]Tried, 0, len(attempts))
	for _, a := range attempts {
		m := a.Message
		if len(m) > 500 {
			m = strings.ToValidUTF8(m[:500], "") + "…"
		}
		out = append(out, Tried{Attempt: a.Attempt, AgentID: a.AgentID, Code: a.Code, Message: m})
	}
	return out
}

// DecodeEscalation reads an escalation message. A message of the source is
// valid as it stands.
func DecodeEscalation(data []byte) (*Escalation, error) {
	if err := strict.check(data); err != nil {
		return nil, err
	}
	m := new(Escalation)
	if err := unmarshal(data, m); err != nil {
		return nil, err
	}
	if m.ProtocolVersion == "" {
		m.ProtocolVersion = EscalationVersion
	}
	if major, _, _ := strings.Cut(m.ProtocolVersion, "."); major != "1" || len(m.ProtocolVersion) > maxName || strings.Trim(m.ProtocolVersion, "0123456789.") != "" {
		return nil, subjects.Errorf(subjects.CodeVersionMismatch, "expected protocol_version 1.x, got %q", clip(m.ProtocolVersion)).
			At("/protocol_version").WithRemedy("send version " + EscalationVersion)
	}
	var p problems
	m.check(&p)
	return m, p.err()
}

func (m *Escalation) check(p *problems) {
	if m.MessageType == "" {
		m.MessageType = EscalationType
	}
	p.oneOf("/message_type", m.MessageType, EscalationType)
	p.sessionID("/session_id", m.SessionID)
	p.between("/escalation_level", float64(m.Level), 1, 3)
	if m.Reason == "" {
		p.invalid("/reason", "expected a reason, got nothing")
	}
	p.oneOf("/reason", m.Reason, ReasonAgentFailure, ReasonTimeout, ReasonError)
	p.agentID("/original_agent", m.OriginalAgent, false)
	p.agentID("/alternative_agent", m.AlternativeAgent, false)
	p.object("/error/details", &m.Error.Details)
	if m.Error.Code == "" {
		p.invalid("/error/code", "expected a code, got nothing")
	}
	p.taskID("/task_id", m.TaskID, false)
	p.attempt("/attempt", m.Attempt)
	p.Traceparent("/traceparent", m.Traceparent)
	p.state(m.State, false)
}
