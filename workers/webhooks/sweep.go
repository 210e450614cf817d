package webhooks

import (
	"context"
	"log/slog"
	"time"

	"parley/bus/crash"
	"parley/subjects"
)

const (
	sweepEvery  = time.Minute
	sweepAtOnce = 1000 // listed at once
)

// keepSwept removes what is old, and what was left undone, until ctx ends: all of it
// each time, beside what is sent.
func (w *Worker) keepSwept(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		for w.sweep(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes some of what is old, and what was left undone; more reports whether
// there may be more.
func (w *Worker) sweep(ctx context.Context) (more bool) {
	w.mu.Lock()
	left := w.index.leftovers
	w.index.leftovers = nil
	old := w.index.stale(w.now(), keep{KeepDelivered, KeepDead, keepMost, keepDeadOf}, sweepAtOnce)
	w.mu.Unlock()
	for _, e := range left {
		if err := w.purge(ctx, e); err != nil {
			if ctx.Err() == nil {
				w.log.Warn("delivery not removed", slog.String("delivery_id", string(e.id)), slog.Any("error", err))
			}
			return false // in a day's time it is removed with its state
		}
	}
	for _, e := range old {
		if err := w.remove(ctx, e); err != nil {
			if ctx.Err() == nil {
				w.log.Warn("old delivery not removed", slog.String("delivery_id", string(e.id)), slog.Any("error", err))
			}
			return false
		}
	}
	return len(old) == sweepAtOnce
}

// purge removes the delivery itself, which has ended.
func (w *Worker) purge(ctx context.Context, e *entry) error {
	w.mu.Lock()
	order, there := e.state.Order, e.seq > 0
	w.mu.Unlock()
	if !there {
		return nil
	}
	if err := w.cfg.Bus.Purge(ctx, subjects.StreamWebhooks, subjects.Webhook(order, e.id)); err != nil {
		return err
	}
	crash.Point("after_webhook_purge")
	w.mu.Lock()
	e.seq = 0
	w.mu.Unlock()
	return nil
}
