package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
	"parley/workers"
)

// Config is what a runs worker needs.
type Config struct {
	Bus       *bus.Bus            // required
	ID        subjects.InstanceID // of this worker; default: random
	Operators []subjects.AgentID  // may see and change every run
	OutputDir string              // where output_location is; "": no run writes a file
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
		return errors.New("runs: no bus")
	}
	_, err := subjects.ParseInstanceID(string(c.ID))
	return err
}

// Bounds of a worker.
const (
	pollEvery   = 5 * time.Second // tasks are asked about beside what is heard of them
	againAfter  = time.Second     // what could not be done is tried again
	keepEnded   = 7 * 24 * time.Hour
	keepResults = 40 * 24 * time.Hour
	callTry     = 5 * time.Second
	callsAtOnce = 32
)

// live is a run as this worker knows it.
type live struct {
	sum    run.Summary
	ended  *time.Time
	rec    *run.Record // nil once it has ended
	rev    uint64
	kick   chan struct{} // something has happened; capacity 1
	driver *driver       // nil: none here
}

// Worker is a runs worker. New is required.
type Worker struct {
	// fixed after New
	cfg Config
	log *slog.Logger
	out *os.Root // nil: no files

	ready   atomic.Bool
	records bus.RecordWriter // set by Run
	drivers sync.WaitGroup

	mu     sync.Mutex // guards all below
	ring   *workers.Ring
	runs   map[subjects.RunID]*live
	tasks  map[subjects.TaskID]*box
	due    map[subjects.RunID]bool // to be driven, or left, anew
	writes map[string]*bus.Msg     // by write id, those of this worker that are under way; the record once it was heard
	kick   chan struct{}           // capacity 1
}

// box is where somebody hears of the ends of tasks.
type box struct {
	kick chan struct{} // capacity 1

	mu    sync.Mutex
	heard map[subjects.TaskID][]byte // their last records; guarded by mu
}

func newBox(kick chan struct{}) *box { return &box{kick: kick, heard: map[subjects.TaskID][]byte{}} }

// take gives what was heard since it was last asked.
func (b *box) take() map[subjects.TaskID][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.heard) == 0 {
		return nil
	}
	got := b.heard
	b.heard = map[subjects.TaskID][]byte{}
	return got
}

// listen has b hear of task; nil: nobody any more.
func (w *Worker) listen(task subjects.TaskID, b *box) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b == nil {
		delete(w.tasks, task)
		return
	}
	w.tasks[task] = b
}

// New checks cfg and wires a runs worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, log: cfg.Log.With(slog.String("component", "runs")),
		ring: workers.NewRing(cfg.ID), runs: map[subjects.RunID]*live{}, tasks: map[subjects.TaskID]*box{},
		due: map[subjects.RunID]bool{}, writes: map[string]*bus.Msg{}, kick: make(chan struct{}, 1),
	}
	if cfg.OutputDir != "" {
		if err := os.MkdirAll(cfg.OutputDir, 0o750); err != nil {
			return nil, fmt.Errorf("runs: make the output directory: %w", err)
		}
		root, err := os.OpenRoot(cfg.OutputDir)
		if err != nil {
			return nil, fmt.Errorf("runs: open the output directory: %w", err)
		}
		w.out = root
	}
	return w, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "runs" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker knows every run and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.cfg.Bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the runs")
	}
	return nil
}

// Run catches up and serves until ctx ends, and returns once everything it
// started has ended.
func (w *Worker) Run(ctx context.Context) error {
	if w.out != nil {
		defer func() { _ = w.out.Close() }()
	}
	records, stop := w.cfg.Bus.Records(subjects.StreamRuns, bus.CommitAuto)
	defer stop()
	w.records = records
	life, fail := context.WithCancelCause(ctx)
	var tail sync.WaitGroup
	defer tail.Wait() // after fail(nil), by which it ends
	defer fail(nil)
	caughtUp := make(chan struct{}, 1)
	tail.Go(func() {
		err := w.cfg.Bus.Tail(life, bus.Tail{
			Stream: subjects.StreamRuns, Subjects: []string{subjects.RunPattern}, LastPerSubject: true,
			Handle:   func(m bus.Msg) { w.onRecord(life, m) },
			CaughtUp: func(uint64) { caughtUp <- struct{}{} },
		})
		if err != nil && life.Err() == nil {
			fail(fmt.Errorf("runs: read the records: %w", err))
		}
	})
	select {
	case <-caughtUp:
	case <-life.Done():
		return cause(ctx, life)
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
	for _, s := range []struct {
		subject string
		fn      func(bus.Msg)
	}{
		{subjects.EventPattern, w.onEvent},
		{subjects.RunsHeartbeatPattern, w.onBeat},
	} {
		sub, err := w.cfg.Bus.Subscribe(s.subject, "", s.fn)
		if err != nil {
			return fmt.Errorf("runs: subscribe %s: %w", s.subject, err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	w.sayAlive(fleet.RouterHeartbeat{Hello: true})
	defer w.sayAlive(fleet.RouterHeartbeat{Leaving: true})
	stop, err := w.cfg.Bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return fmt.Errorf("runs: serve the API: %w", err)
	}
	defer stop()
	defer w.drivers.Wait()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("runs serves")
	w.allDue()
	beat := time.NewTicker(workers.RingBeat)
	defer beat.Stop()
	for {
		w.share(life)
		select {
		case <-life.Done():
			return cause(ctx, life)
		case <-w.kick:
		case <-beat.C:
			w.sayAlive(fleet.RouterHeartbeat{})
			w.mu.Lock()
			changed := w.ring.Expire(w.now())
			w.forgetLocked(w.now())
			w.mu.Unlock()
			if changed {
				w.allDue()
			}
		}
	}
}

// share starts a driver for each run that is this worker's, and stops those of
// others.
func (w *Worker) share(life context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.due {
		delete(w.due, id)
		l := w.runs[id]
		if l == nil {
			continue
		}
		mine := l.rec != nil && w.ring.Owns(string(id))
		switch {
		case !mine && l.driver != nil:
			l.driver.stop()
		case mine && l.driver == nil:
			ctx, stop := context.WithCancel(life)
			l.driver = w.newDriver(id, l, stop)
			w.drivers.Go(func() {
				defer stop()
				l.driver.run(ctx)
				w.mu.Lock()
				l.driver = nil
				w.due[id] = true // it may have become this worker's again
				w.mu.Unlock()
				kick(w.kick)
			})
		}
	}
}

// forgetLocked drops the runs whose record is not kept any more.
func (w *Worker) forgetLocked(now time.Time) {
	for id, l := range w.runs {
		if l.ended != nil && now.Sub(*l.ended) > keepEnded+time.Minute {
			delete(w.runs, id)
		}
	}
}

func (w *Worker) allDue() {
	w.mu.Lock()
	for id := range w.runs {
		w.due[id] = true
	}
	w.mu.Unlock()
	kick(w.kick)
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// onRecord takes in a record as it was stored, until that succeeds: nothing else
// tells of it again.
func (w *Worker) onRecord(ctx context.Context, m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.RunPattern, m.Subject)
	if ok && w.knows(subjects.RunID(vars[0]), m) {
		return
	}
	for {
		err := w.takeRecord(ctx, m)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !errors.Is(err, bus.ErrTimeout) && !errors.Is(err, bus.ErrNoResponders) {
			w.cfg.Bus.Skip(m, err)
			return
		}
		w.log.Warn("record is read again", slog.String("subject", m.Subject), slog.Any("error", err))
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) takeRecord(ctx context.Context, m bus.Msg) error {
	r, err := w.decodeRecord(ctx, m.Data)
	if err == nil && subjects.Run(r.RunID) != m.Subject {
		err = subjects.Misplaced("run")
	}
	if err == nil {
		w.heard(r, m.Seq)
	}
	return err
}

// knows reports whether a record is no news: it is old, or of a write that is
// under way here, which takes it in, whatever becomes of the write.
func (w *Worker) knows(id subjects.RunID, m bus.Msg) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	write := m.Header.Get(subjects.HeaderWriteID)
	if _, here := w.writes[write]; here {
		w.writes[write] = &m
		return true
	}
	l := w.runs[id]
	return l != nil && m.Seq <= l.rev
}

// writing notes that a write is under way, until over: it gives the record, if
// that was heard meanwhile.
func (w *Worker) writing(id string) (over func() *bus.Msg) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes[id] = nil
	return func() *bus.Msg {
		w.mu.Lock()
		defer w.mu.Unlock()
		m := w.writes[id]
		delete(w.writes, id)
		return m
	}
}

// heard takes in a record, of this worker or another.
func (w *Worker) heard(r *run.Record, rev uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.runs[r.RunID]
	if l == nil {
		l = &live{kick: make(chan struct{}, 1)}
		w.runs[r.RunID] = l
	}
	if rev <= l.rev {
		return
	}
	l.sum, l.ended, l.rec, l.rev = summary(r), r.Ended, r, rev
	if r.State.Ended() {
		l.rec = nil
	}
	w.due[r.RunID] = true
	kick(w.kick)
	kick(l.kick)
}

// record is a run's record; nil once it has ended.
func (w *Worker) record(l *live) (*run.Record, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.rec, l.rev
}

// onEvent hears that a task has ended.
func (w *Worker) onEvent(m bus.Msg) {
	if m.Header.Get(subjects.HeaderKind) != fleet.KindOutcome {
		return
	}
	vars, ok := subjects.Tokens(subjects.EventPattern, m.Subject)
	if !ok {
		return
	}
	task := subjects.TaskID(vars[0])
	w.mu.Lock()
	b := w.tasks[task]
	w.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	b.heard[task] = m.Data
	b.mu.Unlock()
	kick(b.kick)
}

func (w *Worker) onBeat(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.RunsHeartbeatPattern, m.Subject)
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
	if err := w.cfg.Bus.Publish(subjects.RunsHeartbeat(w.cfg.ID), fleet.MustEncode(&b), nil); err != nil {
		w.log.Debug("say that it lives", slog.Any("error", err))
	}
}

func (w *Worker) mayRead(who, from subjects.AgentID) bool {
	return who == from || slices.Contains(w.cfg.Operators, who)
}
