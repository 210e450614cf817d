package e2e_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
)

// TestRestartOfEverything kills the broker, the routers and all agents at one
// moment, with tasks in every stage of their life, starts them again, and wants
// one outcome of each.
func TestRestartOfEverything(t *testing.T) {
	f := newFleet(t, "registry,router")
	slots := map[string]int{"a": 2, "b": 2, "c": 2}
	c := cast{Heartbeat: quick}
	for id, n := range slots {
		c.Agents = append(c.Agents, actor{ID: id, Instance: "main", MaxParallel: n, Spool: "yes"})
	}
	agents := f.agents("agents", c)
	f.awaitAgents("a", "b", "c")
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	b := boss{NC: f.nc, Name: "boss"}
	var acked []string
	give := func(id string, steps ...step) {
		t.Helper()
		got, err := b.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: id, TimeoutSeconds: 30}, Brief: play(steps...)})
		if err != nil {
			t.Fatal(err)
		}
		acked = append(acked, got)
	}
	give("ended", step{Do: doDone})
	give("asks", step{Do: doAsk, MS: 1}, step{Do: doDone})
	give("fails", step{Do: doError, MS: 1}, step{Do: doDone})
	for i := range 20 { // more than there are slots, each a while
		give("task-"+strconv.Itoa(i), step{Do: doDone, MS: 1500}, step{Do: doDone, MS: 5})
	}
	if err := b.Drop(ctx, "raw", []byte(`{"task":{"task_id":"raw"},"brief":"by the raw door"}`)); err != nil {
		t.Fatal(err)
	}
	acked = append(acked, "raw")

	r := newReader(t, f.nc)
	r.Until(t, "tasks in every stage", patience, func(h history) bool {
		states := map[string]int{}
		for id := range h {
			last := h.Last(id)
			states[last.State]++
		}
		return states["working"] >= 2 && states["queued"] >= 8 && states["input_required"] == 1 &&
			len(h["ended"]) == 3 && len(h["fails"]) > 2
	})
	agents.kill()
	f.restartBroker("registry,router")
	f.agents("agents-again", c)
	f.awaitAgents("a", "b", "c")

	// Whoever asks again after the restart is answered.
	answered := map[string]bool{}
	r = newReader(t, f.nc)
	r.Until(t, "an outcome of every task", 2*patience, func(h history) bool {
		for id := range h {
			last := h.Last(id)
			if q := last.Data.Question; last.State == "input_required" && q != nil && !answered[q.ID] {
				answered[q.ID] = true
				if err := b.Answer(ctx, id, q.ID, "this"); err != nil {
					t.Logf("the answer to %s: %v", id, err) // its agent may be lost by now
				}
			}
		}
		return len(h) == len(acked) && h.Ended() == len(acked)
	})
	f.awaitIdle("a", "b", "c")
	e := evidence{Acked: acked, Records: r.Whole(t), Journals: f.journals(), Slots: slots}
	e.Check(t)
	if got := e.Records.Last("ended"); got.Seq != 3 {
		t.Errorf("the task that had ended has %d records, want 3", got.Seq)
	}
	for _, id := range acked {
		if last := e.Records.Last(id); last.State != "done" {
			t.Errorf("%s ended as %s: %s\n%s", id, last.State, last.Reason.Message, e.Records.Story(id))
		}
	}
	fmt.Printf("e2e: restart of everything: %s\n", e.Summary())
}
