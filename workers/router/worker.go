package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/pool"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers"
)

// Config is what a router needs. Only Bus is required.
type Config struct {
	Bus *bus.Bus
	// ID names this router among the others; absent: a random token.
	ID subjects.InstanceID
	// Operators see and change every task, not only their own.
	Operators []subjects.AgentID
	// MaxQueued is how many tasks may wait; above it dispatches are answered
	// rate_limited. Absent: 1 000 000.
	MaxQueued int
	// KeepEnded is how many ended tasks the stream keeps at most; they go 24 h
	// after their end in any case. Absent: 1 000 000.
	KeepEnded int
	// Commit chooses how records are written; see bus.CommitMode.
	Commit bus.CommitMode
	// Sessions gives the context that goes with offers; absent: none does.
	Sessions Sessions
	// Backoff is the pace of retries; zero fields take escalation's defaults.
	Backoff escalation.Backoff
	// HumanContact says that somebody is told of what waits for a human.
	HumanContact bool
	// Policy is what holds where a dispatch leaves it out; zero fields take the
	// fleet's defaults.
	Policy Policy
	// Deputy may answer for humans, naming them. Absent: escalation.
	Deputy  subjects.AgentID
	Version string // of the program
	// Log is where the router logs; absent: nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.ID == "" {
		c.ID = subjects.InstanceID(uuid.NewString()[:8])
	}
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	if c.Deputy == "" {
		c.Deputy = "escalation"
	}
	if c.MaxQueued == 0 {
		c.MaxQueued = 1_000_000
	}
	if c.KeepEnded == 0 {
		c.KeepEnded = 1_000_000
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Bus == nil:
		return errors.New("router: Config.Bus is required")
	case !subjects.ValidToken(string(c.ID)):
		return fmt.Errorf("router: Config.ID %q is not an identifier", c.ID)
	case c.MaxQueued < 0, c.KeepEnded < 0:
		return errors.New("router: MaxQueued and KeepEnded must not be negative")
	}
	return nil
}

const (
	offerTimeout  = 2 * time.Second  // for an agent to accept
	writeTimeout  = 20 * time.Second // for a record to be stored, brokers failing over
	behindTimeout = 2 * time.Second  // to wait for a record that an agent knows of
	tickEvery     = 100 * time.Millisecond
	rememberEnded = 10_000
	readers       = 4 // loops that read what is stored, and say when they have caught up
	maxHotQueued  = 20_000
	idleWorkers   = 256              // goroutines kept for the next message
	stopGrace     = 10 * time.Second // to finish what is in hand
	maxReports    = 128              // results in hand, and progress messages: when very many tasks end at once, dispatches go between them
	maxBehind     = maxReports / 2   // of them that wait for a record, of any one agent
	maxDoing      = 32               // effects at once, those apart that wait for an agent: a million tasks may end at one instant
	maxSaying     = 1024             // recalls and tells at once
)

// Worker is a router. New wires it, Run does everything.
type Worker struct {
	// Fixed after New.
	cfg   Config
	bus   *bus.Bus
	log   *slog.Logger
	set   settings
	epoch int64
	// writePrefix is what the ids of this router's writes begin with.
	writePrefix string

	records    bus.RecordWriter
	drive      *bus.KV
	idem       *bus.KV
	index      *bus.Objects
	schemas    schemaCache
	ledger     *ledger
	failures   failures
	figures    figures
	whyWaiting waitingCauses

	ready     atomic.Bool
	full      atomic.Bool   // the stream is above its disk guard
	announced atomic.Uint64 // stream sequence up to which announces have been taken in
	heardAt   atomic.Int64  // ns; every announce stored before then has been taken in
	wg        sync.WaitGroup
	work      context.Context //nolint:containedctx // what is in hand outlives the request and ends with Run
	writeID   atomic.Uint64
	waiting   atomic.Int64 // calls of task wait
	pool      *pool.Pool
	waits     atomic.Pointer[wait]
	behind    waiters

	mu      sync.Mutex // guards all below
	core    *core
	lanes   [3]lane             // effects, those apart that wait for an agent
	saying  map[effect]struct{} // recalls and tells under way
	writing map[string]uint64   // ids of the writes that are under way, and where the tail has passed over their records
	tail    uint64              // stream sequence up to which the tail has read

	sweptTo uint64 // owned by housekeep: the records before it need no second look
}

// New checks cfg and wires a router; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	set := settings{backoff: cfg.Backoff, human: cfg.HumanContact, policy: cfg.Policy.terms()}
	return &Worker{
		cfg: cfg, bus: cfg.Bus, set: set,
		ledger:  &ledger{spent: make(map[string]spending), own: make(map[uint64]struct{})},
		log:     cfg.Log.With(slog.String("component", "router"), slog.String("router_id", string(cfg.ID))),
		writing: make(map[string]uint64), saying: make(map[effect]struct{}), failures: newFailures(), behind: waiters{most: maxBehind},
		core: newCore(cfg.ID, cfg.MaxQueued, maxHotQueued, rememberEnded),
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "router" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.bus.Now() }

// Ready returns nil once the router has caught up and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("router: not connected to the bus")
	case !w.ready.Load():
		return errors.New("router: catching up with the task records")
	}
	return nil
}

// Run catches up, serves until ctx ends, finishes what is in hand and returns
// once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	now := w.now()
	w.epoch = now.UnixNano()
	w.figures.since.Store(w.epoch)
	w.writePrefix = string(w.cfg.ID) + "-" + strconv.FormatInt(w.epoch, 36) + "-"
	work, abort := context.WithCancel(context.WithoutCancel(ctx)) // what is in hand outlives ctx
	defer abort()
	w.work = work
	w.pool = pool.New(idleWorkers)
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	records, closeRecords := w.bus.Records(subjects.StreamTasks, w.cfg.Commit)
	defer closeRecords()
	w.records = records

	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops sync.WaitGroup
	caughtUp := make(chan struct{}, readers)
	w.start(run, &loops, cancel, caughtUp)
	err := w.serve(run, &loops, cancel, caughtUp)
	cancel(err)
	w.ready.Store(false)

	finished := make(chan struct{})
	go func() { loops.Wait(); w.wg.Wait(); w.pool.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(stopGrace):
		abort()
		<-finished
	}
	if cause := context.Cause(run); err == nil && ctx.Err() == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// open opens the buckets.
func (w *Worker) open(ctx context.Context) (err error) {
	if w.drive, err = w.bus.KV(ctx, subjects.BucketAgents); err != nil {
		return fmt.Errorf("open bucket %s: %w", subjects.BucketAgents, err)
	}
	if w.idem, err = w.bus.KV(ctx, subjects.BucketIdem); err != nil {
		return fmt.Errorf("open bucket %s: %w", subjects.BucketIdem, err)
	}
	if w.ledger.kv, err = w.bus.KV(ctx, subjects.BucketLedger); err != nil {
		return fmt.Errorf("open bucket %s: %w", subjects.BucketLedger, err)
	}
	if w.index, err = w.bus.Objects(ctx, subjects.ObjectsIndex); err != nil {
		return fmt.Errorf("open object store %s: %w", subjects.ObjectsIndex, err)
	}
	return nil
}

// start begins the loops that only listen: records, announces, the operators'
// bucket, heartbeats of agents and routers.
func (w *Worker) start(ctx context.Context, loops *sync.WaitGroup, fail context.CancelCauseFunc, caughtUp chan<- struct{}) {
	loop := func(name string, f func(context.Context) error) {
		loops.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("router: %s: %w", name, err))
			}
		})
	}
	loop("read task records", func(ctx context.Context) error { return w.readRecords(ctx, caughtUp) })
	loop("read announces", func(ctx context.Context) error {
		return w.bus.Tail(ctx, bus.Tail{
			Stream: subjects.StreamAnnounce, LastPerSubject: true, Handle: w.onAnnounce,
			Refused: func(m bus.Msg, _ error) { w.announced.Store(m.Seq) }, // it says nothing
			CaughtUp: func(last uint64) {
				w.announced.Store(max(last, w.announced.Load()))
				caughtUp <- struct{}{}
			},
		})
	})
	loop("watch the ledger", func(ctx context.Context) error {
		return w.ledger.kv.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
				return
			}
			if err := w.ledger.take(e); err != nil {
				w.ledger.kv.Skip(e, err)
			}
		})
	})
	loop("watch agents bucket", func(ctx context.Context) error {
		return w.drive.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
				return
			}
			w.onDrive(e)
		})
	})
}

// serve waits until the router has caught up, opens the doors, and ticks until
// ctx ends.
func (w *Worker) serve(ctx context.Context, loops *sync.WaitGroup, fail context.CancelCauseFunc, caughtUp <-chan struct{}) error {
	for _, s := range []struct {
		subject, queue string
		fn             func(bus.Msg)
	}{
		{subjects.HeartbeatPattern, "", w.onHeartbeat},
	} {
		sub, err := w.bus.Subscribe(s.subject, s.queue, s.fn)
		if err != nil {
			return fmt.Errorf("router: subscribe %s: %w", s.subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	w.sayHello(fleet.RouterHeartbeat{Epoch: w.epoch, Hello: true})
	defer w.farewell()
	for range readers {
		select {
		case <-caughtUp:
		case <-ctx.Done():
			return nil
		}
	}
	if err := w.meetRouters(ctx); err != nil {
		return nil //nolint:nilerr // ctx ended
	}
	w.settle()

	for _, s := range []struct {
		subject string
		fn      func(bus.Msg)
	}{
		{subjects.ResultPattern, w.spawn(w.onResult)},
		{subjects.ProgressPattern, w.spawn(w.onProgress)},
	} {
		sub, err := w.bus.Subscribe(s.subject, "routers", s.fn)
		if err != nil {
			return fmt.Errorf("router: subscribe %s: %w", s.subject, err)
		}
		defer func() { _ = sub.Drain() }()
	}
	stop, err := w.bus.Serve(w.work, w.service())
	if err != nil {
		return fmt.Errorf("router: serve the API: %w", err)
	}
	defer stop()
	loops.Go(func() {
		if err := w.bus.Consume(ctx, w.inbox(), w.onInbox); err != nil && ctx.Err() == nil {
			fail(fmt.Errorf("router: read the inbox: %w", err))
		}
	})
	loops.Go(func() { w.housekeep(ctx) })
	if err := w.bus.Ping(ctx); err != nil && ctx.Err() == nil { // the server knows the subscriptions
		return fmt.Errorf("router: %w", err)
	}
	w.ready.Store(true)
	w.log.Info("router serves", slog.Int("live_tasks", w.liveTasks()))
	w.loop(ctx)
	w.farewell() // to close the doors takes a while
	return nil
}

// loop ticks and beats until ctx ends.
func (w *Worker) loop(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	beat := time.NewTicker(workers.RingBeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if hears := w.bus.Connected(); hears {
				w.with(func(c *core, now time.Time) { c.tick(now) })
			}
		case <-beat.C:
			w.sayHello(fleet.RouterHeartbeat{Epoch: w.epoch})
			w.with(func(c *core, now time.Time) { c.reevaluate(now) })
		}
	}
}

// wait is a context shared by all that begins in one second: a context of its
// own for each message would cost more than deciding what it means.
type wait struct {
	ctx   context.Context //nolint:containedctx // it is what is shared
	until time.Time
}

// patience is how long something in hand may take: writeTimeout, brokers failing
// over, and up to two seconds more.
func (w *Worker) patience() context.Context {
	now := time.Now() // it counts from here, whatever clocks say
	if p := w.waits.Load(); p != nil && now.Before(p.until) {
		return p.ctx
	}
	ctx, cancel := context.WithTimeout(w.work, writeTimeout+2*time.Second)
	context.AfterFunc(ctx, cancel)
	w.waits.Store(&wait{ctx, now.Add(time.Second)})
	return ctx
}

// spawn runs a handler of messages on a goroutine each, maxReports at a time.
func (w *Worker) spawn(handle func(context.Context, bus.Msg)) func(bus.Msg) {
	slots := make(chan struct{}, maxReports)
	return func(m bus.Msg) {
		slots <- struct{}{}
		w.pool.Go(func() {
			defer func() { <-slots }()
			handle(w.patience(), m)
		})
	}
}

// meetRouters waits until the other routers have answered.
func (w *Worker) meetRouters(ctx context.Context) error {
	select {
	case <-time.After(workers.RingBeat / 4):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle opens the core for business.
func (w *Worker) settle() {
	w.with(func(c *core, now time.Time) {
		c.listen(now)
		c.goOn(now)
	})
}

// farewell hands this router's classes to the others at once.
func (w *Worker) farewell() {
	w.sayHello(fleet.RouterHeartbeat{Epoch: w.epoch, Leaving: true})
}

func (w *Worker) sayHello(hb fleet.RouterHeartbeat) {
	if err := w.bus.Publish(subjects.RouterHeartbeat(w.cfg.ID), fleet.MustEncode(hb), nil); err != nil {
		w.log.Debug("publish router heartbeat", slog.Any("error", err))
	}
}

func (w *Worker) liveTasks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.x.live
}
