package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// inbox is a fake fleet that keeps what is dispatched.
func inbox(t *testing.T) (*shell, func() string) {
	t.Helper()
	got := make(chan string, 10)
	s, _ := fakeFleet(t, answers{
		"task.dispatch": func(data []byte) (any, error) {
			d, err := fleet.DecodeDispatch(data)
			if err != nil {
				return nil, err
			}
			got <- string(data)
			return fleet.Dispatched{TaskID: d.Task.TaskID, State: fleet.StateQueued, Deadline: noon.Add(72 * time.Hour)}, nil
		},
		"task.wait": always(taskDone),
	})
	return s, func() string {
		select {
		case data := <-got:
			return data
		default:
			t.Fatal("nothing was dispatched")
			return ""
		}
	}
}

func TestSendTerms(t *testing.T) {
	t.Parallel()
	s, got := inbox(t)
	schema := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(schema, []byte(`{"type": "object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "task", "send", "Review", "pull request 7",
		"--id", "t1", "--key", "k1", "--priority", "high", "--type", "review", "--mcp", "github,search", "--cap", "review",
		"--tier", "opus", "-l", "zone=eu", "-l", "gpu=no", "--clean-repo", "--agent", "claude", "--alt", "codex,hermes",
		"--budget", "20000", "--deadline", "2026-11-22T13:30:00Z", "--attempt-timeout", "10m", "--max-retries", "0", "--max-losses", "5", "--on-blocked", "wait",
		"--escalate", "never", "--reply", "json", "--schema", schema, "--run", "r1",
		"--session", "a2a-20251122T120000Z-7f3a9c21").check(t, 0, "t1\n", "parley task watch t1")
	golden(t, "dispatch-terms", indented(json.RawMessage(got()))+"\n")
}

// What is sent twice with the same id or key is the same, whatever the time is:
// a deadline beside them is a time, and not one from now.
func TestSendTwice(t *testing.T) {
	t.Parallel()
	s, got := inbox(t)
	for _, flags := range [][]string{{"--id", "t1"}, {"--key", "k1"}} {
		send := append([]string{"task", "send", "x"}, flags...)
		s.now = func() time.Time { return noon }
		s.run(t, append(send, "--deadline", "90m")...).check(t, exitUsage, "", "next:  give the time itself: --deadline 2026-11-22T13:30:00Z\n")
		s.run(t, append(send, "--deadline", "2026-11-22T13:30:00Z")...).check(t, 0, "", "")
		first := got()
		s.now = func() time.Time { return noon.Add(time.Minute) }
		s.run(t, append(send, "--deadline", "2026-11-22T13:30:00Z")...).check(t, 0, "", "")
		if again := got(); again != first {
			t.Errorf("%v: sent %s, and then %s", flags, first, again)
		}
	}
	s.pipe(t, `{"brief": "x", "task": {"task_id": "t2"}}`, "task", "send", "--deadline", "90m").check(t, exitUsage, "", "--deadline 90m is another time")
	s.run(t, "task", "send", "x", "--deadline", "90m").check(t, 0, "", "")
}

// Who is not answered is told how to send the same again, to the millisecond.
func TestSendUnanswered(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	s, _ := fakeFleet(t, answers{"task.dispatch": func([]byte) (any, error) {
		<-over
		return nil, subjects.Errorf(subjects.CodeInternal, "it is over")
	}})
	t.Cleanup(func() { close(over) })
	s.now = func() time.Time { return noon.Add(123 * time.Millisecond) }
	s.settings = func(c *config) error { c.Timeout = span(2 * time.Second); return nil }
	out := s.run(t, "task", "send", "x", "--deadline", "90m")
	out.check(t, codeExit(subjects.CodeUnavailable), "", "it may have been accepted all the same")
	if !regexp.MustCompile(`sending it again with --id [0-9a-f-]{36} --deadline 2026-11-22T13:30:00\.123Z is the same task\n$`).MatchString(out.stderr) {
		t.Errorf("stderr is\n%s", out.stderr)
	}
}

func TestSendSources(t *testing.T) {
	t.Parallel()
	s, got := inbox(t)
	brief := func() string {
		t.Helper()
		d, err := fleet.DecodeDispatch([]byte(got()))
		if err != nil {
			t.Fatal(err)
		}
		return string(d.Task.Priority) + ": " + d.Brief
	}
	want := func(what, want string) {
		t.Helper()
		if got := brief(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	out := s.run(t, "task", "send", "say", "hello")
	out.check(t, 0, "", "")
	want("arguments", "normal: say hello")
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}\n$`).MatchString(out.stdout) {
		t.Errorf("stdout is %q, want a new task id and nothing else", out.stdout)
	}
	s.run(t, "task", "send", `{"looks": "like JSON"}`).check(t, 0, "", "")
	want("arguments that look like JSON", `normal: {"looks": "like JSON"}`)
	s.pipe(t, "priority: high\n\nBrief: from stdin\n", "task", "send").check(t, 0, "", "")
	want("standard input with hints", "high: from stdin")
	s.pipe(t, `{"brief": "whole", "task": {"priority": "low"}, "requirements": {}, "later": 1}`, "task", "send", "-f", "-").check(t, 0, "", "")
	if data := got(); !strings.Contains(data, `"later":1`) || !strings.Contains(data, `"priority":"low"`) {
		t.Errorf("dispatched %s, want the whole of what came in", data)
	}
	s.pipe(t, `{"brief": "whole", "task": {"priority": "low"}}`, "task", "send", "--priority", "critical").check(t, 0, "", "")
	want("a flag beside a file", "critical: whole")
	s.pipe(t, `{"brief": 7}`, "task", "send").check(t, 10, "", "at /brief")
	s.run(t, "task", "send", "x", "--priority", "yesterday").check(t, 10, "", "at /task/priority")
	s.pipe(t, strings.Repeat("x", fleet.MaxMessage+1), "task", "send").check(t, 12, "", "payload_too_large")
}

func TestSendWaits(t *testing.T) {
	t.Parallel()
	s, got := inbox(t)
	out := s.run(t, "task", "send", "--wait", "--id", "t-done", "haiku")
	out.check(t, 0, "Queues hold what we send", "done by claude, 1,234,567 tokens")
	if strings.Contains(out.stdout, "t-done") || strings.Contains(out.stdout, "\x1b") {
		t.Errorf("stdout is not the output alone:\n%s", out.stdout)
	}
	got()
	s.run(t, "task", "send", "--wait", "--id", "t-done", "haiku", "-o", "jsonl").check(t, 0, `{"task_id":"t-done","state":"done"`, "")
}

func TestSendRefused(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, answers{"task.dispatch": func([]byte) (any, error) {
		e := subjects.Errorf(subjects.CodeInvalidMessage, "first").At("/task/agent").WithRemedy("do this")
		e.Also = []*subjects.Error{{Code: subjects.CodeInvalidMessage, Message: "second", Pointer: "/deadline"}}
		return nil, e
	}})
	want := "parley: first (invalid_message)\n  where: at /task/agent\n  also:  /deadline: second\n  next:  do this\n"
	if got := s.run(t, "task", "send", "x"); got.stderr != want || got.stdout != "" || got.code != 10 {
		t.Errorf("exit %d, stdout %q, stderr:\n%s\nwant 10 and:\n%s", got.code, got.stdout, got.stderr, want)
	}
}

func TestRepeatsWhatIsUnavailable(t *testing.T) {
	t.Parallel()
	calls := 0
	s, _ := fakeFleet(t, answers{"task.dispatch": func([]byte) (any, error) {
		if calls++; calls < 3 {
			return nil, subjects.Errorf(subjects.CodeUnavailable, "just a moment")
		}
		return fleet.Dispatched{TaskID: "t1", State: fleet.StateQueued}, nil
	}})
	s.run(t, "task", "send", "x").check(t, 0, "t1", "")
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

// What the fleet takes for a mistake is said.
func TestSendWarnings(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, answers{"task.dispatch": always(fleet.Dispatched{
		TaskID: "t1", State: fleet.StateQueued,
		Warnings: []fleet.Warning{{Pointer: "/prioritty", Message: `"prioritty" is not known here`, Remedy: "did you mean priority?"}},
	})})
	s.run(t, "task", "send", "x").check(t, 0, "t1\n", "warning at /prioritty: \"prioritty\" is not known here\n  next:  did you mean priority?\n")
}
