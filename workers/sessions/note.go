package sessions

import (
	"context"

	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
)

// note tells the audit what no record tells.
func (w *Worker) note(ctx context.Context, id subjects.SessionID, who subjects.AgentID, event string, data any) {
	w.notes.Tell(ctx, id, who, event, data)
}

// refuse tells the audit that somebody may not use a session, and returns what
// they hear.
func (w *Worker) refuse(ctx context.Context, id subjects.SessionID, who subjects.AgentID, err error) error {
	code := subjects.CodeOf(err)
	if code != subjects.CodeUnavailable && code != subjects.CodeInternal {
		w.notes.Refuse(ctx, id, who, handshake.EventRefused, workers.Refusal{Code: code})
	}
	return err
}
