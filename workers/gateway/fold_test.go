package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/subjects"
	"parley/subjects/fleet"
)

// TestStates holds every state of the fleet against its name in A2A.
func TestStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[fleet.State]string{
		fleet.StateQueued: "SUBMITTED", fleet.StateWorking: "WORKING", fleet.StateInputRequired: "INPUT_REQUIRED",
		fleet.StateDone: "COMPLETED", fleet.StatePartial: "COMPLETED", fleet.StateError: "FAILED", fleet.StateExpired: "FAILED",
		fleet.StateBlocked: "REJECTED", fleet.StateCanceled: "CANCELED",
	} {
		if got := strings.TrimPrefix(stateOf(state).String(), "TASK_STATE_"); got != want {
			t.Errorf("%s is %s, want %s", state, got, want)
		}
	}
}

// TestFrames checks the ids and the order of what a stream tells of each record.
func TestFrames(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	text := func(s string) []fleet.Part { return []fleet.Part{{Text: &s}} }
	records := []fleet.Event{
		{Kind: fleet.KindQueued, State: fleet.StateQueued, Data: fleet.Data{Dispatch: []byte(`{"brief":"b"}`)}},
		{Kind: fleet.KindWorking, State: fleet.StateWorking},
		{Kind: fleet.KindArtifact, State: fleet.StateWorking, Data: fleet.Data{Artifact: &fleet.Artifact{ArtifactID: "a", Parts: text("1")}}},
		{Kind: fleet.KindArtifact, State: fleet.StateWorking, Data: fleet.Data{Artifact: &fleet.Artifact{ArtifactID: "a", Parts: text("2"), Append: true}}},
		{Kind: fleet.KindMessage, State: fleet.StateWorking, Data: fleet.Data{Message: &fleet.Message{ID: "m", Text: "more"}}},
		{Kind: fleet.KindQuestion, State: fleet.StateInputRequired, Data: fleet.Data{Question: &fleet.Question{ID: "q", Text: "?"}}},
		{Kind: fleet.KindAnswer, State: fleet.StateWorking, Data: fleet.Data{Answer: &fleet.Answer{QuestionID: "q", MessageID: "mine", Text: "!"}}},
		{Kind: fleet.KindReroute, State: fleet.StateQueued, Reason: &fleet.Reason{Code: subjects.CodeAgentLost}},
		{Kind: fleet.KindOutcome, State: fleet.StateDone, Data: fleet.Data{Result: []byte(
			`{"status":"done","tokens_spent":3,"next_steps":[],"blocked_reason":null,"output":"yes","artifacts":{"pr":1}}`)}},
	}
	p := &picture{reports: true}
	var got []string
	for i := range records {
		ev := &records[i]
		ev.TaskID, ev.Seq, ev.Time = "t", uint64(i+1), at
		ev.Facts.ContextID = "c"
		for _, f := range p.add(ev) {
			word := ""
			switch m := f.msg.GetPayload().(type) {
			case *a2apb.StreamResponse_Task:
				word = "task"
			case *a2apb.StreamResponse_StatusUpdate:
				word = strings.ToLower(strings.TrimPrefix(m.StatusUpdate.GetStatus().GetState().String(), "TASK_STATE_"))
			case *a2apb.StreamResponse_ArtifactUpdate:
				word = m.ArtifactUpdate.GetArtifact().GetArtifactId()
			}
			got = append(got, f.id+" "+word)
		}
	}
	want := []string{"1 task", "2 working", "3 a", "4 a", "5 working", "6 input_required", "7 working", "8 submitted", "8.1 result", "8.2 artifacts", "9 completed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
	var said []string
	for _, m := range p.task.GetHistory() {
		said = append(said, m.GetMessageId()+" "+m.GetParts()[0].GetText())
	}
	if diff := cmp.Diff([]string{"t b", "m more", "q ?", "mine !"}, said); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if n := len(p.task.GetArtifacts()[0].GetParts()); n != 2 {
		t.Errorf("the first artifact has %d parts, want both chunks", n)
	}
	if s := p.task.GetStatus().GetTimestamp().AsTime(); s != at.Truncate(time.Millisecond) {
		t.Errorf("time %s", s)
	}
}

// TestOutcomes checks what a client is told of a task that did not get done.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state  fleet.State
		reason *fleet.Reason
		result string
		want   string
	}{
		{fleet.StateBlocked, &fleet.Reason{Code: subjects.CodeNoCapableAgent, Message: "nobody"}, `{"status":"blocked","tokens_spent":0,"next_steps":[],"blocked_reason":"nobody"}`, "no_capable_agent: nobody"},
		{fleet.StateExpired, &fleet.Reason{Code: subjects.CodeDeadlineExceeded}, `{"status":"error","tokens_spent":0,"next_steps":[],"blocked_reason":null}`, "deadline_exceeded"},
		{fleet.StateDone, nil, `{"status":"done","as_message":true,"output":"hi","tokens_spent":0,"next_steps":[],"blocked_reason":null}`, "hi"},
		{fleet.StateError, &fleet.Reason{Code: subjects.CodeAgentError}, `not JSON`, "agent_error"},
	} {
		p := &picture{reports: true}
		p.add(&fleet.Event{TaskID: "t", Seq: 1, Kind: fleet.KindOutcome, State: tt.state, Reason: tt.reason, Data: fleet.Data{Result: []byte(tt.result)}})
		if got := p.task.GetStatus().GetMessage().GetParts()[0].GetText(); got != tt.want {
			t.Errorf("%s says %q, want %q", tt.state, got, tt.want)
		}
		if len(p.task.GetArtifacts()) != 0 {
			t.Errorf("%s has artifacts", tt.state)
		}
	}
}
