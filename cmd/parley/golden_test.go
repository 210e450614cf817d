package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

func ago1(d time.Duration) time.Time { return noon.Add(-d) }

var (
	taskQueued = fleet.TaskView{
		TaskID: "t-queued", State: fleet.StateQueued, From: "alice", Priority: fleet.High,
		Created: ago1(90 * time.Second), Updated: ago1(80 * time.Second), Deadline: noon.Add(71 * time.Hour), Seq: 1,
		Brief: "Review\nthe parser", Waiting: &fleet.Waiting{Why: fleet.WaitLimited, Who: "claude", Until: new(noon.Add(2*time.Hour + 5*time.Minute)), Since: ago1(time.Minute)},
	}
	taskWorking = fleet.TaskView{
		TaskID: "t-working", State: fleet.StateInputRequired, From: "operator", Priority: fleet.Normal, Attempt: 2,
		AgentID: "claude", InstanceID: "one", Created: ago1(time.Hour + 5*time.Minute), Updated: ago1(2 * time.Second),
		Deadline: noon.Add(time.Hour), TokensSpent: 12345, TokenBudget: 50000, Seq: 4, Brief: "Deploy",
		Question: &fleet.Question{ID: "q1", Text: "Staging or production?"},
		Attempts: []fleet.Attempt{{
			Attempt: 1, AgentID: "codex", InstanceID: "main", Ended: ago1(time.Hour), Code: subjects.CodeAgentLost,
			Message: "not heard of for 30 s", Tokens: 345, Level: 2,
		}, {
			Attempt: 2, AgentID: "claude", InstanceID: "one", Ended: ago1(50 * time.Minute), Code: subjects.CodeAgentLost, Message: "killed",
		}, {
			Attempt: 3, AgentID: "claude", InstanceID: "one", Ended: ago1(40 * time.Minute), Code: subjects.CodeRateLimited, Message: "limit reached",
		}, {
			Attempt: 4, AgentID: "claude", InstanceID: "one", Ended: ago1(30 * time.Minute), Code: subjects.CodeAgentBusy, Message: "shutting down",
		}},
	}
	taskDone = fleet.TaskView{
		TaskID: "t-done", State: fleet.StateDone, From: "alice", Priority: fleet.Low, Attempt: 1,
		AgentID: "claude", InstanceID: "main", Created: ago1(26 * time.Hour), Updated: ago1(25 * time.Hour),
		Deadline: noon.Add(46 * time.Hour), TokensSpent: 1234567, Seq: 3, Brief: "Write a haiku",
		Result: &fleet.Result{
			TaskID: "t-done", Status: fleet.StatusDone, TokensSpent: 1234567, AgentID: "claude", State: fleet.StateDone,
			Output: fleet.MustEncode("Queues hold what we send\n\x1b[31mpatient\x1b[0m as the winter pond\none result returns"), NextSteps: []string{"publish it"},
		},
	}
	blocked     = "no agent has capability \"fly\""
	taskBlocked = fleet.TaskView{
		TaskID: "t-blocked", State: fleet.StateBlocked, From: "alice", Priority: fleet.Normal,
		Created: ago1(time.Minute), Updated: ago1(time.Minute), Deadline: noon.Add(time.Hour), Seq: 2,
		Reason: &fleet.Reason{Code: subjects.CodeNoCapableAgent, Message: blocked},
		Result: &fleet.Result{TaskID: "t-blocked", Status: fleet.StatusBlocked, BlockedReason: &blocked},
	}
	taskPartial = fleet.TaskView{
		TaskID: "t-partial", State: fleet.StatePartial, From: "alice", Priority: fleet.Normal, Attempt: 3,
		AgentID: "claude", Created: ago1(time.Minute), Updated: ago1(10 * time.Second), Deadline: noon.Add(time.Hour), Seq: 8,
		Result: &fleet.Result{
			TaskID: "t-partial", Status: fleet.StatusPartial, Output: json.RawMessage(`{"files":["a.go"]}`), Remaining: []string{"b.go", "c.go"},
		},
	}
)

var agentList = fleet.AgentListReply{Agents: []fleet.AgentView{
	{
		Announce: fleet.Announce{
			Worker: fleet.Worker{
				AgentID: "claude", InstanceID: "one", Model: "claude-opus-4", ModelTier: "opus", MaxParallel: 4,
				Epoch: ago1(3 * time.Hour).UnixNano(), Labels: map[string]string{"zone": "eu", "gpu": "no"},
			},
			Capabilities: fleet.Capabilities{Tools: []string{"edit", "review"}, MCPServers: []string{"github", "search"}},
			MCPHealth:    fleet.MCPHealth{"github": fleet.HealthOK, "search": fleet.HealthTimeout},
			Session:      fleet.SessionState{RepoState: &fleet.RepoState{Branch: "main", Clean: true}},
		},
		Live: true, Active: 1, LastSeen: ago1(4 * time.Second), Holding: []fleet.Holding{{TaskID: "t-working", Attempt: 2}},
	},
	{
		Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "codex", InstanceID: "main", ModelTier: "sonnet"}},
		Live:     true, Draining: true, DrainedBy: "operator", LastSeen: ago1(time.Second), CoolUntil: new(noon.Add(time.Minute)),
	},
	{
		Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "hermes", InstanceID: "main"}},
		LastSeen: ago1(2 * time.Hour),
	},
	{
		Announce: fleet.Announce{Worker: fleet.Worker{AgentID: "pro", InstanceID: "main"}},
		Live:     true, LastSeen: ago1(time.Second), Limit: &accountLimits.Limits[0],
	},
}}

var accountLimits = fleet.AgentLimitsReply{Limits: []fleet.AccountLimit{
	{
		Account: "claude", By: "pro", Message: "usage limit reached", Since: ago1(time.Hour),
		Until: noon.Add(2*time.Hour + 5*time.Minute), ProbeAt: noon.Add(2*time.Hour + 6*time.Minute),
	},
	{Account: "free", Tier: "opus", Since: ago1(time.Hour), Until: noon.Add(50 * time.Hour), ProbeAt: noon.Add(50 * time.Hour), Step: 3},
	{Account: "open", Since: ago1(time.Hour), Until: ago1(time.Minute), ProbeAt: ago1(time.Second)},
}}

var events = fleet.TaskEventsReply{Events: []fleet.Event{
	{
		TaskID: "t-working", Seq: 1, Kind: fleet.KindQueued, State: fleet.StateQueued, Time: ago1(65 * time.Minute),
		Facts: fleet.Facts{From: "operator", Priority: fleet.Normal},
	},
	{
		TaskID: "t-working", Seq: 2, Kind: fleet.KindWorking, State: fleet.StateWorking, Attempt: 1,
		AgentID: "codex", InstanceID: "main", Time: ago1(64 * time.Minute),
	},
	{
		TaskID: "t-working", Seq: 3, Kind: fleet.KindReroute, State: fleet.StateQueued, Attempt: 1, Time: ago1(60 * time.Minute),
		Reason: &fleet.Reason{Code: subjects.CodeAgentLost, Message: "not heard of for 30 s"},
	},
	{
		TaskID: "t-working", Seq: 4, Kind: fleet.KindQuestion, State: fleet.StateInputRequired, Attempt: 2,
		AgentID: "claude", InstanceID: "one", Time: ago1(2 * time.Second),
		Data: fleet.Data{Question: &fleet.Question{ID: "q1", Text: "Staging or\nproduction?"}},
	},
}, More: true}

var explanation = fleet.TaskExplanation{
	TaskID: "t-working", State: fleet.StateWorking, Summary: "claude/one holds it, attempt 2",
	Waiting: &fleet.Waiting{Why: fleet.WaitAway, Who: "bob", Message: "last heard Friday"},
	Agents: []fleet.AgentVerdict{
		{AgentID: "claude", InstanceID: "one", Eligible: true, Order: 1, Holder: true},
		{AgentID: "gemini", InstanceID: "main", Eligible: true, Order: 2},
		{AgentID: "hermes", InstanceID: "main", Reasons: []fleet.Reason{
			{Code: subjects.CodeMCPUnhealthy, Message: "github is timeout"}, {Code: subjects.CodeAgentBusy, Message: "1 of 1 slots taken"},
		}},
	},
}

// fixtures answers every question with the values above.
func fixtures() answers {
	tasks := map[string]fleet.TaskView{}
	list := []fleet.TaskView{taskQueued, taskWorking, taskDone, taskBlocked, taskPartial}
	for _, v := range list {
		tasks[string(v.TaskID)] = v
	}
	get := func(data []byte) (any, error) {
		r, err := fleet.DecodeRequest[fleet.TaskRef](data)
		if err != nil {
			return nil, err
		}
		v, ok := tasks[string(r.TaskID)]
		if !ok {
			return nil, subjects.Errorf(subjects.CodeNotFound, "there is no task %q", r.TaskID).At("/task_id")
		}
		return v, nil
	}
	return answers{
		"task.list": always(fleet.TaskListReply{
			Tasks: list, Total: 1205, Count: map[fleet.State]int{fleet.StateQueued: 1200, fleet.StateInputRequired: 1},
		}),
		"task.get":     get,
		"task.wait":    get,
		"task.events":  always(events),
		"task.explain": always(explanation),
		"task.cancel":  get,
		"task.answer":  get,
		"agent.list":   always(agentList),
		"agent.limits": always(accountLimits),
		"agent.lift":   always(accountLimits),
		"agent.drain":  always(fleet.AgentListReply{Agents: agentList.Agents[:1]}),
		"agent.resume": always(fleet.AgentListReply{}),
	}
}

func TestGoldenOutput(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, fixtures())
	for _, c := range []struct {
		name string
		args []string
		code int
	}{
		{"task-ls", []string{"task", "ls"}, 0},
		{"task-ls-wide", []string{"task", "ls", "-o", "wide"}, 0},
		{"task-ls-json", []string{"task", "ls", "-o", "json"}, 0},
		{"task-ls-jsonl", []string{"task", "list", "-o", "jsonl"}, 0},
		{"task-get-queued", []string{"task", "get", "t-queued"}, 0},
		{"task-get-working", []string{"task", "info", "t-working"}, 0},
		{"task-get-done", []string{"task", "get", "t-done"}, 0},
		{"task-get-json", []string{"task", "get", "t-blocked", "-o", "json"}, 0},
		{"task-get-unknown", []string{"task", "get", "t-nobody"}, 19},
		{"task-get-unknown-json", []string{"task", "get", "t-nobody", "-o", "json"}, 19},
		{"task-wait-done", []string{"task", "wait", "t-done"}, 0},
		{"task-wait-done-jsonl", []string{"task", "wait", "t-done", "-o", "jsonl"}, 0},
		{"task-wait-blocked", []string{"task", "wait", "t-blocked"}, 4},
		{"task-wait-partial", []string{"task", "wait", "t-partial"}, 3},
		{"task-wait-over", []string{"task", "wait", "--for", "1ms", "t-queued"}, 1},
		{"task-events", []string{"task", "events", "t-working"}, 0},
		{"task-events-jsonl", []string{"task", "events", "t-working", "-o", "jsonl"}, 0},
		{"task-explain", []string{"task", "explain", "t-working"}, 0},
		{"task-explain-json", []string{"task", "explain", "t-working", "-o", "json"}, 0},
		{"task-cancel", []string{"task", "cancel", "t-blocked", "--reason", "no"}, 0},
		{"task-answer", []string{"task", "answer", "t-working", "to", "staging"}, 0},
		{"agent-ls", []string{"agent", "ls"}, 0},
		{"agent-ls-wide", []string{"agent", "ls", "-o", "wide"}, 0},
		{"agent-ls-live-jsonl", []string{"agent", "ls", "--live", "-o", "jsonl"}, 0},
		{"task-ls-waiting", []string{"task", "ls", "--waiting"}, 0},
		{"agent-limits", []string{"agent", "limits"}, 0},
		{"agent-limits-lift", []string{"agent", "limits", "--lift", "claude"}, 0},
		{"agent-limits-jsonl", []string{"agent", "limits", "-o", "jsonl"}, 0},
		{"agent-get-limited", []string{"agent", "get", "pro"}, 0},
		{"agent-get", []string{"agent", "get", "claude"}, 0},
		{"agent-drain", []string{"agent", "drain", "claude"}, 0},
		{"agent-resume", []string{"agent", "resume", "claude"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := s.run(t, c.args...)
			if got.code != c.code {
				t.Errorf("exit %d, want %d; it said:\n%s", got.code, c.code, got.stderr)
			}
			golden(t, c.name, "$ parley "+join(c.args)+"\n"+got.stdout+"--- stderr\n"+got.stderr)
		})
	}
}

func join(args []string) string {
	var s strings.Builder
	for i, a := range args {
		if i > 0 {
			s.WriteString(" ")
		}
		s.WriteString(a)
	}
	return s.String()
}

func TestGoldenLookups(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for name, args := range map[string][]string{
		"help":        {"help"},
		"help-send":   {"task", "send", "--help"},
		"permissions": {"subjects", "--permissions", "agent", "claude"},
		"schema":      {"schema"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := s.run(t, args...)
			if got.code != 0 {
				t.Errorf("exit %d, want 0; it said:\n%s", got.code, got.stderr)
			}
			golden(t, name, got.stdout)
		})
	}
	s.run(t, "subjects").check(t, 0, "fleet.offer.<agent>.<instance>", "")
	s.run(t, "subjects", "-o", "jsonl").check(t, 0, `{"subject":"fleet.announce.<agent>.<instance>",`, "")
	s.run(t, "subjects", "--permissions", "king", "claude").check(t, 2, "", `there is no role "king"`)
	s.run(t, "schema", "task-dispatch").check(t, 0, "https://json-schema.org/draft/2020-12/schema", "")
	s.run(t, "schema", "TASK_DISPATCH").check(t, 0, "https://json-schema.org/draft/2020-12/schema", "")
	s.run(t, "schema", "nothing").check(t, 19, "", "task-dispatch")
	s.run(t, "version", "-o", "json").check(t, 0, `"protocol_version": "2.0"`, "")
	s.run(t, "demo", "--help").check(t, 0, "parley demo", "")
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s, b := fakeFleet(t, nil)
	s.run(t, "dlq", "ls").check(t, 0, "", "no dead letters")
	heard := make(chan string, 10)
	sub, err := b.Subscribe("poison.>", "", func(m bus.Msg) { heard <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for _, text := range []string{"first", "second", "third", "\xff\xfe"} {
		if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte(text)}, "not JSON: "+text[:1]); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, "dlq", "ls").check(t, 0, "poison.x", "")
	s.run(t, "dlq", "ls", "-o", "jsonl").check(t, 0, `"text":"second"`, "")
	s.run(t, "dlq", "show", "1").check(t, 0, "not JSON: f", "")
	s.run(t, "dlq", "show", "4").check(t, 0, "", "no text")
	s.run(t, "dlq", "replay", "1").check(t, 0, "", "dead letter 1 sent again")
	if got := <-heard; got != "first" {
		t.Errorf("replayed %q, want first", got)
	}
	s.run(t, "dlq", "drop", "1").check(t, 19, "", "there is no dead letter 1")
	s.run(t, "dlq", "rm", "--all").check(t, 0, "", "dead letter 4 dropped")
	s.run(t, "dlq", "ls", "-o", "json").check(t, 0, "[]", "")
	s.run(t, "dlq", "drop").check(t, 2, "", "or --all")
	s.run(t, "dlq", "drop", "x").check(t, 2, "", "not a sequence number")
}
