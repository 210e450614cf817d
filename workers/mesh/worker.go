package mesh

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers"
)

// Limits bound what agents say to each other. Zero values have defaults.
type Limits struct {
	MaxHops        int // messages that may have led to one; default 8
	MaxBytes       int // of a message; default 64 KiB
	PairPerMinute  int // from one agent to one other; default 120
	AgentPerMinute int // from one agent to all; default 600
}

func (l Limits) withDefaults() Limits {
	l.MaxHops = cmp.Or(l.MaxHops, mesh.DefaultMaxHops)
	l.MaxBytes = cmp.Or(l.MaxBytes, 64<<10)
	l.PairPerMinute = cmp.Or(l.PairPerMinute, 120)
	l.AgentPerMinute = cmp.Or(l.AgentPerMinute, 600)
	return l
}

// Config is what a mesh worker needs.
type Config struct {
	Bus       *bus.Bus            // required
	ID        subjects.InstanceID // of this worker; default: random
	Operators []subjects.AgentID  // may read every message
	Limits    Limits              // the same for all workers of a fleet
	Keep      time.Duration       // of messages after their end; default 24 h
	Version   string              // of the program, SemVer
	Log       *slog.Logger        // nil: discarded
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, subjects.InstanceID(strings.ToLower(rand.Text()[:12])))
	c.Limits = c.Limits.withDefaults()
	c.Version = cmp.Or(c.Version, "0.0.0")
	c.Keep = cmp.Or(c.Keep, keepEnded)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.Bus == nil {
		return errors.New("mesh: no bus")
	}
	if l := c.Limits; l.MaxHops < 0 || l.MaxBytes < 0 || l.PairPerMinute < 0 || l.AgentPerMinute < 0 {
		return errors.New("mesh: a limit is negative")
	}
	_, err := subjects.ParseInstanceID(string(c.ID))
	return err
}

// Bounds of a worker.
const (
	stepsAtOnce = 256
	sweepEvery  = time.Minute
	keepEnded   = 24 * time.Hour
	stopGrace   = 10 * time.Second
)

// Worker is a mesh worker. New is required.
type Worker struct {
	// fixed after New
	cfg   Config
	log   *slog.Logger
	kick  chan struct{} // something is due; capacity 1
	slots chan struct{} // one per step that is under way
	bells bells

	ready atomic.Bool

	// set by Run
	records bus.RecordWriter
	work    context.Context //nolint:containedctx // of the steps: it outlives Run's by the grace time

	mu   sync.Mutex // guards core
	core *core
}

// New checks cfg and wires a mesh worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, log: cfg.Log.With(slog.String("component", "mesh")),
		kick: make(chan struct{}, 1), slots: make(chan struct{}, stepsAtOnce),
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "mesh" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker knows every message and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the messages")
	}
	return nil
}

// Run catches up and serves until ctx ends, finishes the steps that are under
// way, and returns once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	w.core = newCore(w.cfg.ID, w.cfg.Limits, w.now())
	w.mu.Unlock()
	records, stopRecords := w.cfg.Bus.Records(subjects.StreamMeshState, bus.CommitAuto)
	defer stopRecords()
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	w.records, w.work = records, work

	run, fail := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which all loops end
	defer fail(nil)
	caughtUp := make(chan struct{}, 3)
	follow := func(stream string, last bool, handle func(bus.Msg)) {
		loops.Go(func() {
			err := w.cfg.Bus.Tail(run, bus.Tail{
				Stream: stream, LastPerSubject: last, Handle: handle,
				CaughtUp: func(uint64) { caughtUp <- struct{}{} },
			})
			if err != nil && run.Err() == nil {
				fail(fmt.Errorf("mesh: read %s: %w", stream, err))
			}
		})
	}
	follow(subjects.StreamAnnounce, true, w.onAnnounce)
	follow(subjects.StreamMeshState, true, w.onRecord)
	for range 2 { // before the messages, so that none is taken for a new one
		select {
		case <-caughtUp:
		case <-run.Done():
			return cause(ctx, run)
		}
	}
	follow(subjects.StreamMesh, false, w.onMessage)
	select {
	case <-caughtUp:
	case <-run.Done():
		return cause(ctx, run)
	}
	return w.serve(ctx, run)
}

// cause is why run ended; nil when ctx ended it.
func cause(ctx, run context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// serve listens, answers and takes the steps that are due until run ends.
func (w *Worker) serve(ctx, run context.Context) error {
	for _, s := range []struct {
		subject string
		fn      func(bus.Msg)
	}{
		{subjects.HeartbeatPattern, w.onHeartbeat},
		{subjects.MeshHeartbeatPattern, w.onMeshBeat},
	} {
		sub, err := w.cfg.Bus.Subscribe(s.subject, "", s.fn)
		if err != nil {
			return fmt.Errorf("mesh: subscribe %s: %w", s.subject, err)
		}
		defer func() {
			if err := sub.Unsubscribe(); err != nil {
				w.log.Debug("unsubscribe", slog.String("subject", s.subject), slog.Any("error", err))
			}
		}()
	}
	w.sayAlive(fleet.RouterHeartbeat{Hello: true})
	defer w.sayAlive(fleet.RouterHeartbeat{Leaving: true})
	// Calls in hand are answered after ctx has ended: stop waits for them.
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("mesh: serve the API: %w", err)
	}
	var steps sync.WaitGroup
	defer steps.Wait()
	defer w.bells.close() // calls that wait are answered
	defer stop()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("mesh serves", slog.Int("messages", w.count()))
	w.drive(run, &steps)
	if !within(&steps, stopGrace) {
		w.log.Warn("steps are left behind: another worker takes them up")
	}
	return cause(ctx, run)
}

// within waits for g, at most for d.
func within(g *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }() // ends with the last step, which serve awaits
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// drive takes the steps that are due until run ends.
func (w *Worker) drive(run context.Context, steps *sync.WaitGroup) {
	beat := time.NewTicker(workers.RingBeat)
	defer beat.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	w.wake()
	for {
		select {
		case <-run.Done():
			return
		case <-beat.C:
			w.sayAlive(fleet.RouterHeartbeat{})
			w.with(func(c *core, now time.Time) {
				if c.ring.Expire(now) {
					c.wakeAll()
				}
				c.look(now)
			})
		case <-sweep.C:
			w.sweep(run)
			continue
		case <-timer.C:
		case <-w.kick:
		}
		w.mu.Lock()
		due := w.core.next(w.now())
		if len(w.core.timers) > 0 {
			timer.Reset(max(w.core.timers[0].at.Sub(w.now()), time.Millisecond))
		}
		w.mu.Unlock()
		for _, s := range due {
			select {
			case w.slots <- struct{}{}:
			case <-run.Done():
				w.with(func(c *core, _ time.Time) { c.over(s) })
				continue
			}
			steps.Go(func() {
				defer func() { <-w.slots }()
				w.take(s)
				w.with(func(c *core, _ time.Time) { c.over(s) })
			})
		}
	}
}

// with changes the core, and has what is due then done.
func (w *Worker) with(f func(c *core, now time.Time)) {
	defer w.wake()
	w.mu.Lock()
	defer w.mu.Unlock() // whatever f does: the bus recovers
	f(w.core, w.now())
}

func (w *Worker) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.core.log)
}

// sweep drops the messages that ended a day ago; one worker does it for the
// streams.
func (w *Worker) sweep(ctx context.Context) {
	var first, rev uint64
	var dropped int
	var mine bool
	w.with(func(c *core, now time.Time) {
		c.agents.sweep(now)
		first, rev, dropped = c.forget(now.Add(-w.cfg.Keep))
		mine = c.ring.Owns("sweep")
	})
	if dropped == 0 || !mine {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	err := w.cfg.Bus.PurgeBefore(ctx, subjects.StreamMesh, first)
	if err == nil { // in this order: a message without its record would be a new one
		err = w.cfg.Bus.PurgeBefore(ctx, subjects.StreamMeshState, rev)
	}
	if err != nil && ctx.Err() == nil {
		w.log.Warn("purge ended messages", slog.Any("error", err))
	}
}

func (w *Worker) sayAlive(b fleet.RouterHeartbeat) {
	if err := w.cfg.Bus.Publish(subjects.MeshHeartbeat(w.cfg.ID), fleet.MustEncode(&b), nil); err != nil {
		w.log.Debug("say that it lives", slog.Any("error", err))
	}
}

func (w *Worker) operator(id subjects.AgentID) bool { return slices.Contains(w.cfg.Operators, id) }
