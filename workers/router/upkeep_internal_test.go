package router

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// serving runs a router and waits until it serves; the function stops it.
func serving(t *testing.T, srv *bustest.Server, id subjects.InstanceID) (w *Worker, stop func()) {
	t.Helper()
	w, err := New(Config{ID: id, Bus: srv.Connect(t)})
	if err != nil {
		t.Fatal(err)
	}
	return w, bustest.Serve(t, w)
}

func dispatched(t *testing.T, b *bus.Bus, id string) {
	t.Helper()
	m, err := b.Request(t.Context(), subjects.API("boss", "task", "dispatch"), fmt.Appendf(nil, `{"task":{"task_id":%q,"on_blocked":"wait"},"brief":"x"}`, id), nil)
	if err == nil {
		_, err = fleet.DecodeReply[fleet.Dispatched](m.Data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Of tasks that have ended no timer is left until their deadline.
func TestTimersGoWithTheirTasks(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	q := testRecord(t, "x", "", now0)
	apply := func(id string, end bool, seq uint64) {
		ev := *q
		if ev.TaskID = subjects.TaskID(id); end {
			ev.State = fleet.StateCanceled
		}
		c.apply(&ev, seq, now0)
	}
	apply("live", false, 1)
	for i := range uint64(4 * manyTimers) {
		id := fmt.Sprintf("t-%d", i)
		apply(id, false, 2*i+2)
		apply(id, true, 2*i+3)
		c.tick(now0)
	}
	if n := len(c.timers); n > 2*manyTimers {
		t.Errorf("%d timers, with %d live tasks", n, c.x.live)
	}
	c.take()
	c.ticked = q.Facts.Deadline
	if c.tick(q.Facts.Deadline); len(c.take()) == 0 {
		t.Error("the task that lives is not due at its deadline")
	}
}

// What an agent held by no record is forgotten with the agent.
func TestDenialsGoWithTheirAgent(t *testing.T) {
	t.Parallel()
	c := testCore()
	hb := &fleet.Heartbeat{Holding: []fleet.Holding{{TaskID: "strange", Attempt: 1}}}
	c.beat("a", "1", hb, now0)
	c.beat("a", "1", hb, now0)
	if len(c.denied) != 1 {
		t.Fatalf("denied = %v", c.denied)
	}
	c.ticked = now0.Add(time.Hour)
	if c.tick(c.ticked); len(c.denied) != 0 {
		t.Errorf("denied = %v after the agent has gone", c.denied)
	}
}

// freeAgent has an agent with one slot join the core.
func freeAgent(tb testing.TB, c *core) {
	tb.Helper()
	a, err := fleet.DecodeAnnounce([]byte(`{"type":"SESSION_ANNOUNCE","worker":{"agent_id":"a","epoch":1},"capabilities":{"tools":[],"mcp_servers":[]},"mcp_health":{},"session":{"active_tasks":0}}`))
	if err != nil {
		tb.Fatal(err)
	}
	c.announce(a, now0, now0)
}

// Who waits for the end of an offer hears of it when the task ends first.
func TestTheEndOfATaskEndsItsOffer(t *testing.T) {
	t.Parallel()
	c := testCore()
	freeAgent(t, c)
	q := testRecord(t, "t", "", now0)
	c.apply(q, 1, now0)
	h := c.hot[c.x.find("t")]
	if h == nil || h.offered == nil {
		t.Fatal("the task is not being offered")
	}
	over := h.offered
	c.apply(canceled(q, "boss", "", now0), 2, now0)
	select {
	case <-over:
	default:
		t.Error("the offer of a task that has ended is not over")
	}
}

// An offer that failed on this side is not made again at once, and again.
func TestAnOfferThatFailedHereRests(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	freeAgent(t, c)
	c.apply(testRecord(t, "t", "", now0), 1, now0)
	offers := func() (n int) {
		for _, e := range c.take() {
			if o, ok := e.(offer); ok {
				c.offered(o.task, o.in, true, now0)
				n++
			}
		}
		return n
	}
	if n := offers(); n != 1 {
		t.Fatalf("%d offers, want 1", n)
	}
	if n := offers(); n != 0 {
		t.Fatalf("it is offered again at once")
	}
	for at := now0; !at.After(now0.Add(offerAgain)); at = at.Add(tickEvery) {
		c.tick(at)
	}
	if n := offers(); n != 1 {
		t.Errorf("%d offers after a rest, want 1", n)
	}
}

// An offer that was refused until later is not made before, though the router
// could not see that the refusal was stored.
func TestAnOfferThatFailedHereKeepsItsTime(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	freeAgent(t, c)
	q := testRecord(t, "t", `,"max_retries":1`, now0)
	c.apply(q, 1, now0)
	o, ok := c.take()[0].(offer)
	if !ok {
		t.Fatal("it is not offered")
	}
	later, _ := failed(q, failure{
		code: subjects.CodeAgentError, retryable: true, retryAfter: time.Hour, refused: &holder{"a", "main", 1},
	}, settings{}, now0)
	c.apply(later, 2, now0)
	c.offered("t", o.in, true, now0)
	for at := now0; !at.After(now0.Add(3 * offerAgain)); at = at.Add(tickEvery) {
		c.tick(at)
		if e := c.take(); len(e) > 0 {
			t.Fatalf("%T %s after it was to rest for an hour", e[0], at.Sub(now0))
		}
	}
}

// A task whose records are gone (they were purged, or nobody routed until they
// had expired) is forgotten, and agents are not asked about it.
func TestATaskWithoutRecordsIsForgotten(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	first, stop := serving(t, srv, "r1")
	dispatched(t, b, "gone")
	bustest.Eventually(t, "the record to be read", func() bool { return first.state(func() bool { return first.tail > 0 }) })
	stop()
	if err := b.Purge(t.Context(), subjects.StreamTasks, subjects.Task("gone")); err != nil {
		t.Fatal(err)
	}
	w, _ := serving(t, srv, "r2")
	if w.liveTasks() != 1 {
		t.Fatal("the checkpoint does not name the task")
	}
	hb := 0.2
	if _, err := b.Store(t.Context(), subjects.Announce("a", "main"), fleet.MustEncode(&fleet.Announce{
		Header:           fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
		Worker:           fleet.Worker{AgentID: "a", Epoch: 1},
		Capabilities:     fleet.Capabilities{Tools: []string{}, MCPServers: []string{}},
		HeartbeatSeconds: &hb,
	}), "", nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the task to be forgotten", func() bool { return w.liveTasks() == 0 })
}

// state looks at the worker under its lock.
func (w *Worker) state(f func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f()
}

// slowAnswers has every record stored at once, and its writer told when answer
// is closed.
type slowAnswers struct {
	bus.RecordWriter
	answer chan struct{}
}

func (s slowAnswers) Write(ctx context.Context, r bus.Record) (uint64, error) {
	seq, err := s.RecordWriter.Write(ctx, r)
	select {
	case <-s.answer:
	case <-ctx.Done():
	}
	return seq, err
}

// A checkpoint does not pass over a record whose writer has yet to hear that it
// is stored: the router may be gone before it does.
func TestACheckpointKnowsOfWritesUnderWay(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	slow := slowAnswers{answer: make(chan struct{})}
	w.mu.Lock() // store takes it before it writes
	slow.RecordWriter = w.records
	w.records = slow
	w.mu.Unlock()
	done := make(chan struct{})
	go func() { dispatched(t, b, "t"); close(done) }()
	bustest.Eventually(t, "the record to be read", func() bool { return w.state(func() bool { return w.tail == 1 }) })
	if err := w.checkpoint(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	other, _ := serving(t, srv, "r2")
	if n := other.liveTasks(); n != 1 {
		t.Errorf("a router that begins with that checkpoint knows of %d tasks, want 1", n)
	}
	close(slow.answer)
	<-done
}

// Agents that do not answer keep nobody else waiting, and are not told the same
// thing twice at a time.
func TestAgentsThatDoNotAnswerHoldNothingUp(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	silent := make(chan struct{})
	defer close(silent)
	if _, err := b.Subscribe(subjects.Control("a", "main"), "", func(bus.Msg) { <-silent }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.with(func(c *core, _ time.Time) {
			for i := range 2 * maxDoing {
				c.do(recall{to: instanceKey{"a", "main"}, task: subjects.TaskID(fmt.Sprintf("t-%d", i)), attempt: 1, why: subjects.CodeSuperseded})
			}
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lanes {
		if l.doing != 0 || len(l.todo) != 0 {
			t.Errorf("%d effects are being done, %d wait", l.doing, len(l.todo))
		}
	}
	if len(w.saying) > 2*maxDoing {
		t.Errorf("%d effects are being said", len(w.saying))
	}
}

// A router that has yet to read who holds a task does not take it from them.
func TestARouterThatIsBehindRecallsNothing(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	dispatched(t, b, "t")
	told := make(chan bus.Msg, 10)
	if _, err := b.Subscribe(subjects.Control("a", "main"), "", func(m bus.Msg) {
		told <- m
		_ = m.Respond([]byte(`{"ok":true}`), nil)
	}); err != nil {
		t.Fatal(err)
	}
	cur, err := w.reread(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	r := recall{to: instanceKey{"a", "main"}, task: "t", attempt: 1, why: subjects.CodeSuperseded, denied: true}
	if w.recall(t.Context(), r); len(told) != 1 {
		t.Fatalf("told %d times to drop what nobody holds, want once", len(told))
	}
	anotherStores(t, b, cur, working(cur.ev, holder{"a", "main", 1}, now0))
	if w.recall(t.Context(), r); len(told) != 1 {
		t.Error("told to drop what it holds")
	}
}

// anotherStores has another router store the record that follows cur.
func anotherStores(t *testing.T, b *bus.Bus, cur *view, n *fleet.Event) uint64 {
	t.Helper()
	records, stop := b.Records(subjects.StreamTasks, bus.CommitDirect)
	defer stop()
	n.Facts.DispatchSeq = cur.firstSeq
	seq, err := records.Write(t.Context(), bus.Record{
		Subject: subjects.Task(n.TaskID), Expected: cur.lastSeq, Data: fleet.MustEncode(n), WriteID: "another", Header: recordHeader(cur.ev, n),
	})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// A router that has yet to read that an agent failed a task for good, or that its
// budget is spent by now, does not offer it to that agent, or to anybody.
func TestARouterThatIsBehindOffersNothing(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	offers := make(chan bus.Msg, 10)
	if _, err := b.Subscribe(subjects.Offer("a", "main"), "", func(m bus.Msg) {
		offers <- m
		_ = m.Respond([]byte(`{"accepted":false,"reason":{"code":"agent_busy"}}`), nil)
	}); err != nil {
		t.Fatal(err)
	}
	var in *Instance
	w.with(func(c *core, _ time.Time) { in, _ = c.fleet.instance("a", "main") })
	dispatched(t, b, "t")
	cur, err := w.reread(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.shake(t.Context(), offer{task: "t", seq: cur.lastSeq, in: in}); err != nil || len(offers) != 1 {
		t.Fatalf("%d offers, %v, want one", len(offers), err)
	}
	if _, err := w.shake(t.Context(), offer{task: "t", seq: cur.lastSeq + 1, in: in}); err == nil || len(offers) != 1 {
		t.Errorf("%d offers, %v: it is offered, or chosen for again at once, while the leader is behind", len(offers), err)
	}
	over, _ := failed(working(cur.ev, holder{"a", "main", 1}, now0), failure{code: subjects.CodeAgentError}, settings{}, now0)
	seq := anotherStores(t, b, cur, over)
	w.with(func(c *core, _ time.Time) { c.forget(c.x.find("t")) }) // it has to ask
	if _, err := w.shake(t.Context(), offer{task: "t", seq: cur.lastSeq, in: in}); err != nil || len(offers) != 1 {
		t.Errorf("%d offers, %v: it is offered to the agent that failed it for good", len(offers), err)
	}

	cur, err = w.reread(t.Context(), "t")
	if err != nil || cur.lastSeq != seq {
		t.Fatalf("record %d, %v, want %d", cur.lastSeq, err, seq)
	}
	spent := next(cur.ev, fleet.KindSpent, fleet.StateQueued, now0)
	spent.Facts.TokenBudget, spent.Facts.TokensSpent = 8, 14
	seq = anotherStores(t, b, cur, spent)
	if _, err := w.reread(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.shake(t.Context(), offer{task: "t", seq: seq, in: in}); err != nil || len(offers) != 1 {
		t.Errorf("%d offers, %v: it is offered though its budget is spent", len(offers), err)
	}
	if end, err := w.reread(t.Context(), "t"); err != nil || end.ev.Reason == nil || end.ev.Reason.Code != subjects.CodeBudgetExhausted {
		t.Errorf("it is %s (%+v), %v; want budget_exhausted", end.ev.State, end.ev.Reason, err)
	}
}

// An agent that hands a task back again and again neither gets it at once each
// time, nor makes its records grow for ever.
func TestHandingBackForEver(t *testing.T) {
	t.Parallel()
	now, ev := now0, testRecord(t, "t", "", now0)
	for i := range 99 {
		back, _ := failed(working(ev, holder{"a", "main", 1}, now), failure{code: subjects.CodeAgentBusy}, settings{}, now)
		if back.State != fleet.StateQueued || back.Attempt != i+1 {
			t.Fatalf("attempt %d: %s, attempt %d", i+1, back.State, back.Attempt)
		}
		if rests := back.Facts.NotBefore != nil; rests != (i > 0) {
			t.Errorf("handed back %d times, it rests: %t", i+1, rests)
		}
		ev = back
	}
	if n := len(ev.Facts.Attempts); n > maxRequeued {
		t.Errorf("%d attempts are kept, want at most %d", n, maxRequeued)
	}
	last, _ := failed(working(ev, holder{"a", "main", 1}, now), failure{code: subjects.CodeAgentBusy}, settings{}, now)
	if last.State != fleet.StateError || last.Attempt != 100 {
		t.Errorf("after attempt %d it is %s, want error after 100", last.Attempt, last.State)
	}
}

// A task that every agent of a large fleet fails ends before its records fill the
// store.
func TestATaskThatEverybodyFails(t *testing.T) {
	t.Parallel()
	ev := testRecord(t, "t", "", now0)
	n, bytes := 0, 0
	for ; ev.State == fleet.StateQueued && n < 300; n++ {
		h := holder{subjects.AgentID(fmt.Sprintf("agent-%d", n)), "0123456789ab", now0.UnixNano()}
		begun := working(ev, h, now0)
		ev, _ = failed(begun, failure{code: subjects.CodeAgentError, message: strings.Repeat("x", 5000)}, settings{}, now0)
		bytes += len(fleet.MustEncode(begun)) + len(fleet.MustEncode(ev))
	}
	if n != 100 || ev.State != fleet.StateError || !strings.HasPrefix(ev.Reason.Message, "100 attempts have failed") {
		t.Errorf("after %d attempts it is %s, %+.100v", n, ev.State, ev.Reason)
	}
	if bytes > 16<<20 {
		t.Errorf("its records have %d bytes", bytes)
	}
	if last := ev.Facts.Attempts[n-1].Message; len(last) < 1000 {
		t.Errorf("the last message has %d bytes", len(last))
	}
}
