package bus

import (
	"context"
	"strings"
)

// waiter is a request that waits for its reply.
type waiter struct {
	subject string
	end     context.CancelCauseFunc
}

// await returns a context that ends with ErrDenied once the server says that
// subject may not be published to, which it says beside all replies. leave must
// be called. On a server that asks nobody who they are, and has denied nothing
// yet, it does nothing: it would be a good part of what a request costs.
func (b *Bus) await(ctx context.Context, subject string) (_ context.Context, leave func()) {
	if !b.limited.Load() {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	w := &waiter{subject, end}
	b.mu.Lock()
	b.waiting[w] = struct{}{}
	b.mu.Unlock()
	return ctx, func() {
		b.mu.Lock()
		delete(b.waiting, w)
		b.mu.Unlock()
		end(nil)
	}
}

// deny ends what waits for a reply to subject.
func (b *Bus) deny(subject string) {
	b.limited.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.waiting {
		if w.subject == subject {
			w.end(ErrDenied)
		}
	}
}

// asksWho reports whether the server is told who connects, and may limit them.
func (c Config) asksWho() bool {
	return c.Context != "" || c.Creds != "" || c.NKey != "" || c.User != "" || c.Token != "" || c.Credentials != nil || c.Cert != "" ||
		strings.Contains(c.URL, "@")
}
