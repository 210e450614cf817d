package workers

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// Refusals are told at that pace: who is refused over and over must not fill
// the audit.
const (
	refusalsPerSecond = 20
	refusalsAtOnce    = 100
	noteTry           = 5 * time.Second
)

// Storer keeps a message in a stream; a *bus.Bus is one.
type Storer interface {
	Store(ctx context.Context, subject string, data []byte, id string, h bus.Header) (seq uint64, err error)
}

// Notes tell the audit what no record tells.
type Notes struct {
	// Fixed after NewNotes.
	bus Storer
	log *slog.Logger

	refusals *rate.Limiter // of lines about refusals
	unsaid   atomic.Int64  // refusals without a line
}

// NewNotes makes notes that are stored by b.
func NewNotes(b Storer, log *slog.Logger) *Notes {
	return &Notes{bus: b, log: log, refusals: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce)}
}

// Tell says what who did, in a session if id is not empty; data is an object.
// It is stored when Tell returns, unless the log of the process says otherwise.
func (n *Notes) Tell(ctx context.Context, id subjects.SessionID, who subjects.AgentID, event string, data any) {
	if _, err := subjects.ParseAgentID(string(who)); err != nil {
		return // nobody
	}
	if data == nil {
		data = struct{}{}
	}
	l := handshake.LogLine{Timestamp: time.Now().UTC(), SessionID: id, AgentID: who, EventType: event, Data: fleet.MustEncode(data)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTry) // what was done is told, whoever asked has left
	defer cancel()
	if _, err := n.bus.Store(ctx, subjects.Log(id, who), fleet.MustEncode(&l), uuid.NewString(), nil); err != nil {
		n.log.Error("the audit was not told", slog.String("session_id", string(id)), slog.String("agent_id", string(who)), slog.String("event", event), slog.Any("error", err))
	}
}

// Line says what who did, as a line of bus.Record.Told; data is an object. Who
// has no name of the fleet is "unknown".
func Line(id subjects.SessionID, who subjects.AgentID, event string, data any) []byte {
	if _, err := subjects.ParseAgentID(string(who)); err != nil {
		who = "unknown"
	}
	l := handshake.LogLine{Timestamp: time.Now().UTC(), SessionID: id, AgentID: who, EventType: event, Data: fleet.MustEncode(data)}
	return append(fleet.MustEncode(&l), '\n')
}

// maxSaid is how much of what somebody says a line has, in bytes.
const maxSaid = 200

// Clip is as much of s as a line of the audit has.
func Clip(s string) string {
	if len(s) <= maxSaid {
		return s
	}
	return strings.ToValidUTF8(s[:maxSaid], "") + "…"
}

// Refusal is the data of a line that tells of a refusal.
type Refusal struct {
	Code      subjects.Code    `json:"code"`
	Action    string           `json:"action,omitempty"` // what was tried
	Message   string           `json:"message,omitempty"`
	Subject   string           `json:"subject,omitempty"`
	Address   string           `json:"address,omitempty"`   // from where
	Transport string           `json:"transport,omitempty"` // of an A2E session
	Claimed   subjects.AgentID `json:"claimed,omitempty"`   // a name that was not proven
	Unsaid    int64            `json:"unsaid,omitzero"`     // further refusals, of anybody, that have no line
}

// Refuse says that who was refused; false when there are too many of these.
func (n *Notes) Refuse(ctx context.Context, id subjects.SessionID, who subjects.AgentID, event string, r Refusal) bool {
	if !n.refusals.Allow() {
		n.Unsaid()
		return false
	}
	r.Unsaid = n.unsaid.Swap(0)
	n.Tell(ctx, id, who, event, r)
	return true
}

// Unsaid counts a refusal that has no line.
func (n *Notes) Unsaid() { n.unsaid.Add(1) }
