package e2e_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"parley/test/rig"
)

// housePoints are the crash points of what a router does beside its tasks: as it
// starts, as it stops, and every few seconds.
var housePoints = []string{"after_restore", "after_catch_up", "amid_checkpoint", "after_checkpoint", "after_purge", "after_inbox_clear"}

// TestHousekeepingCrash has a router die as it reads its checkpoint and what
// came after it, as it writes one because it stops, as it purges what has ended
// and as it clears up the inbox, or lose acknowledgements, and another one take
// over: what waits, and what somebody works on, is done once, nothing that has
// ended is done again, and what was left half done is done.
func TestHousekeepingCrash(t *testing.T) {
	sweep(t, housePoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry")
		f.agents("agent-a", cast{Heartbeat: quick, Try: tryFor, Agents: []actor{{ID: "a", Instance: "main", MaxParallel: 1}}})
		f.awaitAgents("a")
		const keep = "PARLEY_KEEP_ENDED=3"
		starting := point == "after_restore" || point == "after_catch_up"
		var first *process
		if starting {
			first = f.router("router-1", parleyBinary(t), keep)
		} else {
			first = f.router("router-1", crashBinary(t), keep, crashEnv(point))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		sender := boss{NC: f.nc, Name: "boss"}
		if point == "after_inbox_clear" {
			f.shrinkInbox()
		}
		old := []string{"old0", "old1", "old2", "old3"}
		for _, id := range old {
			body := fmt.Sprintf(`{"task":{"task_id":%q},"brief":"do it"}`, id)
			if err := sender.Drop(ctx, id, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		until(t, "the end of the old tasks", func() bool { return len(f.times(wasEnded)) == len(old) })
		acted := make(chan error, 1)
		go func() { // one that is worked on while routers come and go, one that waits behind it
			_, err := sender.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: "held"}, Brief: play(step{Do: doDone, MS: 2000})})
			if err == nil {
				_, err = sender.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: "waits"}, Brief: "do it"})
			}
			acted <- err
		}()
		if point != "after_purge" && point != "after_inbox_clear" {
			until(t, "the next one in hand", func() bool { return f.times(rig.WasBegun)["held"] > 0 })
			if err := <-acted; err != nil {
				t.Fatal(err)
			}
			acted <- nil
			first.signal(syscall.SIGTERM)
		}
		if starting || point == lostAcks {
			if !first.ended(patience) {
				t.Fatalf("the router does not stop\n%s", tail(first.log, 4000))
			}
		}
		if starting {
			first = f.router("router-2", crashBinary(t), keep, crashEnv(point))
		}
		dies(t, first, point)
		f.router("router-3", parleyBinary(t), keep)
		if err := <-acted; err != nil {
			t.Fatal(err)
		}
		if _, err := sender.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: "after"}, Brief: "do it"}); err != nil {
			t.Fatal(err)
		}
		all := append(old, "held", "waits", "after")
		until(t, "the end of all tasks", func() bool { return len(f.times(wasEnded)) == len(all) })
		r := newReader(t, f.nc)
		r.Until(t, "the outcomes", patience, func(h history) bool {
			held, waits, after := h.Last("held"), h.Last("waits"), h.Last("after")
			return held.Terminal() && waits.Terminal() && after.Terminal()
		})
		for _, id := range all {
			if n := f.times(wasEnded)[id]; n != 1 {
				t.Errorf("%s was done %d times", id, n)
			}
		}
		switch point {
		case "after_purge":
			until(t, "purge of the old tasks", func() bool { return len(f.subjects(t, "FLEET_TASKS", "fleet.task.*")) == 3 })
		case "after_inbox_clear":
			f.shrinkInbox()
			until(t, "an inbox cleared up", func() bool { return f.subjects(t, "FLEET_INBOX", "fleet.dispatch.boss")["fleet.dispatch.boss"] == 2 })
		}
		checkLost(t, first, point, "$O.FLEET_INDEX.")
	})
}

// times counts how often the agents noted that, by task.
func (f *testFleet) times(what string) map[string]int {
	f.tb.Helper()
	n := map[string]int{}
	for _, list := range f.journals() {
		for _, e := range list {
			if e.What == what {
				n[e.Task]++
			}
		}
	}
	return n
}
