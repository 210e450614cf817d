package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
)

// Pending limits of a subscription: how much waits for its handler.
const (
	pendingMessages = -1 // bytes alone decide
	pendingBytes    = 256 << 20
)

// defaultRequest bounds a request whose context has no deadline.
const defaultRequest = 5 * time.Second

// Publish sends a core message, at most once. It returns when the message is
// in the client's buffer; Ping makes sure that the server has it.
func (b *Bus) Publish(subject string, data []byte, h Header) error {
	return wrap("publish", b.nc.PublishMsg(b.signed(&nats.Msg{Subject: subject, Header: nats.Header(h), Data: data})))
}

// Request sends a request and returns its reply. Errors: ErrNoResponders,
// ErrTimeout (also for the context's deadline, 5 s when it has none),
// ErrDenied, the context's.
func (b *Bus) Request(ctx context.Context, subject string, data []byte, h Header) (Msg, error) {
	ctx, cancel := withDefaultTimeout(ctx, defaultRequest)
	defer cancel()
	m, err := b.request(ctx, &nats.Msg{Subject: subject, Header: nats.Header(h), Data: data})
	if err != nil {
		return Msg{}, fmt.Errorf("request %s: %w", subject, err)
	}
	return fromNATS(b.nc, m), nil
}

// request is one request with errors mapped. ctx has a deadline.
func (b *Bus) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, leave := b.await(ctx, m.Subject)
	defer leave()
	reply, err := b.nc.RequestMsgWithContext(ctx, b.signed(m))
	if err != nil && errors.Is(context.Cause(ctx), ErrDenied) {
		return nil, fmt.Errorf("%w: publish to %s", ErrDenied, m.Subject)
	}
	return reply, mapError(err)
}

// RequestUntil repeats Request until a reply comes or ctx ends: each try lasts
// at most try (5 s when zero), between tries it waits with exponential backoff
// and jitter, at most 2 s. When retry is not nil and says true, the reply
// itself asks for a repeat. The request must be safe to repeat. When ctx ends,
// the error wraps both ctx's and the last try's.
func (b *Bus) RequestUntil(ctx context.Context, subject string, data []byte, h Header,
	try time.Duration, retry func(Msg) bool,
) (Msg, error) {
	if try <= 0 {
		try = defaultRequest
	}
	var bo backoff.BackOff // made when it is needed
	for {
		tctx, cancel := context.WithTimeout(ctx, try)
		m, err := b.Request(tctx, subject, data, h)
		cancel()
		switch {
		case err == nil && (retry == nil || !retry(m)):
			return m, nil
		case err == nil:
			err = fmt.Errorf("request %s: the reply asks for a repeat", subject)
		case errors.Is(err, ErrDenied), errors.Is(err, ErrClosed):
			return Msg{}, err
		}
		if bo == nil {
			bo = newBackoff(50*time.Millisecond, 2*time.Second)
		}
		if werr := wait(ctx, bo); werr != nil {
			return Msg{}, fmt.Errorf("%w (last: %w)", werr, err)
		}
	}
}

// wait sleeps for the next interval of bo, or returns ctx's error, which is
// ErrTimeout too when it is a deadline.
func wait(ctx context.Context, bo backoff.BackOff) error {
	if err := ctx.Err(); err != nil {
		return mapError(err)
	}
	timer := time.NewTimer(bo.NextBackOff())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return mapError(ctx.Err())
	case <-timer.C:
		return nil
	}
}

// Subscription is a running Subscribe.
type Subscription struct {
	b    *Bus
	sub  *nats.Subscription
	done chan struct{} // closed when the last handler call has returned

	handlers sync.WaitGroup // those that run beside the subscription, see Subscribe
}

// Subscribe calls fn for each message, in order, on one goroutine per
// subscription; a message at which fn panics is skipped, see Skip. queue "" means
// no group. What waits for fn may take 256 MiB;
// beyond it messages are dropped, and that is logged. Where a guard judges
// messages, those of a group are judged and handled side by side, in any order.
func (b *Bus) Subscribe(subject, queue string, fn func(Msg)) (*Subscription, error) {
	var s *Subscription
	reader := b.readers.Add(1)
	made, slots := make(chan struct{}), make(chan struct{}, judging)
	handle := func(nm *nats.Msg) {
		m := fromNATS(b.nc, nm)
		g := b.guard.Load()
		switch {
		case g == nil || g.Message == nil:
			b.handle(m, fn)
		case queue == "":
			b.guarded(m, reader, fn)
		default:
			<-made
			slots <- struct{}{}
			s.handlers.Go(func() {
				defer func() { <-slots }()
				b.guarded(m, Shared, fn)
			})
		}
	}
	s, err := b.subscribe(subject, queue, handle)
	close(made)
	return s, err
}

func (b *Bus) subscribe(subject, queue string, fn nats.MsgHandler) (*Subscription, error) {
	sub, err := b.nc.QueueSubscribe(subject, queue, fn)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, mapError(err))
	}
	s := &Subscription{b: b, sub: sub, done: make(chan struct{})}
	sub.SetClosedHandler(func(string) {
		s.handlers.Wait()
		close(s.done)
	})
	if err := sub.SetPendingLimits(pendingMessages, pendingBytes); err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", subject, mapError(err))
	}
	return s, nil
}

// Drain stops taking messages and waits until those taken are handled, at most
// 5 s. The handler must not call it.
func (s *Subscription) Drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	switch {
	case s.b.cfg.FakeTime:
		err = s.drainFake(ctx)
	case s.b.nc.IsConnected():
		err = s.sub.Drain()
	default: // the server sends nothing more
		err = s.sub.Unsubscribe()
	}
	if err != nil && !errors.Is(err, nats.ErrBadSubscription) && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("drain %s: %w", s.sub.Subject, mapError(err))
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain %s: %w", s.sub.Subject, ErrTimeout)
	}
}

// drainFake awaits what the server has sent, then unsubscribes.
func (s *Subscription) drainFake(ctx context.Context) error {
	if err := s.b.nc.FlushWithContext(ctx); err != nil {
		return err
	}
	handled := make(chan struct{})
	if err := s.b.nc.Barrier(func() { close(handled) }); err != nil {
		return err
	}
	select {
	case <-handled:
	case <-ctx.Done():
	}
	return s.sub.Unsubscribe()
}

// Unsubscribe stops at once; messages not yet handled are dropped.
func (s *Subscription) Unsubscribe() error {
	err := s.sub.Unsubscribe()
	if errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return wrap("unsubscribe", err)
}
