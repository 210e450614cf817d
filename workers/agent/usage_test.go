package agent_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// What real CLI agents print, each into the right result, tokens and error.
func TestUsage(t *testing.T) {
	t.Parallel()
	exit1 := errors.New("exit status 1")
	for _, c := range []usageCase{
		{
			file: "claude-result-success.json", usage: agent.UsageClaude,
			output: "The review is done: 2 findings.", tokens: 54,
			detail: map[string]any{
				"tool": "claude", "session": "8d49f37c-1b04-4766-af67-eaee52f57396", "input_tokens": 12.0, "output_tokens": 42.0,
				"cache_creation_tokens": 0.0, "cache_read_tokens": 0.0, "cost_usd": 0.00111, "turns": 1.0,
			},
		},
		{
			file: "claude-stream-success.jsonl", usage: agent.UsageClaude,
			output: "The review is done: 2 findings.", tokens: 54,
		},
		{ // a result alone is no success
			file: "claude-result-success.json", usage: agent.UsageClaude, exit: exit1, tokens: 54,
			fail: &agent.Fail{Message: "exit status 1", Retryable: true},
		},
		{
			file: "claude-result-api-error-400.json", usage: agent.UsageClaude, exit: exit1,
			fail: &agent.Fail{Message: "Credit balance is too low", HTTPStatus: 400},
		},
		{ // nor is an exit status
			file: "claude-result-api-error-400.json", usage: agent.UsageClaude,
			fail: &agent.Fail{Message: "Credit balance is too low", HTTPStatus: 400},
		},
		{
			file: "claude-result-budget.json", usage: agent.UsageClaude, exit: exit1, tokens: 54,
			fail: &agent.Fail{Code: subjects.CodeBudgetExhausted, Message: "Reached maximum budget ($0.0001)"},
		},
		{
			file: "claude-stream-retry-529.jsonl", usage: agent.UsageClaude, exit: exit1,
			fail: &agent.Fail{
				Code:      subjects.CodeRateLimited,
				Message:   "API Error: 529 Overloaded. This is a server-side issue, usually temporary — try again in a moment. If it persists, check your inference gateway (127.0.0.1:18455).",
				Retryable: true, HTTPStatus: 529,
			},
		},
		{
			file: "codex-exec-success.jsonl", usage: agent.UsageCodex,
			output: "The review is done: 2 findings.", tokens: 56,
			detail: map[string]any{
				"tool": "codex", "session": "01a1fc02-3568-7640-b45e-5202df411394", "input_tokens": 36.0, "output_tokens": 20.0,
				"cache_creation_tokens": 0.0, "cache_read_tokens": 64.0,
			},
		},
		{
			file: "codex-exec-401.jsonl", usage: agent.UsageCodex, exit: exit1,
			fail: &agent.Fail{Message: "unexpected status 401 Unauthorized: Incorrect API key, url: http://127.0.0.1:18455/v1/responses", HTTPStatus: 401},
		},
	} {
		data, err := os.ReadFile(filepath.Join("testdata", "cli-agents", c.file))
		if err != nil {
			t.Fatal(err)
		}
		c.printed = string(data)
		c.check(t, c.file)
	}
}

// usageCase is what a tool printed and what is to come of it.
type usageCase struct {
	file    string
	printed string
	usage   agent.Usage
	exit    error
	output  string
	tokens  int64
	detail  map[string]any // of the member usage; nil: whatever
	fail    *agent.Fail
}

func (c usageCase) check(t *testing.T, name string) {
	t.Helper()
	got, err := agent.Read(c.usage, c.printed, c.exit)
	f, _ := errors.AsType[*agent.Fail](err)
	if (f == nil) != (c.fail == nil) || err != nil && f == nil {
		t.Errorf("%s: error = %v, want %v", name, err, c.fail)
		return
	}
	if f != nil {
		bare := *f
		bare.Err = nil
		if diff := cmp.Diff(*c.fail, bare); diff != "" {
			t.Errorf("%s: failure (-want +got):\n%s", name, diff)
		}
	} else if out := output(t, got); out != c.output || got.Status != fleet.StatusDone {
		t.Errorf("%s: %s %q, want done %q", name, got.Status, out, c.output)
	}
	if got.TokensSpent != c.tokens || c.tokens > 0 && got.TokensSource != "measured" {
		t.Errorf("%s: %d tokens (%s), want %d measured", name, got.TokensSpent, got.TokensSource, c.tokens)
	}
	if c.detail != nil {
		var usage map[string]any
		if err := json.Unmarshal(got.Unknown["usage"], &usage); err != nil {
			t.Errorf("%s: usage: %v", name, err)
		}
		if usd, ok := usage["cost_usd"].(float64); ok {
			usage["cost_usd"] = float64(int(usd*1e6+0.5)) / 1e6
		}
		if diff := cmp.Diff(c.detail, usage); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", name, diff)
		}
	}
}

func TestUsageOddities(t *testing.T) {
	t.Parallel()
	const ok = `{"type":"result","subtype":"success","is_error":false,"result":"fine","modelUsage":{"a":{"inputTokens":1,"outputTokens":2,"cacheReadInputTokens":1000,"cacheCreationInputTokens":4},"b":{"inputTokens":8,"outputTokens":16}}}`
	for name, c := range map[string]usageCase{
		"claude: all models count, cache reads do not": {usage: agent.UsageClaude, printed: ok, output: "fine", tokens: 31},
		"claude: an array":              {usage: agent.UsageClaude, printed: `[{"type":"system","subtype":"init"},` + ok + `]`, output: "fine", tokens: 31},
		"claude: noise around it":       {usage: agent.UsageClaude, printed: "hello\n{not json\n" + ok + "\nbye\n", output: "fine", tokens: 31},
		"claude: SIGINT prints nothing": {usage: agent.UsageClaude, printed: "", fail: &agent.Fail{Message: "the command ended without a result", Retryable: true}},
		"claude: 429": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"limit"}`,
			fail: &agent.Fail{Code: subjects.CodeRateLimited, Message: "limit", Retryable: true, HTTPStatus: 429},
		},
		"claude: turns": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"error_max_turns","is_error":true}`,
			fail: &agent.Fail{Message: "claude: error_max_turns"},
		},
		"claude: during execution": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"error_during_execution","is_error":true,"errors":["a","b"]}`,
			fail: &agent.Fail{Message: "a; b", Retryable: true},
		},
		"claude: schema": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"error_max_structured_output_retries","is_error":true,"errors":["no"]}`,
			fail: &agent.Fail{Code: subjects.CodeResultInvalid, Message: "no", Retryable: true},
		},
		"claude: no result": { // a message is told in pieces, each with what it has spent so far
			usage: agent.UsageClaude,
			printed: `{"type":"assistant","session_id":"s","message":{"id":"a","usage":{"input_tokens":10,"output_tokens":1,"cache_creation_input_tokens":5,"cache_read_input_tokens":100}}}` + "\n" +
				`{"type":"assistant","session_id":"s","message":{"id":"b","usage":{"input_tokens":1,"output_tokens":2}}}` + "\n" +
				`{"type":"assistant","session_id":"s","message":{"id":"a","usage":{"input_tokens":10,"output_tokens":3,"cache_creation_input_tokens":5,"cache_read_input_tokens":100}}}` + "\n" +
				`{"type":"assistant","session_id":"s","message":{"usage":{"input_tokens":1}}}` + "\n" + `{"type":"assistant","session_id":"s","message":{"usage":{"input_tokens":1}}}`,
			tokens: 23, fail: &agent.Fail{Message: "the command ended without a result", Retryable: true},
			detail: map[string]any{
				"tool": "claude", "session": "s", "input_tokens": 13.0, "output_tokens": 5.0, "cache_creation_tokens": 5.0, "cache_read_tokens": 100.0,
			},
		},
		"codex: an error that a turn survived": {
			usage:   agent.UsageCodex,
			printed: `{"type":"error","message":"reconnecting 1/5"}` + "\n" + `{"type":"item.completed","item":{"type":"agent_message","text":"one"}}` + "\n" + `{"type":"item.completed","item":{"type":"agent_message","text":"two"}}` + "\n" + `{"type":"turn.completed","usage":{"input_tokens":10,"output_tokens":1}}`,
			output:  "two", tokens: 11,
		},
		"codex: quota": {
			usage: agent.UsageCodex, printed: `{"type":"turn.failed","error":{"message":"You've hit your usage limit. Try again later."}}`,
			fail: &agent.Fail{Code: subjects.CodeRateLimited, Message: "You've hit your usage limit. Try again later.", Retryable: true},
		},
		"codex: 503": {
			usage: agent.UsageCodex, printed: `{"type":"error","message":"unexpected status 503 Service Unavailable"}`,
			fail: &agent.Fail{Message: "unexpected status 503 Service Unavailable", Retryable: true, HTTPStatus: 503},
		},
		"codex: no turn": {
			usage: agent.UsageCodex, printed: `{"type":"thread.started","thread_id":"x"}`,
			fail: &agent.Fail{Message: "the command ended without a result", Retryable: true},
		},
	} {
		c.check(t, name)
	}
	if _, err := agent.NewExec(agent.ExecConfig{Command: []string{"/bin/sh"}, Usage: "gemini"}); err == nil {
		t.Error("NewExec with an unknown usage = nil, want an error")
	}
}
