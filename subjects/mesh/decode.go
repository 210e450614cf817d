package mesh

import (
	"embed"
	"encoding/base32"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string { return []string{"mesh-message", "mesh-ack"} }

// Schema returns the JSON Schema (2020-12) of a message; what fleet.Schema
// says of leniency holds here too.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}

// Bounds of members.
const (
	maxName   = 256 // bytes of a sender's name
	maxHops   = 1 << 20
	maxWait   = 60 // seconds
	maxList   = 1000
	maxTokens = 1<<53 - 1
	// MaxReceivers is how many answers one mesh wait can be for.
	MaxReceivers = 256
)

// DecodeMessage reads a MESH_MESSAGE. An absent action is Info, an absent
// reply Yes afterwards.
func DecodeMessage(data []byte) (*Message, error) {
	return fleet.DecodeMessage[Message](data, TypeMessage)
}

// DecodeAck reads a MESH_ACK.
func DecodeAck(data []byte) (*Ack, error) { return fleet.DecodeMessage[Ack](data, TypeAck) }

// Check adds every problem of m and settles its defaults.
func (m *Message) Check(p *fleet.Problems) {
	token(p, "/message_id", string(m.MessageID), false)
	token(p, "/ref", string(m.Ref), false)
	token(p, "/thread_id", string(m.ThreadID), false)
	token(p, "/task_id", string(m.TaskID), false)
	token(p, "/run_id", string(m.RunID), false)
	agent(p, "/from", m.From, false)
	agent(p, "/agent", m.Agent, false)
	agent(p, "/to", m.To, false)
	if m.To != "" && m.Agent != "" && m.To != m.Agent {
		p.Invalid("/agent", "expected what to says, %q, got %q", m.To, m.Agent)
	}
	if len(m.SenderName) > maxName {
		p.Invalid("/sender_name", "expected at most %d bytes, got %d", maxName, len(m.SenderName))
	}
	if m.Action == "" {
		m.Action = Info
	}
	p.OneOf("/action", string(m.Action), string(Do), string(Info))
	if m.Reply == "" {
		m.Reply = Yes
	}
	p.Traceparent("/traceparent", m.Traceparent)
	p.Between("/hops", float64(m.Hops), 0, maxHops)
	p.Between("/attempt", float64(m.Attempt), 0, maxTokens)
	p.Between("/ttl_seconds", m.TTLSeconds, 0, MaxTTL.Seconds())
	p.Between("/reply_timeout_seconds", m.ReplyTimeoutSeconds, 0, MaxTTL.Seconds())
	p.Between("/token_budget", float64(m.TokenBudget), 0, maxTokens)
	p.Between("/tokens_spent", float64(m.TokensSpent), 0, maxTokens)
	if string(m.Data) == "null" {
		m.Data = nil
	}
	if m.Error != nil && m.Error.Code == "" {
		p.Invalid("/error/code", "expected a code, got nothing")
	}
	if strings.TrimSpace(m.Body()) == "" && len(m.Data) == 0 && m.Error == nil {
		p.Add(subjects.Errorf(subjects.CodeInvalidMessage, "expected text or data, got nothing").
			At("/text").WithRemedy("say something in text, or send data"))
	}
}

// Check adds every problem of a.
func (a *Ack) Check(p *fleet.Problems) {
	token(p, "/message_id", string(a.MessageID), true)
	agent(p, "/from", a.From, true)
	agent(p, "/to", a.To, false)
	token(p, "/thread_id", string(a.ThreadID), false)
	token(p, "/instance_id", string(a.InstanceID), false)
	token(p, "/reply_id", string(a.ReplyID), false)
	p.Between("/attempt", float64(a.Attempt), 0, maxTokens)
	p.Between("/tokens_spent", float64(a.TokensSpent), 0, maxTokens)
	if a.State == "" {
		p.Invalid("/state", "expected the state of a message, got nothing")
	}
	p.OneOf("/state", string(a.State), string(Accepted), string(Delivering), string(Delivered), string(Processed),
		string(Answered), string(Unanswered), string(Failed), string(Expired), string(Refused))
}

// Check adds every problem of r.
func (r *Ref) Check(p *fleet.Problems) {
	token(p, "/message_id", string(r.MessageID), true)
	agent(p, "/from", r.From, false)
}

// Check adds every problem of i.
func (i *Inbox) Check(p *fleet.Problems) {
	p.Between("/wait_seconds", i.WaitSeconds, 0, maxWait)
	p.Between("/limit", float64(i.Limit), 0, maxList)
}

// Check adds every problem of t.
func (t *Thread) Check(p *fleet.Problems) {
	token(p, "/thread_id", string(t.ThreadID), true)
	p.Between("/limit", float64(t.Limit), 0, maxList)
}

// Check adds every problem of w.
func (w *Wait) Check(p *fleet.Problems) {
	p.Between("/message_ids", float64(len(w.MessageIDs)), 1, MaxReceivers)
	for _, id := range w.MessageIDs {
		token(p, "/message_ids", string(id), true)
	}
	p.Between("/need", float64(w.Need), 0, MaxReceivers)
	p.Between("/timeout_seconds", w.TimeoutSeconds, 0, maxWait)
}

// Check adds every problem of d.
func (d *Done) Check(p *fleet.Problems) {
	agent(p, "/from", d.From, true)
	token(p, "/message_id", string(d.MessageID), true)
	token(p, "/instance_id", string(d.InstanceID), true)
	token(p, "/reply_id", string(d.ReplyID), false)
	p.Between("/attempt", float64(d.Attempt), 1, maxTokens)
	p.Between("/tokens_spent", float64(d.TokensSpent), 0, maxTokens)
}

func token(p *fleet.Problems, pointer, s string, required bool) {
	if s == "" && !required || subjects.ValidToken(s) {
		return
	}
	p.Add(subjects.Errorf(subjects.CodeInvalidID, "%q is not an identifier", clip(s)).At(pointer).
		WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -"))
}

func agent(p *fleet.Problems, pointer string, id subjects.AgentID, required bool) {
	if id != "" || required {
		_, err := subjects.ParseAgentID(string(id))
		p.ID(pointer, err)
	}
}

func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// EncodeID makes an identifier of bytes that nobody else has: random ones, or
// a hash.
func EncodeID(b []byte) MessageID { return MessageID(idEncoding.EncodeToString(b)) }
