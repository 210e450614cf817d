package schedules

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schedule"
	"parley/workers"
)

// Config is what a schedules worker needs.
type Config struct {
	Bus       *bus.Bus            // required
	ID        subjects.InstanceID // of this worker; default: random
	Operators []subjects.AgentID  // may see and change every schedule
	Version   string              // of the program, SemVer
	Log       *slog.Logger        // nil: discarded
}

func (c Config) withDefaults() Config {
	c.ID = cmp.Or(c.ID, subjects.InstanceID(strings.ToLower(rand.Text()[:12])))
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.Bus == nil {
		return errors.New("schedules: no bus")
	}
	_, err := subjects.ParseInstanceID(string(c.ID))
	return err
}

// Bounds of a worker.
const (
	stepsAtOnce = 64
	againAfter  = time.Second     // what could not be done is tried again
	timerLate   = 2 * time.Second // a timer that has not come by then was lost
	pollMost    = 30 * time.Second
	renewEvery  = 6 * time.Hour // a session is kept for 24 hours
	keepEnded   = 7 * 24 * time.Hour
	maxPerAgent = 1000
	callTry     = 5 * time.Second
)

// key is from.name: the key of a record in its bucket.
type key = string

func keyOf(from subjects.AgentID, name schedule.Name) key { return string(from) + "." + string(name) }

// live is a schedule as this worker knows it.
type live struct {
	rec   *schedule.Record // nil: it is gone
	rev   uint64
	armed time.Time // when its timer is due; zero: it has none
	busy  bool      // a step is under way
	again bool      // and another one is to follow
	look  time.Time // when to look whatever is heard; zero: never
	renew time.Time // when to renew the session; zero: at once
}

// Worker is a schedules worker. New is required.
type Worker struct {
	// fixed after New
	cfg   Config
	log   *slog.Logger
	slots chan struct{} // one per step that is under way
	kick  chan struct{} // something is due; capacity 1
	every time.Duration // between signs of life

	ready atomic.Bool
	kv    *bus.KV // set by Run

	mu    sync.Mutex // guards all below
	ring  *workers.Ring
	index map[key]*live
	due   map[key]bool
}

// New checks cfg and wires a schedules worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, log: cfg.Log.With(slog.String("component", "schedules")),
		slots: make(chan struct{}, stepsAtOnce), kick: make(chan struct{}, 1), every: workers.RingBeat,
		ring: workers.NewRing(cfg.ID), index: map[key]*live{}, due: map[key]bool{},
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "schedules" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker knows every schedule and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the schedules")
	}
	return nil
}

// Run catches up and serves until ctx ends, finishes the steps that are under
// way, and returns once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	kv, err := w.cfg.Bus.KV(ctx, subjects.BucketSchedules)
	if err != nil {
		return fmt.Errorf("schedules: %w", err)
	}
	w.kv = kv
	life, fail := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which both loops end
	defer fail(nil)
	caughtUp := make(chan struct{}, 2)
	follow := func(what string, f func() error) {
		loops.Go(func() {
			if err := f(); err != nil && life.Err() == nil {
				fail(fmt.Errorf("schedules: read the %s: %w", what, err))
			}
		})
	}
	follow("schedules", func() error {
		return kv.Watch(life, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
				return
			}
			w.onEntry(e)
		})
	})
	follow("timers", func() error {
		return w.cfg.Bus.Tail(life, bus.Tail{
			Stream: subjects.StreamTimers, LastPerSubject: true, Handle: w.onTimer,
			CaughtUp: func(uint64) { caughtUp <- struct{}{} },
		})
	})
	for range 2 {
		select {
		case <-caughtUp:
		case <-life.Done():
			return cause(ctx, life)
		}
	}
	return w.serve(ctx, life)
}

// cause is why life ended; nil when ctx ended it.
func cause(ctx, life context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(life)
}

func (w *Worker) serve(ctx, life context.Context) error {
	sub, err := w.cfg.Bus.Subscribe(subjects.SchedulesHeartbeatPattern, "", w.onBeat)
	if err != nil {
		return fmt.Errorf("schedules: subscribe: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	w.sayAlive(fleet.RouterHeartbeat{Hello: true})
	defer w.sayAlive(fleet.RouterHeartbeat{Leaving: true})
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("schedules: serve the API: %w", err)
	}
	defer stop()
	var steps sync.WaitGroup
	defer steps.Wait()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("schedules serves")
	w.allDue()
	beat := time.NewTicker(w.every)
	defer beat.Stop()
	for {
		w.share(life, &steps)
		select {
		case <-life.Done():
			return cause(ctx, life)
		case <-w.kick:
		case <-beat.C:
			w.sayAlive(fleet.RouterHeartbeat{})
			w.tick(w.now())
		}
	}
}

// tick marks what is to be looked at by the time.
func (w *Worker) tick(now time.Time) {
	w.mu.Lock()
	changed := w.ring.Expire(now)
	for k, l := range w.index {
		late := l.rec != nil && l.rec.Next != nil && now.Sub(*l.rec.Next) > timerLate
		if changed || late || !l.look.IsZero() && !now.Before(l.look) || !l.renew.IsZero() && !now.Before(l.renew) {
			w.due[k] = true
		}
	}
	w.mu.Unlock()
}

// share starts a step for each schedule that is due and this worker's.
func (w *Worker) share(life context.Context, steps *sync.WaitGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.due {
		l := w.index[k]
		switch {
		case l == nil:
		case !w.ring.Owns(k):
			if l.look, l.renew = (time.Time{}), (time.Time{}); l.rec == nil && !l.busy {
				delete(w.index, k)
			}
		case l.busy:
			l.again = true
		default:
			select {
			case w.slots <- struct{}{}:
			default:
				return // a step that ends looks again
			}
			l.busy = true
			steps.Go(func() {
				defer w.over(k, l)
				w.carryOn(life, k, l)
			})
		}
		delete(w.due, k)
	}
}

// over ends a step.
func (w *Worker) over(k key, l *live) {
	<-w.slots
	w.mu.Lock()
	l.busy = false
	if l.again {
		l.again = false
		w.due[k] = true
	}
	w.mu.Unlock()
	w.wake()
}

func (w *Worker) allDue() {
	w.mu.Lock()
	for k := range w.index {
		w.due[k] = true
	}
	w.mu.Unlock()
	w.wake()
}

func (w *Worker) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// onEntry hears of a record, of this worker or another.
func (w *Worker) onEntry(e bus.Entry) {
	var rec *schedule.Record
	if !e.Deleted {
		var err error
		if rec, err = schedule.DecodeRecord(e.Value); err == nil && keyOf(rec.From, rec.Definition.Name) != e.Key {
			err = subjects.Misplaced("schedule")
		}
		if err != nil {
			w.kv.Skip(e, err)
			return
		}
	}
	w.heard(e.Key, rec, e.Revision)
}

func (w *Worker) heard(k key, rec *schedule.Record, rev uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.at(k)
	if rev <= l.rev {
		return
	}
	l.rec, l.rev = rec, rev
	if rec == nil && l.armed.IsZero() {
		delete(w.index, k)
		return
	}
	w.due[k] = true
	w.wake()
}

// at is the schedule k, known from now on. mu is held.
func (w *Worker) at(k key) *live {
	l := w.index[k]
	if l == nil {
		l = &live{}
		w.index[k] = l
	}
	return l
}

// onTimer hears that a timer was set, or that it is due.
func (w *Worker) onTimer(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.TimerPattern, m.Subject)
	armed := m.TimerAt()
	if !ok {
		if vars, ok = subjects.Tokens(subjects.TickPattern, m.Subject); !ok {
			w.cfg.Bus.Skip(m, subjects.Errorf(subjects.CodeInvalidID, "the subject is of no schedule"))
			return
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	k := vars[0] + "." + vars[1]
	w.at(k).armed = armed
	w.due[k] = true
	w.wake()
}

func (w *Worker) onBeat(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.SchedulesHeartbeatPattern, m.Subject)
	hb, err := fleet.DecodeRequest[fleet.RouterHeartbeat](m.Data)
	if !ok || err != nil || vars[0] == string(w.cfg.ID) {
		return
	}
	id := subjects.InstanceID(vars[0])
	w.mu.Lock()
	changed := hb.Leaving && w.ring.Left(id) || !hb.Leaving && w.ring.Heard(id, w.now())
	w.mu.Unlock()
	if changed {
		w.allDue()
	}
	if hb.Hello {
		w.sayAlive(fleet.RouterHeartbeat{})
	}
}

func (w *Worker) sayAlive(b fleet.RouterHeartbeat) {
	if err := w.cfg.Bus.Publish(subjects.SchedulesHeartbeat(w.cfg.ID), fleet.MustEncode(&b), nil); err != nil {
		w.log.Debug("say that it lives", slog.Any("error", err))
	}
}
