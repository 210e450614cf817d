package webhooks

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers"
)

// Config is what a webhooks worker needs.
type Config struct {
	Bus       *bus.Bus   // required
	Endpoints []Endpoint // what deliveries may name
	// Allow is the allow list for deliveries to a URL without an endpoint.
	Allow []string
	// Operators may list, replay and drop. Default: operator.
	Operators []subjects.AgentID

	Timeout     time.Duration // of a whole exchange; default 10 s
	PerEndpoint int           // exchanges at a time; default 4
	Concurrency int           // exchanges of this worker at a time; default 64
	OpenAfter   int           // failures in a row that open an endpoint's circuit; default 5
	ProbeEvery  time.Duration // while it is open; default 1 min
	Human, Push Schedule      // default Human() and Push()
	CheckReach  bool          // say at the start which endpoints cannot be reached

	Version string         // of the program, SemVer
	Roots   *x509.CertPool // nil: the system's
	Log     *slog.Logger   // nil: discarded

	resolver resolver // nil: the system's
}

// Default limits.
const (
	DefaultTimeout     = 10 * time.Second
	DefaultPerEndpoint = 4
	DefaultConcurrency = 64
	DefaultOpenAfter   = 5
	DefaultProbeEvery  = time.Minute
)

// guestsOf is how many of concurrency exchanges may be with receivers that
// subscribers have named.
func guestsOf(concurrency int) int { return max(concurrency*3/4, 1) }

// How long ended deliveries are known, and that a target failed.
const (
	KeepDelivered = 24 * time.Hour
	KeepDead      = 7 * 24 * time.Hour
	keepMost      = 10_000
	keepDeadOf    = 1000           // push notifications that died at one receiver
	keepFailed    = 24 * time.Hour // once nothing waits for it
)

const (
	leaseMargin  = 5 * time.Second  // of a claim beyond the exchange
	writeTimeout = 10 * time.Second // for a state to be stored
	retryBus     = time.Second      // before what the bus failed is tried again
	stopGrace    = 15 * time.Second // to finish what is in hand
	endAtOnce    = 16               // of those whose time is over, beside what is sent
)

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.PerEndpoint = cmp.Or(c.PerEndpoint, DefaultPerEndpoint)
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.OpenAfter = cmp.Or(c.OpenAfter, DefaultOpenAfter)
	c.ProbeEvery = cmp.Or(c.ProbeEvery, DefaultProbeEvery)
	if c.Human.zero() {
		c.Human = Human()
	}
	if c.Push.zero() {
		c.Push = Push()
	}
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.resolver == nil {
		c.resolver = net.DefaultResolver
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Bus == nil:
		return errors.New("webhooks: Config.Bus is required")
	case c.Timeout < 0 || c.Timeout > time.Minute:
		return fmt.Errorf("webhooks: time-out %s: expected at most 1m", c.Timeout)
	case c.PerEndpoint < 0 || c.Concurrency < 0 || c.OpenAfter < 0 || c.ProbeEvery < 0:
		return errors.New("webhooks: limits must not be negative")
	}
	return errors.Join(c.Human.validate(), c.Push.validate())
}

// Worker brings deliveries to their receivers. New is required.
type Worker struct {
	// fixed after New
	cfg       Config
	id        string // of this worker, in claims
	log       *slog.Logger
	endpoints map[string]*endpoint
	bare      *endpoint // for deliveries with a URL and no endpoint
	sender    *sender
	post      func(context.Context, *endpoint, *fleet.Delivery) outcome // the sender's

	notes   *workers.Notes
	ready   atomic.Bool
	tight   atomic.Bool   // the outbox has little room, as far as is known
	forgot  atomic.Int64  // dead push notifications, since that was said last
	wake    chan struct{} // capacity 1: something may be done
	writes  atomic.Uint64 // numbers the ids of writes
	figures figures

	clearing chan struct{} // capacity 1: full while somebody makes room in the outbox

	// set by Run
	records bus.RecordWriter
	hands   sync.WaitGroup // what is in hand

	mu        sync.Mutex // guards all below
	index     *index
	sending   int               // in hand to be sent
	ending    int               // in hand since their time is over
	unreached map[string]string // endpoints that could not be reached at the start
	warned    map[string]bool   // unknown endpoints that were told of
}

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	id := "webhooks-" + strings.ToLower(rand.Text()[:8])
	w := &Worker{
		cfg: cfg, id: id, wake: make(chan struct{}, 1), clearing: make(chan struct{}, 1),
		log:       cfg.Log.With(slog.String("component", "webhooks"), slog.String("worker_id", id)),
		endpoints: make(map[string]*endpoint), unreached: make(map[string]string), warned: make(map[string]bool),
		notes:  workers.NewNotes(cfg.Bus, cfg.Log),
		sender: newSender(cfg.resolver, cfg.Roots, "Parley/"+cfg.Version, cfg.Bus.Now),
	}
	for _, e := range cfg.Endpoints {
		ep, err := e.check(&cfg)
		if err != nil {
			return nil, err
		}
		if w.endpoints[e.Name] != nil {
			return nil, fmt.Errorf("webhook endpoint %q is there twice", e.Name)
		}
		w.endpoints[e.Name] = ep
	}
	allow, err := parseAllow(cfg.Allow)
	if err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	w.post = w.sender.post
	w.bare = &endpoint{Endpoint: Endpoint{Timeout: cfg.Timeout, Human: cfg.Human, Push: cfg.Push}, allow: allow}
	return w, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "webhooks" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker knows every delivery and sends.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("webhooks: not connected to the bus")
	case !w.ready.Load():
		return errors.New("webhooks: reading the outbox")
	}
	return nil
}

// lookup is the endpoint of a name, nil when this worker has none.
func (w *Worker) lookup(name string) *endpoint {
	if name == "" {
		return w.bare
	}
	return w.endpoints[name]
}

// Run catches up, sends until ctx ends, lets what is in hand finish and
// returns once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	w.figures.start(w.now())
	w.mu.Lock()
	w.index = newIndex(func(name string) bool { return w.lookup(name) != nil }, limits{
		perEndpoint: w.cfg.PerEndpoint, guests: guestsOf(w.cfg.Concurrency), openAfter: w.cfg.OpenAfter, probeEvery: w.cfg.ProbeEvery,
	})
	w.mu.Unlock()
	records, closeRecords := w.cfg.Bus.Records(subjects.StreamWebhooks, bus.CommitDirect)
	defer closeRecords()
	w.records = records
	defer w.sender.close()

	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which all of them end
	defer fail(nil)
	caughtUp := make(chan struct{})
	loops.Go(func() {
		err := w.cfg.Bus.Tail(run, bus.Tail{
			Stream: subjects.StreamWebhooks, Subjects: []string{subjects.WebhookPattern, subjects.WebhookEventPattern},
			Handle:   func(m bus.Msg) { w.apply(run, m) },
			CaughtUp: func(uint64) { close(caughtUp) },
		})
		if err != nil && run.Err() == nil {
			fail(fmt.Errorf("webhooks: read the outbox: %w", err))
		}
	})
	select {
	case <-caughtUp:
	case <-run.Done():
		return cause(ctx, run)
	}
	w.mu.Lock()
	w.index.caughtUp()
	w.mu.Unlock()
	loops.Go(func() { w.keepRoom(run) })
	loops.Go(func() { w.keepSwept(run) })
	if w.cfg.CheckReach {
		loops.Go(func() { w.checkReach(run) })
	}
	return w.serve(ctx, run)
}

// serve answers and sends until run ends.
func (w *Worker) serve(ctx, run context.Context) error {
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("webhooks: serve the API: %w", err)
	}
	defer stop()
	// What is in hand outlives ctx: an exchange is not broken off in the middle.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	w.ready.Store(true)
	w.log.Info("webhooks are sent", slog.Int("endpoints", len(w.endpoints)))
	w.pump(run, work)
	w.ready.Store(false)

	timer := time.AfterFunc(stopGrace, abort)
	defer timer.Stop()
	w.hands.Wait()
	return cause(ctx, run)
}

// cause is why run ended; nil when ctx ended it.
func cause(ctx, run context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// pump hands out what is due until run ends.
func (w *Worker) pump(run, work context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := w.now()
		w.mu.Lock()
		send, over, wake := w.index.next(now, w.cfg.Concurrency-w.sending, endAtOnce-w.ending)
		w.sending += len(send)
		w.ending += len(over)
		w.mu.Unlock()
		for _, e := range over {
			w.hands.Go(func() { w.hand(work, e, w.expire, &w.ending) })
		}
		for _, e := range send {
			w.hands.Go(func() { w.hand(work, e, w.attempt, &w.sending) })
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(wake.Sub(w.now()), time.Millisecond))
		}
		select {
		case <-run.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// hand does something with a delivery that is in this worker's hand, and lets
// go of it; among counts those that are in hand for the same, nil for nothing.
func (w *Worker) hand(ctx context.Context, e *entry, do func(context.Context, *entry) error, among *int) {
	err := do(ctx, e)
	now := w.now()
	pause := time.Time{}
	switch {
	case err == nil:
	case errors.Is(err, bus.ErrConflict): // another worker was faster
		pause = now.Add(retryBus) // by then the tail has told what it did
	case ctx.Err() != nil: // stopping
	default:
		pause = now.Add(retryBus)
		w.log.Warn("delivery not advanced, tried again", slog.String("delivery_id", string(e.id)), slog.Any("error", err))
	}
	w.mu.Lock()
	if among != nil {
		*among--
	}
	w.index.release(e, pause)
	w.mu.Unlock()
	w.poke()
}

// poke has the pump look again.
func (w *Worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// apply takes in a message of the outbox.
func (w *Worker) apply(ctx context.Context, m bus.Msg) {
	if vars, ok := subjects.Tokens(subjects.WebhookPattern, m.Subject); ok {
		d, err := fleet.DecodeDelivery(m.Data)
		if err == nil && (d.Order != vars[0] || string(d.DeliveryID) != vars[1]) {
			err = subjects.Errorf(subjects.CodeInvalidMessage, "the delivery says order %s and id %s", d.Order, d.DeliveryID).At("/delivery_id")
		}
		if err == nil {
			err = w.taken(d)
		}
		if err != nil {
			w.bury(ctx, m, err)
			return
		}
		w.mu.Lock()
		w.index.stored(d, m.Seq, m.Time)
		warn := w.lookup(d.Endpoint) == nil && !w.warned[d.Endpoint]
		if warn {
			w.warned[d.Endpoint] = true
		}
		w.mu.Unlock()
		if warn {
			w.log.Error("deliveries wait for an endpoint that is not configured here", slog.String("endpoint", d.Endpoint))
		}
		w.poke()
		return
	}
	s, err := fleet.DecodeDeliveryState(m.Data)
	if err == nil && subjects.WebhookEvent(s.DeliveryID) != m.Subject {
		err = subjects.Misplaced("delivery")
	}
	if err != nil {
		w.cfg.Bus.Skip(m, err)
		return
	}
	w.mu.Lock()
	w.index.recorded(s, m.Seq, w.now())
	w.mu.Unlock()
	w.poke()
}

// taken refuses a delivery whose id another one has.
func (w *Worker) taken(d *fleet.Delivery) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.index.entries[d.DeliveryID]; e != nil && e.state.Order != "" && e.state.Order != d.Order {
		return subjects.Errorf(subjects.CodeIdempotencyConflict, "delivery %s is there with order %s", d.DeliveryID, e.state.Order).
			At("/delivery_id").WithRemedy("give every delivery an id of its own")
	}
	return nil
}

// bury puts a message that is no delivery to the dead letters, where parley dlq
// shows it.
func (w *Worker) bury(ctx context.Context, m bus.Msg, reason error) {
	w.cfg.Bus.Skip(m, reason)
	err := w.cfg.Bus.BuryDeadLetter(ctx, m, reason.Error())
	if err == nil {
		crash.Point("after_burial")
		err = w.cfg.Bus.Purge(ctx, subjects.StreamWebhooks, m.Subject)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Error("poison not moved to the dead letters", slog.String("subject", m.Subject), slog.Any("error", err))
	}
}

// checkReach says which endpoints cannot be reached. It sends nothing.
func (w *Worker) checkReach(ctx context.Context) {
	for name, ep := range w.endpoints {
		if ep.URL == "" {
			continue
		}
		tctx, cancel := context.WithTimeout(ctx, ep.Timeout)
		err := w.sender.reach(tctx, ep)
		cancel()
		if ctx.Err() != nil {
			return
		}
		says := ""
		if err != nil {
			says = unanswered(err).err.Message
			w.log.Warn("endpoint not reachable", slog.String("endpoint", name), slog.String("reason", says))
		}
		w.mu.Lock()
		w.unreached[name] = says
		w.mu.Unlock()
	}
}
