package outbound_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	grpcv1 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
)

// far is an agent of the official SDK's, with a script, and faults on its way.
type far struct {
	t    *testing.T
	url  string
	card *a2a.AgentCard

	mu       sync.Mutex
	gates    map[string]chan struct{}
	messages []*a2a.Message // that the script was given
	traces   []string       // traceparent of each message's request
	canceled int
	calls    map[string]int // of the server, by method
	sends    int            // messages, over HTTP
	fault    func(rw http.ResponseWriter, r *http.Request, method string, n int) http.ResponseWriter
	down     bool
}

// newFar starts an agent. bindings are what its card lists, in order.
func newFar(t *testing.T, bindings ...a2a.TransportProtocol) *far {
	t.Helper()
	f := &far{t: t, gates: map[string]chan struct{}{}, calls: map[string]int{}}
	handler := a2asrv.NewHandler(f)
	mux := http.NewServeMux()
	mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(handler))
	mux.Handle("/rest/", http.StripPrefix("/rest", a2asrv.NewRESTHandler(handler)))
	mux.HandleFunc("/.well-known/agent-card.json", func(rw http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		card := *f.card
		f.mu.Unlock()
		a2asrv.NewStaticAgentCardHandler(&card).ServeHTTP(rw, r)
	})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { f.serve(mux, rw, r) }))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	f.url = s.URL
	f.card = &a2a.AgentCard{
		Name: "far", Description: "an agent far away", Version: "1", Capabilities: a2a.AgentCapabilities{Streaming: true},
		DefaultInputModes: []string{"text/plain"}, DefaultOutputModes: []string{"text/plain"},
		Skills: []a2a.AgentSkill{{ID: "sums", Name: "Sums", Description: "adds up", Tags: []string{"math"}}},
	}
	if len(bindings) == 0 {
		bindings = []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC}
	}
	for _, b := range bindings {
		url := s.URL + "/rpc"
		switch b {
		case a2a.TransportProtocolJSONRPC:
		case a2a.TransportProtocolHTTPJSON:
			url = s.URL + "/rest"
		case a2a.TransportProtocolGRPC:
			url = f.grpc(handler)
		}
		f.card.SupportedInterfaces = append(f.card.SupportedInterfaces, a2a.NewAgentInterface(url, b))
	}
	return f
}

func (f *far) grpc(h a2asrv.RequestHandler) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	s := grpc.NewServer()
	grpcv1.NewHandler(h).RegisterWith(s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	f.t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

// serve counts the calls and puts the faults in their way.
func (f *far) serve(next http.Handler, rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	if down {
		http.Error(rw, "down", http.StatusBadGateway)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	method := ""
	for _, m := range []string{"SendStreamingMessage", "SendMessage", "GetTask", "ListTasks", "CancelTask", "SubscribeToTask"} {
		if bytes.Contains(body, []byte(`"`+m+`"`)) {
			method = m
		}
	}
	f.mu.Lock()
	f.calls[method]++
	if strings.HasPrefix(method, "Send") || strings.Contains(r.URL.Path, "/message:") {
		f.sends++
	}
	fault, n := f.fault, f.calls[method]
	f.mu.Unlock()
	if fault != nil {
		if rw = fault(rw, r, method, n); rw == nil {
			return
		}
	}
	next.ServeHTTP(rw, r)
}

// break sets what goes wrong: it may answer itself and give nil.
func (f *far) breaks(fault func(rw http.ResponseWriter, r *http.Request, method string, n int) http.ResponseWriter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

func (f *far) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *far) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *far) heard() []*a2a.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*a2a.Message(nil), f.messages...)
}

func (f *far) traceparents() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.traces...)
}

func (f *far) cancels() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.canceled
}

// gate is closed by pass.
func (f *far) gate(name string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gates[name] == nil {
		f.gates[name] = make(chan struct{})
	}
	return f.gates[name]
}

func (f *far) pass(name string) { close(f.gate(name)) }

// cut is a response that ends with its n-th event.
type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	if bytes.HasSuffix(p, []byte("\n\n")) {
		if c.left--; c.left <= 0 {
			c.Flush()
			panic(http.ErrAbortHandler)
		}
	}
	return n, err
}

func (c *cut) Flush() {
	if f, ok := c.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Execute does what the first word of the message says.
func (f *far) Execute(ctx context.Context, e *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		f.mu.Lock()
		f.messages = append(f.messages, e.Message)
		trace, _ := e.ServiceParams.Get("traceparent")
		f.traces = append(f.traces, trace...)
		f.mu.Unlock()
		text := ""
		for _, p := range e.Message.Parts {
			text += p.Text()
		}
		text, _, _ = strings.Cut(text, "\n\n") // how to answer
		verb, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
		say := func(s string) *a2a.Message { return a2a.NewMessageForTask(a2a.MessageRoleAgent, e, a2a.NewTextPart(s)) }
		status := func(state a2a.TaskState, m *a2a.Message) bool {
			return yield(a2a.NewStatusUpdateEvent(e, state, m), nil)
		}
		if e.StoredTask != nil {
			_ = status(a2a.TaskStateWorking, nil) && yield(a2a.NewArtifactEvent(e, a2a.NewTextPart("you said "+text)), nil) && status(a2a.TaskStateCompleted, nil)
			return
		}
		if verb == "message" {
			yield(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart(rest)), nil)
			return
		}
		if !yield(a2a.NewSubmittedTask(e, e.Message), nil) || !status(a2a.TaskStateWorking, say("at work")) {
			return
		}
		f.script(ctx, e, verb, rest, yield)
	}
}

func (f *far) script(ctx context.Context, e *a2asrv.ExecutorContext, verb, rest string, yield func(a2a.Event, error) bool) {
	say := func(s string) *a2a.Message { return a2a.NewMessageForTask(a2a.MessageRoleAgent, e, a2a.NewTextPart(s)) }
	status := func(state a2a.TaskState, m *a2a.Message) bool {
		return yield(a2a.NewStatusUpdateEvent(e, state, m), nil)
	}
	wait := func(name string) bool {
		select {
		case <-f.gate(name):
			return true
		case <-ctx.Done():
			return false
		}
	}
	done := func() { status(a2a.TaskStateCompleted, nil) }
	switch verb {
	case "ask":
		status(a2a.TaskStateInputRequired, say("which one?"))
	case "auth":
		status(a2a.TaskStateAuthRequired, say("log in"))
	case "fail":
		status(a2a.TaskStateFailed, say("it broke"))
	case "reject":
		status(a2a.TaskStateRejected, say("not mine"))
	case "gate", "chunks":
		var id a2a.ArtifactID = "log"
		for i, name := range strings.Fields(rest) {
			ev := a2a.NewArtifactUpdateEvent(e, id, a2a.NewTextPart(fmt.Sprintf("%d;", i)))
			ev.Append = i > 0
			if !yield(ev, nil) || verb == "gate" && !wait(name) {
				return
			}
		}
		done()
	case "tokens":
		ev := a2a.NewStatusUpdateEvent(e, a2a.TaskStateWorking, say("counting"))
		ev.Metadata = map[string]any{"adk_usage_metadata": map[string]any{"totalTokenCount": 41}}
		_ = yield(ev, nil) && yield(a2a.NewArtifactEvent(e, a2a.NewDataPart(map[string]any{"sum": 7})), nil)
		done()
	case "nothing":
		status(a2a.TaskStateCompleted, say("all well"))
	default:
		_ = yield(a2a.NewArtifactEvent(e, a2a.NewTextPart(verb+" "+rest)), nil)
		done()
	}
}

// Cancel cancels.
func (f *far) Cancel(_ context.Context, e *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		f.mu.Lock()
		f.canceled++
		f.mu.Unlock()
		yield(a2a.NewStatusUpdateEvent(e, a2a.TaskStateCanceled, nil), nil)
	}
}
