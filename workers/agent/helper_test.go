package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// TestMain also plays the programs that tests run: this binary with "helper"
// and what to be.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "helper" {
		m.Run()
		return
	}
	switch os.Args[2] {
	case "mcp-ok":
		server := mcp.NewServer(&mcp.Implementation{Name: "ok", Version: "1"}, nil)
		_ = server.Run(context.Background(), &mcp.StdioTransport{})
	case "mcp-hang":
		hang(os.Args[3])
	case "harness":
		harness(os.Args[3])
	case "detached", "guarded":
		detachedHarness(os.Args[3], os.Args[4], os.Args[2] == "guarded")
	default: // mcp-die, true
	}
}

// hang holds a FIFO open and does nothing else.
func hang(fifo string) {
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	<-make(chan struct{})
}

// harness runs a command that holds a FIFO open, until it is killed.
func harness(fifo string) {
	e, err := agent.NewExec(agent.ExecConfig{Command: []string{"/bin/sh", "-c", `exec sleep 1000 9>"$FIFO"`}, Set: []string{"FIFO=" + fifo}})
	if err == nil {
		_, err = e.Handle(context.Background(), &agent.Task{Dispatch: dispatch("t1", "x")})
	}
	fmt.Fprintln(os.Stderr, "harness:", err)
}

// detachedHarness runs a command that has a child hold a FIFO open in a session
// of its own, until it is killed.
func detachedHarness(fifo, tmp string, guarded bool) {
	e, err := agent.NewExec(agent.ExecConfig{
		Command: []string{"/bin/sh", "-c", `setsid sh -c 'exec sleep 1000 9>"$FIFO"' & wait; sleep 1000`},
		Env:     []string{"PATH=" + os.Getenv("PATH")}, Set: []string{"FIFO=" + fifo}, TempDir: tmp,
	})
	if err == nil {
		if guarded {
			agent.Guard(e)
		}
		_, err = e.Handle(context.Background(), &agent.Task{Dispatch: dispatch("t1", "x")})
	}
	fmt.Fprintln(os.Stderr, "harness:", err)
}

const patience = bustest.Patience

// router plays the fleet's side.
type router struct {
	t   *testing.T
	b   *bus.Bus
	own *bus.Bus // the agent's connection

	results    chan fleet.Result
	progresses chan fleet.Progress
	announces  chan fleet.Announce
	beats      chan fleet.Heartbeat

	mu      sync.Mutex
	answer  func(n int, r fleet.Result) any // to the n-th result, from 1; nil: not at all
	n       int
	refused *subjects.Error // answers every question and artifact; nil: ok
}

func (r *router) refuse(e *subjects.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = e
}

func newRouter(t *testing.T) *router {
	t.Helper()
	return newRouterOn(t, bustest.New(t))
}

// newRouterOn is newRouter on a server that is there.
func newRouterOn(t *testing.T, s *bustest.Server) *router {
	t.Helper()
	r := &router{
		t: t, b: s.Bus(t), own: s.Connect(t),
		results: make(chan fleet.Result, 1000), progresses: make(chan fleet.Progress, 1000),
		announces: make(chan fleet.Announce, 1000), beats: make(chan fleet.Heartbeat, 10000),
		answer: func(int, fleet.Result) any { return fleet.ResultReply{OK: true} },
	}
	listen(r, subjects.ResultPattern, fleet.DecodeResult, r.onResult)
	listen(r, subjects.ProgressPattern, fleet.DecodeProgress, func(m bus.Msg, p *fleet.Progress) {
		if p.Question != nil || p.Artifact != nil {
			r.mu.Lock()
			refused := r.refused
			r.mu.Unlock()
			if refused != nil {
				r.reply(m, fleet.ErrorReply{Error: refused})
			} else {
				r.reply(m, fleet.ResultReply{OK: true})
			}
		}
		r.progresses <- *p
	})
	listen(r, subjects.AnnouncePattern, fleet.DecodeAnnounce, func(_ bus.Msg, a *fleet.Announce) { r.announces <- *a })
	listen(r, subjects.HeartbeatPattern, fleet.DecodeHeartbeat, func(_ bus.Msg, h *fleet.Heartbeat) { r.beats <- *h })
	if err := r.b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func listen[T any](r *router, subject string, decode func([]byte) (*T, error), fn func(bus.Msg, *T)) {
	r.t.Helper()
	_, err := r.b.Subscribe(subject, "", func(m bus.Msg) {
		v, err := decode(m.Data)
		if err != nil {
			r.t.Errorf("%s: %v in %s", m.Subject, err, m.Data)
			return
		}
		fn(m, v)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *router) onResult(m bus.Msg, res *fleet.Result) {
	r.mu.Lock()
	r.n++
	reply := r.answer(r.n, *res)
	r.mu.Unlock()
	if reply != nil {
		r.reply(m, reply)
	}
	r.results <- *res
}

// answers sets how results are answered.
func (r *router) answers(f func(n int, r fleet.Result) any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

func (r *router) reply(m bus.Msg, v any) {
	if err := m.Respond(fleet.MustEncode(v), nil); err != nil {
		r.t.Errorf("reply to %s: %v", m.Subject, err)
	}
}

// running is an agent that a test runs.
type running struct {
	*agent.Worker
	r    *router
	stop context.CancelFunc
	done chan error
}

// start runs an agent until the test ends.
func (r *router) start(c agent.Config) *running {
	r.t.Helper()
	if c.ID == "" {
		c.ID = "bob"
	}
	if c.Bus == nil {
		c.Bus = r.own
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 100 * time.Millisecond
	}
	c.Log = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	w, err := agent.New(c)
	if err != nil {
		r.t.Fatalf("New: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &running{w, r, cancel, make(chan error, 1)}
	go func() { a.done <- w.Run(ctx) }()
	r.t.Cleanup(a.end)
	await(r.t, "the first heartbeat", r.beats, func(h fleet.Heartbeat) bool { return h.Epoch == w.Epoch() })
	return a
}

// end stops the agent and waits for it; a second call does nothing.
func (a *running) end() {
	a.stop()
	a.joined()
}

// joined waits for Run to return.
func (a *running) joined() {
	a.r.t.Helper()
	select {
	case err := <-a.done:
		a.done <- nil
		if err != nil {
			a.r.t.Errorf("Run = %v, want nil", err)
		}
	case <-time.After(patience):
		a.r.t.Error("Run did not return")
	}
}

// await takes from c until ok says true.
func await[T any](t *testing.T, what string, c <-chan T, ok func(T) bool) T {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case v := <-c:
			if ok(v) {
				return v
			}
		case <-late.C:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// next takes one from c.
func next[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	return await(t, what, c, func(T) bool { return true })
}

// result waits for the result of a task.
func (r *router) result(id subjects.TaskID) fleet.Result {
	r.t.Helper()
	return await(r.t, "the result of "+string(id), r.results, func(x fleet.Result) bool { return x.TaskID == id })
}

// gone waits until the agent holds nothing.
func (a *running) gone() {
	a.r.t.Helper()
	await(a.r.t, "an empty hand", a.r.beats, func(h fleet.Heartbeat) bool { return h.Epoch == a.Epoch() && len(h.Holding) == 0 })
}

// drained forgets what was heard so far.
func drained[T any](c <-chan T) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

// reply is the reply to an offer: one of the two.
type reply struct {
	ack    *fleet.Ack
	result *fleet.Result
}

func (p reply) accepted() bool { return p.ack != nil && p.ack.Accepted }

// code is why an offer was not accepted.
func (p reply) code() subjects.Code {
	switch {
	case p.result != nil && p.result.Error != nil:
		return p.result.Error.Code
	case p.ack != nil && p.ack.Reason != nil:
		return p.ack.Reason.Code
	}
	return ""
}

func (a *running) try(d *fleet.Dispatch) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := a.r.b.Request(ctx, subjects.Offer("bob", a.Instance()), fleet.MustEncode(d), nil)
	if err != nil {
		return reply{}, err
	}
	var p reply
	if fleet.TypeOf(m.Data) == fleet.TypeResult {
		p.result, err = fleet.DecodeResult(m.Data)
	} else {
		p.ack, err = fleet.DecodeAck(m.Data)
	}
	return p, err
}

func (a *running) offer(d *fleet.Dispatch) reply {
	a.r.t.Helper()
	p, err := a.try(d)
	if err != nil {
		a.r.t.Fatalf("offer %s: %v", d.Task.TaskID, err)
	}
	return p
}

// give offers a task that must be accepted.
func (a *running) give(d *fleet.Dispatch) {
	a.r.t.Helper()
	if p := a.offer(d); !p.accepted() {
		a.r.t.Fatalf("offer %s was refused: %s", d.Task.TaskID, p.code())
	}
}

func (a *running) tell(c fleet.Control) fleet.ControlReply {
	a.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m, err := a.r.b.Request(ctx, subjects.Control("bob", a.Instance()), fleet.MustEncode(c), nil)
	if err != nil {
		a.r.t.Fatalf("control %s: %v", c.Action, err)
	}
	p, err := fleet.DecodeControlReply(m.Data)
	if err != nil {
		a.r.t.Fatalf("control %s: %v", c.Action, err)
	}
	return *p
}

func (a *running) cancel(id subjects.TaskID, attempt int, code subjects.Code) {
	a.r.t.Helper()
	p := a.tell(fleet.Control{Action: fleet.ActionCancel, TaskID: id, Attempt: attempt, Reason: &fleet.Reason{Code: code}})
	if !p.OK {
		a.r.t.Errorf("CANCEL %s = %+v, want ok", id, p)
	}
}

// dispatch is an offer, attempt 1.
func dispatch(id subjects.TaskID, brief string) *fleet.Dispatch {
	deadline := time.Now().Add(time.Hour)
	return &fleet.Dispatch{
		Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version},
		Task:   fleet.Task{TaskID: id, Priority: fleet.Normal, TimeoutSeconds: 600},
		Requirements: fleet.Requirements{
			RequiredMCP: []string{}, RequiredCapabilities: []string{},
		},
		Deadline: &deadline, Brief: brief, From: "alice", Attempt: 1,
	}
}

// again is d as a later attempt.
func again(d *fleet.Dispatch, attempt int) *fleet.Dispatch {
	c := *d
	c.Attempt = attempt
	return &c
}

// gate is a handler that waits to be let go, or for its context.
type gate struct {
	began chan *agent.Task
	open  chan fleet.Result
	ended chan error // the cause, when it ended by its context
}

func newGate() *gate {
	return &gate{make(chan *agent.Task, 1000), make(chan fleet.Result, 1000), make(chan error, 1000)}
}

func (g *gate) Handle(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	g.began <- t
	select {
	case r := <-g.open:
		return r, nil
	case <-ctx.Done():
		g.ended <- context.Cause(ctx)
		return fleet.Result{TokensSpent: 7}, ctx.Err()
	}
}

// output is a result's output as text.
func output(t *testing.T, r fleet.Result) string {
	t.Helper()
	var s string
	if err := json.Unmarshal(r.Output, &s); err != nil {
		t.Errorf("output %s is not text: %v", r.Output, err)
	}
	return s
}

func code(r fleet.Result) subjects.Code {
	if r.Error == nil {
		return ""
	}
	return r.Error.Code
}

// fail is what an error of a handler says, "" codes for one that is no *Fail.
func fail(err error) (subjects.Code, bool) {
	if f, ok := errors.AsType[*agent.Fail](err); ok {
		if f.Code == "" {
			return subjects.CodeAgentError, f.Retryable
		}
		return f.Code, f.Retryable
	}
	return "", false
}
