package mesh

import (
	"errors"
	"log/slog"
	"runtime"
	"strconv"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

var now0 = time.Unix(1_800_000_000, 0)

// known is a core with an agent bob of two instances, and a message to it.
func known(t *testing.T) (*core, *entry) {
	t.Helper()
	c := newCore("w", Limits{}.withDefaults(), now0)
	for _, id := range []subjects.InstanceID{"one", "two"} {
		c.agents.announced(&fleet.Announce{Worker: fleet.Worker{AgentID: "bob", InstanceID: id, Epoch: 7}}, now0)
	}
	e := c.message(stored{"ann", "bob", 1, 10, now0, &mesh.Message{MessageID: "m", Reply: mesh.No}, nil})
	if e == nil {
		t.Fatal("no entry")
	}
	return c, e
}

func (c *core) told(e *entry, state mesh.State, to subjects.InstanceID, rev uint64) {
	c.record(&mesh.Ack{MessageID: e.id, From: e.from, To: e.to, State: state, InstanceID: to, Epoch: 7, Attempt: int(rev), Time: now0}, rev, now0)
}

// A step that was decided by a record which is not the last any more is not
// taken: the message may be with another instance by now.
func TestStaleStepIsNotTaken(t *testing.T) {
	t.Parallel()
	c, e := known(t)
	steps := c.next(now0)
	if len(steps) != 1 || steps[0].to == nil || steps[0].to.id != "one" {
		t.Fatalf("steps = %+v, want one to one", steps)
	}
	c.told(e, mesh.Delivering, "two", 5)
	w := &Worker{core: c} // without a bus: it would be used
	if err := w.hand(t.Context(), steps[0]); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("hand = %v, want a conflict", err)
	}
	steps[0].to, steps[0].state = nil, mesh.Expired
	if err := w.end(t.Context(), steps[0]); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("end = %v, want a conflict", err)
	}
}

// A message that is given back just as its end is written down expires all the
// same.
func TestExpiryAfterARelease(t *testing.T) {
	t.Parallel()
	c, e := known(t)
	delete(c.agents, "bob")
	c.told(e, mesh.Delivered, "two", 1)
	steps := c.next(e.expires)
	if len(steps) != 1 || steps[0].state != mesh.Expired {
		t.Fatalf("steps = %+v, want its end", steps)
	}
	c.told(e, mesh.Accepted, "", 2)
	w := &Worker{
		core: c, cfg: Config{Bus: bustest.New(t).Bus(t)}, log: slog.New(slog.DiscardHandler),
		kick: make(chan struct{}, 1), work: t.Context(),
	}
	w.take(steps[0])
	c.over(steps[0])
	if steps = c.next(e.expires.Add(lookAgain)); len(steps) != 1 || steps[0].state != mesh.Expired || steps[0].decided != 2 {
		t.Errorf("steps = %+v, want its end after the record 2", steps)
	}
}

// What is asked of a receiver that nothing was sent to is not kept.
func TestRefusedSendsLeaveNothing(t *testing.T) {
	t.Parallel()
	c, _ := known(t)
	for c.limited("ann", "bob", now0) == 0 {
		id := mesh.MessageID("m" + strconv.Itoa(len(c.log)))
		c.message(stored{"ann", "bob", uint64(len(c.log) + 1), 10, now0, &mesh.Message{MessageID: id, Reply: mesh.No}, nil})
	}
	for i := range 1000 {
		c.limited("ann", subjects.AgentID("b"+strconv.Itoa(i)), now0)
		c.limited(subjects.AgentID("a"+strconv.Itoa(i)), "bob", now0)
	}
	if n, to := len(c.meters), len(c.meters["ann"].to); n != 1 || to != 1 {
		t.Errorf("%d senders, ann with %d receivers; want the one pair that messages went between", n, to)
	}
}

// Who may have a message is asked again, and nobody else, until he is lost or
// has said no.
func TestWhoIsAsked(t *testing.T) {
	t.Parallel()
	c, e := known(t)
	asked := func(now time.Time) subjects.InstanceID {
		t.Helper()
		steps := c.next(now)
		if len(steps) == 0 {
			return ""
		}
		for _, s := range steps {
			c.over(s)
			delete(c.due, s.entry.to)
		}
		return steps[0].to.id
	}
	c.told(e, mesh.Delivering, "two", 1)
	if got := asked(now0); got != "" {
		t.Errorf("at once %q is asked, want nobody", got)
	}
	if got := asked(now0.Add(askAgain)); got != "two" {
		t.Errorf("later %q is asked, want two", got)
	}
	c.told(e, mesh.Delivered, "two", 2)
	if got := asked(now0.Add(time.Hour)); got != "" {
		t.Errorf("once it is delivered %q is asked, want nobody", got)
	}
	late := now0.Add(time.Hour)
	c.echo, c.since = late, now0
	c.agents["bob"]["one"].seen = late
	c.look(late) // two has not been heard of for an hour
	if got := asked(late); got != "one" {
		t.Errorf("after the loss %q is asked, want one", got)
	}
}

// A worker that was cut off does not believe what it has not heard.
func TestDeafWorkerLosesNobody(t *testing.T) {
	t.Parallel()
	c, e := known(t)
	c.told(e, mesh.Delivered, "two", 1)
	late := now0.Add(time.Hour)
	c.look(late) // it has not even heard itself
	if e.sure {
		t.Error("an instance is lost, of which a deaf worker heard nothing")
	}
}

// The rates follow the messages' own times, so that every worker comes to the
// same verdict.
func TestRates(t *testing.T) {
	t.Parallel()
	var b bucket
	at := now0
	for i := range 3 {
		if wait := b.take(3, at); wait != 0 {
			t.Errorf("the first three wait; %d: %s", i, wait)
		}
	}
	if wait := b.wait(3, at); wait != 20*time.Second {
		t.Errorf("the fourth waits %s, want 20s", wait)
	}
	if wait := b.take(3, at.Add(20*time.Second)); wait != 0 {
		t.Errorf("after 20 s it waits %s", wait)
	}
	if wait := b.take(3, at); wait == 0 {
		t.Error("an earlier message fills the bucket")
	}
}

// What is refused leaves the memory of workers, too, to whom the inbox does not
// belong, and is refused though all else of its inbox was forgotten.
func TestRefusalsAreKeptUntilTheyAreWritten(t *testing.T) {
	t.Parallel()
	c, e := known(t)
	c.told(e, mesh.Processed, "one", 1)
	large := func(id mesh.MessageID, seq uint64) *entry {
		return c.message(stored{"ann", "bob", seq, 1 << 30, now0, &mesh.Message{MessageID: id, Reply: mesh.No}, nil})
	}
	refused := large("r", 2)
	if _, _, n := c.forget(now0.Add(time.Second)); n != 1 {
		t.Fatalf("%d messages are forgotten, want m", n)
	}
	if steps := c.next(now0); len(steps) != 1 || steps[0].entry != refused || steps[0].state != mesh.Refused {
		t.Fatalf("steps = %+v, want the refusal", steps)
	}
	refused.busy = false
	other := large("r2", 3)
	c.told(refused, mesh.Refused, "", 2) // by whom the inbox belongs to
	c.told(other, mesh.Refused, "", 3)
	if n := len(c.box("bob").aside); n != 0 {
		t.Errorf("%d refusals are kept that are written", n)
	}
	if _, _, n := c.forget(now0.Add(time.Second)); n != 2 || len(c.boxes) != 0 {
		t.Errorf("%d messages are forgotten, %d inboxes left, want 2 and none", n, len(c.boxes))
	}
}

// What is forgotten of a thread, and what leaves an inbox, leaves the rest in its
// order.
func TestForgettingKeepsTheOrder(t *testing.T) {
	t.Parallel()
	c := newCore("w", Limits{PairPerMinute: 1 << 30, AgentPerMinute: 1 << 30, MaxHops: 1 << 30}.withDefaults(), now0)
	var all []*entry
	for i := range 8 {
		id := mesh.MessageID(strconv.Itoa(i))
		m := &mesh.Message{MessageID: id, ThreadID: "t", Reply: mesh.No}
		all = append(all, c.message(stored{"ann", "bob", uint64(i + 1), 10, now0, m, nil}))
	}
	ids := func(list []*entry) (s string) {
		for _, e := range list {
			s += string(e.id)
		}
		return s
	}
	for rev, i := range []int{3, 0, 1, 7} {
		c.told(all[i], mesh.Processed, "one", uint64(rev+1))
	}
	if got := ids(c.box("bob").pairs["ann"]); got != "2456" {
		t.Errorf("in the inbox are %s, want 2456", got)
	}
	if _, _, n := c.forget(now0.Add(time.Second)); n != 2 || ids(c.threads["t"]) != "234567" {
		t.Errorf("%d forgotten, %s in the thread, want 2, and 234567", n, ids(c.threads["t"]))
	}
	c.drop(all[4])
	if got := ids(c.threads["t"]); got != "23567" {
		t.Errorf("%s are in the thread, want 23567", got)
	}
}

// BenchmarkForget is what it costs to take in 50 000 messages, to hear of their
// ends and to forget them, in one thread or in one each.
func BenchmarkForget(b *testing.B) {
	const n = 50_000
	for name, thread := range map[string]func(i int) mesh.ThreadID{
		"one":  func(int) mesh.ThreadID { return "t" },
		"each": func(i int) mesh.ThreadID { return mesh.ThreadID("t" + strconv.Itoa(i)) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				c := newCore("w", Limits{PairPerMinute: 1 << 30, AgentPerMinute: 1 << 30}.withDefaults(), now0)
				all := make([]*entry, n)
				for i := range all {
					m := &mesh.Message{MessageID: mesh.MessageID("m" + strconv.Itoa(i)), ThreadID: thread(i), Reply: mesh.No, Ref: "gone"}
					all[i] = c.message(stored{"ann", "bob", uint64(i + 1), 10, now0, m, nil})
				}
				for i, e := range all {
					c.told(e, mesh.Processed, "one", uint64(i+1))
				}
				if _, _, dropped := c.forget(now0.Add(time.Second)); dropped != n {
					b.Fatalf("%d forgotten", dropped)
				}
			}
		})
	}
}

// BenchmarkIndex is what the index costs for each message that is kept: 10 000
// agents, ten messages to each, of which one waits.
func BenchmarkIndex(b *testing.B) {
	const n = 100_000
	for b.Loop() {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := newCore("w", Limits{AgentPerMinute: 1 << 30}.withDefaults(), now0)
		for i := range n {
			to := subjects.AgentID("agent" + strconv.Itoa(i%10_000))
			id := mesh.MessageID("message-" + strconv.Itoa(i))
			e := c.message(stored{"ann", to, uint64(i + 1), 10, now0, &mesh.Message{MessageID: id, Reply: mesh.No}, nil})
			if i >= 10_000 {
				c.told(e, mesh.Processed, "main", uint64(i))
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "heap-B/message")
		runtime.KeepAlive(c)
	}
}
