package outbound_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/agent/remote"
	"parley/workers/gateway"
	"parley/workers/registry"
	"parley/workers/router"
)

// world is a fleet.
type world struct {
	t   *testing.T
	srv *bustest.Server
	bus *bus.Bus
}

func newWorld(t *testing.T) *world {
	t.Helper()
	srv := bustest.New(t)
	w := &world{t: t, srv: srv, bus: srv.Bus(t)}
	r, err := router.New(router.Config{Bus: srv.Connect(t), ID: "r1", Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, r)
	g, err := registry.New(registry.Config{Bus: srv.Connect(t), Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, g)
	return w
}

// in is the same world for a part of its test.
func (w *world) in(t *testing.T) *world {
	t.Helper()
	return &world{t, w.srv, w.bus}
}

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// gateway starts a gateway; its address is that of its server.
func (w *world) gateway() (address string) {
	w.t.Helper()
	g, err := gateway.New(gateway.Config{Bus: w.srv.Connect(w.t), Log: logger(w.t), KeepAlive: 100 * time.Millisecond})
	if err != nil {
		w.t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range g.Handlers() {
		mux.Handle(pattern, h)
	}
	s := httptest.NewUnstartedServer(mux)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	w.t.Cleanup(s.Close)
	bustest.Serve(w.t, g)
	return s.URL
}

// agent starts an agent, and waits until it is live.
func (w *world) agent(id subjects.AgentID, c agent.Config) (stop func()) {
	w.t.Helper()
	stop = w.start(id, c)
	bustest.Eventually(w.t, string(id)+" takes tasks", func() bool {
		a := w.view(id)
		return a != nil && a.Live && !a.Draining
	})
	return stop
}

func (w *world) start(id subjects.AgentID, c agent.Config) (stop func()) {
	w.t.Helper()
	c.ID, c.Bus, c.MaxParallel, c.Heartbeat, c.Grace, c.Log = id, w.srv.Connect(w.t), 8, 5*time.Second, -1, logger(w.t)
	a, err := agent.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	stop = bustest.Run(w.t, a.Run)
	bustest.Eventually(w.t, string(id)+" is announced", func() bool { return a.Ready() == nil })
	return stop
}

// view is what the registry knows of an agent; nil: nothing.
func (w *world) view(id subjects.AgentID) *fleet.AgentView {
	l, err := ask[fleet.AgentListReply](w, "agent", "list", fleet.AgentList{AgentID: id})
	if err != nil || len(l.Agents) == 0 {
		return nil
	}
	return &l.Agents[0]
}

// remote starts an agent whose work a remote one does, at a card's address.
func (w *world) remote(id subjects.AgentID, address string, tune ...func(*remote.Config)) (stop func()) {
	w.t.Helper()
	return w.agent(id, w.driver(address, tune...))
}

func (w *world) driver(address string, tune ...func(*remote.Config)) agent.Config {
	w.t.Helper()
	identity, err := remote.NewIdentity("far", address, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	c := remote.Config{
		Identity: identity, Log: logger(w.t), Poll: 50 * time.Millisecond,
		Timeout: 30 * time.Second, Idle: 30 * time.Second, Patience: 10 * time.Second,
	}
	for _, f := range tune {
		f(&c)
	}
	r, err := remote.New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return agent.Config{Handler: r, Watch: r.Watch}
}

func ask[R any](w *world, noun, verb string, req any) (R, error) {
	m, err := w.bus.Request(w.t.Context(), subjects.API("operator", noun, verb), fleet.MustEncode(req), nil)
	if err != nil {
		var none R
		return none, err
	}
	return fleet.DecodeReply[R](m.Data)
}

func must[R any](w *world, noun, verb string, req any) R {
	w.t.Helper()
	r, err := ask[R](w, noun, verb, req)
	if err != nil {
		w.t.Fatalf("%s %s: %v", noun, verb, err)
	}
	return r
}

// dispatch sends a task; tune changes it.
func (w *world) dispatch(brief string, tune ...func(*fleet.Dispatch)) subjects.TaskID {
	w.t.Helper()
	d := &fleet.Dispatch{Brief: brief, Task: fleet.Task{MaxRetries: new(0), Escalate: fleet.EscalateNever}}
	for _, f := range tune {
		f(d)
	}
	return must[fleet.Dispatched](w, "task", "dispatch", d).TaskID
}

// until waits for a state of a task.
func (w *world) until(id subjects.TaskID, want fleet.State) fleet.TaskView {
	w.t.Helper()
	var v fleet.TaskView
	bustest.Eventually(w.t, string("the task is "+want), func() bool {
		v = must[fleet.TaskView](w, "task", "get", fleet.TaskRef{TaskID: id})
		if v.State != want && v.State.Terminal() {
			w.t.Fatalf("the task is %s, want %s: %+v %+v", v.State, want, v.Reason, v.Result)
		}
		return v.State == want
	})
	return v
}

// result waits for the end of a task.
func (w *world) result(id subjects.TaskID, want fleet.State) fleet.Result {
	w.t.Helper()
	r := w.until(id, want).Result
	if r == nil {
		w.t.Fatalf("the task %s has no result", id)
	}
	return *r
}

func (w *world) events(id subjects.TaskID) []fleet.Event {
	w.t.Helper()
	return must[fleet.TaskEventsReply](w, "task", "events", fleet.TaskEvents{TaskID: id, Limit: 1000}).Events
}

// artifacts are the texts of the artifacts that were handed in, chunk by chunk.
func (w *world) artifacts(id subjects.TaskID) string {
	w.t.Helper()
	var out []string
	for _, e := range w.events(id) {
		if a := e.Data.Artifact; a != nil {
			var s strings.Builder
			s.WriteString(a.ArtifactID + ":")
			if a.Append {
				s.WriteString("+")
			}
			for _, p := range a.Parts {
				if p.Text != nil {
					s.WriteString(*p.Text)
				}
			}
			out = append(out, s.String())
		}
	}
	return strings.Join(out, " ")
}

func output(r fleet.Result) string {
	var s string
	if json.Unmarshal(r.Output, &s) != nil {
		return string(r.Output)
	}
	return s
}

// pinned names the agent for a task.
func pinned(id subjects.AgentID) func(*fleet.Dispatch) {
	return func(d *fleet.Dispatch) { d.Task.Agent = id }
}

// listen collects progress of an agent.
func (w *world) listen(id subjects.AgentID) func() []string {
	w.t.Helper()
	var mu sync.Mutex
	var texts []string
	sub, err := w.bus.Subscribe(subjects.Progress(id, "*"), "", func(m bus.Msg) {
		var p fleet.Progress
		if json.Unmarshal(m.Data, &p) == nil && p.Text != "" {
			mu.Lock()
			defer mu.Unlock()
			texts = append(texts, p.Text)
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = sub.Unsubscribe() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), texts...)
	}
}
