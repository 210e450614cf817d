package telemetry_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/telemetry"
)

// receiver is an OTLP endpoint in memory.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex // guards what follows
	spans []*otlp.Span
	bad   string
	deny  bool
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := new(receiver)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.deny {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || req.URL.Path != "/v1/traces" || req.Header.Get("X-Key") != "k" {
			r.bad = fmt.Sprint(req.URL, req.Header, err)
		}
		for _, resource := range export.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				r.spans = append(r.spans, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) config() *telemetry.OTLP {
	return &telemetry.OTLP{Endpoint: r.URL, Headers: map[string]string{"X-Key": "k"}}
}

// got is what has come so far.
func (r *receiver) got(t *testing.T) []*otlp.Span {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad != "" {
		t.Fatalf("not as it should be: %s", r.bad)
	}
	return slices.Clone(r.spans)
}

// draw shows spans as a tree: name, from and to in seconds, and the error.
func draw(spans []*otlp.Span, of []byte, indent string) string {
	var b strings.Builder
	slices.SortStableFunc(spans, func(a, c *otlp.Span) int {
		return int(a.GetStartTimeUnixNano()/1e6) - int(c.GetStartTimeUnixNano()/1e6)
	})
	for _, s := range spans {
		if string(s.GetParentSpanId()) != string(of) {
			continue
		}
		at := func(ns uint64) float64 { return time.Unix(0, int64(ns)).Sub(began).Seconds() }
		fmt.Fprintf(&b, "%s%s %v-%v", indent, s.GetName(), at(s.GetStartTimeUnixNano()), at(s.GetEndTimeUnixNano()))
		if s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
			fmt.Fprintf(&b, " (%s)", s.GetStatus().GetMessage())
		}
		b.WriteString("\n" + draw(spans, s.GetSpanId(), indent+"  "))
	}
	return b.String()
}

// story stores the records of a task that goes through everything: an offer
// refused, a question, a failure, a human, and success.
func story(t *testing.T, b *bus.Bus, id subjects.TaskID, traceparent string) {
	t.Helper()
	records, stop := b.Records(subjects.StreamTasks, bus.CommitDirect)
	defer stop()
	at := func(s int) time.Time { return after(time.Duration(s) * time.Second) }
	seq, last := uint64(0), uint64(0)
	var attempts []fleet.Attempt
	put := func(kind string, state fleet.State, s int, change func(*fleet.Event)) {
		seq++
		e := record(id, seq, kind, state, at(s))
		e.Facts.Attempts = slices.Clone(attempts)
		if change != nil {
			change(e)
		}
		e.WriteID = fmt.Sprint(id, seq)
		var err error
		last, err = records.Write(t.Context(), bus.Record{
			Subject: subjects.Task(id), Expected: last, WriteID: e.WriteID, Data: fleet.MustEncode(e),
			Header: bus.Header{subjects.HeaderKind: {kind}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fail := func(n int, agent subjects.AgentID, s, level int) {
		attempts = append(attempts, fleet.Attempt{Attempt: n, AgentID: agent, Ended: at(s), Code: subjects.CodeAgentError, Level: level, Tokens: 4})
	}
	by := func(agent subjects.AgentID, n int) func(*fleet.Event) {
		return func(e *fleet.Event) { e.AgentID, e.Attempt = agent, n }
	}
	put(fleet.KindQueued, fleet.StateQueued, 0, func(e *fleet.Event) {
		e.Data.Dispatch = []byte(`{"type":"TASK_DISPATCH","brief":"x"}`)
		if traceparent != "" {
			e.Data.Dispatch = []byte(`{"type":"TASK_DISPATCH","brief":"x","traceparent":"` + traceparent + `"}`)
		}
	})
	fail(1, "ann", 1, 2)
	put(fleet.KindReroute, fleet.StateQueued, 1, nil)
	put(fleet.KindWorking, fleet.StateWorking, 3, by("bob", 2))
	put(fleet.KindQuestion, fleet.StateInputRequired, 4, by("bob", 2))
	put(fleet.KindAnswer, fleet.StateWorking, 6, by("bob", 2))
	fail(2, "bob", 7, 3)
	put(fleet.KindHuman, fleet.StateInputRequired, 7, nil)
	put(fleet.KindResumed, fleet.StateQueued, 20, nil)
	put(fleet.KindWorking, fleet.StateWorking, 22, by("cleo", 3))
	put(fleet.KindOutcome, fleet.StateDone, 30, func(e *fleet.Event) {
		e.AgentID, e.Attempt, e.Facts.TokensSpent = "cleo", 3, 15
	})
}

const wantTree = `task 0-30
  wait for an agent 0-3
  invoke_agent ann 1-1 (agent_error)
  escalate to level 2 1-1
  invoke_agent bob 3-7 (agent_error)
    wait for an answer 4-6
  escalate to level 3 7-7
  wait for a human 7-20
  wait for an agent 20-22
  invoke_agent cleo 22-30
`

// TestTheSpanTree: a task becomes one trace, below the span that dispatched it,
// and the same again when it is told again.
func TestTheSpanTree(t *testing.T) {
	t.Parallel()
	const spans = 10
	b, r := bustest.New(t).Bus(t), receive(t)
	start(t, telemetry.Config{Bus: b, OTLP: r.config()})
	const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	story(t, b, "t1", given)
	bustest.Eventually(t, "the trace", func() bool { return len(r.got(t)) >= spans })
	first := r.got(t)
	parent, _ := hex.DecodeString("00f067aa0ba902b7")
	if diff := cmp.Diff(wantTree, draw(first, parent, "")); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
	trace := fleet.TraceOf("t1", given)
	attempt := trace.Span(fleet.SpanAttempt, 2)
	for _, s := range first {
		if hex.EncodeToString(s.GetTraceId()) != given[3:35] {
			t.Errorf("%s is of the trace %x", s.GetName(), s.GetTraceId())
		}
		if (s.GetName() == "invoke_agent bob") != (string(s.GetSpanId()) == string(attempt[:])) {
			t.Errorf("%s has the id %x, the agent of attempt 2 was told %x", s.GetName(), s.GetSpanId(), attempt)
		}
		if s.GetName() == "invoke_agent cleo" && !strings.Contains(fmt.Sprint(s.GetAttributes()), "int_value:7") {
			t.Errorf("the last attempt spent 7 tokens; it says %v", s.GetAttributes())
		}
	}
	// Told again, the same ids.
	last, err := b.Last(t.Context(), subjects.StreamTasks, subjects.Task("t1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(subjects.Event("t1"), last.Data, bus.Header{subjects.HeaderKind: {fleet.KindOutcome}}); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the trace again", func() bool { return len(r.got(t)) >= 2*spans })
	ids := map[string]bool{}
	for _, s := range r.got(t) {
		ids[string(s.GetSpanId())] = true
	}
	if len(ids) != spans {
		t.Errorf("%d ids after the same trace twice, want %d", len(ids), spans)
	}
}

// TestTracesOfTheirOwn: a task that was dispatched outside of any trace has
// one, and a trace that its caller does not record is not recorded.
func TestTracesOfTheirOwn(t *testing.T) {
	t.Parallel()
	b, r := bustest.New(t).Bus(t), receive(t)
	w, err := telemetry.New(telemetry.Config{Bus: b, OTLP: r.config()})
	if err != nil {
		t.Fatal(err)
	}
	stop := bustest.Serve(t, w)
	story(t, b, "silent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
	story(t, b, "alone", "")
	bustest.Eventually(t, "both outcomes", func() bool { return value(page(t, w), `parley_tasks_total{outcome="done",priority="high"}`) == 2 })
	stop() // what was heard is sent all the same
	got, trace := r.got(t), fleet.TraceOf("alone", "")
	if diff := cmp.Diff(wantTree, draw(got, nil, "")); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
	for _, s := range got {
		if string(s.GetTraceId()) != string(trace.ID[:]) {
			t.Errorf("%s is of the trace %x, want %x", s.GetName(), s.GetTraceId(), trace.ID)
		}
	}
}

// TestNobodyTakesTraces: what cannot be exported is counted, and nothing else
// suffers.
func TestNobodyTakesTraces(t *testing.T) {
	t.Parallel()
	b, r := bustest.New(t).Bus(t), receive(t)
	r.deny = true
	w := start(t, telemetry.Config{Bus: b, OTLP: r.config()})
	story(t, b, "t1", "")
	e := record("gone", 9, fleet.KindOutcome, fleet.StateDone, began)
	tell(t, b, e, "")
	for _, series := range []string{`parley_spans_total{result="failed"}`, "parley_traces_dropped_total"} {
		bustest.Eventually(t, series, func() bool { return value(page(t, w), series) > 0 })
	}
	for _, endpoint := range []string{"127.0.0.1:4318", "ftp://x", "http://"} {
		if _, err := telemetry.New(telemetry.Config{Bus: b, OTLP: &telemetry.OTLP{Endpoint: endpoint}}); err == nil {
			t.Errorf("the endpoint %q is taken", endpoint)
		}
	}
}

// TestTheSpansOfADelivery: each attempt of a webhook, and the whole of it; what
// ends it without an attempt adds none.
func TestTheSpansOfADelivery(t *testing.T) {
	t.Parallel()
	b, r := bustest.New(t).Bus(t), receive(t)
	start(t, telemetry.Config{Bus: b, OTLP: r.config()})
	const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	state := func(state string, attempts, s int, change func(*fleet.DeliveryState)) {
		d := &fleet.DeliveryState{
			Header: fleet.Header{Type: fleet.TypeDeliveryState, ProtocolVersion: fleet.Version}, DeliveryID: "d1", State: state, Endpoint: "human",
			Order: "a1", Schedule: fleet.ScheduleHuman, Queued: began, Updated: after(time.Duration(s) * time.Second), NotAfter: after(time.Hour),
			Attempts: attempts, Traceparent: given, DurationMS: 500,
		}
		if change != nil {
			change(d)
		}
		if err := b.Publish(subjects.WebhookEvent(d.DeliveryID), fleet.MustEncode(d), nil); err != nil {
			t.Fatal(err)
		}
	}
	failed := func(code subjects.Code, says string, status int) func(*fleet.DeliveryState) {
		return func(d *fleet.DeliveryState) { d.Error, d.Status = &fleet.Reason{Code: code, Message: says}, status }
	}
	state(fleet.DeliveryPending, 1, 1, func(d *fleet.DeliveryState) { d.Sending = &fleet.Sending{By: "w", LeaseSeconds: 9} })
	state(fleet.DeliveryPending, 1, 2, failed(subjects.CodeUnavailable, "answered 502", 502))
	state(fleet.DeliveryDead, 2, 5, failed(subjects.CodeNotFound, "answered 404", 404))
	state(fleet.DeliveryPending, 1, 8, func(d *fleet.DeliveryState) { d.DeliveryID, d.Traceparent = "untraced", "" })
	state(fleet.DeliveryDead, 3, 9, func(d *fleet.DeliveryState) {
		failed(subjects.CodeDeadlineExceeded, "not in time", 502)(d)
		d.DeliveryID, d.Endpoint, d.Queued = "d2", "late", after(time.Second)
	})
	if err := b.Publish(subjects.WebhookEvent("bad"), []byte("{"), nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the spans", func() bool { return len(r.got(t)) >= 4 })
	parent, _ := hex.DecodeString("00f067aa0ba902b7")
	const want = `webhook human 0-5 (answered 404)
  POST 1.5-2 (answered 502)
  POST 4.5-5 (answered 404)
webhook late 1-9 (not in time)
`
	if diff := cmp.Diff(want, draw(r.got(t), parent, "")); diff != "" {
		t.Errorf("the tree (-want +got):\n%s", diff)
	}
}

// TestTracesAreTakenByThoseWhoSendThem: a worker that sends no traces takes none
// away from one that does.
func TestTracesAreTakenByThoseWhoSendThem(t *testing.T) {
	t.Parallel()
	const tasks = 20
	b, r := bustest.New(t).Bus(t), receive(t)
	silent, sends := start(t, telemetry.Config{Bus: b}), start(t, telemetry.Config{Bus: b, OTLP: r.config()})
	for i := range tasks {
		story(t, b, subjects.TaskID(fmt.Sprint("t", i)), "")
	}
	roots := func() int {
		found := map[string]bool{}
		for _, s := range r.got(t) {
			if s.GetName() == "task" {
				found[string(s.GetTraceId())] = true
			}
		}
		return len(found)
	}
	bustest.Eventually(t, "the trace of each task", func() bool { return roots() == tasks })
	// They count each record once, as ever.
	const done = `parley_tasks_total{outcome="done",priority="high"}`
	bustest.Eventually(t, "the count of each task", func() bool { return value(page(t, silent), done)+value(page(t, sends), done) == tasks })
}

// TestACollectorThatHangs: it costs traces, which are counted, and does not keep
// the worker from ending.
func TestACollectorThatHangs(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(release) })
	b := bustest.New(t).Bus(t)
	w, err := telemetry.New(telemetry.Config{Bus: b, OTLP: &telemetry.OTLP{Endpoint: hangs.URL}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	bustest.Eventually(t, "the worker", func() bool { return w.Ready() == nil })
	dead := fleet.MustEncode(&fleet.DeliveryState{
		Header: fleet.Header{Type: fleet.TypeDeliveryState, ProtocolVersion: fleet.Version}, DeliveryID: "d1", State: fleet.DeliveryDead, Endpoint: "human",
		Order: "a1", Schedule: fleet.ScheduleHuman, Queued: began, Updated: after(time.Second), NotAfter: after(time.Hour), Attempts: 1, DurationMS: 500,
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Error: &fleet.Reason{Code: subjects.CodeNotFound, Message: "answered 404"}, Status: 404,
	})
	for range 8000 { // of two spans each
		if err := b.Publish(subjects.WebhookEvent("d1"), dead, nil); err != nil {
			t.Fatal(err)
		}
	}
	<-asked
	bustest.Eventually(t, "traces that are dropped", func() bool { return value(page(t, w), "parley_traces_dropped_total") > 0 })
	stop()
	select {
	case <-ended:
	case <-time.After(bustest.Patience):
		t.Error("the worker does not end")
	}
}
