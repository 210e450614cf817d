package router

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// holds has the agent a, which beats so often, join the core and hold a task.
// The function is its heartbeat.
func holds(t *testing.T, c *core, announced time.Time, every time.Duration, now time.Time) (beat func(time.Time)) {
	t.Helper()
	a, err := fleet.DecodeAnnounce(fmt.Appendf(nil, `{"type":"SESSION_ANNOUNCE","worker":{"agent_id":"a","epoch":1},"heartbeat_seconds":%v,"capabilities":{"tools":[],"mcp_servers":[]},"mcp_health":{},"session":{"active_tasks":0,"max_parallel":2}}`, every.Seconds()))
	if err != nil {
		t.Fatal(err)
	}
	c.announce(a, announced, now)
	q := testRecord(t, "t", "", now)
	c.apply(q, 1, now)
	c.apply(working(q, holder{"a", a.Instance(), 1}, now), 2, now)
	c.take()
	return func(now time.Time) {
		c.beat("a", a.Instance(), &fleet.Heartbeat{Epoch: 1, Holding: []fleet.Holding{{TaskID: "t", Attempt: 1}}}, now)
	}
}

// ticks lets time pass until the end, and reports when the holder was declared
// lost; zero: it was not.
func ticks(c *core, from time.Time, lasts time.Duration) (lostAt time.Time) {
	for now := from; !now.After(from.Add(lasts)); now = now.Add(tickEvery) {
		c.tick(now)
		for _, e := range c.take() {
			switch e.(type) {
			case catchUp:
				c.goOn(now)
			case lost:
				if lostAt.IsZero() {
					lostAt = now
				}
			}
		}
	}
	return lostAt
}

// A clock that is set back, by as much as you like, makes nobody dead, and
// nobody immortal.
func TestAClockSetBack(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	c.ring.Heard("r2", now0)
	beat := holds(t, c, now0, 10*time.Second, now0)
	beat(now0)
	back := now0.Add(-time.Hour)
	if at := ticks(c, back, 25*time.Second); !at.IsZero() {
		t.Errorf("lost %s after the clock was set back", at.Sub(back))
	}
	if c.ring.Expire(back.Add(25 * time.Second)) {
		t.Error("a router that is gone is kept")
	}
	beat(back.Add(25 * time.Second))
	if at := ticks(c, back.Add(25*time.Second), time.Minute).Sub(back); at < 50*time.Second || at > time.Minute {
		t.Errorf("lost %s after the clock was set back, want that a lease of 30 s after it was last heard at 25 s", at)
	}
}

// Whoever's lease ends while the router reads on is lost once it has.
func TestALeaseThatEndsInACatchUp(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	holds(t, c, now0, 10*time.Second, now0)(now0)
	if at := ticks(c, now0, 29*time.Second); !at.IsZero() {
		t.Fatalf("lost after %s", at.Sub(now0))
	}
	now := now0.Add(29*time.Second + 2*stoodStill)
	c.tick(now)
	if c.caughtUp {
		t.Fatal("it does not read on after it has stood still")
	}
	c.take()
	c.tick(now.Add(time.Second / 4))
	c.tick(now.Add(time.Second / 2)) // the lease has ended
	c.goOn(now.Add(time.Second / 2))
	if at := ticks(c, now.Add(time.Second/2), time.Second); at.IsZero() {
		t.Error("it is not lost")
	}
}

// A router that stands still once more while it reads on asks anew how far, and
// listens anew.
func TestAStandstillInACatchUp(t *testing.T) {
	t.Parallel()
	c := testCore()
	c.ticked = now0
	c.tick(now0.Add(time.Second))
	stood := c.stood
	if c.tick(now0.Add(15 * time.Second)); c.stood == stood || c.settled {
		t.Error("the second time is overlooked")
	}
	if n := len(c.take()); n != 1 {
		t.Errorf("%d effects, want one catch-up", n)
	}
}

// A router that has just begun gives every agent a lease to be heard in, however
// slow its heartbeats are, and takes none for dead that only missed an offer.
func TestANewRouterIsPatient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		every time.Duration
		meets func(c *core, beat func(time.Time))
		after time.Duration // it is lost; 0: never
	}{
		{"slow and dead", time.Minute, func(*core, func(time.Time)) {}, 3 * time.Minute},
		{"slow", time.Minute, func(_ *core, beat func(time.Time)) { beat(now0.Add(50 * time.Second)) }, 0},
		{"dead", 10 * time.Second, func(*core, func(time.Time)) {}, 30 * time.Second},
		{"missed an offer", 10 * time.Second, func(c *core, beat func(time.Time)) {
			beat(now0.Add(25 * time.Second))
			c.fleet.Gone("a", "main")
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := testCore()
			c.caughtUp = false
			beat := holds(t, c, now0.Add(-20*time.Minute), tt.every, now0)
			c.listen(now0)
			c.goOn(now0)
			at := ticks(c, now0, 24*time.Second)
			if at.IsZero() {
				tt.meets(c, beat)
				at = ticks(c, now0.Add(24*time.Second), 4*time.Minute-24*time.Second)
			}
			// Whoever is heard once, and never again, is lost a lease later.
			if tt.after == 0 && !at.IsZero() && at.Sub(now0) < 50*time.Second || tt.after > 0 && (at.Sub(now0) < tt.after || at.Sub(now0) > tt.after+2*time.Second) {
				t.Errorf("lost after %s, want %s", at.Sub(now0), tt.after)
			}
		})
	}
}

// stuck is a writer that nobody answers.
type stuck struct{}

func (stuck) Write(ctx context.Context, _ bus.Record) (uint64, error) {
	<-ctx.Done()
	return 0, fmt.Errorf("write: %w", bus.ErrTimeout)
}

// A call that must store something is refused while nothing can be stored, and
// does not stand for ever.
func TestCallsDoNotStand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, err := New(Config{Bus: bustest.NewFake(t).Connect(t)})
		if err != nil {
			t.Fatal(err)
		}
		w.work, w.records = t.Context(), stuck{}
		for _, e := range w.service().Endpoints {
			if e.Name != "task-dispatch" {
				continue
			}
			begin := time.Now()
			_, err := e.Handle(t.Context(), bus.Msg{Subject: subjects.API("boss", "task", "dispatch"), Data: []byte(`{"brief":"x"}`)})
			if subjects.CodeOf(err) != subjects.CodeUnavailable || time.Since(begin) > 30*time.Second {
				t.Errorf("%v after %s, want unavailable within half a minute", err, time.Since(begin))
			}
		}
	})
}

// What the stream's leader says is not believed where a later record was heard.
func TestALeaderThatIsBehind(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	dispatched(t, b, "t")
	w.with(func(c *core, _ time.Time) { c.x.at(c.x.find("t")).lastSeq += 5 })
	if v, err := w.reread(t.Context(), "t"); subjects.CodeOf(err) != subjects.CodeUnavailable {
		t.Errorf("read %+v, %v; want unavailable", v, err)
	}
}
