package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
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

// Worker is a sessions worker. New is required.
type Worker struct {
	// Fixed after New.
	cfg     Config
	bus     *bus.Bus
	log     *slog.Logger
	scanner scanner
	scans   *turns        // who looks for secrets: that keeps a processor busy
	verify  *turns        // one large output is read back at a time
	ends    chan struct{} // capacity 1: there is something in ended

	notes    *workers.Notes
	outcomes progress

	// Fixed by Run before anything is served.
	sessions *bus.KV
	keys     *keyring
	outputs  *bus.Objects
	records  bus.RecordWriter

	ready   atomic.Bool
	waiting atomic.Int64 // reads that wait for news

	mu    sync.Mutex // guards all below
	known map[subjects.SessionID]stored
	logs  map[subjects.SessionID]*sessionLog
	waits map[subjects.SessionID]chan struct{} // closed at the next version
	ended []subjects.SessionID                 // whose end was told, and what they held is not dropped yet
}

// stored is a session's record, and where it stands in the bucket.
type stored struct {
	session  handshake.Session
	revision uint64
	at       time.Time
}

func (s stored) keptUntil() time.Time { return s.at.Add(handshake.SessionLife) }

// scanner finds secrets, and says when there was no time to look for them; see
// secrets.Scanner.
type scanner interface {
	JSON(ctx context.Context, data []byte) (masked []byte, found []secrets.Finding, named bool, err error)
	Text(ctx context.Context, text string) ([]secrets.Finding, error)
}

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
		scans: newTurns(2 * runtime.GOMAXPROCS(0)), verify: newTurns(1), ends: make(chan struct{}, 1),
		notes: workers.NewNotes(cfg.Bus, log), known: map[subjects.SessionID]stored{},
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
	loop("watch sessions", func(ctx context.Context) error {
		return w.sessions.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
			} else {
				w.onSession(e)
			}
		})
	})
	select {
	case <-caughtUp:
	case <-run.Done():
		return cause(ctx, run)
	}
	loop("clean up", w.cleanUp)
	loop("follow outcomes", w.followOutcomes)
	return w.serve(ctx, run)
}

// open opens what is stored.
func (w *Worker) open(ctx context.Context) (err error) {
	if w.sessions, err = w.bus.KV(ctx, subjects.BucketSessions); err != nil {
		return err
	}
	shared, err := w.bus.KV(ctx, subjects.BucketWorkers)
	if err != nil {
		return err
	}
	if w.outputs, err = w.bus.Objects(ctx, subjects.ObjectsOutputs); err != nil {
		return err
	}
	w.keys = newKeyring(shared, w.now)
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

// onSession takes in a change in the bucket.
func (w *Worker) onSession(e bus.Entry) {
	id := subjects.SessionID(e.Key)
	if e.Deleted {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.forgetLocked(id)
		w.ended = append(w.ended, id) // it is dropped later: the watch must not wait
		select {
		case w.ends <- struct{}{}:
		default:
		}
		return
	}
	s, err := decodeStored(e)
	if err == nil && s.session.SessionID != id {
		err = subjects.Misplaced("session")
	}
	if err != nil {
		w.sessions.Skip(e, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[id] = s
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
