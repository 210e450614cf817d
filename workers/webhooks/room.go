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
	// tightAt is the part in use beyond which those that died go, the oldest
	// first, and leave nothing there but a word for a moment.
	tightAt = 0.6
	// fullAt is that beyond which those go, too, that wait for a receiver that is
	// away.
	fullAt = 0.75

	roomEvery  = 5 * time.Second
	roomAtOnce = 200
	heardBy    = 5 * time.Second // what has become of a delivery, by all workers
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
	}
}

// makeRoom removes what may go, as long as the outbox has too much.
func (w *Worker) makeRoom(ctx context.Context) error {
	w.clearing.Lock()
	defer w.clearing.Unlock()
	forgotten := 0
	defer func() {
		if forgotten > 0 {
			w.log.Warn("dead push notifications forgotten: the outbox fills", slog.Int("deliveries", forgotten))
		}
	}()
	for ctx.Err() == nil {
		s, err := w.cfg.Bus.StreamState(ctx, subjects.StreamWebhooks)
		if err != nil {
			return err
		}
		over := func(part float64) bool { return s.MaxBytes > 0 && float64(s.Bytes) > part*float64(s.MaxBytes) }
		w.tight.Store(over(tightAt))
		if !over(tightAt) {
			return nil
		}
		now := w.now()
		var away []*entry
		w.mu.Lock()
		dead := w.index.spare(now.Add(-heardBy), roomAtOnce)
		if len(dead) == 0 && over(fullAt) {
			away = w.index.away(now, roomAtOnce)
			w.inHand += len(away)
		}
		w.mu.Unlock()
		if len(dead)+len(away) == 0 {
			return nil
		}
		for _, e := range dead {
			if err := w.remove(ctx, e); err != nil {
				return err
			}
			forgotten++
		}
		for _, e := range away {
			w.hand(ctx, e, w.giveUp)
		}
	}
	return nil
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
