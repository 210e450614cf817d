package webhooks

import (
	"context"
	"log/slog"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// A gateway stores push notifications until the outbox is full to four fifths. So
// that one receiver to which nothing can be delivered does not keep out those to
// others, and calls to humans have the rest, some of them go before.
const (
	// tightAt is the part in use beyond which the word of those that were delivered
	// goes, and where there is none those that died, the oldest first; these leave
	// nothing there but a word for a moment.
	tightAt = 0.6
	// fullAt is that beyond which those go, too, that wait for a receiver that is
	// away.
	fullAt = 0.75

	roomEvery   = 5 * time.Second
	roomAtOnce  = 200             // deliveries that are removed before the outbox is looked at again
	roomForCall = 16              // the same where a human waits for it: enough for one record
	heardBy     = 5 * time.Second // what has become of a delivery, by all workers

	// keepBriefly is for how long one that was delivered is known even then: about as
	// long as the stream itself knows a repeat of it.
	keepBriefly = 2 * time.Minute
)

// keepRoom looks after the room in the outbox until ctx ends.
func (w *Worker) keepRoom(ctx context.Context) {
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := w.makeRoom(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("no room made in the outbox", slog.Any("error", err))
		}
		if n := w.forgot.Swap(0); n > 0 {
			w.log.Warn("dead push notifications forgotten: the outbox fills", slog.Int64("deliveries", n))
		}
	}
}

// makeRoom removes what may go, as long as the outbox has too much.
func (w *Worker) makeRoom(ctx context.Context) error {
	for ctx.Err() == nil {
		if freed, err := w.free(ctx, roomAtOnce); err != nil || freed == 0 {
			return err
		}
	}
	return nil
}

// free removes at most atOnce of what may go, if the outbox has too much, and says
// how much that was. Who else frees waits no longer than that takes.
func (w *Worker) free(ctx context.Context, atOnce int) (freed int, err error) {
	select {
	case w.clearing <- struct{}{}:
		defer func() { <-w.clearing }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	s, err := w.cfg.Bus.StreamState(ctx, subjects.StreamWebhooks)
	if err != nil {
		return 0, err
	}
	over := func(part float64) bool { return s.MaxBytes > 0 && float64(s.Bytes) > part*float64(s.MaxBytes) }
	w.tight.Store(over(tightAt))
	if !over(tightAt) {
		return 0, nil
	}
	now := w.now()
	var dead, away []*entry
	w.mu.Lock()
	delivered := w.index.spare(fleet.DeliveryDelivered, now.Add(-keepBriefly), atOnce)
	if len(delivered) == 0 {
		dead = w.index.spare(fleet.DeliveryDead, now.Add(-heardBy), atOnce)
	}
	if len(delivered)+len(dead) == 0 && over(fullAt) {
		away = w.index.away(now, atOnce)
	}
	w.mu.Unlock()
	for _, e := range delivered {
		if err := w.remove(ctx, e); err != nil {
			return freed, err
		}
		freed++
	}
	for _, e := range dead {
		if err := w.remove(ctx, e); err != nil {
			return freed, err
		}
		w.forgot.Add(1)
		freed++
	}
	for _, e := range away {
		w.hand(ctx, e, w.giveUp, nil)
	}
	return freed + len(away), nil
}

// giveUp ends a push notification whose receiver is away.
func (w *Worker) giveUp(ctx context.Context, e *entry) error {
	return w.over(ctx, e, func(*fleet.DeliveryState) string { return "given up: its receiver is away, and the outbox fills" })
}

// remove removes a delivery, and what has become of it. The delivery goes first:
// without its state it would be sent again.
func (w *Worker) remove(ctx context.Context, e *entry) error {
	if err := w.purge(ctx, e); err != nil {
		return err
	}
	if err := w.cfg.Bus.Purge(ctx, subjects.StreamWebhooks, subjects.WebhookEvent(e.id)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index.forget(e)
	return nil
}
