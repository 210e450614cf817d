package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
)

// TestSleepingAgent puts the agent that holds a task to sleep until another
// one has it. What the sleeper then says of its attempt does not count, and it
// drops the work when it wakes.
func TestSleepingAgent(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "registry,router")
	s := &stage{testFleet: f, boss: boss{NC: f.nc, Name: "boss"}, agents: map[string]*process{}}
	slots := map[string]int{"a": 1, "b": 1}
	for a, n := range slots {
		s.agents[a] = f.agents("agent-"+a, cast{Heartbeat: quick, Try: tryFor, Agents: []actor{{ID: a, Instance: "main", MaxParallel: n}}})
	}
	f.awaitAgents("a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := plays(play(step{Do: doDone, MS: 600_000}, step{Do: doDone, MS: 1500}))(ctx, s); err != nil {
		t.Fatal(err)
	}
	first, err := s.await(ctx, "working")
	if err != nil {
		t.Fatal(err)
	}
	sleeper := s.agents[first.AgentID]
	sleeper.signal(syscall.SIGSTOP)
	r := newReader(t, f.nc)
	second := r.Until(t, "another holder", patience, func(h history) bool {
		last := h.Last(theTask)
		return last.Kind == "working" && last.AgentID != first.AgentID
	}).Last(theTask)

	// The sleeper's own words, said while the other one holds the task.
	for _, status := range []string{`"done","output":{"nonce":"stale"}`, `"error","error":{"message":"no"}`} {
		body := fmt.Sprintf(`{"type":"TASK_RESULT","attempt":%d,"epoch":%d,"instance_id":%q,"status":%s}`,
			first.Attempt, first.Epoch, first.InstanceID, status)
		m, err := f.nc.Request("fleet.result."+first.AgentID+"."+theTask, []byte(body), patience)
		if err != nil {
			t.Fatal(err)
		}
		var reply struct {
			Error struct {
				Code string `json:"code"`
			} `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &reply); err != nil || reply.Error.Code != "late_result" {
			t.Errorf("a result of an attempt that is over was answered %s", m.Data)
		}
	}
	sleeper.signal(syscall.SIGCONT)

	r.Until(t, "the outcome", patience, func(h history) bool { return h.Ended() == 1 })
	f.awaitIdle("a", "b")
	e := evidence{Acked: []string{theTask}, Records: r.Whole(t), Journals: f.journals(), Slots: slots}
	e.Check(t)
	last := e.Records.Last(theTask)
	if last.State != "done" || last.AgentID != second.AgentID || last.Attempt != second.Attempt {
		t.Errorf("the outcome is not that of attempt %d\n%s%s", second.Attempt, e.Records.Story(theTask), e.Story(theTask))
	}
	dropped := false
	for _, j := range e.Journals {
		for _, n := range j {
			dropped = dropped || n.What == wasEnded && n.Agent == first.AgentID && n.Attempt == first.Attempt && n.Status != "done"
		}
	}
	if !dropped {
		t.Errorf("the sleeper did not drop its work\n%s", e.Story(theTask))
	}
}
