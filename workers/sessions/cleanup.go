package sessions

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
)

const (
	sweepEvery  = time.Hour
	expireEvery = time.Minute
	// young protects what was written for a session that this worker may not
	// have heard of yet.
	young = time.Minute
	idle  = 10 * time.Minute // after which a context is not kept in memory
)

// cleanUp drops what ended sessions held: when their end is told, or their time
// is over, and every hour what a worker that died, or was away, has left.
func (w *Worker) cleanUp(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	first := time.NewTimer(young)
	defer first.Stop()
	expire := time.NewTicker(expireEvery)
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.ends:
			w.drop(ctx, w.takeEnded())
		case <-expire.C:
			w.drop(ctx, w.expired(w.now()))
		case <-first.C:
			w.sweep(ctx)
		case <-tick.C:
			w.sweep(ctx)
		}
	}
}

// takeEnded takes the sessions whose end was told.
func (w *Worker) takeEnded() []subjects.SessionID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := w.ended
	w.ended = nil
	return ids
}

// expired are the sessions whose time is over as far as is known.
func (w *Worker) expired(now time.Time) (ids []subjects.SessionID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.known {
		if now.After(s.keptUntil().Add(expireEvery)) { // their record is gone by itself
			ids = append(ids, id)
		}
	}
	return ids
}

// drop removes contexts and outputs of sessions, as far as they are gone.
func (w *Worker) drop(ctx context.Context, ids []subjects.SessionID) {
	if len(ids) == 0 {
		return
	}
	if err := w.dropAll(ctx, ids); err != nil && ctx.Err() == nil {
		w.log.Warn("drop what sessions held; tried again within the hour", slog.Int("sessions", len(ids)), slog.Any("error", err))
	}
}

func (w *Worker) dropAll(ctx context.Context, ids []subjects.SessionID) error {
	outputs, err := w.outputsBySession(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		// Only the store knows: what this worker has heard may be behind.
		switch _, err := w.sessions.Get(ctx, string(id)); {
		case err == nil:
			continue
		case !errors.Is(err, bus.ErrNotFound):
			return err
		}
		w.mu.Lock()
		w.forgetLocked(id)
		w.mu.Unlock()
		for _, name := range outputs[id] {
			if err := w.outputs.Delete(ctx, name); err != nil {
				return err
			}
		}
		crash.Point("after_session_outputs")
		if err := w.bus.Purge(ctx, subjects.StreamContext, subjects.Context(id)); err != nil {
			return err
		}
		w.log.Debug("session is gone", slog.String("session_id", string(id)))
	}
	return nil
}

// outputsBySession are the names of the outputs there are.
func (w *Worker) outputsBySession(ctx context.Context) (map[subjects.SessionID][]string, error) {
	names, err := w.outputs.Names(ctx)
	if err != nil {
		return nil, err
	}
	outputs := make(map[subjects.SessionID][]string)
	for _, name := range names {
		id, _, _ := strings.Cut(name, "/")
		outputs[subjects.SessionID(id)] = append(outputs[subjects.SessionID(id)], name)
	}
	return outputs, nil
}

// sweep drops whatever belongs to no session.
func (w *Worker) sweep(ctx context.Context) {
	ids, err := w.strangers(ctx)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("look for what sessions that are gone held", slog.Any("error", err))
	}
	w.drop(ctx, ids)
	if err := w.outputs.DropStrays(ctx); err != nil && ctx.Err() == nil {
		w.log.Warn("drop parts of outputs that were never whole", slog.Any("error", err))
	}
	w.forgetIdle(time.Now())
}

// strangers are the sessions that hold something and are not known here, but
// for those that may be new.
func (w *Worker) strangers(ctx context.Context) ([]subjects.SessionID, error) {
	outputs, err := w.outputsBySession(ctx)
	if err != nil {
		return nil, err
	}
	contexts, err := w.bus.Subjects(ctx, subjects.StreamContext, subjects.ContextPattern)
	if err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Keys(outputs))
	for subject := range contexts {
		if vars, ok := subjects.Tokens(subjects.ContextPattern, subject); ok {
			ids = append(ids, subjects.SessionID(vars[0]))
		}
	}
	slices.Sort(ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Compact(ids), func(id subjects.SessionID) bool {
		_, known := w.known[id]
		created, ok := createdAt(id)
		return known || !ok || w.now().Sub(created) <= young
	}), nil
}

// createdAt reads the time in a session's id.
func createdAt(id subjects.SessionID) (time.Time, bool) {
	const prefix, layout = "a2a-", "20060102T150405Z"
	if _, err := subjects.ParseSessionID(string(id)); err != nil {
		return time.Time{}, false
	}
	at, err := time.Parse(layout, string(id[len(prefix):len(prefix)+len(layout)]))
	return at, err == nil
}

// forgetIdle drops contexts from memory that nobody has asked for lately.
func (w *Worker) forgetIdle(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.logs {
		if now.Sub(l.used) > idle {
			delete(w.logs, id)
		}
	}
}
