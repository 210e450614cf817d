package registry_test

import (
	"context"
	"fmt"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// What an agent tells while it works is kept: the last lines, of those that held
// the task alone, for whoever may see the task.
func TestTaskLogs(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	stop, err := b.Serve(t.Context(), bus.Service{
		Name: "fleet", Version: "1.0.0", Endpoints: []bus.Endpoint{{
			Name: "task-get", Subject: subjects.APIPattern("task", "get"),
			Handle: func(_ context.Context, m bus.Msg) ([]byte, error) {
				if m.Subject != subjects.API("alice", "task", "get") {
					return nil, subjects.Errorf(subjects.CodeNotFound, "there is no such task")
				}
				return fleet.Encode(&fleet.TaskView{TaskID: "t1", State: fleet.StateWorking, AgentID: "claude", Attempts: []fleet.Attempt{{AgentID: "codex"}}})
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	start(t, b)
	tell := func(agent subjects.AgentID, task subjects.TaskID, text string) {
		t.Helper()
		if err := b.Publish(subjects.Progress(agent, task), fleet.MustEncode(&fleet.Progress{Text: text, Attempt: 1}), nil); err != nil {
			t.Fatal(err)
		}
	}
	tell("mallory", "t1", "never held it")
	for i := range fleet.MaxProgressLines + 50 {
		tell("claude", "t1", fmt.Sprint("line ", i))
	}
	tell("codex", "t1", "the last")
	ask := func(from subjects.AgentID, after uint64) (fleet.TaskLogsReply, error) {
		t.Helper()
		m, rerr := b.Request(t.Context(), subjects.API(from, "task", "logs"), fleet.MustEncode(&fleet.TaskLogs{TaskID: "t1", AfterSeq: after}), nil)
		if rerr != nil {
			t.Fatal(rerr)
		}
		return fleet.DecodeReply[fleet.TaskLogsReply](m.Data)
	}
	var r fleet.TaskLogsReply
	bustest.Eventually(t, "the last line", func() bool {
		r, err = ask("alice", 0)
		if err != nil {
			t.Fatal(err)
		}
		n := len(r.Lines)
		return n > 0 && r.Lines[n-1].Text == "the last"
	})
	if len(r.Lines) != fleet.MaxProgressLines || r.Lines[0].Text != "line 51" || r.State != fleet.StateWorking {
		t.Errorf("%d lines, the first %+v, task %s, want the last %d", len(r.Lines), r.Lines[0], r.State, fleet.MaxProgressLines)
	}
	if again, err := ask("alice", r.NextSeq); err != nil || len(again.Lines) != 0 || again.NextSeq != r.NextSeq {
		t.Errorf("after them: %+v, %v, want nothing", again, err)
	}
	if _, err := ask("bob", 0); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("bob reads %v, want not_found", err)
	}
	info, err := b.StreamState(t.Context(), subjects.StreamProgress)
	if err != nil || info.Msgs > 3 {
		t.Errorf("%d messages are stored, %v, want a chunk or two", info.Msgs, err)
	}
}
