package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// beats has an agent announce heartbeats as far apart as that.
func beats(every time.Duration) func(*fleet.Announce) {
	return func(a *fleet.Announce) { *a.HeartbeatSeconds = every.Seconds() }
}

// Who reports a failure is there: it tries again, also where the router has just
// begun and has yet to hear a heartbeat of it.
func TestARetryAfterARouterHasBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		stop := w.router("first")
		a := w.join("a", beats(10*time.Second))
		time.Sleep(61 * time.Second)
		id := w.send(dispatchJSON("x", `"agent":"a"`))
		a.offered()
		stop()
		w.router("second")
		if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
			t.Fatal(err)
		}
		if v := w.view(id); v.State != fleet.StateQueued || v.Attempts[0].Level != 1 {
			t.Fatalf("the failure is answered on level %d, the task is %s (%+v)", v.Attempts[0].Level, v.State, v.Reason)
		}
		if d := a.offered(); d.Attempt != 2 {
			t.Errorf("offered attempt %d, want 2", d.Attempt)
		}
		w.settled(id, "queued working retry working")
	})
}

// settled waits until the task works, and looks at its records.
func (w *world) settled(id subjects.TaskID, want string) {
	w.t.Helper()
	bustest.Eventually(w.t, "the record names the holder", func() bool { return w.view(id).State == fleet.StateWorking })
	if got := kinds(w.events(id)); got != want {
		w.t.Errorf("records = %s, want %s", got, want)
	}
}

// Who misses an offer and goes on with its heartbeats tries again later.
func TestARetryTowardsAnAgentThatMissesItsOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		w.router("r0")
		a := w.join("a", nil)
		time.Sleep(10 * time.Second) // the router has listened
		id := w.send(dispatchJSON("x", `"agent":"a"`))
		a.offered()
		a.deaf()
		if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if v := w.view(id); v.State != fleet.StateQueued || v.Attempts[0].Level != 1 {
			t.Fatalf("the failure is answered on level %d, the task is %s (%+v)", v.Attempts[0].Level, v.State, v.Reason)
		}
		a.takeOffers()
		if d := a.offered(); d.Attempt != 2 {
			t.Errorf("offered attempt %d, want 2", d.Attempt)
		}
		w.settled(id, "queued working retry working")
	})
}

// A router that has just begun gives whoever is to try again a lease to be heard
// in, however slow its heartbeats are, and then gives the task to others.
func TestARetryTowardsASlowAgent(t *testing.T) {
	t.Parallel()
	const every = time.Minute
	for _, stays := range []bool{true, false} {
		t.Run(map[bool]string{true: "that stays", false: "that leaves"}[stays], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := bustest.NewFake(t)
				w := &world{t: t, srv: srv, bus: srv.Bus(t)}
				stop := w.router("first")
				a, b := w.join("a", beats(every)), w.join("b", nil)
				time.Sleep(4*every + time.Second)
				id := w.send(dispatchJSON("x", `"agent":"a","alternatives":["b"]`))
				a.offered()
				fail := failed(subjects.CodeAgentError, true)
				fail.Error.RetryAfterSeconds = 40 // the router has settled by then
				if _, err := a.result(id, fail); err != nil {
					t.Fatal(err)
				}
				if !stays {
					a.stop()
				}
				stop()
				w.router("second")
				begun := time.Now()
				if stays {
					time.Sleep(every)
					if d := a.offered(); d.Attempt != 2 {
						t.Errorf("offered attempt %d, want 2", d.Attempt)
					}
					w.settled(id, "queued working retry working")
					return
				}
				time.Sleep(2 * every)
				if v := w.view(id); v.State != fleet.StateQueued || v.Attempts[0].Level != 1 {
					t.Errorf("%s after the router has begun the task is %s, its failure answered on level %d", time.Since(begun), v.State, v.Attempts[0].Level)
				}
				time.Sleep(every - 5*time.Second)
				if d := b.offered(); d.Task.TaskID != id {
					t.Errorf("offered %s", d.Task.TaskID)
				}
				w.settled(id, "queued working retry widened working")
			})
		})
	}
}
