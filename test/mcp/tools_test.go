package mcp_test

import (
	"slices"
	"strings"
	"testing"

	"parley/bus/bustest"
	"parley/workers/mcp"
)

// TestTools drives every tool, as an operator over pipes.
func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.overPipe(t, "operator")
	tests := map[string]func(t *testing.T, w *world, m *model){
		"list": listsTools, "agents": listsAgents, "dispatch": dispatches, "many": dispatchesMany, "wait": waits, "any": waitsForAny,
		"question": answersQuestion, "follow-up": followsUp, "result": readsResults, "status": looks, "cancel": cancels,
		"mesh": talks, "escalation": decides, "errors": refuses, "help": helps,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w, &model{T: t, session: m.session})
		})
	}
}

var allTools = []string{
	"fleet_agents", "fleet_answer_escalation", "fleet_cancel", "fleet_dispatch", "fleet_dispatch_many",
	"fleet_help", "fleet_message", "fleet_result", "fleet_status", "fleet_wait",
}

func listsTools(t *testing.T, _ *world, m *model) {
	l, err := m.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
		if len(tool.Description) < 100 || len(tool.Description) > 800 {
			t.Errorf("%s: its description has %d characters", tool.Name, len(tool.Description))
		}
		schema, _ := tool.InputSchema.(map[string]any)
		if schema["type"] != "object" || schema["additionalProperties"] == nil {
			t.Errorf("%s: schema %v", tool.Name, schema)
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, p := range properties {
			if about, _ := p.(map[string]any)["description"].(string); len(about) < 5 {
				t.Errorf("%s: argument %s is not described", tool.Name, name)
			}
		}
	}
	if slices.Sort(names); !slices.Equal(names, allTools) {
		t.Errorf("tools %q, want %q", names, allTools)
	}
	if in := m.session.InitializeResult().Instructions; !strings.Contains(in, "fleet_dispatch") {
		t.Errorf("instructions %q", in)
	}
}

// TestEscalationsAreOptIn looks for the tool where it is not enabled.
func TestEscalationsAreOptIn(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	plain, err := mcp.New(mcp.Config{Bus: srv.Bus(t)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, srv: srv, mcp: plain}
	m := w.overPipe(t, "operator")
	l, err := m.session.ListTools(t.Context(), nil)
	if err != nil || len(l.Tools) != len(allTools)-1 {
		t.Fatalf("%v tools, %v", l, err)
	}
	if text, _ := m.raw("fleet_help", nil); strings.Contains(text, "fleet_answer_escalation:") {
		t.Error("fleet_help tells of a tool that is not there")
	}
	// Nobody is there to answer: the model is told so, and what to do.
	m.fails("fleet_agents", nil, "unavailable", "no registry worker", "What to do")
	m.fails("fleet_dispatch", args{"brief": "x"}, "unavailable", "may have accepted this as task ", "ask fleet_wait for that task_id")
}

func listsAgents(_ *testing.T, _ *world, m *model) {
	var l struct {
		Agents []struct {
			AgentID      string   `json:"agent_id"`
			Live         bool     `json:"live"`
			Free         int      `json:"free"`
			Skills       []string `json:"skills"`
			Capabilities []string `json:"capabilities"`
			ModelTier    string   `json:"model_tier"`
		} `json:"agents"`
	}
	m.call("fleet_agents", nil, &l)
	if len(l.Agents) != 1 || l.Agents[0].AgentID != "worker" || !l.Agents[0].Live || l.Agents[0].ModelTier != "sonnet" ||
		!slices.Equal(l.Agents[0].Skills, []string{"Echo: says it again"}) || !slices.Equal(l.Agents[0].Capabilities, []string{"bash"}) {
		m.Errorf("fleet_agents gave %+v", l)
	}
	m.fails("fleet_agents", args{"agent_id": "nobody"}, "not_found", "agent_id")
}

func dispatches(_ *testing.T, _ *world, m *model) {
	id := m.dispatch(args{"brief": "hello", "required_capabilities": []string{"bash"}, "priority": "high", "deadline_seconds": 3600, "data": args{"n": 1}})
	got := m.await(id)
	if len(got.Tasks) != 1 || got.Tasks[0].State != "done" || got.Tasks[0].Output != "hello" || got.Tasks[0].Agent != "worker" {
		m.Errorf("fleet_wait gave %+v", got)
	}
	first := m.dispatch(args{"brief": "hello", "idempotency_key": "k1"})
	if again := m.dispatch(args{"brief": "hello", "idempotency_key": "k1"}); again != first {
		m.Errorf("the same key made tasks %s and %s", first, again)
	}
	m.fails("fleet_dispatch", args{"brief": "other", "idempotency_key": "k1"}, "idempotency_conflict")
}

func dispatchesMany(_ *testing.T, _ *world, m *model) {
	var many struct {
		Accepted, Refused int
		Results           []struct {
			TaskID string `json:"task_id"`
			Error  string `json:"error"`
		}
		Next string
	}
	m.call("fleet_dispatch_many", args{
		"common": args{"model_tier": "sonnet", "agent": "worker"},
		"tasks":  []args{{"brief": "a"}, {"brief": "b", "session_id": "no session"}, {"brief": "c"}},
	}, &many)
	if many.Accepted != 2 || many.Refused != 1 || len(many.Results) != 3 || !strings.Contains(many.Results[1].Error, "session_id") {
		m.Fatalf("fleet_dispatch_many gave %+v", many)
	}
	got := m.await(many.Results[0].TaskID, many.Results[2].TaskID)
	if len(got.Tasks) != 2 || got.Tasks[0].Output != "a" || got.Tasks[1].Output != "c" {
		m.Errorf("fleet_wait gave %+v", got)
	}
}

func waits(t *testing.T, w *world, m *model) {
	id := m.dispatch(args{"brief": "gate wait"})
	for _, seconds := range []float64{0, 0.5} {
		var got waited
		m.call("fleet_wait", args{"task_ids": []string{id}, "timeout_seconds": seconds}, &got)
		if got.Done || got.Waiting != 1 || !strings.Contains(got.Next, "again") {
			t.Errorf("fleet_wait gave %+v, want done=false", got)
		}
	}
	m.fails("fleet_wait", args{"task_ids": []string{id}, "timeout_seconds": 51}, "timeout_seconds")
	m.fails("fleet_wait", args{}, "task_ids", "What to do")
	done := make(chan waited, 1)
	go func() { done <- m.await(id) }()
	w.pass("wait")
	if got := <-done; got.Tasks[0].Output != "passed" {
		t.Errorf("fleet_wait gave %+v", got)
	}
	var got waited
	m.call("fleet_wait", args{"task_ids": []string{id, "unknown"}, "timeout_seconds": 1}, &got)
	if !got.Done || len(got.Tasks) != 2 || !got.Tasks[0].Ended || !strings.Contains(got.Tasks[1].Error, "not_found") {
		t.Errorf("fleet_wait gave %+v", got)
	}
}

func waitsForAny(t *testing.T, w *world, m *model) {
	slow, quick := m.dispatch(args{"brief": "gate any"}), m.dispatch(args{"brief": "quick"})
	var got waited
	m.call("fleet_wait", args{"task_ids": []string{slow, quick}, "need": "any", "timeout_seconds": 50}, &got)
	if !got.Done || got.Tasks[0].Ended || got.Tasks[1].State != "done" {
		t.Errorf("fleet_wait gave %+v", got)
	}
	w.pass("any")
	m.await(slow)
}

func answersQuestion(t *testing.T, _ *world, m *model) {
	id := m.dispatch(args{"brief": "ask"})
	var got waited
	bustest.Eventually(t, "the question", func() bool {
		got = waited{}
		m.call("fleet_wait", args{"task_ids": []string{id}, "timeout_seconds": 20}, &got)
		return len(got.Attention) == 1
	})
	if got.Done || got.Tasks[0].Question != "which one?" || !strings.Contains(got.Next, "fleet_message") {
		t.Errorf("fleet_wait gave %+v", got)
	}
	var told struct {
		Was string `json:"message_was"`
	}
	m.call("fleet_message", args{"task_id": id, "text": "that one"}, &told)
	if told.Was != "answer" {
		t.Errorf("fleet_message gave %+v", told)
	}
	if got = m.await(id); got.Tasks[0].Output != "that one" {
		t.Errorf("the agent was told %+v", got.Tasks[0])
	}
	m.fails("fleet_message", args{"task_id": id, "text": "more"}, "ended", "fleet_result")
}

func followsUp(t *testing.T, _ *world, m *model) {
	id := m.dispatch(args{"brief": "hear"})
	var told struct {
		Was string `json:"message_was"`
	}
	m.call("fleet_message", args{"task_id": id, "text": "one thing more"}, &told)
	if told.Was != "follow_up" {
		t.Errorf("fleet_message gave %+v", told)
	}
	if got := m.await(id); got.Tasks[0].Output != "one thing more" {
		t.Errorf("the agent heard %+v", got.Tasks[0])
	}
}

type resultPage struct {
	State      string `json:"state"`
	Ended      bool   `json:"ended"`
	Text       string `json:"text"`
	TotalChars int    `json:"total_chars"`
	NextOffset int    `json:"next_offset"`
	NextSteps  []string
	Artifacts  []struct {
		ArtifactID string `json:"artifact_id"`
		Name       string `json:"name"`
		Chars      int    `json:"chars"`
	} `json:"artifacts"`
}

func readsResults(t *testing.T, w *world, m *model) {
	id := m.dispatch(args{"brief": "long"})
	if got := m.await(id); got.Tasks[0].Chars != 9003 || got.Tasks[0].Output != strings.Repeat("é", 500) || !strings.Contains(got.Next, "fleet_result") {
		t.Errorf("fleet_wait gave %+v", got)
	}
	whole, offset := "", 0
	for range 10 {
		var p resultPage
		m.call("fleet_result", args{"task_id": id, "offset": offset, "limit": 4000}, &p)
		whole += p.Text
		if offset = p.NextOffset; offset == 0 {
			break
		}
	}
	if whole != strings.Repeat("é", 9000)+"end" {
		t.Errorf("the pages make %d bytes", len(whole))
	}
	m.fails("fleet_result", args{"task_id": id, "offset": 9999}, "offset", "next_offset")

	id = m.dispatch(args{"brief": "chunks"})
	m.await(id)
	var p resultPage
	m.call("fleet_result", args{"task_id": id}, &p)
	if p.Text != "done" || len(p.Artifacts) != 1 || p.Artifacts[0].Chars != len("one two three") {
		t.Errorf("fleet_result gave %+v", p)
	}
	m.call("fleet_result", args{"task_id": id, "artifact_id": "log"}, &p)
	if p.Text != "one two three" {
		t.Errorf("the artifact is %q", p.Text)
	}
	m.fails("fleet_result", args{"task_id": id, "artifact_id": "nothing"}, "not_found", "artifact_id")

	id = m.dispatch(args{"brief": "json", "result_schema": args{"type": "object", "required": []string{"answer"}}})
	m.await(id)
	m.call("fleet_result", args{"task_id": id}, &p)
	if p.Text != "{\n  \"answer\": 42\n}" {
		t.Errorf("fleet_result gave %+v", p)
	}

	id = m.dispatch(args{"brief": "gate result"})
	p = resultPage{}
	m.call("fleet_result", args{"task_id": id}, &p)
	if p.Ended || p.Text != "" {
		t.Errorf("fleet_result gave %+v", p)
	}
	w.pass("result")
	m.await(id)
}

func looks(t *testing.T, w *world, m *model) {
	id := m.dispatch(args{"brief": "gate status"})
	var one struct {
		shownTask
		Events []string `json:"events"`
		Agents []string `json:"agents"`
	}
	bustest.Eventually(t, "it is working", func() bool {
		m.call("fleet_status", args{"task_id": id, "events": true, "explain": true}, &one)
		return one.State == "working"
	})
	if len(one.Events) < 2 || !strings.Contains(one.Events[0], "queued") || len(one.Agents) != 1 || !strings.HasPrefix(one.Agents[0], "worker: ") {
		t.Errorf("fleet_status gave %+v", one)
	}
	var all struct {
		Count map[string]int `json:"count"`
		Tasks []shownTask    `json:"tasks"`
	}
	m.call("fleet_status", args{"state": "working", "limit": 50}, &all)
	if all.Count["working"] < 1 || !slices.ContainsFunc(all.Tasks, func(t shownTask) bool { return t.TaskID == id }) {
		t.Errorf("fleet_status gave %+v", all)
	}
	m.fails("fleet_status", args{"events": true}, "task_id")
	w.pass("status")
	m.await(id)
}

func cancels(t *testing.T, _ *world, m *model) {
	id, gone := m.dispatch(args{"brief": "gate cancel"}), m.dispatch(args{"brief": "over"})
	m.await(gone)
	var got struct {
		Results []struct {
			Canceled bool
			State    string
			Error    string
		}
	}
	m.call("fleet_cancel", args{"task_ids": []string{id, gone, "unknown"}, "reason": "not needed"}, &got)
	if r := got.Results; len(r) != 3 || !r[0].Canceled || r[1].Canceled || r[1].State != "done" || !strings.Contains(r[2].Error, "not_found") {
		t.Errorf("fleet_cancel gave %+v", got)
	}
}

func talks(t *testing.T, w *world, m *model) {
	var got letter
	m.call("fleet_message", args{"to": "worker", "text": "hello", "action": "do", "wait_seconds": 50}, &got)
	if !got.Ended || got.Answer != "heard: hello" {
		t.Errorf("fleet_message gave %+v", got)
	}
	got = letter{}
	m.call("fleet_message", args{"to": "worker", "text": "gate letter"}, &got)
	if got.Ended || !strings.Contains(got.Next, "fleet_wait") {
		t.Errorf("fleet_message gave %+v", got)
	}
	var all waited
	m.call("fleet_wait", args{"message_ids": []string{got.MessageID}, "timeout_seconds": 0.2}, &all)
	if all.Done || all.Waiting != 1 {
		t.Errorf("fleet_wait gave %+v", all)
	}
	w.pass("letter")
	bustest.Eventually(t, "the answer", func() bool {
		all = waited{}
		m.call("fleet_wait", args{"message_ids": []string{got.MessageID}, "timeout_seconds": 20}, &all)
		return all.Done
	})
	if len(all.Messages) != 1 || all.Messages[0].Answer != "heard: gate letter" {
		t.Errorf("fleet_wait gave %+v", all)
	}
	m.call("fleet_message", args{"to": "worker", "text": "just so", "reply": "no"}, &got)
	m.fails("fleet_message", args{"text": "to whom?"}, "to", "task_id")
	m.fails("fleet_message", args{"to": "worker", "text": " "}, "text")
}

func decides(t *testing.T, _ *world, m *model) {
	id := m.dispatch(args{"brief": "fail", "escalate": "always"})
	var one shownTask
	bustest.Eventually(t, "it waits for a human", func() bool {
		m.call("fleet_status", args{"task_id": id}, &one)
		return one.WaitsFor == "human"
	})
	m.fails("fleet_answer_escalation", args{"task_id": id, "decision": "complete"}, "output")
	m.fails("fleet_answer_escalation", args{"task_id": id, "decision": "reassign"}, "agent_id", "fleet_agents")
	bustest.Eventually(t, "the decision counts", func() bool { // the alert comes a moment after the record
		text, failed := m.raw("fleet_answer_escalation", args{"task_id": id, "decision": "complete", "output": "by hand"})
		return !failed && strings.Contains(text, `"applied":1`)
	})
	if got := m.await(id); got.Tasks[0].State != "done" || got.Tasks[0].Output != "by hand" {
		t.Errorf("fleet_wait gave %+v", got)
	}
}

func refuses(_ *testing.T, _ *world, m *model) {
	m.fails("fleet_dispatch", args{}, "brief")
	m.fails("fleet_dispatch", args{"brief": "x", "priority": "soon"}, "priority")
	m.fails("fleet_dispatch", args{"brief": "x", "colour": "red"}, "colour")
	m.fails("fleet_dispatch", args{"brief": "x", "agent": "no agent"}, "invalid_id", "agent")
	m.fails("fleet_dispatch", args{"brief": "x", "result_schema": args{"type": "nonsense"}}, "result_schema")
	m.fails("fleet_result", args{"task_id": "0199"}, "not_found", "What to do")
	m.fails("fleet_wait", args{"task_ids": []string{"a b"}}, "invalid_id")
}

func helps(t *testing.T, _ *world, m *model) {
	overview, _ := m.raw("fleet_help", nil)
	for _, name := range allTools {
		if !strings.Contains(overview, name) {
			t.Errorf("the overview does not name %s", name)
		}
		if text, failed := m.raw("fleet_help", args{"tool": name}); failed || !strings.HasPrefix(text, "# "+name+"\n") || len(text) < 400 {
			t.Errorf("fleet_help of %s gave %q", name, text)
		}
	}
	m.fails("fleet_help", args{"tool": "fleet_magic"}, "tool")
}
