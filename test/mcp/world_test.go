package mcp_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
	"parley/workers/escalation"
	"parley/workers/gateway"
	"parley/workers/mcp"
	meshworker "parley/workers/mesh"
	"parley/workers/registry"
	"parley/workers/router"
)

// world is a whole fleet behind an MCP server.
type world struct {
	t     *testing.T
	srv   *bustest.Server
	bus   *bus.Bus
	mcp   *mcp.Worker
	gates sync.Map
}

const aliceToken = "token-of-alice-0123456789"

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := bustest.New(t)
	w := &world{t: t, srv: srv, bus: srv.Bus(t)}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := router.New(router.Config{Bus: srv.Connect(t), Operators: []subjects.AgentID{"operator"}, Log: log})
	w.run(r, err)
	g, err := registry.New(registry.Config{Bus: srv.Connect(t), Log: log})
	w.run(g, err)
	m, err := meshworker.New(meshworker.Config{Bus: srv.Connect(t), Operators: []subjects.AgentID{"operator"}, Version: "1.0.0", Log: log})
	w.run(m, err)
	e, err := escalation.New(escalation.Config{Bus: srv.Connect(t), Operators: []subjects.AgentID{"operator"}, Version: "1.0.0", Log: log})
	w.run(e, err)
	w.agent("worker")
	if w.mcp, err = mcp.New(mcp.Config{Bus: srv.Connect(t), Version: "1.2.3", Escalations: true, Log: log}); err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs a worker until the test ends.
func (w *world) run(worker bustest.Worker, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	bustest.Serve(w.t, worker)
}

// agent starts an agent that does what a brief's first word says.
func (w *world) agent(id subjects.AgentID) {
	w.t.Helper()
	a, err := agent.New(agent.Config{
		ID: id, Bus: w.srv.Connect(w.t), MaxParallel: 8, MaxMessages: 4, ModelTier: "sonnet", Heartbeat: 5 * time.Second, Grace: -1,
		Tools:   []string{"bash"},
		Skills:  []json.RawMessage{json.RawMessage(`{"id":"echo","name":"Echo","description":"says it again","tags":["echo"]}`)},
		Handler: agent.HandlerFunc(w.act),
		Inbox: agent.InboxFunc(func(ctx context.Context, m *mesh.Message) (agent.LetterReply, error) {
			if name, ok := strings.CutPrefix(m.Body(), "gate "); ok {
				select {
				case <-w.gate(name):
				case <-ctx.Done():
					return agent.LetterReply{}, context.Cause(ctx)
				}
			}
			return agent.LetterReply{Text: "heard: " + m.Body()}, nil
		}),
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
func (w *world) act(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	verb, rest, _ := strings.Cut(t.Dispatch.Brief, " ")
	switch verb {
	case "ask":
		a, err := t.Ask(ctx, "which one?")
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
		for i, text := range []string{"one ", "two ", "three"} {
			err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Name: "the log", Parts: []fleet.Part{{Text: &text}}, Append: i > 0, LastChunk: i == 2})
			if err != nil {
				return fleet.Result{}, err
			}
		}
		return agent.Text("done"), nil
	case "long":
		return agent.Text(strings.Repeat("é", 9000) + "end"), nil
	case "json":
		return fleet.Result{Status: fleet.StatusDone, Output: json.RawMessage(`{"answer":42}`), NextSteps: []string{"rest"}, TokensSpent: 7}, nil
	case "fail":
		return fleet.Result{}, &agent.Fail{Code: subjects.CodeBudgetExhausted, Message: "it broke"}
	}
	return agent.Text(t.Dispatch.Brief), nil
}

// http serves the MCP server at a door, and gives its address.
func (w *world) http(cfg gateway.DoorConfig) string {
	w.t.Helper()
	door, err := gateway.NewDoor(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(mcp.Path, door.Guard(w.mcp.Page))
	s := httptest.NewServer(mux)
	w.t.Cleanup(s.Close)
	return s.URL + mcp.Path
}

// model is a client of the MCP server, as a model has it.
type model struct {
	*testing.T
	session *sdk.ClientSession
}

func (w *world) connect(t *testing.T, transport sdk.Transport) *model {
	t.Helper()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &model{T: t, session: s}
}

// overPipe connects over a pair of pipes, as a subprocess would be.
func (w *world) overPipe(t *testing.T, from subjects.AgentID) *model {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	bustest.Run(t, func(ctx context.Context) error { return w.mcp.Serve(ctx, from, inR, outW) })
	return w.connect(t, &sdk.IOTransport{Reader: outR, Writer: inW})
}

// bearer adds a token to every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (w *world) overHTTP(t *testing.T, url, token string) *model {
	t.Helper()
	transport := &sdk.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}
	if token != "" {
		transport.HTTPClient = &http.Client{Transport: bearer(token)}
	}
	return w.connect(t, transport)
}

// args are a tool's arguments.
type args = map[string]any

// raw calls a tool.
func (m *model) raw(name string, in args) (text string, failed bool) {
	m.Helper()
	res, err := m.session.CallTool(m.Context(), &sdk.CallToolParams{Name: name, Arguments: in})
	if err != nil {
		m.Fatalf("%s(%v): %v", name, in, err)
	}
	for _, c := range res.Content {
		if t, ok := c.(*sdk.TextContent); ok {
			text += t.Text
		}
	}
	return text, res.IsError
}

// call calls a tool, which must succeed, and reads its answer into out.
func (m *model) call(name string, in args, out any) {
	m.Helper()
	text, failed := m.raw(name, in)
	if failed {
		m.Fatalf("%s(%v) failed: %s", name, in, text)
	}
	if err := json.Unmarshal([]byte(text), out); err != nil {
		m.Fatalf("%s(%v): %v in %s", name, in, err, text)
	}
}

// fails calls a tool, which must refuse, and say so with every one of want.
func (m *model) fails(name string, in args, want ...string) {
	m.Helper()
	text, failed := m.raw(name, in)
	if !failed {
		m.Errorf("%s(%v) gave %s, want an error", name, in, text)
	}
	for _, s := range want {
		if !strings.Contains(text, s) {
			m.Errorf("%s(%v) failed with %q, want %q in it", name, in, text, s)
		}
	}
}

// shownTask is a task as the tools show it.
type shownTask struct {
	TaskID   string `json:"task_id"`
	State    string `json:"state"`
	Ended    bool   `json:"ended"`
	Agent    string `json:"agent"`
	WaitsFor string `json:"waits_for"`
	Question string `json:"question"`
	Output   string `json:"output"`
	Chars    int    `json:"output_chars"`
	Error    string `json:"error"`
	Reason   string `json:"reason"`
}

type waited struct {
	Done      bool        `json:"done"`
	Ended     int         `json:"ended"`
	Waiting   int         `json:"waiting"`
	Attention []string    `json:"attention"`
	Tasks     []shownTask `json:"tasks"`
	Messages  []letter    `json:"messages"`
	Next      string      `json:"next"`
}

type letter struct {
	MessageID string `json:"message_id"`
	State     string `json:"state"`
	Ended     bool   `json:"ended"`
	Answer    string `json:"answer"`
	Next      string `json:"next"`
}

func (m *model) dispatch(in args) string {
	m.Helper()
	var d struct {
		TaskID string `json:"task_id"`
		Next   string `json:"next"`
	}
	m.call("fleet_dispatch", in, &d)
	if d.TaskID == "" || !strings.Contains(d.Next, "fleet_wait") {
		m.Fatalf("fleet_dispatch gave %+v", d)
	}
	return d.TaskID
}

// await waits until tasks have ended, however often it must ask.
func (m *model) await(ids ...string) waited {
	m.Helper()
	var w waited
	bustest.Eventually(m.T, "the tasks have ended", func() bool {
		w = waited{}
		m.call("fleet_wait", args{"task_ids": ids, "timeout_seconds": 20}, &w)
		return w.Done
	})
	return w
}
