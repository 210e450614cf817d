package webhooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// figures count exchanges.
type figures struct {
	since                       atomic.Int64 // ns
	attempts, succeeded, failed atomic.Uint64
}

func (f *figures) start(now time.Time) { f.since.Store(now.UnixNano()) }

// Figures are what this worker has counted since it began; any goroutine may
// call it.
func (w *Worker) Figures() fleet.WebhookFigures {
	f := fleet.WebhookFigures{
		Attempts: w.figures.attempts.Load(), Succeeded: w.figures.succeeded.Load(), Failed: w.figures.failed.Load(),
	}
	if ns := w.figures.since.Load(); ns != 0 {
		f.Since = time.Unix(0, ns).UTC()
	}
	return f
}

// errGone is returned when a delivery that is to be sent is no longer stored.
var errGone = errors.New("the delivery is gone from the outbox")

// attempt claims a delivery, sends it, and stores how that ended.
func (w *Worker) attempt(ctx context.Context, e *entry) error {
	state, seq, err := w.snapshot(e)
	if err != nil {
		return err
	}
	d, err := w.load(ctx, &state)
	if err != nil {
		if errors.Is(err, errGone) {
			return w.kill(ctx, e, state, seq, subjects.CodeNotFound, err.Error())
		}
		return err
	}
	ep := w.lookup(d.Endpoint)
	if ep == nil {
		return fmt.Errorf("endpoint %s is not configured here", d.Endpoint)
	}
	lease := ep.Timeout + leaseMargin
	state.Attempts++
	state.Sending = &fleet.Sending{By: w.id, LeaseSeconds: lease.Seconds()}
	state.NextAt, state.Updated = nil, w.now()
	crash.Point("before_webhook_claim")
	seq, began, err := w.writeFirst(ctx, &state, seq, ended(&state))
	if err != nil {
		return err
	}
	crash.Point("after_webhook_claim")
	if d.Traceparent != "" { // the receiver's work is part of this attempt
		d.Traceparent = state.Trace().In(fleet.SpanPost, state.Post())
	}
	left := time.Until(began.Add(lease)) - leaseMargin/2
	if left <= 0 {
		return errors.New("the claim was stored too late to be used")
	}
	tctx, cancel := context.WithTimeout(ctx, min(ep.Timeout, left))
	w.figures.attempts.Add(1)
	o := w.post(tctx, ep, d)
	cancel()
	if ctx.Err() != nil && !o.ok() {
		return context.Cause(ctx) // stopping is no failure: the claim runs out
	}
	crash.Point("after_webhook_send")
	ep.schedule(d.Schedule).next(&state, o, w.now(), Jitter)
	w.tell(&state, o)
	if err := w.end(ctx, e, &state, seq, ended(&state)); err != nil {
		return err
	}
	crash.Point("after_webhook_outcome")
	if state.State == fleet.DeliveryDelivered {
		return w.purge(ctx, e)
	}
	return nil
}

// tell counts and logs how an attempt ended.
func (w *Worker) tell(s *fleet.DeliveryState, o outcome) {
	attrs := []any{
		slog.String("delivery_id", string(s.DeliveryID)), slog.String("endpoint", s.Endpoint), slog.String("task_id", string(s.TaskID)),
		slog.Int("attempt", s.Attempts), slog.Int("status", o.status), slog.Duration("took", o.took),
	}
	if s.Traceparent != "" {
		attrs = append(attrs, slog.String("trace_id", s.Trace().TraceID()))
	}
	if o.ok() {
		w.figures.succeeded.Add(1)
		w.log.Debug("webhook delivered", attrs...)
		return
	}
	w.figures.failed.Add(1)
	attrs = append(attrs, slog.String("code", string(o.err.Code)), slog.String("reason", o.err.Message))
	if s.State == fleet.DeliveryDead {
		w.log.Error("webhook is a dead letter", attrs...)
		return
	}
	w.log.Warn("webhook failed, tried again", attrs...)
}

// expire ends a delivery whose time is over.
func (w *Worker) expire(ctx context.Context, e *entry) error {
	return w.over(ctx, e, func(s *fleet.DeliveryState) string {
		return fmt.Sprintf("not delivered by %s, after %d attempts", s.NotAfter.Format(time.RFC3339), s.Attempts)
	})
}

// over ends a delivery that nothing more is tried for.
func (w *Worker) over(ctx context.Context, e *entry, why func(*fleet.DeliveryState) string) error {
	state, seq, err := w.snapshot(e)
	if err != nil {
		return err
	}
	says := why(&state)
	if state.Error != nil {
		says += ": " + state.Error.Message
	}
	w.log.Error("webhook is a dead letter", slog.String("delivery_id", string(e.id)), slog.String("endpoint", state.Endpoint),
		slog.String("task_id", string(state.TaskID)), slog.Int("attempt", state.Attempts))
	return w.kill(ctx, e, state, seq, subjects.CodeDeadlineExceeded, says)
}

// kill ends a delivery without an attempt.
func (w *Worker) kill(ctx context.Context, e *entry, state fleet.DeliveryState, seq uint64, code subjects.Code, says string) error {
	state.State, state.Sending, state.NextAt, state.HoldUntil = fleet.DeliveryDead, nil, nil, nil
	state.Updated, state.Error = w.now(), &fleet.Reason{Code: code, Message: says}
	err := w.end(ctx, e, &state, seq, ended(&state))
	if errors.Is(err, bus.ErrConflict) && errors.Is(w.refresh(ctx, e.id), bus.ErrNotFound) {
		// Another worker has removed it, and what was said of it, before that was
		// heard of here.
		w.mu.Lock()
		defer w.mu.Unlock()
		w.index.forget(e)
		return nil
	}
	return err
}

// end stores what became of a delivery. Where the outbox is full, one that ended
// makes room for the word of it, or nothing there would ever end; only what died
// and a human must hear of is kept, to be sent again.
func (w *Worker) end(ctx context.Context, e *entry, state *fleet.DeliveryState, seq uint64, told []byte) error {
	died := state.State == fleet.DeliveryDead && state.Schedule == fleet.SchedulePush
	if died && w.tight.Load() {
		return w.endBriefly(ctx, e, state, seq)
	}
	_, _, err := w.writeFirst(ctx, state, seq, told)
	kept := state.State == fleet.DeliveryPending || state.State == fleet.DeliveryDead && !died
	if !errors.Is(err, bus.ErrFull) || kept {
		return err
	}
	if died {
		w.tight.Store(true)
		return w.endBriefly(ctx, e, state, seq)
	}
	if err := w.purge(ctx, e); err != nil {
		return err
	}
	_, err = w.write(ctx, state, seq, told)
	return err
}

// endBriefly ends a push notification that died while the outbox has little room:
// it goes before its state is stored, and the audit is told beside the outbox. Where
// not even the state finds room, nothing stays of it.
func (w *Worker) endBriefly(ctx context.Context, e *entry, state *fleet.DeliveryState, seq uint64) error {
	if err := w.purge(ctx, e); err != nil {
		return err
	}
	_, err := w.write(ctx, state, seq, nil)
	if errors.Is(err, bus.ErrFull) {
		err = w.remove(ctx, e)
	}
	if err == nil {
		w.notes.Tell(ctx, "", "webhooks", handshake.EventWebhook, telling(state, state.State))
	}
	return err
}

// snapshot is e's state to go on from, unless another worker's has been heard
// of since e was taken in hand.
func (w *Worker) snapshot(e *entry) (fleet.DeliveryState, uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !e.pending() || e.leased.After(w.now()) {
		return e.state, e.stateSeq, fmt.Errorf("delivery %s: %w: another worker has it", e.id, bus.ErrConflict)
	}
	return e.state, e.stateSeq, nil
}

// load reads a delivery from the outbox.
func (w *Worker) load(ctx context.Context, s *fleet.DeliveryState) (*fleet.Delivery, error) {
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamWebhooks, subjects.Webhook(s.Order, s.DeliveryID))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	return fleet.DecodeDelivery(m.Data)
}

// writeFirst is write, for which push notifications make room where a human waits
// for it: no more than it takes, since that takes time. It was not stored before
// began.
func (w *Worker) writeFirst(ctx context.Context, state *fleet.DeliveryState, seq uint64, told []byte) (stored uint64, began time.Time, err error) {
	for freed := 1; ; {
		began = time.Now()
		stored, err = w.write(ctx, state, seq, told)
		if !errors.Is(err, bus.ErrFull) || state.Schedule == fleet.SchedulePush || freed == 0 {
			return stored, began, err
		}
		if freed, err = w.free(ctx, roomForCall); err != nil {
			return 0, began, err
		}
	}
}

// write stores state by compare-and-set on seq, with what the audit is told of
// it, and takes it in.
func (w *Worker) write(ctx context.Context, state *fleet.DeliveryState, seq uint64, told []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	s := *state
	data, err := fleet.Encode(&s)
	if err != nil {
		return 0, err
	}
	stored, err := w.records.Write(ctx, bus.Record{
		Subject: subjects.WebhookEvent(s.DeliveryID), Expected: seq, Data: data,
		WriteID: w.id + "-" + strconv.FormatUint(w.writes.Add(1), 10),
		Header:  bus.Header{subjects.HeaderWriter: {w.id}}, Told: told,
	})
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	w.index.recorded(&s, stored, w.now())
	w.mu.Unlock()
	return stored, nil
}

// tellingOf is what the audit is told of a delivery.
type tellingOf struct {
	DeliveryID subjects.DeliveryID `json:"delivery_id"`
	Kind       string              `json:"kind"` // delivered, dead, replay, drop
	Endpoint   string              `json:"endpoint"`
	TaskID     subjects.TaskID     `json:"task_id,omitempty"`
	Attempts   int                 `json:"attempts,omitzero"`
	Code       subjects.Code       `json:"code,omitempty"`
	Message    string              `json:"message,omitempty"`
}

func telling(s *fleet.DeliveryState, kind string) tellingOf {
	d := tellingOf{DeliveryID: s.DeliveryID, Kind: kind, Endpoint: s.Endpoint, TaskID: s.TaskID, Attempts: s.Attempts}
	if s.Error != nil && s.State == fleet.DeliveryDead {
		d.Code, d.Message = s.Error.Code, workers.Clip(s.Error.Message)
	}
	return d
}

// told is that as a line.
func told(s *fleet.DeliveryState, who subjects.AgentID, kind string) []byte {
	return workers.Line("", who, handshake.EventWebhook, telling(s, kind))
}

// ended is that for a delivery that an attempt, or its time, may have ended: that
// it died, or that a human was told.
func ended(s *fleet.DeliveryState) []byte {
	if s.State == fleet.DeliveryDead || s.State == fleet.DeliveryDelivered && s.Schedule == fleet.ScheduleHuman {
		return told(s, "webhooks", s.State)
	}
	return nil
}
