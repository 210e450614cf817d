package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestOneCrashIsNoCrashLoop: an agent that is killed once, with all of its slots in
// use, is back at work as soon as it has restarted. Only one that is lost again and
// again rests.
func TestOneCrashIsNoCrashLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slots = 8
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		w.router("r0")
		wide := func(a *fleet.Announce) { a.Worker.MaxParallel = slots }
		a := w.join("a", wide)
		time.Sleep(10 * time.Second) // the router has listened
		var ids []subjects.TaskID
		take := func(a *agent) {
			t.Helper()
			began := time.Now()
			for range slots {
				a.offered()
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("its tasks were offered to it %s after it had restarted", took)
			}
		}
		for range slots {
			ids = append(ids, w.send(dispatchJSON("x", `"max_losses":100`)))
		}
		take(a)
		a.stop()
		time.Sleep(2 * time.Second) // its lease is over
		a = w.join("a", wide)
		take(a)
		for _, id := range ids {
			if _, err := a.result(id, fleet.Result{}); err != nil {
				t.Fatal(err)
			}
			if v := w.outcome(id); v.State != fleet.StateDone {
				t.Errorf("task %s is %s (%+v)", id, v.State, v.Reason)
			}
		}
	})
}

// TestACrashLoopRests: an agent that is lost three times in a row rests for a while.
func TestACrashLoopRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		w.router("r0")
		for range 3 { // each time by a task of its own
			a := w.join("a", nil)
			time.Sleep(10 * time.Second)
			w.send(dispatchJSON("x", `"max_losses":1`))
			a.offered()
			a.stop()
			time.Sleep(2 * time.Second)
		}
		a := w.join("a", nil)
		began := time.Now()
		w.send(dispatchJSON("y", ""))
		a.offered()
		if rested := time.Since(began); rested < 5*time.Second || rested > 15*time.Second {
			t.Errorf("it rested for %s", rested)
		}
	})
}
