package bus

import "context"

// waiter is a request that waits for its reply.
type waiter struct {
	subject string
	end     context.CancelCauseFunc
}

// await returns a context that ends with ErrDenied once the server says that
// subject may not be published to, which it says beside all replies. leave must
// be called.
func (b *Bus) await(ctx context.Context, subject string) (_ context.Context, leave func()) {
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
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.waiting {
		if w.subject == subject {
			w.end(ErrDenied)
		}
	}
}
