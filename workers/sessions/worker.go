package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
	"parley/workers/sessions/secrets"
)

// Config is what a sessions worker needs. Only Bus is required.
type Config struct {
	Bus *bus.Bus
	// Operators may use and change every session.
	Operators []subjects.AgentID
	// MaxOutput is the largest output, in bytes; absent: 64 MiB.
	MaxOutput int64
	Version   string       // of the program, SemVer; shown by nats micro ls
	Log       *slog.Logger // nil: discarded
}

func (c Config) withDefaults() Config {
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	c.MaxOutput = cmp.Or(c.MaxOutput, handshake.MaxOutput)
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	switch {
	case c.Bus == nil:
		return errors.New("sessions: Config.Bus is required")
	case c.MaxOutput < 0:
		return errors.New("sessions: Config.MaxOutput must not be negative")
	}
	return nil
}

const (
	sweepEvery  = time.Hour
	expireEvery = time.Minute
	// young protects what was written for a session that this worker may not
	// have heard of yet.
	young = time.Minute
	idle  = 10 * time.Minute // after which a context is not kept in memory
)

// Worker is a sessions worker. New is required.
type Worker struct {
	// Fixed after New.
	cfg     Config
	bus     *bus.Bus
	log     *slog.Logger
	scanner *secrets.Scanner
	verify  chan struct{} // one large output is read back at a time

	notes    *workers.Notes
	outcomes progress

	// Fixed by Run before anything is served.
	sessions *bus.KV
	keys     *keyring
	outputs  *bus.Objects
	shared   *bus.KV
	records  bus.RecordWriter

	ready atomic.Bool

	mu    sync.Mutex // guards all below
	known map[subjects.SessionID]stored
	logs  map[subjects.SessionID]*sessionLog
	waits map[subjects.SessionID]chan struct{} // closed at the next version
}

// stored is a session's record, and where it stands in the bucket.
type stored struct {
	session  handshake.Session
	revision uint64
	at       time.Time
}

func (s stored) keptUntil() time.Time { return s.at.Add(handshake.SessionLife) }

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	scanner, err := secrets.New()
	if err != nil {
		return nil, fmt.Errorf("sessions: %w", err)
	}
	log := cfg.Log.With(slog.String("component", "sessions"))
	return &Worker{
		cfg: cfg, bus: cfg.Bus, scanner: scanner, log: log,
		verify: make(chan struct{}, 1), notes: workers.NewNotes(cfg.Bus, log), known: map[subjects.SessionID]stored{},
		logs: map[subjects.SessionID]*sessionLog{}, waits: map[subjects.SessionID]chan struct{}{},
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "sessions" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker knows every session and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the sessions")
	}
	return nil
}

// Run catches up, serves until ctx ends, answers the calls in hand and returns
// once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	records, stop := w.bus.Records(subjects.StreamContext, bus.CommitDirect)
	defer stop()
	w.records = records

	run, fail := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which all loops end
	defer fail(nil)
	caughtUp := make(chan struct{}, 1)
	loop := func(name string, f func(context.Context) error) {
		loops.Go(func() {
			if err := f(run); err != nil && run.Err() == nil {
				fail(fmt.Errorf("sessions: %s: %w", name, err))
			}
		})
	}
	gone := make(chan subjects.SessionID, 1024)
	loop("watch sessions", func(ctx context.Context) error {
		return w.sessions.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
			} else if id, dead := w.onSession(e); dead {
				select {
				case gone <- id:
				case <-ctx.Done():
				}
			}
		})
	})
	// Deletions that are still told are heard before the end of the catching up.
	loop("clean up", func(ctx context.Context) error { return w.cleanUp(ctx, gone) })
	select {
	case <-caughtUp:
	case <-run.Done():
		return cause(ctx, run)
	}
	loop("follow outcomes", w.followOutcomes)
	return w.serve(ctx, run)
}

// open opens what is stored.
func (w *Worker) open(ctx context.Context) (err error) {
	if w.sessions, err = w.bus.KV(ctx, subjects.BucketSessions); err != nil {
		return err
	}
	if w.shared, err = w.bus.KV(ctx, subjects.BucketWorkers); err != nil {
		return err
	}
	if w.outputs, err = w.bus.Objects(ctx, subjects.ObjectsOutputs); err != nil {
		return err
	}
	w.keys = &keyring{kv: w.shared}
	return w.keys.load(ctx)
}

// serve listens and answers until run ends.
func (w *Worker) serve(ctx, run context.Context) error {
	news, err := w.bus.Subscribe(subjects.ContextNewsPattern, "", w.onNews)
	if err != nil {
		return fmt.Errorf("sessions: hear of new versions: %w", err)
	}
	defer func() {
		if err := news.Unsubscribe(); err != nil {
			w.log.Debug("unsubscribe", slog.Any("error", err))
		}
	}()
	// Calls in hand are answered after ctx has ended: stop waits for them.
	stop, err := w.bus.Serve(context.WithoutCancel(ctx), w.service(run))
	if err != nil {
		return fmt.Errorf("sessions: serve the API: %w", err)
	}
	defer stop()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("sessions worker serves")
	<-run.Done()
	return cause(ctx, run)
}

// cause is why run ended; nil when ctx ended it.
func cause(ctx, run context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// onSession takes in a change in the bucket, and says whether it was the end of
// a session.
func (w *Worker) onSession(e bus.Entry) (subjects.SessionID, bool) {
	id := subjects.SessionID(e.Key)
	if e.Deleted {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.forgetLocked(id)
		return id, true
	}
	s, err := decodeStored(e)
	if err != nil {
		w.log.Warn("session record ignored", slog.String("session_id", e.Key), slog.Any("error", err))
		return id, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[id] = s
	return id, false
}

func decodeStored(e bus.Entry) (stored, error) {
	s := stored{revision: e.Revision, at: e.Time}
	if err := json.Unmarshal(e.Value, &s.session); err != nil {
		return s, fmt.Errorf("decode session %s: %w", e.Key, err)
	}
	return s, nil
}

// onNews wakes whoever waits for a new version.
func (w *Worker) onNews(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.ContextNewsPattern, m.Subject)
	if !ok {
		return
	}
	id := subjects.SessionID(vars[0])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakeLocked(id)
}

// wakeLocked has those look again who wait for news of a session.
func (w *Worker) wakeLocked(id subjects.SessionID) {
	if ch := w.waits[id]; ch != nil {
		close(ch)
		delete(w.waits, id)
	}
}

// forgetLocked drops what is known of a session that is gone.
func (w *Worker) forgetLocked(id subjects.SessionID) {
	delete(w.known, id)
	delete(w.logs, id)
	w.wakeLocked(id)
}

// news is closed at the next version of id's context.
func (w *Worker) news(id subjects.SessionID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits[id] == nil {
		w.waits[id] = make(chan struct{})
	}
	return w.waits[id]
}

// cleanUp drops what ended sessions held: when their end is told, or their time
// is over, and every hour what a worker that died, or was away, has left.
func (w *Worker) cleanUp(ctx context.Context, gone <-chan subjects.SessionID) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	first := time.NewTimer(young) // by then all sessions are known
	defer first.Stop()
	expire := time.NewTicker(expireEvery)
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-gone:
			w.drop(ctx, id)
		case <-expire.C:
			for _, id := range w.takeExpired(w.now()) {
				w.drop(ctx, id)
			}
		case <-first.C:
			w.sweep(ctx)
		case <-tick.C:
			w.sweep(ctx)
		}
	}
}

// takeExpired forgets the sessions whose time is over.
func (w *Worker) takeExpired(now time.Time) (ids []subjects.SessionID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.known {
		if now.After(s.keptUntil().Add(expireEvery)) { // their record is gone by itself
			ids = append(ids, id)
			w.forgetLocked(id)
		}
	}
	return ids
}

// drop removes context and outputs of a session that is gone.
func (w *Worker) drop(ctx context.Context, id subjects.SessionID) {
	if err := w.dropAll(ctx, id); err != nil && ctx.Err() == nil {
		w.log.Warn("drop what a session held; tried again within the hour", slog.String("session_id", string(id)), slog.Any("error", err))
		return
	}
	w.log.Debug("session is gone", slog.String("session_id", string(id)))
}

func (w *Worker) dropAll(ctx context.Context, id subjects.SessionID) error {
	if err := w.dropOutputs(ctx, func(owner subjects.SessionID) bool { return owner == id }); err != nil {
		return err
	}
	return w.bus.Purge(ctx, subjects.StreamContext, subjects.Context(id))
}

// sweep drops whatever belongs to no session.
func (w *Worker) sweep(ctx context.Context) {
	if err := w.dropOutputs(ctx, w.isGone); err != nil && ctx.Err() == nil {
		w.log.Warn("look for outputs of sessions that are gone", slog.Any("error", err))
	}
	var ids []subjects.SessionID
	read, done := context.WithCancel(ctx)
	defer done()
	err := w.bus.Tail(read, bus.Tail{
		Stream: subjects.StreamContext, LastPerSubject: true, HeadersOnly: true,
		Handle: func(m bus.Msg) {
			if vars, ok := subjects.Tokens(subjects.ContextPattern, m.Subject); ok {
				ids = append(ids, subjects.SessionID(vars[0]))
			}
		},
		CaughtUp: func(uint64) { done() },
	})
	if err != nil {
		w.log.Warn("look for contexts of sessions that are gone", slog.Any("error", err))
	}
	for _, id := range slices.DeleteFunc(ids, func(id subjects.SessionID) bool { return !w.isGone(id) }) {
		if ctx.Err() != nil {
			return
		}
		if err := w.bus.Purge(ctx, subjects.StreamContext, subjects.Context(id)); err != nil {
			w.log.Warn("drop a context", slog.String("session_id", string(id)), slog.Any("error", err))
		}
	}
	w.forgetIdle(time.Now())
}

// isGone reports whether id is a session that was, and is no more.
func (w *Worker) isGone(id subjects.SessionID) bool {
	created, ok := createdAt(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	s, known := w.known[id]
	lives := known && w.now().Sub(s.keptUntil()) < expireEvery
	return !lives && ok && w.now().Sub(created) > young
}

// forgetIdle drops contexts from memory that nobody has asked for lately.
func (w *Worker) forgetIdle(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, l := range w.logs {
		if now.Sub(l.used) > idle {
			delete(w.logs, id)
		}
	}
}
