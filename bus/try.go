package bus

import (
	"context"
	"sync"
	"time"
)

// tryRound is how much longer than storeTry a shared try may last.
const tryRound = time.Second

// tries shares one context among all the writes that begin within tryRound: a
// context of its own for each costs more than the rest of a write does.
type tries struct {
	mu    sync.Mutex
	ctx   context.Context //nolint:containedctx // it is what is shared
	until time.Time       // when a new one is due
}

// next gives a context that ends storeTry to storeTry + tryRound from now, or
// with the connection that is up.
func (t *tries) next(e *epoch) context.Context {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx == nil || now.After(t.until) || t.ctx.Err() != nil {
		ctx, cancel := context.WithTimeout(e.ctx, storeTry+tryRound)
		context.AfterFunc(ctx, cancel)
		t.ctx, t.until = ctx, now.Add(tryRound)
	}
	return t.ctx
}

// tryContext bounds one try of a write by ctx, storeTry and the life of the
// connection. When ctx lasts longer than a try does, its deadline is all that
// counts: a cancellation is then noticed after the try.
func (b *Bus) tryContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && ctx.Err() == nil && time.Until(d) > storeTry+tryRound {
		e := b.epoch.Load()
		return e.tries.next(e), func() {}
	}
	tctx, cancel := context.WithTimeout(ctx, storeTry)
	stop := b.untilReconnect(cancel)
	return tctx, func() { stop(); cancel() }
}
