package conformance_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/gateway"
	"parley/workers/registry"
	"parley/workers/router"
	"parley/workers/webhooks"
)

// world is a whole fleet behind gateways.
type world struct {
	t     *testing.T
	srv   *bustest.Server
	bus   *bus.Bus
	open  string // address of a gateway that lets everybody in
	asked string // of one that asks for tokens
	gates sync.Map
	hooks *receiver
}

// Tokens of the gateway that asks for them.
const (
	aliceToken = "token-of-alice-0123456789"
	bobToken   = "token-of-bob-0123456789"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := bustest.New(t)
	w := &world{t: t, srv: srv, bus: srv.Bus(t)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := router.New(router.Config{Bus: srv.Connect(t), ID: "r1", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, r)
	g, err := registry.New(registry.Config{Bus: srv.Connect(t), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, g)
	w.agent("worker")
	w.agent("second")
	w.hooks = newReceiver(t)
	h, err := webhooks.New(webhooks.Config{
		Bus: srv.Connect(t), Allow: []string{"127.0.0.1"}, Log: log,
		Endpoints: []webhooks.Endpoint{{Name: "push", Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))}, Allow: []string{"127.0.0.1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, h)
	w.open, _ = w.gateway(gateway.Config{Push: true, PushEndpoint: "push"})
	w.asked, _ = w.gateway(gateway.Config{
		Auth: gateway.Auth{Tokens: map[string]subjects.AgentID{aliceToken: "alice", bobToken: "bob"}},
		Rate: 1000,
	})
	return w
}

// receiver is a client's webhook.
type receiver struct {
	url string

	mu  sync.Mutex
	got map[string][]notification // by path
}

type notification struct {
	header http.Header
	msg    *a2apb.StreamResponse
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{got: make(map[string][]notification)}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		m := new(a2apb.StreamResponse)
		if err == nil {
			err = protojson.Unmarshal(body, m)
		}
		if err != nil {
			t.Errorf("a notification: %v in %s", err, body)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got[q.URL.Path] = append(r.got[q.URL.Path], notification{q.Header, m})
	}))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// at is what has come to a path.
func (r *receiver) at(path string) []notification {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got[path])
}

// gateway starts a gateway on a port of its own.
func (w *world) gateway(cfg gateway.Config) (address string, stop func()) {
	w.t.Helper()
	cfg.Bus = w.srv.Connect(w.t)
	if cfg.NATS == "" {
		cfg.NATS = "a2a-" + rand.Text()
	}
	cfg.Log = slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	g, err := gateway.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range g.Handlers() {
		mux.Handle(pattern, h)
	}
	s := httptest.NewUnstartedServer(mux)
	// A connection that a busy machine leaves unused for a while is not closed
	// under a request: that would not be sent again.
	s.Config.ReadTimeout, s.Config.IdleTimeout = 30*time.Second, time.Minute
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	natsDoors.Store(s.URL, natsDoor{w.bus, cfg.NATS})
	end := bustest.Serve(w.t, g)
	stop = sync.OnceFunc(func() {
		end()
		s.CloseClientConnections()
		s.Close()
	})
	w.t.Cleanup(stop)
	return s.URL, stop
}

// agent starts an agent that does what a brief's first word says.
func (w *world) agent(id subjects.AgentID) {
	w.t.Helper()
	b := w.srv.Connect(w.t)
	a, err := agent.New(agent.Config{
		ID: id, Bus: b, MaxParallel: 64, ModelTier: "sonnet", Heartbeat: 5 * time.Second, Grace: -1,
		Skills:  []json.RawMessage{json.RawMessage(`{"id":"echo","name":"Echo","description":"says it again","tags":["echo"]}`)},
		Handler: agent.HandlerFunc(func(ctx context.Context, t *agent.Task) (fleet.Result, error) { return w.act(ctx, id, t) }),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	bustest.Run(w.t, a.Run)
	bustest.Eventually(w.t, string(id)+" is live", func() bool {
		m, err := w.bus.Request(w.t.Context(), subjects.API("operator", "agent", "list"), fleet.MustEncode(fleet.AgentList{AgentID: id}), nil)
		if err != nil {
			return false
		}
		l, err := fleet.DecodeReply[fleet.AgentListReply](m.Data)
		return err == nil && len(l.Agents) > 0 && l.Agents[0].Live
	})
}

// gate is closed by pass: an agent that was told "gate NAME" waits for it.
func (w *world) gate(name string) chan struct{} {
	c, _ := w.gates.LoadOrStore(name, make(chan struct{}))
	return c.(chan struct{}) //nolint:forcetypeassert // nothing else is stored
}

func (w *world) pass(name string) { close(w.gate(name)) }

// act does what the brief says.
func (w *world) act(ctx context.Context, id subjects.AgentID, t *agent.Task) (fleet.Result, error) {
	verb, rest, _ := strings.Cut(t.Dispatch.Brief, " ")
	switch verb {
	case "who":
		return agent.Text(string(id)), nil
	case "ask":
		a, err := t.Ask(ctx, "which one?")
		if rest == "twice" && err == nil {
			a, err = t.Ask(ctx, "really?")
		}
		return agent.Text(a.Text), err
	case "hear":
		m, err := t.FollowUp(ctx, 0)
		return agent.Text(m.Text), err
	case "gate":
		select {
		case <-w.gate(rest):
			return agent.Text("passed"), nil
		case <-ctx.Done():
			return fleet.Result{}, context.Cause(ctx)
		}
	case "chunks":
		for i, text := range []string{"one", "two", "three"} {
			err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Name: "log", Parts: []fleet.Part{{Text: &text}}, Append: i > 0, LastChunk: i == 2})
			if err != nil {
				return fleet.Result{}, err
			}
		}
		return agent.Text("done"), nil
	case "message":
		r := agent.Text(rest)
		r.AsMessage = true
		return r, nil
	case "json":
		return fleet.Result{Output: json.RawMessage(`{"answer":42}`), TokensSpent: 7, NextSteps: []string{"rest"}}, nil
	case "fail":
		return fleet.Result{}, &agent.Fail{Code: subjects.CodeBudgetExhausted, Message: "it broke"}
	case "parts":
		return fleet.Result{Status: fleet.StatusDone, Parts: t.Dispatch.Input.Parts}, nil
	}
	return agent.Text(t.Dispatch.Brief), nil
}

// httpClient speaks HTTP/1.1; the gRPC client brings its own.
var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}}
