package schedules_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/subjects/run"
	"parley/subjects/schedule"
)

// in runs f in a bubble with a fleet, a worker and a connection.
func in(t *testing.T, f func(t *testing.T, b *bus.Bus, fl *fakeFleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		fl := newFleet()
		fl.serve(t, b)
		start(t, b, 5*time.Second)
		f(t, b, fl)
	})
}

// What is begun is what the schedule says, in the name of who created it.
func TestWork(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		for name, work := range map[string]string{
			"task": `"dispatch":{"brief":"do it","task":{"session_id":"a2a-20000101T000000Z-0123456789abcdef","priority":"urgent"},"x-note":1}`,
			"run":  `"run":{"agents":[{"agent_id":"isa","dependencies":[]}]}`,
			"mesh": `"message":{"to":"isa","text":"wake up","thread_id":"th"}`,
		} {
			must[schedule.View](t, b, "ann", "create", `{"name":"`+name+`","every_seconds":60,`+work+`}`)
		}
		pass(90 * time.Second)
		for _, w := range f.awaitBegun(t, 3) {
			if w.from != "ann" {
				t.Errorf("%s is begun by %s, want ann", w.noun, w.from)
			}
			v := get(t, b, w.noun)
			if v.Last == nil || v.Last.ID != w.id || v.Last.Begun == nil || v.Begun != 1 || v.Last.ID != v.Due(v.Created.Add(time.Minute)).ID {
				t.Errorf("%s: %s was begun, and it says %+v", w.noun, w.id, v.Record)
			}
			switch w.noun {
			case "task":
				d, err := fleet.DecodeDispatch(w.said)
				if err != nil || d.Brief != "do it" || d.Task.Priority != fleet.Critical || d.Task.SessionID == "" || string(d.Unknown["x-note"]) != "1" {
					t.Errorf("dispatched %s, %v", w.said, err)
				}
			case "run":
				if d, err := run.Decode(w.said); err != nil || d.Agents[0].AgentID != "isa" {
					t.Errorf("started %s, %v", w.said, err)
				}
			case "mesh":
				if m, err := mesh.DecodeMessage(w.said); err != nil || m.Text != "wake up" || m.ThreadID != "th" || m.To != "isa" {
					t.Errorf("sent %s, %v", w.said, err)
				}
			}
		}
	})
}

// The session that an agent is woken in is kept for it.
func TestSessionIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		f := newFleet()
		f.serve(t, b)
		start(t, b, 30*time.Second)
		must[schedule.View](t, b, "ann", "create", `{"name":"s","every_seconds":604800,
			"dispatch":{"brief":"x","task":{"session_id":"a2a-20000101T000000Z-0123456789abcdef"}}}`)
		create(t, b, "none", `"every_seconds":604800`)
		pass(12*time.Hour + time.Minute)
		must[schedule.View](t, b, "ann", "pause", schedule.Ref{Name: "s"})
		pass(7 * time.Hour)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.renewed) != 3 {
			t.Errorf("renewed at %v, want every six hours of the first twelve", f.renewed)
		}
	})
}

// What was begun before goes on when the next time comes.
func TestOverlap(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		for _, policy := range []string{"skip", "queue", "cancel"} {
			create(t, b, policy, `"every_seconds":60,"overlap":"`+policy+`"`)
		}
		begun := func(name string) (n int, v schedule.View) {
			v = get(t, b, name)
			return v.Begun, v
		}
		pass(5*time.Minute + 30*time.Second)
		if n, v := begun("skip"); n != 1 || v.Skipped != 4 || len(v.Waiting) != 0 {
			t.Errorf("skip: %+v", v.Record)
		}
		if n, v := begun("queue"); n != 1 || v.Skipped != 0 || len(v.Waiting) != 4 {
			t.Errorf("queue: %+v", v.Record)
		}
		n, v := begun("cancel")
		if n != 5 || v.Skipped != 0 || v.Cancel != "" {
			t.Errorf("cancel: %+v", v.Record)
		}
		for i := range 5 {
			if id := v.Due(v.Created.Add(time.Duration(i+1) * time.Minute)).ID; f.over(id) != (i < 4) {
				t.Errorf("cancel: the one of minute %d is over: %v", i+1, f.over(id))
			}
		}
		// What waits follows as soon as there is room, in its order.
		_, v = begun("queue")
		first := v.Last.ID
		want := v.Waiting[0].ID
		f.end(first)
		pass(time.Minute)
		if _, v = begun("queue"); v.Last.ID != want || v.Begun != 2 {
			t.Errorf("queue: after the end of the first %+v", v.Record)
		}
	})
}

// Somebody asks for it now; pausing and resuming; removing.
func TestByHand(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		create(t, b, "s", `"every_seconds":3600`)
		now := schedule.RunNow{Ref: schedule.Ref{Name: "s"}, RequestID: "one"}
		id := must[schedule.RunNowReply](t, b, "ann", "run", now).ID
		if f.awaitBegun(t, 1)[0].id != id || must[schedule.RunNowReply](t, b, "ann", "run", now).ID != id {
			t.Errorf("begun %+v, want %s, once", f.all(), id)
		}
		now.RequestID = "two"
		second := must[schedule.RunNowReply](t, b, "ann", "run", now).ID
		pass(time.Minute)
		f.awaitBegun(t, 1) // it waits for the first, whatever the policy
		f.end(id)
		pass(time.Minute)
		if got := f.awaitBegun(t, 2); got[1].id != second {
			t.Errorf("begun %+v, want %s", got, second)
		}
		f.end(second)
		// A repeat that comes when others have been begun since begins nothing.
		now.RequestID = "one"
		if again := must[schedule.RunNowReply](t, b, "ann", "run", now).ID; again != id {
			t.Errorf("the first call once more is %s, want %s", again, id)
		}
		pass(time.Minute)
		if v := must[schedule.View](t, b, "ann", "get", schedule.Ref{Name: "s"}); v.Begun != 2 || len(v.Waiting) != 0 || v.Last.ID != second {
			t.Errorf("after the repeat: %+v, want two begun, %s the last", v.Record, second)
		}

		if v := must[schedule.View](t, b, "ann", "pause", schedule.Ref{Name: "s"}); v.State != schedule.Paused || v.Next != nil || v.Upcoming != nil {
			t.Errorf("paused: %+v", v)
		}
		pass(150 * time.Minute)
		f.awaitBegun(t, 2)
		v := must[schedule.View](t, b, "ann", "resume", schedule.Ref{Name: "s"})
		if v.State != schedule.Active || v.Next == nil || !v.Next.Equal(v.Created.Add(3*time.Hour)) {
			t.Errorf("resumed: %+v", v)
		}
		pass(time.Hour)
		if v := get(t, b, "s"); f.awaitBegun(t, 3)[2].id != v.Due(v.Created.Add(3*time.Hour)).ID || v.Missed != 0 {
			t.Errorf("after the pause: %+v", v)
		}
		must[schedule.View](t, b, "ann", "remove", schedule.Ref{Name: "s"})
		pass(3 * time.Hour)
		f.awaitBegun(t, 3)
		bustest.Eventually(t, "no timer is left", func() bool {
			s, err := b.StreamState(t.Context(), subjects.StreamTimers)
			return err == nil && s.Msgs == 0
		})
		// Another schedule of that name is another one.
		create(t, b, "s", `"every_seconds":60`)
		pass(90 * time.Second)
		f.awaitBegun(t, 4)
	})
}

// What the fleet cannot take now is begun later; what it refuses is said.
func TestFleetIsAway(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		create(t, b, "s", `"every_seconds":60`)
		f.refuseAll(subjects.Errorf(subjects.CodeRateLimited, "later"))
		pass(3*time.Minute + 30*time.Second)
		f.refuseAll(nil)
		v := get(t, b, "s")
		if got := f.awaitBegun(t, 1); got[0].id != v.Due(v.Created.Add(time.Minute)).ID {
			t.Errorf("begun %+v, want that of the first minute", got)
		}
		f.end(v.Last.ID)
		f.refuseAll(subjects.Errorf(subjects.CodeSessionExpired, "the session is gone"))
		pass(2 * time.Minute)
		if v = get(t, b, "s"); v.Last.Reason == nil || v.Last.Reason.Code != subjects.CodeSessionExpired || v.Refused == 0 || v.Begun != 1 {
			t.Errorf("after a refusal: %+v", v.Record)
		}
		f.refuseAll(nil)
		pass(time.Minute)
		f.awaitBegun(t, 2)
	})
}

// A timer that is lost is made up for, and one that nobody should have been
// able to publish changes nothing.
func TestTimersAreHints(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, f *fakeFleet) {
		v := create(t, b, "s", `"every_seconds":600`)
		bustest.Eventually(t, "a timer", func() bool {
			m, err := b.Last(t.Context(), subjects.StreamTimers, subjects.Timer("ann", "s"))
			return err == nil && m.TimerAt().Equal(*v.Next)
		})
		for range 3 {
			forged := []byte(`{"generation":1,"time":"2000-01-01T00:00:00Z","dispatch":{"brief":"evil"}}`)
			for _, subject := range []string{subjects.Tick("ann", "s"), subjects.Tick("eve", "none"), subjects.Timer("ann", "s")} {
				if _, err := b.Store(t.Context(), subject, forged, "", nil); err != nil {
					t.Fatal(err)
				}
			}
			pass(time.Minute)
		}
		f.awaitBegun(t, 0)
		if err := b.Purge(t.Context(), subjects.StreamTimers, subjects.TimerPattern); err != nil {
			t.Fatal(err)
		}
		pass(time.Until(v.Next.Add(15 * time.Second)))
		f.awaitBegun(t, 1)
		if v := get(t, b, "s"); v.Missed != 0 || v.Begun != 1 {
			t.Errorf("%+v", v.Record)
		}
	})
}

func TestRefusals(t *testing.T) {
	in(t, func(t *testing.T, b *bus.Bus, _ *fakeFleet) {
		const same = `{"name":"s","every_seconds":60,"dispatch":{"brief":"x"}}`
		first := must[schedule.View](t, b, "ann", "create", same)
		if v := must[schedule.View](t, b, "ann", "create", same); !v.Duplicate || v.Generation != first.Generation {
			t.Errorf("created again: %+v", v)
		}
		must[schedule.View](t, b, "bob", "create", same) // its own name
		if v := must[schedule.View](t, b, "operator", "get", schedule.Ref{Name: "s", From: "bob"}); v.From != "bob" {
			t.Errorf("the operator sees %+v", v)
		}
		if l := must[schedule.List](t, b, "operator", "list", schedule.ListRequest{All: true}); len(l.Schedules) != 2 {
			t.Errorf("the operator lists %+v", l)
		}
		if l := must[schedule.List](t, b, "ann", "list", ""); len(l.Schedules) != 1 || l.Schedules[0].From != "ann" {
			t.Errorf("ann lists %+v", l)
		}
		for _, tt := range []struct {
			verb, in string
			code     subjects.Code
		}{
			{"create", strings.Replace(same, "60", "61", 1), subjects.CodeIdempotencyConflict},
			{"create", `{"name":"t","at":"1999-12-31T00:00:00Z","dispatch":{"brief":"x"}}`, subjects.CodeDeadlineExceeded},
			{"create", `{"name":"t"}`, subjects.CodeInvalidMessage},
			{"get", `{"name":"t"}`, subjects.CodeNotFound},
			{"get", `{"name":"a b"}`, subjects.CodeInvalidID},
			{"remove", `{"name":"s","from":"bob"}`, subjects.CodeNotFound},
			{"pause", `{"name":"s","from":"bob"}`, subjects.CodeNotFound},
			{"run", `{"name":"s"}`, subjects.CodeInvalidID},
			{"list", `{"all":true}`, subjects.CodeForbidden},
		} {
			if _, err := ask[schedule.View](t, b, "ann", tt.verb, tt.in); subjects.CodeOf(err) != tt.code {
				t.Errorf("%s %s = %v, want %s", tt.verb, tt.in, err, tt.code)
			}
		}
	})
}

// Several workers share the schedules; whichever of them dies, each time is
// begun once.
func TestSeveralWorkers(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	b := server.Bus(t)
	f := newFleet()
	f.instant = true
	f.serve(t, b)
	stops := []func(){start(t, server.Connect(t)), start(t, server.Connect(t))}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		create(t, b, name, `"every_seconds":1`)
	}
	bustest.Eventually(t, "a few times", func() bool { return len(f.all()) > 12 })
	stops[0]()
	start(t, server.Connect(t))
	n := len(f.all())
	bustest.Eventually(t, "more of them", func() bool { return len(f.all()) > n+12 })
	seen := map[string]bool{}
	for _, w := range f.all() {
		if seen[w.id] {
			t.Errorf("%s was begun twice", w.id)
		}
		seen[w.id] = true
	}
}

// Nobody but workers writes timers, ticks and records.
func TestPermissions(t *testing.T) {
	t.Parallel()
	publish, subscribe := subjects.Permissions(subjects.RoleAgent, "eve")
	server := bustest.New(t, bustest.Users(
		bustest.User{Name: "worker", Password: "w"},
		bustest.User{Name: "eve", Password: "e", Publish: publish, Subscribe: subscribe},
	))
	connect := func(name, password string, id subjects.AgentID) *bus.Bus {
		cfg := server.Config()
		cfg.User, cfg.Password = name, password
		if id != "" {
			cfg.InboxPrefix = subjects.InboxPrefix(id)
		}
		b, err := bus.Connect(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	b := connect("worker", "w", "")
	if err := b.Provision(t.Context(), bus.Provisioning{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	newFleet().serve(t, b)
	start(t, b)
	eve := connect("eve", "e", "eve")
	must[schedule.View](t, eve, "eve", "create", `{"name":"s","every_seconds":60,"dispatch":{"brief":"x"}}`)
	for _, subject := range []string{
		subjects.Timer("ann", "s"), subjects.Tick("ann", "s"), subjects.Timer("eve", "s"), "$KV.FLEET_SCHEDULES.ann.s",
		subjects.API("ann", "schedule", "create"), subjects.SchedulesHeartbeat("x"),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
		_, err := eve.Request(ctx, subject, []byte(`{}`), nil)
		cancel()
		if !errors.Is(err, bus.ErrDenied) {
			t.Errorf("eve publishes to %s: %v, want denied", subject, err)
		}
	}
	if diff := cmp.Diff(1, len(must[schedule.List](t, eve, "eve", "list", "").Schedules)); diff != "" {
		t.Error(diff)
	}
}
