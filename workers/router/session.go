package router

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"parley/subjects"
)

// Sessions gives what the agents of a session know of each other's work.
type Sessions interface {
	// Context is what goes with the offer of a task that from has dispatched with
	// the session; an error when from may not use it, or it is gone. It has the
	// results of all tasks that ended before the record with the sequence after,
	// if they come in soon; 0: those that are there.
	Context(ctx context.Context, id subjects.SessionID, from subjects.AgentID, after uint64) (SessionContext, error)
}

// SessionContext is a session's context, bounded in size, and a token of the
// session.
type SessionContext struct {
	Context json.RawMessage
	Token   string
}

// sessionTimeout is how long an offer waits for its context.
const sessionTimeout = 2 * time.Second

// sessionContext asks for the context of a task's session. Without an answer
// the offer goes out without it: a task never waits for its session. What is
// part of a run builds on what ended before it, so that is waited for a moment.
func (w *Worker) sessionContext(ctx context.Context, cur *view) SessionContext {
	ev := cur.ev
	id, after := ev.Facts.SessionID, uint64(0)
	if ev.Facts.RunID != "" {
		after = cur.lastSeq
	}
	if id == "" || w.cfg.Sessions == nil {
		return SessionContext{}
	}
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	s, err := w.cfg.Sessions.Context(ctx, id, ev.Facts.From, after)
	if err != nil {
		w.log.Warn("offer a task without its session's context", slog.String("task_id", string(ev.TaskID)), slog.String("session_id", string(id)), slog.Any("error", err))
		return SessionContext{}
	}
	return s
}
