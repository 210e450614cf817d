package a2e_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	messages "parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
	"parley/workers/a2e"
)

// stage is a fleet of which only the A2E worker is real: router, registry,
// sessions and runs are as their APIs say.
type stage struct {
	t      *testing.T
	server *bustest.Server
	b      *bus.Bus

	mu       sync.Mutex
	agents   []fleet.AgentView
	tasks    map[subjects.TaskID]*task
	runs     map[subjects.RunID]run.State
	sessions map[subjects.SessionID]subjects.AgentID
	appended []handshake.Append
	asked    []string // noun.verb by whom
}

type task struct {
	from    subjects.AgentID
	session subjects.SessionID
	ended   chan struct{}
}

const goodSessionToken = "parley1.good"

// newStage has an agent with tools and every worker.
func newStage(t *testing.T) *stage {
	t.Helper()
	server := bustest.New(t)
	s := &stage{
		t: t, server: server, b: server.Bus(t), tasks: map[subjects.TaskID]*task{}, runs: map[subjects.RunID]run.State{},
		sessions: map[subjects.SessionID]subjects.AgentID{},
		agents: []fleet.AgentView{
			{Live: true, Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "ada"}, Capabilities: fleet.Capabilities{Tools: []string{"edit"}}}},
			{Live: true, Draining: true, Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "gone"}, Capabilities: fleet.Capabilities{Tools: []string{"learning"}}}},
			{Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "dead"}, Capabilities: fleet.Capabilities{Tools: []string{"learning"}}}},
		},
	}
	s.serve("fleet", map[string]handler{"task.dispatch": s.dispatch, "task.get": s.get, "task.wait": s.wait, "task.cancel": s.cancel})
	s.serve("sessions", map[string]handler{"session.create": s.create, "session.context": s.read, "session.append": s.append})
	s.serve("registry", map[string]handler{"agent.list": func(subjects.AgentID, []byte) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return fleet.AgentListReply{Agents: s.agents}, nil
	}})
	return s
}

type handler func(from subjects.AgentID, data []byte) (any, error)

// serve runs a service of the fleet until the returned function is called.
func (s *stage) serve(name string, verbs map[string]handler) (stop func()) {
	s.t.Helper()
	service := bus.Service{Name: name, Version: "1.0.0"}
	for name, f := range verbs {
		noun, verb, _ := strings.Cut(name, ".")
		pattern := subjects.APIPattern(noun, verb)
		service.Endpoints = append(service.Endpoints, bus.Endpoint{Name: noun + "_" + verb, Subject: pattern, Handle: func(_ context.Context, m bus.Msg) ([]byte, error) {
			vars, _ := subjects.Tokens(pattern, m.Subject)
			s.mu.Lock()
			s.asked = append(s.asked, name+" by "+vars[0])
			s.mu.Unlock()
			v, err := f(subjects.AgentID(vars[0]), m.Data)
			if err != nil {
				return nil, err
			}
			return fleet.Encode(v)
		}})
	}
	stop, err := s.b.Serve(s.t.Context(), service)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(stop)
	return stop
}

func (s *stage) dispatch(from subjects.AgentID, data []byte) (any, error) {
	d, err := fleet.DecodeDispatch(data)
	if err != nil {
		return nil, err
	}
	if d.Brief == "refuse" {
		return nil, subjects.Errorf(subjects.CodeIdempotencyConflict, "no").At("/task/task_id")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[d.Task.TaskID] = &task{from, d.Task.SessionID, make(chan struct{})}
	if d.Brief == "quick" {
		close(s.tasks[d.Task.TaskID].ended)
	}
	return fleet.Dispatched{TaskID: d.Task.TaskID, State: fleet.StateQueued}, nil
}

func (s *stage) view(from subjects.AgentID, id subjects.TaskID, most time.Duration) (any, error) {
	s.mu.Lock()
	t := s.tasks[id]
	s.mu.Unlock()
	if t == nil || t.from != from {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no task %s", id).At("/task_id")
	}
	v := fleet.TaskView{TaskID: id, From: from, State: fleet.StateWorking, Priority: fleet.Normal}
	limit := time.NewTimer(most)
	defer limit.Stop()
	select {
	case <-t.ended:
	case <-limit.C:
	}
	select {
	case <-t.ended:
		v.State, v.Result = fleet.StateDone, &fleet.Result{TaskID: id, Status: fleet.StatusDone, Output: json.RawMessage(`"hello"`)}
	default:
	}
	return v, nil
}

func (s *stage) get(from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.TaskRef](data)
	if err != nil {
		return nil, err
	}
	return s.view(from, q.TaskID, 0)
}

func (s *stage) wait(from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.TaskWait](data)
	if err != nil {
		return nil, err
	}
	return s.view(from, q.TaskID, time.Duration(q.TimeoutSeconds*float64(time.Second)))
}

func (s *stage) cancel(from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.TaskCancel](data)
	if err != nil {
		return nil, err
	}
	s.end(q.TaskID)
	return s.view(from, q.TaskID, 0)
}

// end ends a task.
func (s *stage) end(id subjects.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[id]; t != nil {
		close(t.ended)
	}
}

func (s *stage) create(from subjects.AgentID, _ []byte) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	id := subjects.NewSessionID(now, []byte{byte(len(s.sessions)), 1, 2, 3})
	s.sessions[id] = from
	return handshake.Opened{
		Session: handshake.Session{SessionID: id, Orchestrator: from, CreatedAt: now, ExpiresAt: now.Add(time.Hour)},
		Token:   goodSessionToken, KeptUntil: now.Add(24 * time.Hour),
	}, nil
}

func (s *stage) read(from subjects.AgentID, data []byte) (any, error) {
	q, err := handshake.DecodeRequest[handshake.Read](data)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[q.SessionID] != from {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no session %s of %s", q.SessionID, from)
	}
	return handshake.ReadReply{SessionID: q.SessionID, Version: uint64(len(s.appended))}, nil
}

func (s *stage) append(from subjects.AgentID, data []byte) (any, error) {
	q, err := handshake.DecodeRequest[handshake.Append](data)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[q.SessionID] != from {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no session %s of %s", q.SessionID, from)
	}
	s.appended = append(s.appended, *q)
	return handshake.Appended{SessionID: q.SessionID, Version: uint64(len(s.appended))}, nil
}

// withRuns adds a runs worker.
func (s *stage) withRuns() {
	s.t.Helper()
	state := func(_ subjects.AgentID, data []byte) (any, error) {
		q, err := fleet.DecodeRequest[run.Ref](data)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if q.Reason != "" {
			s.runs[q.RunID] = run.Canceled
		}
		return map[string]any{"run_id": q.RunID, "state": s.runs[q.RunID]}, nil
	}
	s.serve("runs", map[string]handler{
		"run.start": func(_ subjects.AgentID, data []byte) (any, error) {
			d, err := run.Read(data)
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.runs[d.TaskID] = run.Running
			return run.Started{RunID: d.TaskID, State: run.Running}, nil
		},
		"run.get": state, "run.cancel": state,
	})
}

// start runs an A2E worker until the returned function ends it.
func (s *stage) start(b *bus.Bus, cfg a2e.Config) (w *a2e.Worker, stop func()) {
	s.t.Helper()
	cfg.Bus, cfg.Log = b, slog.New(slog.NewTextHandler(s.t.Output(), nil))
	w, err := a2e.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return w, bustest.Serve(s.t, w)
}

// listener is a place for connections.
func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func head(typ, id string) messages.Header {
	return messages.Header{A2E: "1.0", Type: typ, ID: id, TS: 1716123456.789}
}

func hello(agent subjects.AgentID, token string, caps ...messages.Capability) []byte {
	return fleet.MustEncode(messages.Request{Header: head(messages.TypeRequest, "hello"), AgentID: agent, AgentCaps: caps, AuthToken: token})
}

// callOf is a call/req.
func callOf(id, session string, verb messages.Verb, params any, wait ...float64) []byte {
	c := messages.Call{Header: head(messages.TypeCall, id), SessionID: session, Call: verb}
	if params != nil {
		c.Params = fleet.MustEncode(params)
	}
	if len(wait) > 0 {
		c.WaitSeconds = &wait[0]
	}
	return fleet.MustEncode(&c)
}

// brief is a TASK_DISPATCH.
func brief(id subjects.TaskID, text string) fleet.Dispatch {
	return fleet.Dispatch{Task: fleet.Task{TaskID: id}, Brief: text}
}

// overNATS asks a2e.<verb> as somebody.
func overNATS[T any](s *stage, as subjects.AgentID, verb string, req []byte) (T, error) {
	s.t.Helper()
	m, err := s.b.Request(s.t.Context(), subjects.API(as, "a2e", verb), req, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return fleet.DecodeReply[T](m.Data)
}

// shaken is a session of ada over NATS, for everything there is.
func (s *stage) shaken(caps ...messages.Capability) string {
	s.t.Helper()
	if caps == nil {
		caps = messages.Capabilities()
	}
	r, err := overNATS[messages.Response](s, "ada", "handshake", hello("ada", "", caps...))
	if err != nil || !r.OK {
		s.t.Fatalf("handshake = %+v, %v", r, err)
	}
	return r.SessionID
}

// said calls over NATS as ada.
func (s *stage) said(req []byte) messages.Reply {
	s.t.Helper()
	r, err := overNATS[messages.Reply](s, "ada", "call", req)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// wants checks a reply: its code, "" for none.
func wants(t *testing.T, what string, r messages.Reply, code subjects.Code) messages.Reply {
	t.Helper()
	var got subjects.Code
	if r.Error != nil {
		got = r.Error.Code
	}
	if got != code || r.OK != (code == "") {
		t.Errorf("%s = ok %v, %v, want %q", what, r.OK, r.Error, code)
	}
	return r
}

func stateOf(t *testing.T, r messages.Reply) fleet.State {
	t.Helper()
	v, err := fleet.DecodeReply[fleet.TaskView](r.Result)
	if err != nil {
		t.Fatalf("%v in %s", err, r.Result)
	}
	return v.State
}
