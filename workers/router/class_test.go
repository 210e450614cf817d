package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// This file tries what each class of failure leads to (ADR 23).

// listened is a world with one router that has listened for its lease.
func listened(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 1)
	<-time.After(31 * time.Second)
	return w
}

// instance makes an announce that of one instance of an agent.
func instance(id string) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.Worker.InstanceID = subjects.InstanceID(id) }
}

// account labels an announce with its account.
func account(name string) func(*fleet.Announce) {
	return func(a *fleet.Announce) { a.Worker.Labels = map[string]string{fleet.LabelAccount: name} }
}

func (a *agent) done(id subjects.TaskID, attempt int) {
	a.w.t.Helper()
	if _, err := a.result(id, fleet.Result{Attempt: attempt, InstanceID: a.inst, Epoch: a.epoch}); err != nil {
		a.w.t.Fatal(err)
	}
	if v := a.w.outcome(id); v.State != fleet.StateDone || v.AgentID != a.id {
		a.w.t.Errorf("task %s is %s by %s (%+v), want done by %s", id, v.State, v.AgentID, v.Reason, a.id)
	}
}

// An agent that vanishes leaves its task to its twin, within two seconds of the end
// of its lease.
func TestATwinTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		agents := []*agent{w.join("wk", instance("a")), w.join("wk", instance("b"))}
		id := w.send(dispatchJSON("x", ""))
		first := 0
		synctest.Wait()
		if len(agents[1].offers) > 0 {
			first = 1
		}
		agents[first].offered()
		agents[first].stop()
		gone := time.Now()
		d := agents[1-first].offered()
		if took := time.Since(gone); took > 3*beatEvery+2*time.Second || d.Attempt != 2 {
			t.Errorf("its twin is offered attempt %d after %s", d.Attempt, took)
		}
		if f := w.events(id)[2].Facts; f.Counters == nil || *f.Counters != (fleet.Counters{Losses: 1, LossesTotal: 1}) {
			t.Errorf("counters = %+v", f.Counters)
		}
		agents[1-first].done(id, 2)
	})
}

// The only agent is killed, and started again under the same id and instance: it
// does the task.
func TestTheOnlyAgentRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a := w.join("a", nil)
		id := w.send(dispatchJSON("x", `"agent":"a"`))
		a.offered()
		a.stop()
		time.Sleep(time.Second)
		if x := w.view(id).Waiting; x == nil || x.Why != fleet.WaitAway || x.Who != "a" {
			t.Errorf("the task waits as %+v, want that a is away", x)
		}
		again := w.join("a", nil)
		again.offered()
		again.done(id, 2)
	})
}

// A pinned task whose pin is away goes to its alternatives, before its first
// attempt, too; and to the pin again once that is back.
func TestAlternativesWhileThePinIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a, b := w.join("a", nil), w.join("b", nil)
		a.stop()
		time.Sleep(time.Second)
		id := w.send(dispatchJSON("x", `"agent":"a","alternatives":["b"]`))
		b.offered()
		b.done(id, 1)
		if got := kinds(w.events(id)); got != "queued widened working outcome" {
			t.Errorf("records = %s", got)
		}
		only := w.send(dispatchJSON("x", `"agent":"a"`))
		time.Sleep(time.Minute)
		if v := w.view(only); v.State != fleet.StateQueued || v.Waiting.Why != fleet.WaitAway {
			t.Errorf("a task for an agent that is away is %s, waits as %+v", v.State, v.Waiting)
		}
		again := w.join("a", nil)
		again.offered()
		again.done(only, 1)
	})
}

// The third agent in a row that a task loses is a human's, or the end.
func TestATaskThatItsAgentsDoNotSurvive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		id := w.send(dispatchJSON("x", `"max_losses":2,"on_blocked":"wait"`))
		for i := range 2 {
			a := w.join(fmt.Sprint("a", i), nil)
			a.offered()
			a.stop()
			time.Sleep(time.Second)
		}
		v := w.outcome(id)
		if v.State != fleet.StateError || v.Reason.Code != subjects.CodeAgentLost || !strings.HasPrefix(v.Reason.Message, "lost 2 agents in a row") {
			t.Errorf("it is %s, %+v", v.State, v.Reason)
		}
	})
}

// An agent that was paused, and still works on its task when it is heard again, goes
// on with it: nothing is done twice, and the loss is taken back.
func TestAPausedAgentGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a := w.join("a", nil)
		id := w.send(dispatchJSON("x", ""))
		a.offered()
		a.pause(true)
		time.Sleep(2 * time.Second)
		if v := w.view(id); v.State != fleet.StateQueued {
			t.Fatalf("once its lease is over, the task is %s", v.State)
		}
		a.pause(false)
		if d := a.offered(); d.Attempt != 2 {
			t.Errorf("offered attempt %d", d.Attempt)
		}
		time.Sleep(time.Second)
		last := w.events(id)
		if c := last[len(last)-1].Facts.Counters; c == nil || *c != (fleet.Counters{}) {
			t.Errorf("counters = %+v, want the loss taken back", c)
		}
		a.done(id, 2)
	})
}

// Who rejects one task is offered the next at once: one rejection rests no agent for
// others.
func TestARejectionRestsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a := w.join("a", nil)
		a.answers(func(d fleet.Dispatch) any {
			if d.Brief == "reject" {
				return fleet.Ack{Reason: &fleet.Reason{Code: subjects.CodeNoCapableAgent, Message: "not mine"}}
			}
			return fleet.Ack{Accepted: true}
		})
		id := w.send(dispatchJSON("reject", ""))
		if v := w.outcome(id); v.State != fleet.StateBlocked {
			t.Errorf("the task that everybody rejects is %s", v.State)
		}
		a.offered()
		next := w.send(dispatchJSON("x", ""))
		sent := time.Now()
		a.offered()
		if took := time.Since(sent); took > 100*time.Millisecond {
			t.Errorf("it is offered the next task after %s", took)
		}
		a.done(next, 1)
	})
}

// An agent that frees its slot only once its result has been answered is busy for
// the next offer, and asked again at once.
func TestASlotThatIsFreedLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a := w.join("a", nil)
		free, accepted := make(chan struct{}, 1), make(chan fleet.Dispatch, 100)
		free <- struct{}{}
		a.answers(func(d fleet.Dispatch) any {
			select {
			case <-free:
				accepted <- d
				return fleet.Ack{Accepted: true}
			default:
				return fleet.Ack{Reason: &fleet.Reason{Code: subjects.CodeAgentBusy}}
			}
		})
		const tasks = 50
		for range tasks {
			w.send(dispatchJSON("x", ""))
		}
		began := time.Now()
		for range tasks {
			d := <-accepted
			if _, err := a.result(d.Task.TaskID, fleet.Result{Attempt: d.Attempt}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			free <- struct{}{}
		}
		if took := time.Since(began); took > tasks*time.Second/2 {
			t.Errorf("%d tasks take %s", tasks, took)
		}
	})
}

// Where no agent has ever announced itself a task waits, unless it is not to.
func TestAFleetWithoutAgents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		waits, fails := w.send(dispatchJSON("x", "")), w.send(dispatchJSON("x", `"on_blocked":"fail"`))
		if v := w.outcome(fails); v.State != fleet.StateBlocked || v.Reason.Code != subjects.CodeNoCapableAgent {
			t.Errorf("with on_blocked: fail it is %s, %+v", v.State, v.Reason)
		}
		time.Sleep(time.Minute)
		if v := w.view(waits); v.State != fleet.StateQueued || v.Waiting == nil || v.Waiting.Why != fleet.WaitNoAgentYet {
			t.Fatalf("it is %s, waits as %+v", v.State, v.Waiting)
		}
		a := w.join("a", nil)
		a.offered()
		a.done(waits, 1)
	})
}

// A limit holds for the whole account until its reset; then one attempt at a time
// finds out whether it is over, and all go on once one has.
func TestALimitOfAnAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a, b := w.join("a", account("acme")), w.join("b", account("acme"))
		first := w.send(dispatchJSON("x", `"agent":"a"`))
		a.offered()
		reset := time.Now().Add(2 * time.Minute)
		limited := fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeRateLimited, Message: "usage limit reached", ResetAt: &reset}}
		if _, err := a.result(first, limited); err != nil {
			t.Fatal(err)
		}
		tasks := []subjects.TaskID{first}
		for range 3 {
			time.Sleep(time.Second)
			tasks = append(tasks, w.send(dispatchJSON("x", "")))
		}
		if l, err := call[fleet.AgentLimitsReply](w, "boss", "agent", "limits", fleet.AgentLimits{}); err != nil || len(l.Limits) != 1 || !l.Limits[0].Until.Equal(reset) || l.Limits[0].Account != "acme" {
			t.Errorf("agent limits = %+v, %v", l, err)
		}
		for _, id := range tasks {
			if x := w.view(id).Waiting; x == nil || x.Why != fleet.WaitLimited || x.Who != "acme" || x.Until == nil || !x.Until.Equal(reset) {
				t.Errorf("task %s waits as %+v", id, x)
			}
		}
		time.Sleep(time.Until(reset) - time.Second)
		if n := len(a.offers) + len(b.offers); n > 0 {
			t.Fatalf("%d offers before the reset", n)
		}
		time.Sleep(32 * time.Second)
		if n := len(a.offers) + len(b.offers); n != 1 {
			t.Fatalf("%d offers after the reset, want one", n)
		}
		for len(tasks) > 0 {
			time.Sleep(time.Second)
			for _, x := range []*agent{a, b} {
				if len(x.offers) == 0 {
					continue
				}
				d := x.offered()
				x.done(d.Task.TaskID, d.Attempt)
				tasks = slices.DeleteFunc(tasks, func(id subjects.TaskID) bool { return id == d.Task.TaskID })
			}
		}
		if l, err := call[fleet.AgentLimitsReply](w, "boss", "agent", "limits", fleet.AgentLimits{}); err != nil || len(l.Limits) != 0 {
			t.Errorf("agent limits once it is open = %+v, %v", l, err)
		}
	})
}

// A task that meets a limit goes to another account at once.
func TestAnotherAccountTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a, b := w.join("a", nil), w.join("b", nil)
		id := w.send(dispatchJSON("x", `"agent":"a","alternatives":["b"]`))
		a.offered()
		limited := fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: "overloaded", HTTPStatus: 529}}
		if _, err := a.result(id, limited); err != nil {
			t.Fatal(err)
		}
		b.offered()
		b.done(id, 2)
		v := w.view(id)
		if len(v.Attempts) != 1 || v.Attempts[0].Code != subjects.CodeRateLimited || v.Attempts[0].Level != 0 {
			t.Errorf("attempts = %+v", v.Attempts)
		}
	})
}

// A limit that names no reset lasts a minute, then two, and so on; an operator ends
// it early. An offer that is refused for it leaves no record.
func TestALimitWithoutATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		a := w.join("a", nil)
		a.answers(func(fleet.Dispatch) any { return fleet.Ack{Reason: &fleet.Reason{Code: subjects.CodeRateLimited}} })
		id := w.send(dispatchJSON("x", ""))
		for _, want := range []time.Duration{time.Minute, 2 * time.Minute} {
			a.offered()
			refused := time.Now()
			time.Sleep(time.Second)
			if x := w.view(id).Waiting; x == nil || x.Until == nil || x.Until.Sub(refused).Round(time.Second) != want {
				t.Fatalf("it waits as %+v, want for %s", x, want)
			}
			time.Sleep(want - 20*time.Second)
			if len(a.offers) > 0 {
				t.Fatalf("offered before %s were over", want)
			}
			time.Sleep(15 * time.Second) // a.offered waits for 15 s more
		}
		a.offered()
		a.answers(nil)
		time.Sleep(time.Second)
		if _, err := call[fleet.AgentLimitsReply](w, "boss", "agent", "lift", fleet.AgentLimits{Account: "a"}); subjects.CodeOf(err) != subjects.CodeForbidden {
			t.Errorf("a limit lifted by anybody: %v", err)
		}
		if _, err := call[fleet.AgentLimitsReply](w, "operator", "agent", "lift", fleet.AgentLimits{Account: "a"}); err != nil {
			t.Fatal(err)
		}
		a.offered()
		a.done(id, 1)
		if got := kinds(w.events(id)); got != "queued working outcome" {
			t.Errorf("records = %s", got)
		}
	})
}

// A task with on_blocked: wait that its only agent could not begin is offered again
// as soon as that has announced something new.
func TestAConditionThatPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := listened(t)
		var ann *fleet.Announce
		a := w.join("a", func(x *fleet.Announce) { ann = x })
		a.answers(func(fleet.Dispatch) any { return fleet.Ack{Reason: &fleet.Reason{Code: subjects.CodeLoginRequired}} })
		id := w.send(dispatchJSON("x", `"on_blocked":"wait"`))
		a.offered()
		time.Sleep(10 * time.Second)
		if v := w.view(id); len(a.offers) > 0 || v.State != fleet.StateQueued || v.Waiting.Why != fleet.WaitUnwell {
			t.Fatalf("it is %s, waits as %+v; %d offers", v.State, v.Waiting, len(a.offers))
		}
		a.answers(nil)
		again := *ann
		again.Worker.Model = "another"
		a.announce(&again)
		a.done(id, a.offered().Attempt)
	})
}
