package sessions

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

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

// note tells the audit what no record tells. It is stored when note returns,
// unless the log of the process says otherwise.
func (w *Worker) note(ctx context.Context, id subjects.SessionID, who subjects.AgentID, event string, data any) {
	if _, err := subjects.ParseAgentID(string(who)); err != nil {
		return // nobody
	}
	if data == nil {
		data = struct{}{}
	}
	l := handshake.LogLine{Timestamp: time.Now().UTC(), SessionID: id, AgentID: who, EventType: event, Data: fleet.MustEncode(data)}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTry) // what was done is told, whoever asked has left
	defer cancel()
	if _, err := w.bus.Store(ctx, subjects.Log(id, who), fleet.MustEncode(&l), uuid.NewString(), nil); err != nil {
		w.log.Error("the audit was not told", slog.String("session_id", string(id)), slog.String("agent_id", string(who)), slog.String("event", event), slog.Any("error", err))
	}
}

// refuse tells the audit that somebody may not use a session, and returns what
// they hear.
func (w *Worker) refuse(ctx context.Context, id subjects.SessionID, who subjects.AgentID, err error) error {
	code := subjects.CodeOf(err)
	if code == subjects.CodeUnavailable || code == subjects.CodeInternal {
		return err
	}
	if !w.refusals.Allow() {
		w.unsaid.Add(1)
		return err
	}
	w.note(ctx, id, who, handshake.EventRefused, struct {
		Code   subjects.Code `json:"code"`
		Unsaid int64         `json:"unsaid,omitzero"` // further refusals, of anybody, that have no line
	}{code, w.unsaid.Swap(0)})
	return err
}
