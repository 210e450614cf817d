package router

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// effectsOf are the effects of one kind that c has asked for since it was asked last.
func effectsOf[E any](c *core) (list []E) {
	for _, e := range c.take() {
		if e, ok := e.(E); ok {
			list = append(list, e)
		}
	}
	return list
}

// What an agent may just have accepted is left to it for as long as a record may
// take to be stored; what the record denies for good is not.
func TestWhatIsJustAcceptedIsNotDenied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		held fleet.Holding
		want time.Duration
	}{
		{"just accepted", fleet.Holding{TaskID: "t", Attempt: 1}, acceptedFor},
		{"of a later attempt", fleet.Holding{TaskID: "t", Attempt: 2}, denyFor},
		{"unknown", fleet.Holding{TaskID: "ghost", Attempt: 1}, denyFor},
		{"over", fleet.Holding{TaskID: "over", Attempt: 1}, denyFor},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := testCore()
			c.ticked = now0
			freeAgent(t, c)
			over := testRecord(t, "over", "", now0)
			c.apply(testRecord(t, "t", "", now0), 1, now0)
			c.apply(over, 2, now0)
			c.apply(canceled(over, "boss", "", now0), 3, now0)
			c.take()
			for at := time.Duration(0); at <= time.Minute; at += time.Second {
				ticks(c, now0.Add(at-time.Second), time.Second)
				c.beat("a", "main", &fleet.Heartbeat{Epoch: 1, ActiveTasks: 1, Holding: []fleet.Holding{tt.held}}, now0.Add(at))
				if told := effectsOf[recall](c); len(told) > 0 {
					if at != tt.want || told[0].task != tt.held.TaskID {
						t.Errorf("after %s it is told to drop %+v, want after %s", at, told[0], tt.want)
					}
					return
				}
			}
			t.Errorf("it is never told to drop it, want after %s", tt.want)
		})
	}
}

// An agent that does not answer offers in time is offered something ever more
// rarely, however well it sounds; whoever answers, or is new, begins anew.
func TestWhoMissesOffersRests(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	freeAgent(t, c)
	c.apply(testRecord(t, "t", "", now0), 1, now0)
	offers := effectsOf[offer](c)
	now, epoch := now0, int64(1)
	beat := func() {
		c.tick(now)
		c.beat("a", "main", &fleet.Heartbeat{Epoch: epoch}, now)
	}
	for _, want := range []int{1, 2, 4, 8, 16, 30, 30} {
		if len(offers) != 1 {
			t.Fatalf("%d offers at %s, want one", len(offers), now.Sub(now0))
		}
		c.missed(offers[0].in)
		c.offered("t", offers[0].in, false, now)
		if n := len(effectsOf[offer](c)); n > 0 {
			t.Fatal("it is offered again at once")
		}
		since := now
		for offers = nil; len(offers) == 0 && now.Sub(since) < time.Minute; {
			now = now.Add(100 * time.Millisecond)
			beat()
			offers = effectsOf[offer](c)
		}
		if got := now.Sub(since); got != seconds(float64(want)) {
			t.Fatalf("it is offered again after %s, want %d s", got, want)
		}
	}
	in := offers[0].in
	for name, renew := range map[string]func(){
		"an answer":     func() { c.fleet.Answered(in) },
		"a new process": func() { epoch++; beat() },
	} {
		c.missed(in)
		c.missed(in)
		renew()
		if got := c.fleet.Missed(in).Sub(c.fleet.now); got != missedRest {
			t.Errorf("after %s it rests %s, want %s", name, got, missedRest)
		}
	}
	c.fleet.Expire(now.Add(time.Second / 2))
	if _, why := c.fleet.Choose(c.fleet.Compile(Need{}), Want{}, now); why {
		t.Error("it is chosen while it rests")
	}
	if v := c.fleet.Explain(c.fleet.Compile(Need{}), now); len(v) != 1 || len(v[0].Reasons) == 0 || v[0].Reasons[len(v[0].Reasons)-1].Code != subjects.CodeAgentBusy {
		t.Errorf("explained as %+v", v)
	}
}

// Whoever answers one router's offer too late keeps what another router has given
// to it meanwhile.
func TestALateOfferTakesNothingFromItsHolder(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	dispatched(t, b, "t")
	cur, err := w.reread(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	asked, told := make(chan struct{}, 10), make(chan struct{}, 10)
	for subject, heard := range map[string]chan struct{}{subjects.Offer("a", "main"): asked, subjects.Control("a", "main"): told} {
		if _, err := b.Subscribe(subject, "", func(bus.Msg) { heard <- struct{}{} }); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Ping(t.Context()); err != nil { // the server knows of both
		t.Fatal(err)
	}
	var in *Instance
	w.with(func(c *core, now time.Time) { in, _ = c.fleet.Beat("a", "main", &fleet.Heartbeat{Epoch: 1}, now) })
	ended := make(chan error, 1)
	go func() {
		_, err := w.shake(t.Context(), offer{"t", cur.lastSeq, in, 1})
		ended <- err
	}()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatalf("nothing is offered: %v", err)
	}
	anotherStores(t, b, cur, working(cur.ev, holder{"a", "main", 1}, time.Now()))
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Error("it is told to drop what it holds")
	}
	if !w.state(func() bool { return in.misses == 1 }) {
		t.Error("it is not left alone")
	}
}

// A class is in a set once, for whomever it is, and is found for each of those
// who alone may have its tasks.
func TestClassSet(t *testing.T) {
	t.Parallel()
	c, s := testCore(), newClassSet()
	anybody, one := c.classOf(Need{}), c.classOf(Need{Only: []subjects.AgentID{"a"}})
	two := c.classOf(Need{Only: []subjects.AgentID{"a", "b"}})
	for _, cl := range []*class{anybody, one, two, two} {
		if s.add(cl); !s.has(cl) {
			t.Errorf("%s is not there", cl.Key())
		}
	}
	seen := map[*class]int{}
	for cl := range s.all() {
		seen[cl]++
	}
	if len(seen) != 3 || seen[anybody] != 1 || seen[one] != 1 || seen[two] != 1 {
		t.Errorf("all are %v", seen)
	}
	if len(s.open) != 1 || len(s.only["a"]) != 2 || len(s.only["b"]) != 1 {
		t.Errorf("%d for anybody, %d for a, %d for b", len(s.open), len(s.only["a"]), len(s.only["b"]))
	}
	for _, cl := range []*class{two, anybody, one, one} {
		if s.remove(cl); s.has(cl) {
			t.Errorf("%s is still there", cl.Key())
		}
	}
	if len(s.open)+len(s.only) > 0 {
		t.Errorf("something is left: %v", s)
	}
}

// BenchmarkFeed is what a heartbeat costs of a free agent while others, who are
// busy, have tasks of their own that wait.
func BenchmarkFeed(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c := testCore()
			c.ticked = now0
			freeAgent(b, c)
			for i := range n {
				id := fmt.Sprintf("b%d", i)
				c.fleet.Announce(announceOf(id, func(a *fleet.Announce) { a.Worker.MaxParallel = 1 }), now0, now0)
				c.apply(testRecord(b, id, fmt.Sprintf(`,"agent":%q`, id), now0), uint64(2*i+1), now0)
				c.apply(testRecord(b, id+"-2", fmt.Sprintf(`,"agent":%q`, id), now0), uint64(2*i+2), now0)
			}
			c.take()
			in := c.fleet.Get("a", "main")
			for b.Loop() {
				c.feed(in, now0)
			}
		})
	}
}
