package subjects

import (
	"strconv"
	"strings"
)

// Subjects of one fleet. Every variable part is one token (see ValidToken), so
// a subject built from parsed ids always has the same number of tokens.

// Announce is where instance i of agent a announces itself.
func Announce(a AgentID, i InstanceID) string { return join("fleet.announce", string(a), string(i)) }

// Heartbeat is where instance i of agent a says that it lives.
func Heartbeat(a AgentID, i InstanceID) string { return join("fleet.heartbeat", string(a), string(i)) }

// MeshHeartbeat is where a mesh worker says that it lives.
func MeshHeartbeat(id InstanceID) string { return join("fleet.worker.mesh", string(id)) }

// RouterHeartbeat is where a router says that it lives.
func RouterHeartbeat(id InstanceID) string { return Heartbeat("router", id) }

// API is where from asks for noun.verb.
func API(from AgentID, noun, verb string) string {
	return join("fleet.api", string(from), noun, verb)
}

// Dispatch is the raw door of from: a durable inbox.
func Dispatch(from AgentID) string { return join("fleet.dispatch", string(from)) }

// Task holds the records of t: the truth about it.
func Task(t TaskID) string { return join("fleet.task", string(t)) }

// Event is where each record of t is heard once it is stored.
func Event(t TaskID) string { return join("fleet.event", string(t)) }

// Outcome is where the final result of t is heard by from.
func Outcome(from AgentID, t TaskID) string { return join("fleet.outcome", string(from), string(t)) }

// Offer is where instance i of agent a is offered a task, as a request.
func Offer(a AgentID, i InstanceID) string { return join("fleet.offer", string(a), string(i)) }

// Control is where instance i of agent a is told CANCEL, DRAIN, RESUME, INPUT.
func Control(a AgentID, i InstanceID) string { return join("fleet.control", string(a), string(i)) }

// Progress is where agent a reports on t.
func Progress(a AgentID, t TaskID) string { return join("fleet.progress", string(a), string(t)) }

// Result is where agent a hands in its result of t, as a request.
func Result(a AgentID, t TaskID) string { return join("fleet.result", string(a), string(t)) }

// Escalation is where it is kept that a task has been escalated to a level, 1 to
// 3.
func Escalation(level int, t TaskID) string {
	return join("fleet.escalation", strconv.Itoa(level), string(t))
}

// Alert is where it is kept what became of an alert.
func Alert(id string) string { return join("fleet.alert", id) }

// Mesh is where from sends messages to another agent.
func Mesh(to, from AgentID) string { return join("fleet.mesh", string(to), string(from)) }

// MeshState holds how far a message of from has come.
func MeshState(from AgentID, message string) string {
	return join("fleet.meshstate", string(from), message)
}

// MeshAck is where from hears how far its message has come.
func MeshAck(from AgentID, message string) string {
	return join("fleet.meshack", string(from), message)
}

// Inbox is where instance i of agent a is handed messages, as requests.
func Inbox(a AgentID, i InstanceID) string { return join("fleet.inbox", string(a), string(i)) }

// Run holds the record of r.
func Run(r RunID) string { return join("fleet.run", string(r)) }

// RunEvent is where each record of r is heard once it is stored.
func RunEvent(r RunID) string { return join("fleet.runevent", string(r)) }

// RunResult holds the result of a task of r.
func RunResult(r RunID, t TaskID) string { return join("fleet.runresult", string(r), string(t)) }

// RunsHeartbeat is where a runs worker says that it lives.
func RunsHeartbeat(id InstanceID) string { return join("fleet.worker.runs", string(id)) }

func join(prefix string, tokens ...string) string {
	n := len(prefix)
	for _, t := range tokens {
		n += 1 + len(t)
	}
	var b strings.Builder
	b.Grow(n)
	b.WriteString(prefix)
	for _, t := range tokens {
		b.WriteByte('.')
		b.WriteString(t)
	}
	return b.String()
}

// Tokens splits a subject that follows pattern (where * stands for one token)
// and returns the tokens at the stars; ok is false when it does not follow.
func Tokens(pattern, subject string) (vars []string, ok bool) {
	for {
		p, prest, pmore := strings.Cut(pattern, ".")
		s, srest, smore := strings.Cut(subject, ".")
		switch {
		case p == "*":
			if !ValidToken(s) {
				return nil, false
			}
			vars = append(vars, s)
		case p != s:
			return nil, false
		}
		if !pmore || !smore {
			return vars, pmore == smore
		}
		pattern, subject = prest, srest
	}
}

// Patterns with one star for every variable token.
const (
	AnnouncePattern        = "fleet.announce.*.*"
	HeartbeatPattern       = "fleet.heartbeat.*.*"
	RouterHeartbeatPattern = "fleet.heartbeat.router.*"
	DispatchPattern        = "fleet.dispatch.*"
	TaskPattern            = "fleet.task.*"
	EventPattern           = "fleet.event.*"
	OutcomePattern         = "fleet.outcome.*.*"
	OfferPattern           = "fleet.offer.*.*"
	ControlPattern         = "fleet.control.*.*"
	ProgressPattern        = "fleet.progress.*.*"
	ResultPattern          = "fleet.result.*.*"
	EscalationPattern      = "fleet.escalation.*.*"
	HumanPattern           = "fleet.escalation.3.*" // those that are a human's
	AlertPattern           = "fleet.alert.*"
	MeshHeartbeatPattern   = "fleet.worker.mesh.*"
	MeshPattern            = "fleet.mesh.*.*"
	MeshStatePattern       = "fleet.meshstate.*.*"
	MeshAckPattern         = "fleet.meshack.*.*"
	InboxPattern           = "fleet.inbox.*.*"
	RunsHeartbeatPattern   = "fleet.worker.runs.*"
	RunPattern             = "fleet.run.*"
	RunEventPattern        = "fleet.runevent.*"
	RunResultPattern       = "fleet.runresult.*.*"
	A2AConfirmPattern      = "fleet.a2a.*.confirm.*.*"
)

// APIPattern is where noun.verb is asked for by anyone.
func APIPattern(noun, verb string) string { return join("fleet.api.*", noun, verb) }
