package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// Of two processes that are one instance by mistake the older one is silent at
// an offer that is meant for the younger.
func TestTwoProcessesOfOneInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouterOn(t, bustest.NewFake(t))
		did := make(chan string, 10)
		process := func(name string) *running {
			time.Sleep(time.Second)
			return r.start(agent.Config{Instance: "one", Handler: agent.HandlerFunc(func(context.Context, *agent.Task) (fleet.Result, error) {
				did <- name
				return agent.Text(name), nil
			})})
		}
		older, younger := process("older"), process("younger")
		d := dispatch("t1", "x")
		d.Epoch = younger.Epoch()
		younger.give(d)
		time.Sleep(time.Second)
		if got := r.result("t1"); len(did) != 1 || <-did != "younger" || got.Epoch != younger.Epoch() {
			t.Errorf("%d more did it, and the result is of epoch %d; want the younger alone, %d", len(did), got.Epoch, younger.Epoch())
		}
		younger.end()
		d = dispatch("t2", "x") // a router that has not heard of the restart
		d.Epoch = older.Epoch() - 1
		older.give(d)
		if got := r.result("t2"); got.Epoch != older.Epoch() {
			t.Errorf("the result is of epoch %d, want %d", got.Epoch, older.Epoch())
		}
	})
}
