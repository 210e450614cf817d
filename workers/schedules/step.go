package schedules

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/mesh"
	"parley/subjects/run"
	"parley/subjects/schedule"
)

// carryOn does what follows from a schedule's record, and from the time, until
// there is nothing more to do now.
func (w *Worker) carryOn(ctx context.Context, k key, l *live) {
	for ctx.Err() == nil {
		w.mu.Lock()
		rec, rev := l.rec, l.rev
		w.mu.Unlock()
		if rec == nil {
			w.bury(ctx, k, l)
			return
		}
		wrote, err := w.step(ctx, k, rec, rev)
		look := time.Time{}
		switch {
		case wrote && err == nil:
			continue
		case errors.Is(err, bus.ErrConflict): // another worker, or the API: its record is on its way
			look = w.now().Add(againAfter)
		case err != nil && ctx.Err() == nil:
			w.log.Warn("schedule is looked at again", slog.String("schedule", k), slog.Any("error", err))
			look = w.now().Add(againAfter)
		case len(rec.Waiting) > 0 && rec.Last != nil && rec.Last.Begun != nil:
			// What waits is asked about the more seldom the longer it takes.
			now := w.now()
			look = now.Add(min(max(now.Sub(*rec.Last.Begun)/10, againAfter), pollMost))
		}
		w.mu.Lock()
		l.look = look
		w.mu.Unlock()
		if err == nil {
			w.arm(ctx, k, l, rec)
			w.keepSession(ctx, k, l, rec)
		}
		return
	}
}

// step does one thing that follows from a record and stores what it has done.
func (w *Worker) step(ctx context.Context, k key, rec *schedule.Record, rev uint64) (wrote bool, err error) {
	if rec.Last != nil && rec.Last.Begun == nil && rec.Last.Reason == nil {
		next, berr := w.begin(ctx, rec)
		if berr != nil {
			return false, berr
		}
		return true, w.write(ctx, k, next, rev, toldOf(rec, next))
	}
	c, err := rec.Definition.Clock(rec.Created)
	if err != nil {
		return false, err
	}
	now := w.now()
	underWay := false
	if advance(rec, c, now, false) != nil { // only then it matters
		if underWay, err = w.underWay(ctx, rec); err != nil {
			return false, err
		}
	}
	next := advance(rec, c, now, underWay)
	if next == nil {
		return false, nil
	}
	return true, w.write(ctx, k, next, rev, toldOf(rec, next))
}

// write stores a record after rev, with what the audit is told of it.
func (w *Worker) write(ctx context.Context, k key, r *schedule.Record, rev uint64, told []byte) error {
	ttl := time.Duration(0)
	if r.State == schedule.Ended && len(r.Waiting) == 0 {
		ttl = keepEnded
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callTry)
	defer cancel()
	crash.Point("before_store_schedule")
	next, err := w.kv.Telling(told).UpdateFor(ctx, k, fleet.MustEncode(r), rev, ttl)
	if err == nil {
		crash.Point("after_store_schedule")
		w.heard(k, r, next)
	}
	return err
}

// arm has JetStream tell when a schedule is due next, unless it does already.
func (w *Worker) arm(ctx context.Context, k key, l *live, rec *schedule.Record) {
	w.mu.Lock()
	armed := l.armed
	w.mu.Unlock()
	name := string(rec.Definition.Name)
	var err error
	switch {
	case rec.Next == nil && armed.IsZero(), rec.Next != nil && armed.Equal(*rec.Next):
		return
	case rec.Next == nil:
		err = w.cfg.Bus.Purge(ctx, subjects.StreamTimers, subjects.Timer(rec.From, name))
		armed = time.Time{}
	default:
		armed = *rec.Next
		err = w.cfg.Bus.At(ctx, subjects.Timer(rec.From, name), subjects.Tick(rec.From, name), armed,
			fleet.MustEncode(map[string]any{"generation": rec.Generation, "time": armed}))
	}
	crash.Point("after_timer")
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		l.armed = armed
		return
	}
	l.look = w.now().Add(againAfter)
	if ctx.Err() == nil {
		w.log.Warn("timer is not set", slog.String("schedule", k), slog.Any("error", err))
	}
}

// keepSession renews the session that a schedule wakes an agent in, so that it
// is there next time.
func (w *Worker) keepSession(ctx context.Context, k key, l *live, rec *schedule.Record) {
	if rec.State != schedule.Active || len(rec.Definition.Dispatch) == 0 {
		w.mu.Lock()
		l.renew = time.Time{}
		w.mu.Unlock()
		return
	}
	session := sessionOf(&rec.Definition)
	if session == "" {
		return
	}
	now := w.now()
	w.mu.Lock()
	due := !now.Before(l.renew)
	w.mu.Unlock()
	if !due {
		return
	}
	again := renewEvery
	_, err := call[handshake.Opened](ctx, w, rec.From, "session", "update", handshake.Update{SessionID: session})
	switch code := subjects.CodeOf(err); {
	case code == subjects.CodeUnavailable:
		again = time.Minute
	case err != nil: // a session of somebody else, or one that is gone: mayWake says so when it is due
		w.log.Info("session is not renewed", slog.String("schedule", k), slog.String("session_id", string(session)), slog.Any("error", err))
	}
	w.mu.Lock()
	l.renew = now.Add(again)
	w.mu.Unlock()
}

// sessionOf is the session that a schedule wakes an agent in; "" is none.
func sessionOf(d *schedule.Definition) subjects.SessionID {
	if len(d.Dispatch) == 0 {
		return ""
	}
	task, err := fleet.DecodeDispatch(d.Dispatch)
	if err != nil {
		return ""
	}
	return task.Task.SessionID
}

// mayWake refuses what wakes an agent in a session that is gone, or not from's:
// it would wake without its context. While nobody knows, tasks do not wait for
// their sessions, and those of schedules neither.
func (w *Worker) mayWake(ctx context.Context, from subjects.AgentID, d *schedule.Definition) error {
	session := sessionOf(d)
	if session == "" {
		return nil
	}
	_, err := call[handshake.View](ctx, w, from, "session", "get", handshake.Ref{SessionID: session})
	if subjects.CodeOf(err) != subjects.CodeNotFound {
		return nil
	}
	return subjects.AsError(err).At("/dispatch/task/session_id")
}

// bury removes the timer of a schedule that is gone.
func (w *Worker) bury(ctx context.Context, k key, l *live) {
	vars, ok := subjects.Tokens("*.*", k)
	if !ok {
		return
	}
	from := subjects.AgentID(vars[0])
	// A timer may be heard of before the record that it belongs to.
	_, err := w.kv.Get(ctx, k)
	switch {
	case err == nil:
		return // it is on its way
	case errors.Is(err, bus.ErrNotFound):
		err = errors.Join(
			w.cfg.Bus.Purge(ctx, subjects.StreamTimers, subjects.Timer(from, vars[1])),
			w.cfg.Bus.Purge(ctx, subjects.StreamTimers, subjects.Tick(from, vars[1])),
		)
		crash.Point("after_timer_drop")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		l.look = w.now().Add(againAfter)
	case l.rec == nil && w.index[k] == l:
		delete(w.index, k)
	}
}

// begin has the fleet do what is to be done, after what was begun before is
// canceled if it is to be. An error says that it is to be tried again.
func (w *Worker) begin(ctx context.Context, rec *schedule.Record) (*schedule.Record, error) {
	if rec.Cancel != "" {
		if err := w.cancel(ctx, rec, rec.Cancel); err != nil {
			return nil, err
		}
	}
	next := *rec
	next.Cancel = ""
	last := *rec.Last
	err := w.order(ctx, rec, last.ID)
	crash.Point("after_begin_schedule")
	switch code := subjects.CodeOf(err); {
	case err == nil, code == subjects.CodeIdempotencyConflict: // it is there
		last.Begun = new(w.now())
		next.Begun++
	case again(code):
		return nil, err
	default:
		e := subjects.AsError(err)
		last.Reason = &fleet.Reason{Code: e.Code, Message: e.Error()}
		next.Refused++
	}
	next.Last = &last
	attrs := []any{
		slog.String("schedule", string(rec.Definition.Name)), slog.String("agent_id", string(rec.From)), slog.String(idKey(&rec.Definition), last.ID),
		slog.Time("time", last.Time), slog.Duration("late", w.now().Sub(last.Time)),
	}
	if last.Reason != nil {
		w.log.Warn("schedule is refused", append(attrs, slog.Any("error", err))...)
	} else {
		w.log.Info("schedule has begun something", attrs...)
	}
	return &next, nil
}

// idKey names the id of what a schedule begins, in logs.
func idKey(d *schedule.Definition) string {
	switch {
	case len(d.Dispatch) > 0:
		return "task_id"
	case len(d.Run) > 0:
		return "run_id"
	}
	return "message_id"
}

// order dispatches the task, starts the run or sends the message, under an id.
func (w *Worker) order(ctx context.Context, rec *schedule.Record, id string) error {
	d := &rec.Definition
	switch {
	case len(d.Dispatch) > 0:
		task, err := fleet.DecodeDispatch(d.Dispatch)
		if err != nil {
			return err
		}
		if err = w.mayWake(ctx, rec.From, d); err != nil {
			return err
		}
		if plant.Sometimes("tick_twice", 5) {
			task.Task.TaskID = subjects.TaskID(id + "x")
			_, _ = call[fleet.Dispatched](ctx, w, rec.From, "task", "dispatch", task)
		}
		task.Task.TaskID = subjects.TaskID(id)
		_, err = call[fleet.Dispatched](ctx, w, rec.From, "task", "dispatch", task)
		return err
	case len(d.Run) > 0:
		def, err := run.Decode(d.Run)
		if err != nil {
			return err
		}
		def.TaskID = subjects.RunID(id)
		_, err = call[run.Started](ctx, w, rec.From, "run", "start", def)
		return err
	}
	m, err := mesh.DecodeMessage(d.Message)
	if err != nil {
		return err
	}
	m.MessageID = mesh.MessageID(id)
	_, err = call[mesh.Sent](ctx, w, rec.From, "mesh", "send", m)
	return err
}

// underWay reports whether what was begun last goes on.
func (w *Worker) underWay(ctx context.Context, rec *schedule.Record) (bool, error) {
	if rec.Last == nil || rec.Last.Reason != nil {
		return false, nil
	}
	d, id := &rec.Definition, rec.Last.ID
	var ended bool
	var err error
	switch {
	case len(d.Dispatch) > 0:
		var v fleet.TaskView
		v, err = call[fleet.TaskView](ctx, w, rec.From, "task", "get", fleet.TaskRef{TaskID: subjects.TaskID(id)})
		ended = v.State.Terminal()
	case len(d.Run) > 0:
		var v run.Record
		v, err = call[run.Record](ctx, w, rec.From, "run", "get", run.Ref{RunID: subjects.RunID(id)})
		ended = v.State.Ended()
	default:
		var v mesh.View
		v, err = call[mesh.View](ctx, w, rec.From, "mesh", "get", mesh.Ref{MessageID: mesh.MessageID(id)})
		ended = v.Ack.State.Ended(v.Message.Reply != mesh.No)
	}
	if code := subjects.CodeOf(err); err != nil && again(code) {
		return false, err
	}
	return err == nil && !ended, nil // what nobody knows any more has ended
}

// cancel ends what was begun before.
func (w *Worker) cancel(ctx context.Context, rec *schedule.Record, id string) error {
	const why = "the schedule's next time has come"
	var err error
	if len(rec.Definition.Run) > 0 {
		_, err = call[json.RawMessage](ctx, w, rec.From, "run", "cancel", run.Ref{RunID: subjects.RunID(id), Reason: why})
	} else {
		_, err = call[json.RawMessage](ctx, w, rec.From, "task", "cancel", fleet.TaskCancel{TaskID: subjects.TaskID(id), Reason: why})
	}
	if err != nil && again(subjects.CodeOf(err)) {
		return err
	}
	return nil // it has ended
}

// again reports whether a refusal may be another one later.
func again(code subjects.Code) bool {
	return code == subjects.CodeUnavailable || code == subjects.CodeInternal || code == subjects.CodeRateLimited
}

// call asks the fleet's API in the name of whoever created a schedule.
func call[T any](ctx context.Context, w *Worker, from subjects.AgentID, noun, verb string, req any) (T, error) {
	var zero T
	data, err := fleet.Encode(req)
	if err != nil {
		return zero, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTry)
	defer cancel()
	m, err := w.cfg.Bus.Request(ctx, subjects.API(from, noun, verb), data, nil)
	if err != nil {
		return zero, subjects.Errorf(subjects.CodeUnavailable, "%s %s: %w", noun, verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}
