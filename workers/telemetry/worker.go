package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// Path is where the page of metrics is.
const Path = "/metrics"

// Workers of this kind share what they hear, each record once: all of them to
// count it, and those that send traces to make them.
const (
	countQueue = "telemetry"
	traceQueue = "telemetry-traces"
)

// Config is what a telemetry worker needs. Only Bus is required.
type Config struct {
	Bus     *bus.Bus
	Version string       // of the program, a SemVer
	OTLP    *OTLP        // where traces go; nil: nowhere
	Log     *slog.Logger // nil: discarded
	// Unsafe says of all that is looked at whether it is unsafe, by what it is
	// about; nil: nobody looks.
	Unsafe func() map[string]bool
}

func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, "0.0.0")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Unsafe == nil {
		c.Unsafe = func() map[string]bool { return nil }
	}
	return c
}

// Worker is a telemetry worker. New is required.
type Worker struct {
	// Fixed after New.
	bus      *bus.Bus
	version  string
	log      *slog.Logger
	heard    *heard
	registry *prometheus.Registry
	traces   *tracer // nil: none are made

	ready atomic.Bool
}

// New checks cfg and wires a worker; it starts nothing.
func New(cfg Config) (*Worker, error) {
	cfg = cfg.withDefaults()
	if cfg.Bus == nil {
		return nil, errors.New("telemetry: Config.Bus is required")
	}
	w := &Worker{
		bus: cfg.Bus, version: cfg.Version, log: cfg.Log.With(slog.String("component", "telemetry")),
		heard: newHeard(), registry: prometheus.NewRegistry(),
	}
	all := []prometheus.Collector{
		w.heard, &asked{bus: cfg.Bus, version: cfg.Version, unsafe: cfg.Unsafe, log: w.log},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	for _, c := range all {
		if err := w.registry.Register(c); err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
	}
	if cfg.OTLP != nil {
		var err error
		if w.traces, err = newTracer(w, cfg.OTLP, cfg.Version); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Name names the worker in logs.
func (w *Worker) Name() string { return "telemetry" }

// Ready returns nil once the worker hears what there is to count.
func (w *Worker) Ready() error {
	switch {
	case !w.bus.Connected():
		return errors.New("not connected to the bus")
	case !w.ready.Load():
		return errors.New("subscribing to the records")
	}
	return nil
}

// Handler is the page of metrics.
func (w *Worker) Handler() http.Handler {
	return promhttp.HandlerFor(w.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
}

// Run counts until ctx ends, and sends the traces of what has ended by then. It
// is for once.
func (w *Worker) Run(ctx context.Context) error {
	var tracing sync.WaitGroup
	if w.traces != nil {
		// What was heard is sent after ctx has ended.
		work, abort := context.WithCancel(context.WithoutCancel(ctx))
		defer abort()
		tracing.Go(func() { w.traces.run(work) })
		defer func() {
			defer time.AfterFunc(flushFor, abort).Stop()
			close(w.traces.stop)
			tracing.Wait()
		}()
	}
	type hearing struct {
		subject, queue string
		hear           func(bus.Msg)
	}
	all := []hearing{{subjects.EventPattern, countQueue, w.hear}}
	if w.traces != nil {
		all = append(all, hearing{subjects.EventPattern, traceQueue, w.hearOutcome},
			hearing{subjects.WebhookEventPattern, traceQueue, w.hearDelivery}, hearing{subjects.RunEventPattern, traceQueue, w.hearRun})
	}
	for _, h := range all {
		sub, err := w.bus.Subscribe(h.subject, h.queue, h.hear)
		if err != nil {
			return fmt.Errorf("telemetry: %w", err)
		}
		defer func() {
			if err := sub.Drain(); err != nil {
				w.log.Debug("drain", slog.Any("error", err))
			}
		}()
	}
	leave, err := w.bus.Serve(ctx, bus.Service{ // for who asks which workers there are
		Name: w.Name(), Version: w.version, Description: "Shows the fleet in metrics and traces", Metadata: map[string]string{"kind": w.Name()},
	})
	if err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	defer leave()
	w.ready.Store(true)
	w.log.Info("telemetry worker serves")
	<-ctx.Done()
	w.ready.Store(false)
	return nil
}

// hear takes a record.
func (w *Worker) hear(m bus.Msg) {
	kind := m.Header.Get(subjects.HeaderKind)
	if !counted(kind) {
		return
	}
	r, err := decode(m.Data)
	if err != nil {
		w.heard.undecoded.Inc()
		w.bus.Skip(m, err)
		return
	}
	w.heard.count(r, m.Header.Get(subjects.HeaderLevel))
}

// hearOutcome takes the record that ends a task.
func (w *Worker) hearOutcome(m bus.Msg) {
	if m.Header.Get(subjects.HeaderKind) != fleet.KindOutcome {
		return
	}
	r, err := decode(m.Data)
	if err != nil {
		w.bus.Skip(m, err)
		return
	}
	w.traces.take(ended{task: r.TaskID})
}

// hearDelivery takes a state of a webhook delivery.
func (w *Worker) hearDelivery(m bus.Msg) {
	s, err := fleet.DecodeDeliveryState(m.Data)
	if err != nil {
		w.bus.Skip(m, err)
		return
	}
	if spans := told(s); len(spans) > 0 {
		w.traces.take(ended{trace: s.Trace(), spans: spans})
	}
}

// hearRun takes a record of a run.
func (w *Worker) hearRun(m bus.Msg) {
	if !run.State(m.Header.Get(subjects.HeaderKind)).Ended() {
		return
	}
	r, err := run.DecodeRecord(m.Data)
	if err == nil && r.Ended == nil {
		err = errors.New("a run that has ended without saying when")
	}
	if err != nil {
		w.bus.Skip(m, err)
		return
	}
	w.traces.take(ended{trace: fleet.TraceOf(r.RunID, r.Traceparent), spans: whole(r)})
}
