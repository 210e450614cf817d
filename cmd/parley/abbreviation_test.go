package main

import (
	"strings"
	"testing"

	"parley/subjects"
	"parley/subjects/fleet"
)

// An id may be given by its beginning or its end where one task alone has it, and
// what listings filter by is what the dispatch said.
func TestTasksAreFound(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "echo", "--driver", "echo", "--label", "zone=eu", "--max-parallel", "4")
	s.run(t, "task", "send", "--wait", "--run", "r1", "--type", "review", "-l", "zone=eu", "Look at the Parser.").check(t, 0, "", "done")
	id := strings.TrimSpace(s.run(t, "task", "ls", "--text", "parser", "-o", "jsonl").stdout)
	_, id, _ = strings.Cut(id, `"task_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if len(id) != 36 {
		t.Fatalf("no task is found by its text: %q", id)
	}
	short := id[28:]
	s.run(t, "task", "send", "--wait", "--id", "one-a", "Something else.").check(t, 0, "", "done")
	s.run(t, "task", "send", "--wait", "--id", "one-b", "--as", "alice", "Something else.").check(t, 0, "", "done")

	for _, command := range []string{"get", "wait", "watch", "events", "explain", "cancel"} {
		if got := s.run(t, "task", command, short); got.code != 0 {
			t.Errorf("task %s %s: exit %d\n%s", command, short, got.code, got.stderr)
		}
	}
	s.run(t, "task", "get", id[:24]).check(t, 0, "r1", "")
	s.run(t, "task", "get", "one-").check(t, exitUsage, "", `is the id of more than one task: one-b, one-a`)
	s.run(t, "task", "get", "one").check(t, 19, "", `there is no task "one" (not_found)`)
	got := s.run(t, "task", "get", short)
	for _, want := range []string{"review", "zone=eu", "r1", "Look at the Parser."} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("task get does not show %q:\n%s", want, got.stdout)
		}
	}
	for filter, want := range map[string]string{
		"--run r1": short, "--label zone=eu": short, "--text PARSER": short, "--from alice": "one-b", "--text one-a": "one-a", "--since 1h": "one-a",
	} {
		if got := s.run(t, append([]string{"task", "ls"}, strings.Fields(filter)...)...); !strings.Contains(got.stdout, want) {
			t.Errorf("task ls %s does not show %s:\n%s%s", filter, want, got.stdout, got.stderr)
		}
	}
	for _, filter := range []string{"--run r2", "--label zone=us", "--text nothing", "--from bob", "--session a2a-20251122T120000Z-7f3a9c21", "--since 2100-01-01T00:00:00Z"} {
		s.run(t, append([]string{"task", "ls"}, strings.Fields(filter)...)...).check(t, 0, "", "no such tasks")
	}
}

// A task that has ended can be sent again, with the same terms.
func TestTaskRetry(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "first", "--driver", "echo")
	s.run(t, "task", "send", "--wait", "--id", "t1", "--agent", "later", "--attempt-timeout", "10m", "hello").
		check(t, exitBlocked, "", "start an agent that can do it (parley agent run), then  parley task retry t1\n")
	s.agent(t, "later", "--driver", "echo")
	out := s.run(t, "task", "retry", "--wait", "t1", "-o", "json")
	out.check(t, 0, `"agent_id": "later"`, "")
	if strings.Contains(out.stdout, `"task_id": "t1"`) {
		t.Errorf("it is the same task:\n%s", out.stdout)
	}
	s.agent(t, "slow", "--driver", "echo", "--delay", "10m", "--grace", "0s")
	s.run(t, "task", "send", "--id", "t2", "--agent", "slow", "x").check(t, 0, "t2", "")
	s.run(t, "task", "retry", "t2").check(t, exitFailed, "", "parley task cancel t2  ends it")
	s.run(t, "task", "tell", "t2", "use", "the", "other", "one").check(t, 0, "", "told; task t2 is ")
	s.run(t, "task", "events", "t2").check(t, 0, "use the other one", "")
	s.run(t, "task", "tell", "t1", "too late").check(t, codeExit(subjects.CodeInvalidMessage), "", "t1")
}

// What a result tells beside its output is shown.
func TestTaskArtifactsAndCost(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, answers{"task.get": always(fleet.TaskView{
		TaskID: "t1", State: fleet.StateDone, From: "alice", NodeID: "lint", RunID: "r1", SessionID: "s1", Labels: map[string]string{"zone": "eu"},
		Result: &fleet.Result{
			Status: fleet.StatusDone, Artifacts: []byte(`{"pr":"https://example.org/7","files_changed":["a.go","b.go"]}`),
			Unknown: fleet.Unknown{"usage": []byte(`{"tool":"claude","session":"c-1","cost_usd":0.25,"cache_read_tokens":12000}`)},
		},
	})})
	got := s.run(t, "task", "get", "t1")
	for _, want := range []string{"pr: https://example.org/7", "files_changed: a.go, b.go", "$0.25, 12,000 tokens read from the cache", "claude c-1", "r1 lint", "zone=eu"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("task get does not show %q:\n%s", want, got.stdout)
		}
	}
}
