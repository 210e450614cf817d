package escalation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"parley/bus"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers"
)

// Self is who the worker is when it asks the routers.
const Self subjects.AgentID = "escalation"

// Defaults of Config.
const (
	DefaultLinkTTL   = 24 * time.Hour
	DefaultHeartbeat = time.Minute
	DefaultWaitAlert = 10 * time.Minute
)

// DefaultGroupBy is the default of Config.GroupBy.
func DefaultGroupBy() []string { return []string{"code", "agent"} }

// Config is what the worker needs. Only Bus is required.
type Config struct {
	Bus     *bus.Bus
	Version string // of the program, SemVer
	// Chain is who is called, and when. A contact is the name of a webhook
	// endpoint.
	Chain policy.Chain
	// GroupBy is what the tasks of one alert have in common, of code, agent,
	// mcp, from, session, run and task; agent is the one that failed last, or
	// the MCP servers where those are not healthy. Absent: code, agent.
	GroupBy []string
	// ChangeLog is the path of CHANGE.log; absent: none is kept.
	ChangeLog string
	// Operators may see and answer alerts. Absent: operator.
	Operators []subjects.AgentID
	// URL is where people reach Handler, for the links in calls; absent: calls
	// have none.
	URL string
	// Key signs the links. Absent: one is made and kept in the bucket.
	Key []byte
	// LinkTTL is how long a link can be used. Absent: 24 h.
	LinkTTL time.Duration
	// HeartbeatTo is the endpoint that hears every Heartbeat that all is well,
	// so that silence is noticed; absent: none.
	HeartbeatTo string
	// Heartbeat is how often. Absent: 1 min.
	Heartbeat time.Duration
	// WaitAlert is after how long people are notified that tasks wait for an agent, an
	// account or terms; sooner where less is left. Absent: 10 min.
	WaitAlert time.Duration
	// Log is where the worker logs; absent: nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, "0.0.0")
	c.Chain = c.Chain.WithDefaults()
	if len(c.GroupBy) == 0 {
		c.GroupBy = DefaultGroupBy()
	}
	if len(c.Operators) == 0 {
		c.Operators = []subjects.AgentID{"operator"}
	}
	c.URL = strings.TrimRight(c.URL, "/")
	c.LinkTTL = cmp.Or(c.LinkTTL, DefaultLinkTTL)
	c.Heartbeat = cmp.Or(c.Heartbeat, DefaultHeartbeat)
	c.WaitAlert = cmp.Or(c.WaitAlert, DefaultWaitAlert)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c Config) validate() error {
	if c.Bus == nil {
		return errors.New("escalation: Config.Bus is required")
	}
	for _, contact := range append(slices.Clone(c.Chain.Contacts), c.HeartbeatTo) {
		if contact != "" && !subjects.ValidToken(contact) {
			return fmt.Errorf("escalation: contact %q is not the name of an endpoint", contact)
		}
	}
	for _, label := range c.GroupBy {
		if !slices.Contains(groupLabels(), label) {
			return fmt.Errorf("escalation: cannot group by %q, only by %s", label, strings.Join(groupLabels(), ", "))
		}
	}
	if len(c.Key) > 0 && len(c.Key) < 16 {
		return errors.New("escalation: Config.Key must have 16 bytes at least")
	}
	return nil
}

// Worker is an escalation worker. New wires it, Run does everything.
type Worker struct {
	// Fixed after New.
	cfg   Config
	bus   *bus.Bus
	log   *slog.Logger
	lines *changeLog
	notes *workers.Notes

	// Fixed by Run before anything uses it.
	kv      *bus.KV
	started time.Time
	key     atomic.Pointer[[]byte]

	messages bus.RecordWriter // of the stream of escalations

	ready    atomic.Bool
	refused  atomic.Uint64
	refusals *rate.Limiter // of those that are kept
	wake     chan struct{} // has room for one: the view has changed
	recent   recent

	mu   sync.Mutex // guards view
	view *view
}

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	log := cfg.Log.With(slog.String("component", "escalation"))
	return &Worker{
		cfg: cfg, bus: cfg.Bus, log: log, notes: workers.NewNotes(cfg.Bus, log),
		lines: &changeLog{path: cfg.ChangeLog}, wake: make(chan struct{}, 1), view: newView(),
		refusals: rate.NewLimiter(refusalsPerSecond, refusalsAtOnce),
	}, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "escalation" }

// now is the time by the servers' clocks.
func (w *Worker) now() time.Time { return w.cfg.Bus.Now() }

// Ready returns nil once the worker has caught up and serves.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("reading the alerts")
	}
	return nil
}

// Run catches up, works until ctx ends, finishes what is in hand and returns
// once everything it started has ended.
func (w *Worker) Run(ctx context.Context) error {
	var err error
	if w.kv, err = w.bus.KV(ctx, subjects.BucketAlerts); err != nil {
		return fmt.Errorf("escalation: open bucket %s: %w", subjects.BucketAlerts, err)
	}
	w.started = w.now()
	defer w.lines.close()
	messages, closeMessages := w.bus.Records(subjects.StreamEscalations, bus.CommitDirect)
	defer closeMessages()
	w.messages = messages
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var loops sync.WaitGroup
	defer loops.Wait() // after fail(nil), by which all of them end
	defer fail(nil)
	loop := func(name string, f func(context.Context) error) {
		loops.Go(func() {
			if err := f(run); err != nil && run.Err() == nil {
				fail(fmt.Errorf("escalation: %s: %w", name, err))
			}
		})
	}
	caughtUp := make(chan struct{}, 1)
	loop("watch alerts", func(ctx context.Context) error {
		return w.kv.Watch(ctx, func(e bus.Entry) {
			if e.Key == "" {
				caughtUp <- struct{}{}
				return
			}
			w.onEntry(e)
		})
	})
	select {
	case <-caughtUp:
	case <-run.Done():
		return cause(ctx, run)
	}
	if err := w.makeKey(run); err != nil {
		return cmp.Or(cause(ctx, run), err)
	}
	loop("derive escalations", w.derive)
	loop("see to humans", w.seeToHumans)
	loop("act", w.act)
	loop("end stale waits", w.endStale)
	loop("watch why tasks wait", w.watchCauses)
	if w.cfg.HeartbeatTo != "" {
		loop("beat", w.beat)
	}
	// Calls in hand are answered after ctx has ended: stop waits for them.
	stop, err := w.bus.Serve(context.WithoutCancel(ctx), w.service())
	if err != nil {
		return cmp.Or(cause(ctx, run), fmt.Errorf("escalation: serve the API: %w", err))
	}
	defer stop()
	w.ready.Store(true)
	defer w.ready.Store(false)
	w.log.Info("escalation serves", slog.Int("contacts", len(w.cfg.Chain.Contacts)))
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

// with changes or reads the view.
func (w *Worker) with(f func(v *view)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.view)
}

// stir has the loop look at the view again.
func (w *Worker) stir() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// event keeps what happened to an alert. It is told, not relied on: what it
// says is in the alerts and records.
func (w *Worker) event(ctx context.Context, e fleet.AlertEvent) {
	e.Header = fleet.Header{Type: fleet.TypeAlertEvent, ProtocolVersion: fleet.Version}
	e.Time = w.now()
	e.AlertID = cmp.Or(e.AlertID, "none")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	attrs := []any{slog.String("alert_id", e.AlertID), slog.String("event", e.Event), slog.String("by", e.By), slog.String("message", e.Message)}
	if e.TaskID != "" {
		attrs = append(attrs, slog.String("task_id", string(e.TaskID)))
	}
	if _, err := w.bus.Store(ctx, subjects.Alert(e.AlertID), fleet.MustEncode(&e), "", nil); err != nil {
		w.log.Warn("keep an event of an alert", append(attrs, slog.Any("error", err))...)
		return
	}
	w.log.Info("alert", attrs...)
}

// beat tells one endpoint again and again that all is well.
func (w *Worker) beat(ctx context.Context) error {
	for {
		now := w.now()
		at := now.Truncate(w.cfg.Heartbeat)
		until := at.Add(w.cfg.Heartbeat)
		err := w.deliver(ctx, &fleet.Delivery{
			DeliveryID: subjects.DeliveryID(fmt.Sprintf("beat-%d", at.Unix())), Endpoint: w.cfg.HeartbeatTo,
			Order: "heartbeat", Schedule: fleet.SchedulePush, NotAfter: &until,
			Body: fleet.MustEncode(map[string]any{"type": "heartbeat", "time": at, "every_seconds": w.cfg.Heartbeat.Seconds()}),
		})
		if err != nil && ctx.Err() == nil {
			w.log.Warn("publish a heartbeat", slog.Any("error", err))
		}
		timer := time.NewTimer(until.Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// deliver hands a delivery to the webhooks worker.
func (w *Worker) deliver(ctx context.Context, d *fleet.Delivery) error {
	d.Header = fleet.Header{Type: fleet.TypeDelivery, ProtocolVersion: fleet.Version}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err := w.bus.Store(ctx, subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(d), string(d.DeliveryID), nil)
	return err
}
