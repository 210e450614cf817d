package agent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// vector is what a real tool has printed.
func vector(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "cli-agents", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// A task is not done where a call of the tool was denied or its last one failed.
func TestDeniedCalls(t *testing.T) {
	t.Parallel()
	const (
		said = `{"type":"item.completed","item":{"type":"agent_message","text":"I have written it."}}` + "\n"
		over = `{"type":"turn.completed","usage":{"input_tokens":10,"output_tokens":1}}` + "\n"
	)
	command := func(name, status, output, exit string) string {
		return `{"type":"item.completed","item":{"type":"command_execution","command":"` + name + `","aggregated_output":"` + output + `","exit_code":` + exit + `,"status":"` + status + `"}}` + "\n"
	}
	patch := func(status string) string {
		return `{"type":"item.completed","item":{"type":"file_change","changes":[{"path":"a.go","kind":"update"}],"status":"` + status + `"}}` + "\n"
	}
	claudeResult := func(text, denials string) string {
		return `{"type":"result","subtype":"success","result":"` + text + `","usage":{"input_tokens":3},"permission_denials":` + denials + `}`
	}
	push := `[{"tool_name":"Bash","tool_use_id":"t1","tool_input":{"command":"git push","description":"x"}}]`
	for name, c := range map[string]struct {
		usage     agent.Usage
		printed   string
		status    fleet.Status
		code      subjects.Code
		remaining []string
		denied    string
		failed    string
	}{
		"claude, real, a denied write": {
			usage: agent.UsageClaude, printed: vector(t, "claude-write-denied.jsonl"), status: fleet.StatusPartial,
			remaining: []string{"denied: Write /srv/repo/made2.txt"}, denied: `[{"kind":"Write","title":"/srv/repo/made2.txt"}]`,
		},
		"claude, one result": {
			usage: agent.UsageClaude, printed: claudeResult("Shall I try otherwise?", push), status: fleet.StatusPartial,
			remaining: []string{"denied: Bash git push"}, denied: `[{"kind":"Bash","title":"git push"}]`,
		},
		"claude, nothing said": {
			usage: agent.UsageClaude, printed: claudeResult("", push), status: fleet.StatusBlocked, code: subjects.CodePermissionDenied,
			denied: `[{"kind":"Bash","title":"git push"}]`,
		},
		"claude, told by an event alone": {
			usage:     agent.UsageClaude,
			printed:   `{"type":"system","subtype":"permission_denied","tool_name":"Edit","tool_use_id":"t9","message":"no"}` + "\n" + claudeResult("done", "[]"),
			status:    fleet.StatusPartial,
			remaining: []string{"denied: Edit"}, denied: `[{"kind":"Edit","title":""}]`,
		},
		"claude, nothing denied": {usage: agent.UsageClaude, printed: claudeResult("done", "[]"), status: fleet.StatusDone},
		"codex, real, a write":   {usage: agent.UsageCodex, printed: vector(t, "codex-write-workspace.jsonl"), status: fleet.StatusDone},
		"codex, declined": {
			usage: agent.UsageCodex, printed: command("rm x", "declined", "", "null") + said + over, status: fleet.StatusPartial,
			remaining: []string{"denied: command_execution rm x"}, denied: `[{"kind":"command_execution","title":"rm x","by":"nobody"}]`,
		},
		"codex, the sandbox": {
			usage: agent.UsageCodex, status: fleet.StatusPartial,
			printed:   command("touch x", "failed", "touch: x: Read-only file system", "1") + command("ls", "completed", "", "0") + said + over,
			remaining: []string{"denied: command_execution touch x"}, denied: `[{"kind":"command_execution","title":"touch x","exit_code":1}]`,
		},
		"codex, a patch that failed": {
			usage: agent.UsageCodex, printed: patch("failed") + said + over, status: fleet.StatusPartial,
			remaining: []string{"denied: file_change a.go"}, denied: `[{"kind":"file_change","title":"a.go"}]`,
		},
		"codex, a patch that was made good": {usage: agent.UsageCodex, printed: patch("failed") + patch("completed") + said + over, status: fleet.StatusDone},
		"codex, the last command failed": {
			usage: agent.UsageCodex, printed: command("ls", "completed", "", "0") + command("make test", "failed", "FAIL", "2") + said + over, status: fleet.StatusPartial,
			remaining: []string{"failed: command_execution make test (exit status 2)"}, failed: `[{"kind":"command_execution","title":"make test","exit_code":2}]`,
		},
		"codex, a failure that was met": {
			usage: agent.UsageCodex, printed: command("make test", "failed", "FAIL", "2") + command("make test", "completed", "", "0") + said + over,
			status: fleet.StatusDone, failed: `[{"kind":"command_execution","title":"make test","exit_code":2}]`,
		},
		"codex, only refused": {
			usage: agent.UsageCodex, printed: command("rm x", "declined", "", "null") + `{"type":"item.completed","item":{"type":"agent_message","text":""}}` + "\n" + over,
			status: fleet.StatusBlocked, code: subjects.CodePermissionDenied, denied: `[{"kind":"command_execution","title":"rm x","by":"nobody"}]`,
		},
	} {
		got, err := agent.Read(c.usage, c.printed, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Status != c.status || code(got) != c.code || got.TokensSpent == 0 {
			t.Errorf("%s: %s %q, %d tokens; want %s %q", name, got.Status, code(got), got.TokensSpent, c.status, c.code)
		}
		if diff := cmp.Diff(c.remaining, got.Remaining); diff != "" {
			t.Errorf("%s: remaining (-want +got):\n%s", name, diff)
		}
		if denied, failed := string(got.Unknown["denied"]), string(got.Unknown["failed_calls"]); denied != c.denied || failed != c.failed {
			t.Errorf("%s: denied %s, failed %s; want %s, %s", name, denied, failed, c.denied, c.failed)
		}
		if _, err := fleet.EncodeResult(&got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where JSON is wanted, prose that explains a denial is no invalid result.
func TestDeniedCallsWithoutJSON(t *testing.T) {
	t.Parallel()
	d := dispatch("t1", "x")
	d.Task.ReplySchema = fleet.ReplyJSON
	got, err := agent.ReadFor(d, agent.UsageClaude, vector(t, "claude-write-denied.jsonl"), nil)
	if err != nil || got.Status != fleet.StatusBlocked || code(got) != subjects.CodePermissionDenied {
		t.Errorf("result = %+v, %v; want blocked, permission_denied", got, err)
	}
	var denied []json.RawMessage
	if err := json.Unmarshal(got.Unknown["denied"], &denied); err != nil || len(denied) != 1 {
		t.Errorf("denied = %s, %v", got.Unknown["denied"], err)
	}
}
