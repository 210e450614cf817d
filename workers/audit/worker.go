package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// Config is what an audit worker needs. Only Bus is required.
type Config struct {
	Bus       *bus.Bus
	Operators []subjects.AgentID // may read the audit
	Version   string             // of the program, SemVer; shown by nats micro ls
	Log       *slog.Logger       // nil: discarded
}

func (c Config) withDefaults() Config {
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

const (
	gather     = 250 * time.Millisecond // lines wait that long for others
	maxLines   = 1000                   // of a block, about
	maxBytes   = 256 << 10              // of a block, about
	stopGrace  = 5 * time.Second        // to write what was read
	queueItems = 4096                   // read and not written yet
	maxLine    = 16 << 10               // bytes of a line; genuine ones have far less
	maxItem    = 256 << 10              // bytes of the lines of a message, in the block
)

// source is a stream whose messages become lines.
type source struct {
	stream   string
	subjects []string // nil: all
	lines    func(m bus.Msg) ([]handshake.LogLine, error)
}

var errTooManyLines = errors.New("it has more lines than a block has room for")

var errOtherSubject = errors.New("it says another session or agent than its subject")

func sources() []source {
	list := []source{
		{subjects.StreamTasks, nil, func(m bus.Msg) ([]handshake.LogLine, error) {
			e, err := fleet.DecodeEvent(m.Data)
			if err != nil {
				return nil, err
			}
			return taskLines(e), nil
		}},
		{subjects.StreamContext, nil, func(m bus.Msg) ([]handshake.LogLine, error) {
			r, err := handshake.DecodeRecord(m.Data)
			if err != nil {
				return nil, err
			}
			return contextLines(r), nil
		}},
		{subjects.StreamLog, nil, func(m bus.Msg) ([]handshake.LogLine, error) {
			l, err := handshake.DecodeLogLine(m.Data)
			if err == nil && m.Subject != subjects.Log(l.SessionID, l.AgentID) {
				err = errOtherSubject
			}
			if err != nil {
				return nil, err
			}
			return []handshake.LogLine{*l}, nil
		}},
		{"KV_" + subjects.BucketSessions, nil, sessionLines},
	}
	for _, stream := range []string{
		subjects.StreamRuns, subjects.StreamWebhooks, "KV_" + subjects.BucketSchedules, "KV_" + subjects.BucketAlerts,
		"KV_" + subjects.BucketIdentities, "KV_" + subjects.BucketAgents,
	} {
		list = append(list, source{stream, []string{subjects.ToldPattern(stream)}, toldLines})
	}
	return list
}

// Worker is an audit worker. New is required.
type Worker struct {
	// Fixed after New.
	cfg Config
	bus *bus.Bus
	log *slog.Logger

	ready atomic.Bool
}

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if cfg.Bus == nil {
		return nil, errors.New("audit: Config.Bus is required")
	}
	return &Worker{cfg: cfg, bus: cfg.Bus, log: cfg.Log.With(slog.String("component", "audit"))}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "audit" }

// Ready returns nil once the worker reads its sources and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the end of the audit")
	}
	return nil
}

// Run follows the sources and serves until ctx ends, writes what it has read
// and returns once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	records, stop := w.bus.Records(subjects.StreamAudit, bus.CommitDirect)
	defer stop()
	c := &chain{b: w.bus, records: records, log: w.log}
	if err := c.load(ctx); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	begin := map[string]uint64{}
	for _, s := range sources() {
		state, err := w.bus.StateFrom(ctx, s.stream, c.position(s.stream))
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		begin[s.stream] = c.begin(s.stream, state.LastSeq)
	}
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stopServing, err := w.bus.Serve(context.WithoutCancel(ctx), w.service(run))
	if err != nil {
		return fmt.Errorf("audit: serve the API: %w", err)
	}
	defer stopServing()
	var readers, writer sync.WaitGroup
	items := make(chan item, queueItems)
	for _, s := range sources() {
		readers.Go(func() {
			if err := w.follow(run, s, begin[s.stream], items); err != nil && run.Err() == nil {
				fail(fmt.Errorf("audit: follow %s: %w", s.stream, err))
			}
		})
	}
	// What was read is written after ctx has ended.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	writer.Go(func() {
		w.write(work, c, items)
		fail(nil) // it gave up: nobody reads any more
	})
	w.ready.Store(true)
	w.log.Info("audit worker serves")

	<-run.Done()
	w.ready.Store(false)
	readers.Wait()
	defer time.AfterFunc(stopGrace, abort).Stop()
	close(items)
	writer.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(run)
}

// follow reads a source. Once a message was not handed on, none is: what is
// written must have no gap.
func (w *Worker) follow(ctx context.Context, s source, after uint64, items chan<- item) error {
	ended, seen := false, newLately()
	return w.bus.Tail(ctx, bus.Tail{
		Stream: s.stream, Subjects: s.subjects, StartSeq: after + 1,
		Handle: func(m bus.Msg) {
			if seen.again(m) {
				return
			}
			lines, err := s.lines(m)
			if err != nil {
				w.bus.Skip(m, err)
				return
			}
			i := item{stream: s.stream, seq: m.Seq}
			for n := range lines {
				i.lines = append(i.lines, bounded(&lines[n]))
			}
			if i.size() > maxItem {
				w.bus.Skip(m, errTooManyLines)
				return
			}
			if len(i.lines) == 0 || ended {
				return
			}
			select {
			case items <- i:
			case <-ctx.Done():
				ended = true
			}
		},
	})
}

// write gathers lines into blocks until items is closed, or work ends.
func (w *Worker) write(work context.Context, c *chain, items <-chan item) {
	for first := range items {
		if err := c.put(work, batch(first, items)); err != nil {
			w.log.Warn("audit lines are left for the next worker", slog.Any("error", err))
			return
		}
	}
}

// batch takes what comes within a moment.
func batch(first item, items <-chan item) []item {
	list, lines, size := []item{first}, len(first.lines), first.size()
	timer := time.NewTimer(gather)
	defer timer.Stop()
	for lines < maxLines && size < maxBytes {
		select {
		case i, open := <-items:
			if !open {
				return list
			}
			list = append(list, i)
			lines += len(i.lines)
			size += i.size()
		case <-timer.C:
			return list
		}
	}
	return list
}
