package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// OTLP is where traces go.
type OTLP struct {
	Endpoint string            // a URL, such as http://127.0.0.1:4318; "/v1/traces" is added where it has no path
	Headers  map[string]string // of each request
}

const (
	tracesQueued  = 1024 // outcomes whose trace is not made yet; more are dropped
	tracesAtOnce  = 4
	maxRecords    = 4096 // of a task; one with more has no trace
	maxUnsent     = 8192 // spans that are not sent yet; traces beyond them are dropped
	exportTimeout = 10 * time.Second
	flushFor      = 5 * time.Second // at the end
)

// tracer makes the traces of tasks that have ended.
type tracer struct {
	// Fixed from the beginning.
	bus      *bus.Bus
	log      *slog.Logger
	heard    *heard
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer

	ended  chan ended
	stop   chan struct{} // closed by Run once nothing is heard any more
	unsent atomic.Int64  // spans that the exporter has not done with
}

// ended is what has: a task, whose spans are made of its records, or something
// else with its spans.
type ended struct {
	task  subjects.TaskID
	trace fleet.Trace
	spans []span
}

func newTracer(w *Worker, o *OTLP, version string) (*tracer, error) {
	at, err := url.Parse(o.Endpoint)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("telemetry: export traces: %q is no URL such as http://127.0.0.1:4318", o.Endpoint)
	}
	if at.Path == "" || at.Path == "/" {
		at.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(context.Background(), // it connects when there is something to send
		otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithHeaders(o.Headers), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, fmt.Errorf("telemetry: export traces: %w", err)
	}
	t := &tracer{bus: w.bus, log: w.log, heard: w.heard, ended: make(chan ended, tracesQueued), stop: make(chan struct{})}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&counting{exporter, t}, sdktrace.WithMaxQueueSize(maxUnsent), sdktrace.WithBatchTimeout(time.Second)),
		sdktrace.WithIDGenerator(ids{}), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "parley"), attribute.String("service.version", version))),
	)
	t.tracer = t.provider.Tracer("parley")
	return t, nil
}

// counting counts what is exported, and what is not.
type counting struct {
	sdktrace.SpanExporter
	t *tracer
}

// ExportSpans implements sdktrace.SpanExporter.
func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer c.t.unsent.Add(-int64(len(spans)))
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.t.heard.spans.WithLabelValues(spansFailed).Add(float64(len(spans)))
		c.t.log.Warn("traces not exported", slog.Int("spans", len(spans)), slog.Any("error", err))
		return nil // it is told already
	}
	c.t.heard.spans.WithLabelValues(spansExported).Add(float64(len(spans)))
	return nil
}

// take takes what has ended; it never waits.
func (t *tracer) take(e ended) {
	select {
	case t.ended <- e:
	default:
		t.heard.dropped.Inc()
	}
}

// run makes traces until stop, or work ends, and sends what is left, for a while.
func (t *tracer) run(work context.Context) {
	var all sync.WaitGroup
	for range tracesAtOnce {
		all.Go(func() {
			for e, ok := t.next(); ok; e, ok = t.next() {
				if e.task == "" {
					t.send(e.trace, e.spans)
					continue
				}
				if err := t.export(work, e.task); err != nil {
					t.heard.dropped.Inc()
					t.log.Warn("no trace of a task", slog.String("task_id", string(e.task)), slog.Any("error", err))
				}
			}
		})
	}
	all.Wait()
	over, cancel := context.WithTimeout(context.WithoutCancel(work), flushFor)
	defer cancel()
	if err := t.provider.Shutdown(over); err != nil {
		t.log.Warn("traces not exported", slog.Any("error", err))
	}
}

// next waits for what has ended; after stop it takes what is there.
func (t *tracer) next() (e ended, ok bool) {
	select {
	case e = <-t.ended:
		return e, true
	case <-t.stop:
	}
	select {
	case e = <-t.ended:
		return e, true
	default:
		return ended{}, false
	}
}

var errUnfinished = errors.New("its records are purged, or too many")

// export reads a task's records and sends its trace.
func (t *tracer) export(ctx context.Context, id subjects.TaskID) error {
	msgs, more, err := t.bus.History(ctx, subjects.StreamTasks, subjects.Task(id), 0, maxRecords)
	if err != nil {
		return err
	}
	records := make([]*fleet.Event, 0, len(msgs))
	for _, m := range msgs {
		e, err := fleet.DecodeEvent(m.Data)
		if err != nil {
			return err
		}
		records = append(records, e)
	}
	if n := len(records); more || n == 0 || records[0].Seq != 1 || !records[n-1].State.Terminal() {
		return errUnfinished
	}
	of := records[len(records)-1].Trace()
	if d := records[0].Data.Dispatch; of.Derived() && len(d) > 0 { // records of before say it there alone
		if dispatch, err := fleet.DecodeDispatch(d); err == nil {
			of = fleet.TraceOf(id, dispatch.Traceparent)
		}
	}
	t.send(of, tree(records))
	return nil
}

// send hands the spans to the exporter. It never waits: where too many are
// unsent, they are dropped.
func (t *tracer) send(of fleet.Trace, spans []span) {
	if n := int64(len(spans)); t.unsent.Add(n) > maxUnsent {
		t.unsent.Add(-n)
		t.heard.dropped.Inc()
		return
	}
	for _, s := range spans {
		parent := trace.SpanContextConfig{TraceID: of.ID, TraceFlags: trace.TraceFlags(of.Flags), Remote: true}
		parent.SpanID = of.Parent
		if s.parentKind != "" {
			parent.SpanID = of.Span(s.parentKind, s.parentN)
		}
		ctx := context.WithValue(context.Background(), idsKey{}, trace.SpanContextConfig{TraceID: of.ID, SpanID: of.Span(s.kind, s.n)})
		if parent.SpanID != [8]byte{} {
			ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(parent))
		}
		kind := trace.SpanKindInternal
		switch s.kind {
		case fleet.SpanTask:
			kind = trace.SpanKindConsumer
		case fleet.SpanAttempt, fleet.SpanPost:
			kind = trace.SpanKindClient
		case fleet.SpanWebhook:
			kind = trace.SpanKindProducer
		}
		_, out := t.tracer.Start(ctx, s.name, trace.WithTimestamp(s.start), trace.WithSpanKind(kind), trace.WithAttributes(attributes(s.attrs)...))
		if s.failed != "" {
			out.SetStatus(codes.Error, s.failed)
		}
		if !out.SpanContext().IsSampled() {
			t.unsent.Add(-1)
		}
		out.End(trace.WithTimestamp(s.end))
	}
}

func attributes(attrs []attr) []attribute.KeyValue {
	list := make([]attribute.KeyValue, len(attrs))
	for i, a := range attrs {
		list[i] = attribute.Int64(a.key, a.n)
		if a.text != "" {
			list[i] = attribute.String(a.key, clean(a.text))
		}
	}
	return list
}

// idsKey is where ids finds the ids of the span that begins.
type idsKey struct{}

// ids gives spans the ids that send has chosen.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(idsKey{}).(trace.SpanContextConfig)
	return c.TraceID, c.SpanID
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	c, _ := ctx.Value(idsKey{}).(trace.SpanContextConfig)
	return c.SpanID
}
