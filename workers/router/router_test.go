package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

// world is one server with routers, agents of the test's own, and a caller.
type world struct {
	t   *testing.T
	srv *bustest.Server
	bus *bus.Bus

	sessions router.Sessions // of routers that start later
}

// newWorld is one in a bubble: agents that beat often are lost by no machine that is
// slow.
func newWorld(t *testing.T, routers int) *world {
	t.Helper()
	srv := bustest.NewFake(t)
	w := &world{t: t, srv: srv, bus: srv.Bus(t)}
	for i := range routers {
		w.router(fmt.Sprintf("r%d", i))
	}
	return w
}

// runFake runs a part of a test in a bubble of its own.
func runFake(t *testing.T, name string, part func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, part)
	})
}

// router starts one more router and waits until it serves; the function stops it.
func (w *world) router(id string) (stop func()) {
	w.t.Helper()
	b := w.srv.Connect(w.t)
	r, err := router.New(router.Config{
		Bus: b, ID: subjects.InstanceID(id), Sessions: w.sessions,
		Backoff: escalation.Backoff{Base: 20 * time.Millisecond, Max: 100 * time.Millisecond},
		Log:     slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.run(r)
}

// run runs a router and waits until it serves; the function stops it.
func (w *world) run(r *router.Worker) (stop func()) {
	w.t.Helper()
	return bustest.Serve(w.t, r)
}

// call asks the API as from.
func call[T any](w *world, from subjects.AgentID, noun, verb string, req any) (T, error) {
	w.t.Helper()
	data, ok := req.([]byte)
	if !ok {
		data = fleet.MustEncode(req)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	m, err := w.bus.Request(ctx, subjects.API(from, noun, verb), data, nil)
	if err != nil {
		w.t.Fatalf("%s %s: %v", noun, verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}

// send dispatches as "boss" and gives the task id.
func (w *world) send(dispatch string) subjects.TaskID {
	w.t.Helper()
	d, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatch))
	if err != nil {
		w.t.Fatalf("dispatch %s: %v", dispatch, err)
	}
	return d.TaskID
}

// outcome waits for the end of a task.
func (w *world) outcome(id subjects.TaskID) fleet.TaskView {
	w.t.Helper()
	for range 5 {
		v, err := call[fleet.TaskView](w, "boss", "task", "wait", fleet.TaskWait{TaskID: id, TimeoutSeconds: 8})
		if err != nil {
			w.t.Fatalf("wait %s: %v", id, err)
		}
		if v.State.Terminal() {
			return v
		}
	}
	w.t.Fatalf("task %s has not ended", id)
	panic("unreachable")
}

// view is a task now.
func (w *world) view(id subjects.TaskID) fleet.TaskView {
	w.t.Helper()
	v, err := call[fleet.TaskView](w, "boss", "task", "get", fleet.TaskRef{TaskID: id})
	if err != nil {
		w.t.Fatalf("get %s: %v", id, err)
	}
	return v
}

// events are all records of a task; their numbers must have no gap.
func (w *world) events(id subjects.TaskID) []fleet.Event {
	w.t.Helper()
	r, err := call[fleet.TaskEventsReply](w, "boss", "task", "events", fleet.TaskEvents{TaskID: id, Limit: 1000})
	if err != nil {
		w.t.Fatalf("events %s: %v", id, err)
	}
	for i, e := range r.Events {
		if e.Seq != uint64(i+1) {
			w.t.Fatalf("task %s: record %d has seq %d", id, i+1, e.Seq)
		}
	}
	return r.Events
}

// agent is an agent of the test's own: it answers offers and controls as told.
type agent struct {
	w     *world
	bus   *bus.Bus
	id    subjects.AgentID
	inst  subjects.InstanceID
	epoch int64

	offers   chan fleet.Dispatch
	controls chan fleet.Control
	deaf     func() // ends the answering of offers

	mu      sync.Mutex
	paused  bool                     // sends no heartbeats
	answer  func(fleet.Dispatch) any // nil: accept
	holding map[subjects.TaskID]int
	stop    func()
}

const beatEvery = 200 * time.Millisecond

// join announces an agent with extra capabilities and keeps it alive.
func (w *world) join(id string, change func(*fleet.Announce)) *agent {
	w.t.Helper()
	a := &agent{
		w: w, bus: w.srv.Connect(w.t), id: subjects.AgentID(id), epoch: time.Now().UnixNano(),
		offers: make(chan fleet.Dispatch, 1000), controls: make(chan fleet.Control, 1000),
		holding: make(map[subjects.TaskID]int),
	}
	hb := beatEvery.Seconds()
	ann := &fleet.Announce{
		Header:           fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
		Worker:           fleet.Worker{AgentID: a.id, ModelTier: "sonnet", Epoch: a.epoch, MaxParallel: 1},
		Capabilities:     fleet.Capabilities{Tools: []string{"terminal"}, MCPServers: []string{"git"}},
		MCPHealth:        fleet.MCPHealth{"git": fleet.HealthOK},
		HeartbeatSeconds: &hb,
	}
	if change != nil {
		change(ann)
	}
	a.id, a.inst, a.epoch = ann.Worker.AgentID, ann.Instance(), ann.Worker.Epoch
	a.listen()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	a.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); a.bus.Close() })
	w.t.Cleanup(a.stop)
	a.announce(ann)
	if *ann.HeartbeatSeconds > 0 {
		a.beat()
		wg.Go(func() {
			tick := time.NewTicker(ann.Heartbeat())
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					a.beat()
				}
			}
		})
	}
	return a
}

func (a *agent) announce(ann *fleet.Announce) {
	a.w.t.Helper()
	if _, err := a.bus.Store(a.w.t.Context(), subjects.Announce(a.id, a.inst), fleet.MustEncode(ann), "", nil); err != nil {
		a.w.t.Fatal(err)
	}
}

func (a *agent) listen() {
	a.w.t.Helper()
	a.deaf = a.takeOffers()
	a.subscribe(subjects.Control(a.id, a.inst), func(m bus.Msg) {
		c, err := fleet.DecodeControl(m.Data)
		if err != nil {
			a.w.t.Errorf("control: %v", err)
			return
		}
		if c.Action == fleet.ActionCancel {
			a.drop(c.TaskID)
		}
		_ = m.Respond(fleet.MustEncode(fleet.ControlReply{OK: true}), nil)
		a.controls <- *c
	})
}

func (a *agent) subscribe(subject string, fn func(bus.Msg)) *bus.Subscription {
	a.w.t.Helper()
	sub, err := a.bus.Subscribe(subject, "", fn)
	if err != nil {
		a.w.t.Fatal(err)
	}
	return sub
}

// takeOffers has the agent answer offers; the function has nobody answer them.
func (a *agent) takeOffers() (deaf func()) {
	a.w.t.Helper()
	sub := a.subscribe(subjects.Offer(a.id, a.inst), func(m bus.Msg) {
		d, err := fleet.DecodeDispatch(m.Data)
		if err != nil {
			a.w.t.Errorf("offer: %v in %s", err, m.Data)
			return
		}
		a.mu.Lock()
		answer := a.answer
		a.mu.Unlock()
		reply := any(fleet.Ack{Accepted: true, Epoch: a.epoch})
		if answer != nil {
			if reply = answer(*d); reply == nil {
				a.offers <- *d
				return // silence
			}
		}
		if ack, ok := reply.(fleet.Ack); ok && ack.Accepted {
			a.mu.Lock()
			a.holding[d.Task.TaskID] = d.Attempt
			a.mu.Unlock()
		}
		_ = m.Respond(fleet.MustEncode(reply), nil)
		a.offers <- *d
	})
	return func() {
		a.w.t.Helper()
		if err := sub.Unsubscribe(); err != nil {
			a.w.t.Fatal(err)
		}
		if err := a.bus.Ping(a.w.t.Context()); err != nil {
			a.w.t.Fatal(err)
		}
	}
}

func (a *agent) drop(id subjects.TaskID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.holding, id)
}

func (a *agent) answers(f func(fleet.Dispatch) any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

// pause has the agent send no heartbeats, or send them again.
func (a *agent) pause(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paused = on
}

func (a *agent) beat() {
	a.mu.Lock()
	if a.paused {
		a.mu.Unlock()
		return
	}
	hb := fleet.Heartbeat{Epoch: a.epoch, ActiveTasks: len(a.holding)}
	for id, n := range a.holding {
		hb.Holding = append(hb.Holding, fleet.Holding{TaskID: id, Attempt: n, OfferID: "offer-of-" + string(id)})
	}
	a.mu.Unlock()
	_ = a.bus.Publish(subjects.Heartbeat(a.id, a.inst), fleet.MustEncode(hb), nil)
}

// offered waits for the next offer.
func (a *agent) offered() fleet.Dispatch {
	a.w.t.Helper()
	select {
	case d := <-a.offers:
		return d
	case <-time.After(15 * time.Second):
		l, _ := call[fleet.TaskListReply](a.w, "operator", "task", "list", fleet.TaskList{})
		for _, v := range l.Tasks {
			x, _ := call[fleet.TaskExplanation](a.w, "operator", "task", "explain", fleet.TaskRef{TaskID: v.TaskID})
			a.w.t.Logf("task %s: %s, not before %v; %s: %s", v.TaskID, v.State, v.NotBefore, x.Summary, fleet.MustEncode(x.Agents))
		}
		a.w.t.Fatalf("agent %s was offered nothing", a.id)
		panic("unreachable")
	}
}

// told waits for the next control message.
func (a *agent) told() fleet.Control {
	a.w.t.Helper()
	select {
	case c := <-a.controls:
		return c
	case <-time.After(15 * time.Second):
		a.w.t.Fatalf("agent %s was told nothing", a.id)
		panic("unreachable")
	}
}

// result hands in a result until it is answered.
func (a *agent) result(id subjects.TaskID, r fleet.Result) (fleet.ResultReply, error) {
	a.w.t.Helper()
	if r.Status == "" {
		r.Status = fleet.StatusDone
	}
	return a.report(subjects.Result(a.id, id), fleet.MustEncode(r), id)
}

func (a *agent) report(subject string, data []byte, id subjects.TaskID) (fleet.ResultReply, error) {
	a.w.t.Helper()
	if strings.HasPrefix(subject, "fleet.result.") {
		a.drop(id)
	}
	ctx, cancel := context.WithTimeout(a.w.t.Context(), 10*time.Second)
	defer cancel()
	m, err := a.bus.RequestUntil(ctx, subject, data, nil, 5*time.Second, func(m bus.Msg) bool {
		_, err := fleet.DecodeReply[fleet.ResultReply](m.Data)
		return subjects.CodeOf(err) == subjects.CodeUnavailable
	})
	if err != nil {
		a.w.t.Fatalf("report on %s: %v", id, err)
	}
	return fleet.DecodeReply[fleet.ResultReply](m.Data)
}

func dispatchJSON(brief, more string) string {
	return fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{%s},"requirements":{"required_mcp":["git"],"required_capabilities":[]},"brief":%q}`, more, brief)
}

func TestATaskGoesFromDispatchToOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testATaskGoesFromDispatchToOutcome)
}

func testATaskGoesFromDispatchToOutcome(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("worker", nil)
	outcomes := make(chan bus.Msg, 10)
	if _, err := w.bus.Subscribe("fleet.outcome.boss.*", "", func(m bus.Msg) { outcomes <- m }); err != nil {
		t.Fatal(err)
	}
	id := w.send(dispatchJSON("say hello", `"task_id":"t-1","priority":"high"`))
	d := a.offered()
	if d.Task.TaskID != id || d.Attempt != 1 || d.From != "boss" || d.Brief != "say hello" || d.Deadline == nil {
		t.Errorf("offer = %+v", d)
	}
	got, err := a.result(id, fleet.Result{Output: json.RawMessage(`"hello"`), TokensSpent: 7, Attempt: 1, Epoch: a.epoch})
	if err != nil || !got.OK || got.State != fleet.StateDone || got.Seq != 3 {
		t.Errorf("result reply = %+v, %v; want done at seq 3", got, err)
	}
	v := w.outcome(id)
	if v.State != fleet.StateDone || v.TokensSpent != 7 || v.Result == nil || string(v.Result.Output) != `"hello"` {
		t.Errorf("outcome = %+v", v)
	}
	var kinds []string
	for _, e := range w.events(id) {
		kinds = append(kinds, e.Kind)
	}
	if fmt.Sprint(kinds) != "[queued working outcome]" {
		t.Errorf("records = %v, want queued working outcome", kinds)
	}
	m := <-outcomes
	r, err := fleet.DecodeResult(m.Data)
	if err != nil || r.State != fleet.StateDone || m.Subject != "fleet.outcome.boss.t-1" {
		t.Errorf("heard %s %s, %v", m.Subject, m.Data, err)
	}
	again, err := a.result(id, fleet.Result{Output: json.RawMessage(` "hello" `), TokensSpent: 7, Attempt: 1, Epoch: a.epoch})
	if err != nil || !again.OK || again.Seq != 3 {
		t.Errorf("the same result again = %+v, %v; want the same answer", again, err)
	}
	_, err = a.result(id, fleet.Result{Output: json.RawMessage(`"good day"`), Attempt: 1, Epoch: a.epoch})
	if subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("another result of the same attempt = %v, want late_result", err)
	}
}
