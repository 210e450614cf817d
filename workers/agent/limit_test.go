package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of what tools print

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// What tools and providers print when a limit is met, each into when it ends.
func TestReadLimit(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 23, 13, 0, 0, 0, berlin) // 12:00 UTC
	for _, c := range []struct {
		text  string
		reset string // RFC 3339; "" none
		after time.Duration
		tier  string
		none  bool // it says nothing of a limit
	}{
		// Claude Code
		{text: "Claude AI usage limit reached|1795418594", reset: "2026-11-23T07:23:14Z"},
		{text: "Claude AI usage limit reached|1795418594000", reset: "2026-11-23T07:23:14Z"},
		{text: "You've hit your limit · resets 3pm (Europe/Berlin)", reset: "2026-11-23T14:00:00Z"},
		{text: "You've hit your limit · resets 11pm (America/Anchorage)", reset: "2026-11-24T08:00:00Z"},
		{text: "You've hit your session limit · resets 12:40pm (Europe/Paris)", reset: "2026-11-24T11:40:00Z"},
		{text: "You've hit your session limit · resets 12:55pm (Europe/Paris)", reset: "2026-11-23T11:55:00Z"}, // just now
		{text: "You've hit your weekly limit · resets Nov 28, 2am (UTC)", reset: "2026-11-28T02:00:00Z"},
		{text: "Opus weekly limit reached ∙ resets Jan 9 at 5pm", reset: "2027-01-09T16:00:00Z", tier: "opus"},
		{text: "You've hit your Sonnet limit · resets 1:30am (Asia/Dhaka)", reset: "2026-11-23T19:30:00Z", tier: "sonnet"},
		{text: "5-hour limit reached ∙ resets 5pm", reset: "2026-11-23T16:00:00Z"},
		{text: "Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5).", reset: "2026-11-23T18:00:00Z"},
		{text: "You've hit your limit · resets 3pm (Mars/Olympus)"},
		{text: "API Error: Request rejected (429) · scripted failure 429"},
		{text: `API Error: 529 {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`},
		// Codex
		{text: "You've hit your usage limit. Upgrade to Pro (https://chatgpt.com/explore/pro) or try again in 3 days 4 hours 5 minutes.", after: 76*time.Hour + 5*time.Minute},
		{text: "You've hit your usage limit. To get more access now, send a request to your admin or try again in 3 days 6 hours 8 minutes.", after: 78*time.Hour + 8*time.Minute},
		{text: "You've hit your usage limit. Visit https://chatgpt.com/codex/settings/usage to purchase more credits or try again at 3:28 PM.", reset: "2026-11-23T14:28:00Z"},
		{text: "You've hit your usage limit or try again at Dec 8th, 2026 12:30 PM.", reset: "2026-12-08T11:30:00Z"},
		{text: "You've hit your usage limit. Try again Dec 18.", reset: "2026-12-17T23:00:00Z"},
		{text: "You've hit your usage limit. Try again at 14:05.", reset: "2026-11-23T13:05:00Z"},
		{text: "You've hit your usage limit. Try again in less than a minute.", after: time.Minute},
		{text: "You've hit your usage limit. Try again later."},
		{text: "exceeded retry limit, last status: 429 Too Many Requests"},
		{text: "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000. Please try again in 11.054s. Visit x", after: 11054 * time.Millisecond},
		{text: `{"error":{"type":"usage_limit_reached","plan_type":"plus","resets_in_seconds":7200}}`, after: 2 * time.Hour},
		{text: `{"error":{"type":"usage_limit_reached","resets_at":1795418594}}`, reset: "2026-11-23T07:23:14Z"},
		// Gemini
		{text: "TerminalQuotaError: You have exhausted your capacity on this model. Your quota will reset after 21h53m56s.", after: 21*time.Hour + 53*time.Minute + 56*time.Second},
		{text: "google returned 429: Your quota will reset after 39s", after: 39 * time.Second},
		{text: "Quota exceeded for metric x. Please retry in 12.5s.", after: 12500 * time.Millisecond},
		{text: `"code": 429, "status": "RESOURCE_EXHAUSTED", "retryDelay": "34.5s"`, after: 34500 * time.Millisecond},
		{text: `RESOURCE_EXHAUSTED "quotaResetDelay":"539.4ms","quotaResetTimeStamp":"2026-11-23T19:14:08Z"`, reset: "2026-11-23T19:14:08Z"},
		{text: "  cause: { code: 429, message: 'scripted failure 429', details: [] },"},
		// opencode and others
		{text: "Internal error: scripted failure 429"},
		{text: "AI_APICallError: Too Many Requests, retry-after: 60", after: time.Minute},
		{text: "Rate limit exceeded, please wait 2 minutes and 30 seconds", none: false},
		{text: "rate limit exceeded; try again in 99999 hours", after: 8 * 24 * time.Hour},
		// of something else
		{text: "main.go:429: undefined: x", none: true},
		{text: "the limit is 10; line 429", none: true},
		{text: "try again in 5 minutes", after: 5 * time.Minute, none: true},
		{text: "connection reset 3 times", none: true},
	} {
		at, after, tier, ok := agent.ReadLimit(c.text, now)
		reset := ""
		if !at.IsZero() {
			reset = at.Format(time.RFC3339)
		}
		if reset != c.reset || after != c.after || tier != c.tier || ok == c.none {
			t.Errorf("%s:\n\tresets %q, after %s, tier %q, a limit %t; want %q, %s, %q, %t", c.text, reset, after, tier, ok, c.reset, c.after, c.tier, !c.none)
		}
	}
}

// FuzzReadLimit: whatever a tool prints, a limit that is read can be written.
func FuzzReadLimit(f *testing.F) {
	f.Add("You've hit your limit · resets 3pm (Europe/Berlin)")
	f.Add("try again at Dec 8th, 9999 12:30 PM")
	f.Add("resets Feb 31, 2am (../../etc)")
	f.Add("Claude AI usage limit reached|9999999999999")
	f.Add("try again in 99999999999999999999 days")
	f.Fuzz(func(t *testing.T, text string) {
		now := time.Now()
		at, after, _, _ := agent.ReadLimit(text, now)
		if after < 0 || after > 8*24*time.Hour {
			t.Fatalf("after = %s", after)
		}
		if at.IsZero() {
			return
		}
		r := fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeRateLimited, Message: "m", ResetAt: &at}}
		if _, err := fleet.EncodeResult(&r); err != nil {
			t.Fatal(err)
		}
	})
}

// A limit that a tool has met is no failure of the task, and says when it ends.
func TestLimits(t *testing.T) {
	t.Parallel()
	const rejected = `{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1795418594,"rateLimitType":"seven_day_opus"}}` + "\n"
	for name, c := range map[string]struct {
		usage   agent.Usage
		printed string
		exit    error
		reset   int64
		after   time.Duration
		tier    string
	}{
		"claude, real, 429": {usage: agent.UsageClaude, printed: vector(t, "claude-fail-429.jsonl"), exit: errors.New("exit status 1")},
		"claude, real, 529": {usage: agent.UsageClaude, printed: vector(t, "claude-stream-retry-529.jsonl"), exit: errors.New("exit status 1")},
		"claude, an epoch": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"success","is_error":true,"result":"Claude AI usage limit reached|1795418594"}`, reset: 1795418594,
		},
		"claude, an epoch as success": {
			usage: agent.UsageClaude, printed: `{"type":"result","subtype":"success","result":"Claude AI usage limit reached|1795418594"}`, reset: 1795418594,
		},
		"claude, an event": {
			usage: agent.UsageClaude, tier: "opus", reset: 1795418594,
			printed: rejected + `{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"You've hit your limit · resets 3pm"}`,
		},
		"codex, real, 429": {usage: agent.UsageCodex, printed: vector(t, "codex-fail-429.jsonl"), exit: errors.New("exit status 1")},
		"codex, a duration": {
			usage: agent.UsageCodex, after: 76 * time.Hour,
			printed: `{"type":"turn.failed","error":{"message":"You've hit your usage limit. Try again in 3 days 4 hours."}}`,
		},
		"plain, stdout": {printed: "Error: Your quota will reset after 1h49m8s.", exit: errors.New("exit status 1"), after: time.Hour + 49*time.Minute + 8*time.Second},
	} {
		got, err := agent.Read(c.usage, c.printed, c.exit)
		f, ok := errors.AsType[*agent.Fail](err)
		if !ok || f.Code != subjects.CodeRateLimited || !f.Retryable || f.RetryAfter != c.after || f.LimitTier != c.tier {
			t.Errorf("%s: %+v, %v; want rate_limited, after %s, tier %q", name, got, err, c.after, c.tier)
			continue
		}
		if c.reset == 0 && !f.ResetAt.IsZero() || c.reset != 0 && f.ResetAt.Unix() != c.reset {
			t.Errorf("%s: resets %s, want %d", name, f.ResetAt, c.reset)
		}
	}
	allowed := strings.Replace(rejected, "rejected", "allowed_warning", 1)
	if got, err := agent.Read(agent.UsageClaude, rejected+allowed+`{"type":"result","subtype":"success","result":"fine"}`, nil); err != nil || got.Status != fleet.StatusDone {
		t.Errorf("a limit that was lifted: %+v, %v", got, err)
	}
}

// While a limit holds that the handler met, offers are refused with its end,
// and nothing is started; a task that was done ends it.
func TestHoldLimits(t *testing.T) {
	t.Parallel()
	reset := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for name, c := range map[string]struct {
		fail *agent.Fail
		held bool
		tier string // of the agent
	}{
		"reset":         {fail: &agent.Fail{ResetAt: reset}, held: true},
		"after":         {fail: &agent.Fail{RetryAfter: time.Hour}, held: true},
		"its tier":      {fail: &agent.Fail{ResetAt: reset, LimitTier: "opus"}, held: true, tier: "opus"},
		"another tier":  {fail: &agent.Fail{ResetAt: reset, LimitTier: "opus"}, tier: "sonnet"},
		"is over":       {fail: &agent.Fail{ResetAt: time.Now().Add(-time.Minute)}},
		"who knows how": {fail: &agent.Fail{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.fail.Code, c.fail.Message = subjects.CodeRateLimited, "enough"
			r := newRouter(t)
			a := r.start(agent.Config{HoldLimits: true, ModelTier: c.tier, Handler: agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
				if task.ID() == "t1" {
					return fleet.Result{}, c.fail
				}
				return agent.Text("done"), nil
			})})
			a.give(dispatch("t1", "x"))
			got := r.result("t1")
			if at := got.Error.ResetAt; code(got) != subjects.CodeRateLimited || (at == nil) != c.fail.ResetAt.IsZero() || got.Error.LimitTier != c.fail.LimitTier {
				t.Errorf("result = %+v", got.Error)
			}
			p := a.offer(dispatch("t2", "x"))
			if p.accepted() == c.held {
				t.Fatalf("offer accepted %t, want %t", p.accepted(), !c.held)
			}
			if !c.held {
				return
			}
			ack := p.ack
			if ack == nil || ack.Reason.Code != subjects.CodeRateLimited || ack.Reason.Message != "enough" || ack.LimitTier != c.fail.LimitTier {
				t.Fatalf("ack = %+v", ack)
			}
			if at := ack.ResetAt; !c.fail.ResetAt.IsZero() && (at == nil || !at.Equal(reset) || ack.RetryAfterSeconds != 0) {
				t.Errorf("refused until %v, after %v s; want %v", at, ack.RetryAfterSeconds, reset)
			}
			if c.fail.RetryAfter > 0 && (ack.ResetAt != nil || ack.RetryAfterSeconds < 3000 || ack.RetryAfterSeconds > 3600) {
				t.Errorf("refused until %v, after %v s; want an hour", ack.ResetAt, ack.RetryAfterSeconds)
			}
		})
	}
}
