package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
)

// Consumer is a durable pull consumer and how it is worked. Where the durable
// exists (the catalogue, see Provision, declares it), its stored configuration
// counts; otherwise it is created from these fields.
type Consumer struct {
	Stream, Durable string
	Subjects        []string      // filters, none = all
	Concurrency     int           // handlers at a time, default 16
	AckWait         time.Duration // default 30 s
	MaxAckPending   int           // default 1000
	DeadLetter      bool          // Never puts the message into the dead-letter stream
}

func (c Consumer) withDefaults() Consumer {
	c.Concurrency = cmp.Or(c.Concurrency, 16)
	c.AckWait = cmp.Or(c.AckWait, 30*time.Second)
	c.MaxAckPending = cmp.Or(c.MaxAckPending, 1000)
	return c
}

func (c Consumer) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable: c.Durable, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: c.MaxAckPending, FilterSubjects: c.Subjects,
	}
	if len(c.Subjects) == 1 {
		cfg.FilterSubject, cfg.FilterSubjects = c.Subjects[0], nil
	}
	return cfg
}

const (
	// consumeGrace is how long handlers in hand may go on once ctx ended.
	consumeGrace = 10 * time.Second
	// fetchWait is how long one pull request waits at the server.
	fetchWait = 30 * time.Second
)

// errStopping is the cause with which handlers that outlast the grace period
// are canceled.
var errStopping = errors.New("stopping")

type verdictError struct {
	err   error
	delay time.Duration
	never bool
}

func (v *verdictError) Error() string { return v.err.Error() }
func (v *verdictError) Unwrap() error { return v.err }

// Later gives the message back; it comes again after d.
func Later(err error, d time.Duration) error {
	return &verdictError{err: cmp.Or(err, errors.New("later")), delay: d}
}

// Never says that the message is poison: it goes to the dead-letter stream
// (with the error's text as reason) and does not come again.
func Never(err error) error {
	return &verdictError{err: cmp.Or(err, errors.New("never")), never: true}
}

// Consume hands messages to handle, at most c.Concurrency at a time, until ctx
// ends; then it takes no more, lets those in hand finish, for at most 10 s
// before it cancels their context, and returns nil.
//
// handle's error is the verdict: nil acknowledges (and waits for the server's
// confirmation), Later and Never as they say, any other gives the message back
// with exponential backoff (1 s to 1 min). A panic is Never, its stack is
// logged. While handle runs the message stays its own (in-progress every third
// of AckWait). Delivery is at-least-once.
//
// Errors: ErrNotFound when the stream does not exist, ErrDenied, ErrClosed.
func (b *Bus) Consume(ctx context.Context, c Consumer, handle func(context.Context, Msg) error) error {
	c = c.withDefaults()
	consumer, err := b.consumer(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("consume %s/%s: %w", c.Stream, c.Durable, err)
	}
	if stored := consumer.CachedInfo().Config.AckWait; stored > 0 {
		c.AckWait = stored
	}
	// Work outlives ctx on purpose: what was taken is finished.
	work, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(consumeGrace, func() { abort(errStopping) })
		context.AfterFunc(work, func() { timer.Stop() })
	})()
	r := &consumeRun{b: b, c: c, consumer: consumer, handle: handle, work: work, slots: make(chan struct{}, c.Concurrency)}
	defer r.handlers.Wait()
	return r.run(ctx)
}

// consumer finds the durable, or makes it. It waits for a stream that has no
// leader.
func (b *Bus) consumer(ctx context.Context, c Consumer) (jetstream.Consumer, error) {
	bo := newBackoff(100*time.Millisecond, 2*time.Second)
	late := b.lateStream()
	for {
		tctx, cancel := context.WithTimeout(ctx, readTry)
		consumer, err := b.js.Consumer(tctx, c.Stream, c.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			consumer, err = b.js.CreateConsumer(tctx, c.Stream, c.config())
		}
		cancel()
		if err == nil {
			return consumer, nil
		}
		err = mapError(err)
		if late(ctx, err) {
			continue
		}
		if !mayRepeat(err) {
			return nil, err
		}
		b.log.Warn("consumer not reachable", slog.String("stream", c.Stream), slog.String("consumer", c.Durable), slog.Any("error", err))
		if werr := wait(ctx, bo); werr != nil {
			return nil, werr
		}
	}
}

type consumeRun struct {
	b        *Bus
	c        Consumer
	consumer jetstream.Consumer
	handle   func(context.Context, Msg) error
	work     context.Context //nolint:containedctx // the handlers' context, lives as long as Consume
	slots    chan struct{}   // one token per message in hand
	handlers sync.WaitGroup
}

// run fetches exactly as many messages as there are free handlers, so that
// nothing waits in a buffer while its AckWait runs.
func (r *consumeRun) run(ctx context.Context) error {
	bo := newBackoff(100*time.Millisecond, 5*time.Second)
	for {
		free, ok := r.takeSlots(ctx)
		if !ok {
			return nil
		}
		got, err := r.fetch(ctx, free)
		for range free - got {
			<-r.slots
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			bo.Reset()
			continue
		case errors.Is(err, ErrClosed), errors.Is(err, ErrDenied):
			return fmt.Errorf("consume %s/%s: %w", r.c.Stream, r.c.Durable, err)
		}
		r.b.log.Warn("fetch failed", slog.String("stream", r.c.Stream), slog.String("consumer", r.c.Durable), slog.Any("error", err))
		if wait(ctx, bo) != nil {
			return nil
		}
		// It may be gone (stream restored, consumer deleted): look again.
		if consumer, err := r.b.consumer(ctx, r.c); err == nil {
			r.consumer = consumer
		}
	}
}

// takeSlots waits for one free handler and takes all that are free.
func (r *consumeRun) takeSlots(ctx context.Context) (int, bool) {
	select {
	case <-ctx.Done():
		return 0, false
	case r.slots <- struct{}{}:
	}
	n := 1
	for n < r.c.Concurrency {
		select {
		case r.slots <- struct{}{}:
			n++
		default:
			return n, true
		}
	}
	return n, true
}

// fetch is one pull request; each message takes over a slot.
func (r *consumeRun) fetch(ctx context.Context, free int) (got int, err error) {
	fctx, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	batch, err := r.consumer.Fetch(free, jetstream.FetchContext(fctx))
	if err != nil {
		return 0, mapError(err)
	}
	for m := range batch.Messages() {
		if ctx.Err() != nil { // taken in the very moment: somebody else may have it
			err = errors.Join(err, mapError(m.Nak()))
			continue
		}
		got++
		r.handlers.Go(func() {
			defer func() { <-r.slots }()
			r.one(m)
		})
	}
	if err != nil {
		return got, err
	}
	err = batch.Error()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, jetstream.ErrNoMessages) {
		return got, nil
	}
	return got, mapError(err)
}

// one handles one message and settles it.
func (r *consumeRun) one(jm jetstream.Msg) {
	m := Msg{Subject: jm.Subject(), Header: Header(jm.Headers()), Data: jm.Data(), Stream: r.c.Stream, nc: r.b.nc}
	if d, err := parseDelivery(jm.Reply()); err == nil {
		m.Seq, m.Time, m.Delivered, m.Pending = d.stream, unixNano(d.time), d.delivered, d.pending
	}
	stop := r.keep(jm)
	err := r.call(m)
	stop()
	if serr := r.settle(jm, m, err); serr != nil {
		// It comes again after AckWait; handlers are idempotent.
		r.b.log.Warn("verdict not delivered", slog.String("stream", m.Stream), slog.Uint64("seq", m.Seq), slog.Any("error", serr))
	}
}

// keep says every third of AckWait that the message is being worked on, until
// the function it returns is called.
func (r *consumeRun) keep(jm jetstream.Msg) (stop func()) {
	every := max(r.c.AckWait/3, 50*time.Millisecond)
	var (
		mu      sync.Mutex
		stopped bool
		timer   *time.Timer
	)
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(every, func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		if err := jm.InProgress(); err != nil {
			r.b.log.Debug("in-progress not sent", slog.Any("error", mapError(err)))
		}
		timer.Reset(every)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

func (r *consumeRun) call(m Msg) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.b.log.Error("handler panicked", slog.String("stream", m.Stream), slog.String("subject", m.Subject),
				slog.Uint64("seq", m.Seq), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = Never(fmt.Errorf("handler panicked: %v", p))
		}
	}()
	if err := r.b.admit(r.work, m, Shared); err != nil {
		if code := subjects.CodeOf(err); code == subjects.CodeUnavailable || code == subjects.CodeInternal {
			return err
		}
		return Never(err)
	}
	return r.handle(r.work, m)
}

// settle is the one place where a message is acknowledged.
func (r *consumeRun) settle(jm jetstream.Msg, m Msg, err error) error {
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), storeTry)
		defer cancel()
		return mapError(jm.DoubleAck(ctx))
	}
	attrs := []any{
		slog.String("stream", m.Stream), slog.String("consumer", r.c.Durable), slog.String("subject", m.Subject),
		slog.Uint64("seq", m.Seq), slog.Uint64("delivered", m.Delivered), slog.Any("error", err),
	}
	if errors.Is(context.Cause(r.work), errStopping) {
		return mapError(jm.Nak())
	}
	verdict, ok := errors.AsType[*verdictError](err)
	switch {
	case ok && verdict.never:
		r.b.Skip(m, err)
		return r.bury(jm, m, err)
	case ok:
		r.b.log.Debug("message given back", attrs...)
		return mapError(jm.NakWithDelay(verdict.delay))
	default:
		r.b.log.Warn("message failed, comes again", attrs...)
		return mapError(jm.NakWithDelay(redeliverAfter(m.Delivered)))
	}
}

// bury stores the dead letter before it drops the message.
func (r *consumeRun) bury(jm jetstream.Msg, m Msg, reason error) error {
	if r.c.DeadLetter {
		ctx, cancel := context.WithTimeout(context.Background(), 2*storeTry)
		defer cancel()
		if err := r.b.BuryDeadLetter(ctx, m, reason.Error()); err != nil {
			return errors.Join(err, mapError(jm.NakWithDelay(redeliverAfter(m.Delivered))))
		}
	}
	return mapError(jm.TermWithReason(reasonLine(reason.Error())))
}

// redeliverAfter is 1 s, 2 s, 4 s … 1 min, give or take a fifth.
func redeliverAfter(delivered uint64) time.Duration {
	d := time.Minute
	if delivered < 7 {
		d = time.Second << max(delivered, 1) / 2
	}
	return d + time.Duration((rand.Float64()-0.5)*0.4*float64(d)) //nolint:gosec // jitter
}
