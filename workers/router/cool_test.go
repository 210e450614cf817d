package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestCoolDownIsShared: an agent that said 429 is left alone by every router,
// and by one that starts later, for as long as it asked; a shorter rest for
// another reason does not cut that short.
func TestCoolDownIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testCoolDownIsShared)
}

func testCoolDownIsShared(t *testing.T) {
	t.Helper()
	w := newWorld(t, 2)
	a := w.join("a", func(ann *fleet.Announce) { ann.Worker.MaxParallel = 2 })
	limited := w.send(dispatchJSON("x", `"agent":"a","alternatives":["b"]`))
	broken := w.send(dispatchJSON("y", `"agent":"a","alternatives":["b"]`))
	a.offered()
	a.offered()
	const asked = 8 * time.Second
	_, err := a.result(limited, fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{
		Code: subjects.CodeAgentError, Message: "too many requests", HTTPStatus: 429, RetryAfterSeconds: asked.Seconds(), Retryable: true,
	}})
	said := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.result(broken, failed(subjects.CodeAgentError, false)); err != nil { // rests for 5 s
		t.Fatal(err)
	}
	w.router("later")
	next := w.send(dispatchJSON("z", `"agent":"a"`))
	for done := false; !done; { // one at a time, until one shows that the limit is over
		d := a.offered()
		if waited := time.Since(said); waited < asked-500*time.Millisecond {
			t.Errorf("it was offered a task %s after it asked for %s", waited, asked)
		}
		if done = d.Task.TaskID == next; !done {
			if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if v := w.view(limited); len(v.Attempts) != 1 || v.Attempts[0].Code != subjects.CodeRateLimited {
		t.Errorf("attempts = %+v, want one that was rate_limited", v.Attempts)
	}
	bustest.Eventually(t, "a to hold the task", func() bool { return w.view(next).AgentID == "a" })
}

// TestALimitSparesWhatIsPinned: what meets a limit waits until the reset where
// nobody else may have it, and so does the queue behind it; then all get done.
func TestALimitSparesWhatIsPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		w.router("r0")
		a := w.join("a", nil)
		limited := w.send(dispatchJSON("x", `"agent":"a"`))
		time.Sleep(time.Millisecond)
		next := w.send(dispatchJSON("y", `"agent":"a"`))
		if d := a.offered(); d.Task.TaskID != limited {
			t.Fatalf("offered %s first", d.Task.TaskID)
		}
		const asked = 10 * time.Second
		if _, err := a.result(limited, fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{
			Code: subjects.CodeRateLimited, Message: "too many requests", RetryAfterSeconds: asked.Seconds(),
		}}); err != nil {
			t.Fatal(err)
		}
		said := time.Now()
		for _, id := range []subjects.TaskID{limited, next} {
			v := w.view(id)
			if x := v.Waiting; v.State != fleet.StateQueued || x == nil || x.Why != fleet.WaitLimited || x.Who != "a" || x.Until == nil || x.Until.Sub(said) < asked-time.Second {
				t.Errorf("task %s is %s and waits as %+v, want limited", id, v.State, x)
			}
		}
		for _, id := range []subjects.TaskID{limited, next} { // it keeps its place
			if d := a.offered(); d.Task.TaskID != id || time.Since(said) < asked-time.Second {
				t.Errorf("%s was offered %s after a said to wait %s", d.Task.TaskID, time.Since(said), asked)
			}
			if _, err := a.result(id, fleet.Result{}); err != nil {
				t.Fatal(err)
			}
			if v := w.outcome(id); v.State != fleet.StateDone {
				t.Errorf("task %s is %s, %+v", id, v.State, v.Reason)
			}
		}
	})
}
