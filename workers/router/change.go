package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// view is a task as its latest record tells it, with what a write needs.
type view struct {
	ev       *fleet.Event
	lastSeq  uint64 // stream sequence of ev
	firstSeq uint64 // of record 1
	dispatch json.RawMessage
	sure     bool // just read from the stream's leader
}

var errNoTask = subjects.Errorf(subjects.CodeNotFound, "there is no such task").
	WithRemedy("task.list (parley task ls) shows the tasks that live and those that ended lately")

// change replaces the latest record of a task: decide sees it and returns the
// next one, or nil for none. It is called again whenever another writer was
// faster, and before a refusal is believed: what this router knows may be behind
// what another one has stored. The record that is the latest in the end is
// returned.
func (w *Worker) change(ctx context.Context, id subjects.TaskID, decide func(*view) (*fleet.Event, error)) (*fleet.Event, error) {
	cur, err := w.latest(ctx, id)
	for sure := false; err == nil; {
		n, refusal := decide(cur)
		switch {
		case refusal != nil && !sure && !cur.sure && !errors.Is(refusal, errBehind):
			sure = true
		case refusal != nil || n == nil:
			return cur.ev, refusal
		default:
			failure := w.store(ctx, cur, n)
			if failure == nil {
				return n, nil
			}
			if !errors.Is(failure, bus.ErrConflict) {
				return cur.ev, unavailable(failure)
			}
		}
		cur, err = w.reread(ctx, id)
	}
	return nil, err
}

// latest is the latest record as this router knows it.
func (w *Worker) latest(ctx context.Context, id subjects.TaskID) (*view, error) {
	w.mu.Lock()
	if s := w.core.x.find(id); s != 0 {
		if h := w.core.hot[s]; h != nil {
			e := w.core.x.at(s)
			v := &view{ev: h.ev, lastSeq: e.lastSeq, firstSeq: e.firstSeq, dispatch: h.dispatch}
			w.mu.Unlock()
			return v, nil
		}
	}
	w.mu.Unlock()
	return w.reread(ctx, id)
}

// reread asks the stream's leader, and lets the core know.
func (w *Worker) reread(ctx context.Context, id subjects.TaskID) (*view, error) {
	w.mu.Lock()
	known := w.core.lastSeq(id) // before it is asked: another record may come meanwhile
	w.mu.Unlock()
	m, err := w.bus.Last(ctx, subjects.StreamTasks, subjects.Task(id))
	if errors.Is(err, bus.ErrNotFound) {
		if !w.missed(ctx, id) {
			return nil, unavailable(fmt.Errorf("the stream's leader has no record of task %s; %d was heard", id, known))
		}
		return nil, errNoTask
	}
	if err != nil {
		return nil, unavailable(err)
	}
	if m.Seq < known {
		return nil, unavailable(fmt.Errorf("record %d is the last that the stream's leader has of task %s; %d was heard", m.Seq, id, known))
	}
	ev, err := fleet.DecodeEvent(m.Data)
	if err != nil {
		return nil, fmt.Errorf("decode record %d of task %s: %w", m.Seq, id, err)
	}
	v := &view{ev: ev, lastSeq: m.Seq, firstSeq: ev.Facts.DispatchSeq, dispatch: ev.Data.Dispatch, sure: true}
	if ev.Seq == 1 {
		v.firstSeq = m.Seq
	}
	w.with(func(c *core, now time.Time) { c.apply(ev, m.Seq, now) })
	return v, nil
}

// missed forgets a task whose records are gone: somebody has purged them, or
// nobody routed until they had expired. That a leader has yet to learn of them
// proves nothing; then it reports false.
func (w *Worker) missed(ctx context.Context, id subjects.TaskID) bool {
	seq := uint64(0)
	w.mu.Lock()
	if s := w.core.x.find(id); s != 0 {
		seq = w.core.x.at(s).lastSeq
	}
	w.mu.Unlock()
	if seq == 0 {
		return true
	}
	if st, err := w.bus.StreamState(ctx, subjects.StreamTasks); err != nil || st.LastSeq < seq {
		return false
	}
	if _, err := w.bus.Last(ctx, subjects.StreamTasks, subjects.Task(id)); !errors.Is(err, bus.ErrNotFound) {
		return false
	}
	w.log.Warn("forget a task: its records are gone", slog.String("task_id", string(id)))
	w.with(func(c *core, now time.Time) { c.vanish(id, seq, now) })
	return true
}

// dispatchOf is the whole TASK_DISPATCH of a task.
func (w *Worker) dispatchOf(ctx context.Context, v *view) (json.RawMessage, error) {
	if len(v.dispatch) > 0 {
		return v.dispatch, nil
	}
	m, err := w.bus.Get(ctx, subjects.StreamTasks, v.firstSeq)
	if err != nil {
		return nil, unavailable(fmt.Errorf("read the dispatch of task %s: %w", v.ev.TaskID, err))
	}
	ev, err := fleet.DecodeEvent(m.Data)
	if err != nil || len(ev.Data.Dispatch) == 0 || ev.TaskID != v.ev.TaskID {
		return nil, fmt.Errorf("record %d is not the dispatch of task %s: %w", v.firstSeq, v.ev.TaskID, err)
	}
	v.dispatch = ev.Data.Dispatch
	return v.dispatch, nil
}

// maxHeaders is more than the headers of a record ever take.
const maxHeaders = 1024

// store writes n as the record after cur, and lets the core know. Nothing is
// said to anybody before it returns nil.
func (w *Worker) store(ctx context.Context, cur *view, n *fleet.Event) error {
	if cur.ev != nil {
		n.Facts.DispatchSeq = cur.firstSeq
	}
	n.WriteID = w.writePrefix + strconv.FormatUint(w.writeID.Add(1), 36)
	data := fleet.MustEncode(n)
	if limit := w.bus.MaxPayload() - maxHeaders; int64(len(data)) > limit {
		return subjects.Errorf(subjects.CodePayloadTooLarge, "the record of the task would be %d bytes, this server takes %d", len(data), limit).
			WithRemedy("send less, or refer to it; an operator can raise the server's max_payload")
	}
	w.mu.Lock()
	w.writing[n.WriteID] = 0
	w.mu.Unlock()
	crash.Point("before_store_" + n.Kind)
	seq, err := w.records.Write(ctx, bus.Record{
		Subject: subjects.Task(n.TaskID), Expected: cur.lastSeq, WriteID: n.WriteID,
		Data: data, TTL: ttl(n),
		Header: recordHeader(cur.ev, n),
	})
	if err == nil {
		crash.Point("after_store_" + n.Kind)
	}
	w.with(func(c *core, now time.Time) {
		if read := w.writing[n.WriteID]; err != nil && read != 0 {
			seq, err = read, nil // the tail knows better
		}
		delete(w.writing, n.WriteID)
		if err == nil {
			c.apply(n, seq, now)
		}
	})
	if err != nil {
		return err
	}
	w.figures.count(n)
	w.logRecord(ctx, n)
	cur.lastSeq = seq
	if n.Kind == fleet.KindWorking && plant.Sometimes("two_leases", 50) {
		return w.store(ctx, &view{ev: n, lastSeq: seq, firstSeq: cur.firstSeq}, working(n, holderOf(n), w.now()))
	}
	if n.Seq == 1 {
		cur.firstSeq = seq
	}
	if n.State.Terminal() {
		w.announceOutcome(n)
	}
	return nil
}

// recordHeader is what readers learn of a record without its body.
func recordHeader(cur, n *fleet.Event) bus.Header {
	h := bus.Header{subjects.HeaderKind: {n.Kind}}
	if level := escalated(cur, n); level != "" {
		h[subjects.HeaderLevel] = []string{level}
	}
	if id := n.Facts.SessionID; id != "" {
		h[subjects.HeaderSession] = []string{string(id)}
	}
	return h
}

// announceOutcome lets whoever listens hear the outcome; the kept one is the
// record.
func (w *Worker) announceOutcome(n *fleet.Event) {
	h := bus.Header{subjects.HeaderKind: {string(n.State)}, subjects.HeaderTraceparent: {n.Trace().In(fleet.SpanTask, 0)}}
	if err := w.bus.Publish(subjects.Outcome(n.Facts.From, n.TaskID), n.Data.Result, h); err != nil {
		w.log.Debug("publish outcome", slog.String("task_id", string(n.TaskID)), slog.Any("error", err))
	}
}

// logRecord logs a record that was stored: the story of a task is its lines.
func (w *Worker) logRecord(ctx context.Context, n *fleet.Event) {
	if !w.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{
		slog.String("task_id", string(n.TaskID)), slog.String("kind", n.Kind), slog.String("state", string(n.State)), slog.Uint64("seq", n.Seq),
		slog.Int("attempt", n.Attempt), slog.String("trace_id", n.Trace().TraceID()),
	}
	for key, id := range map[string]string{
		"agent_id": string(n.AgentID), "session_id": string(n.Facts.SessionID), "run_id": string(n.Facts.RunID),
	} {
		if id != "" {
			attrs = append(attrs, slog.String(key, id))
		}
	}
	if n.Reason != nil {
		attrs = append(attrs, slog.String("code", string(n.Reason.Code)))
	}
	w.log.LogAttrs(ctx, slog.LevelDebug, "record stored", attrs...)
}

// moreRoom is what to do about a store of tasks that is full.
const moreRoom = "repeat later; an operator can give all workers a larger --max-store (PARLEY_MAX_STORE) where the disk has room"

// unavailable turns a failure of the bus into what the caller is told: repeat.
func unavailable(err error) error {
	if _, ok := errors.AsType[*subjects.Error](err); ok {
		return err
	}
	e := subjects.Errorf(subjects.CodeUnavailable, "the task records cannot be reached just now: %w", err).
		WithRemedy("repeat the call; what was acknowledged is safe").RetryAfter(time.Second)
	if errors.Is(err, errBehind) {
		e.Message = "the task's record does not say that this agent has it, or not yet"
		e.Remedy = "repeat the call in case it was accepted a moment ago; task get says who has it"
	}
	if errors.Is(err, bus.ErrFull) {
		e.Message = "the task store is full"
		e.Remedy = moreRoom
		e.RetryAfterSeconds = 10
	}
	return e
}

// terms are the settings that e is judged by.
func (w *Worker) terms(e *fleet.Event) settings {
	set := w.set
	set.ceilings = w.ledger.ceilings(&e.Facts)
	return set
}

// fail is the record that follows a failed attempt, by the policy. A limit is
// stored before: while the task waits again, nobody of the account is offered it.
func (w *Worker) fail(ctx context.Context, cur *view, f failure) (*fleet.Event, error) {
	now := w.now()
	h := holderOf(cur.ev)
	if f.refused != nil {
		h = *f.refused
	}
	switch escalation.ClassOf(f.code) {
	case escalation.ClassCapacity:
		if err := w.storeLimit(ctx, h, f); err != nil {
			return nil, unavailable(fmt.Errorf("store the limit of the agent's account: %w", err))
		}
	case escalation.ClassLoss:
		w.restCrashing(ctx, h, now)
	default:
	}
	n, _ := failed(cur.ev, f, w.terms(cur.ev), now)
	return n, nil
}
