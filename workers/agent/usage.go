package agent

import (
	"fmt"
	"strings"
	"time"

	"parley/subjects/fleet"
)

// Usage names what a command prints, so that its answer, its tokens and its
// errors can be told apart.
type Usage string

// The usages.
const (
	UsageNone Usage = "" // anything: stdout is the answer
	// UsageClaude is claude -p with --output-format json or stream-json.
	UsageClaude Usage = "claude"
	// UsageCodex is codex exec --json.
	UsageCodex Usage = "codex"
)

// env is what the command should be given unless it has it already.
func (u Usage) env() []string {
	if u == UsageClaude {
		// It would retry for minutes, in silence; the fleet knows other agents.
		return []string{"CLAUDE_CODE_MAX_RETRIES=2"}
	}
	return nil
}

// meter reads what a command prints, line by line.
type meter interface {
	// line reads a line; cut says that its end is missing. note is worth
	// telling as progress, tokens is what was spent so far, 0 when not known.
	line(b []byte, cut bool) (note string, tokens int64)
	report(now time.Time) report
}

// newMeter makes the meter of u; past knows the sessions that commands resume.
func newMeter(u Usage, past *totals) (meter, error) {
	switch u {
	case UsageNone:
		return nil, nil
	case UsageClaude:
		return &claude{turns: map[string]claudeUsage{}, current: map[string]string{}}, nil
	case UsageCodex:
		return &codex{past: past}, nil
	}
	return nil, fmt.Errorf("agent: unknown usage %q, want claude or codex", string(u))
}

// report is what a meter has read.
type report struct {
	text     string // the answer
	answered bool   // there was one
	fail     *Fail  // what the tool says went wrong
	spent    *spent // nil: not told
	calls    *callLog
}

// spent is the measured use of a model. What counts as a task's tokens_spent is
// what had to be read anew and what was written: input, writes to the prompt
// cache, output. Reads from that cache cost a tenth or less and are many, so
// they are kept apart.
type spent struct {
	Tool          string  `json:"tool"`
	Session       string  `json:"session,omitempty"` // the tool's own, to resume
	Input         int64   `json:"input_tokens"`
	Output        int64   `json:"output_tokens"`
	CacheCreation int64   `json:"cache_creation_tokens"`
	CacheRead     int64   `json:"cache_read_tokens"`
	CostUSD       float64 `json:"cost_usd,omitzero"`
	Turns         int64   `json:"turns,omitzero"`

	cumulative bool // since the session began, not since the command did
}

func (s *spent) tokens() int64 { return s.Input + s.Output + s.CacheCreation }

// fill puts what was measured into a result: it counts more than what the agent
// says of itself, which is kept in the member usage, along with the details.
func (r report) fill(res *fleet.Result) {
	if r.spent == nil {
		return
	}
	usage := struct {
		*spent
		Reported int64 `json:"reported_tokens,omitzero"`
	}{r.spent, res.TokensSpent}
	if res.Unknown == nil {
		res.Unknown = fleet.Unknown{}
	}
	res.Unknown["usage"] = fleet.MustEncode(usage)
	res.TokensSpent, res.TokensSource = r.spent.tokens(), tokensMeasured
}

// apiFailure is the failure of a model's API by its HTTP status, 0 when there
// was none, told at now.
func apiFailure(status int, message string, now time.Time) *Fail {
	f := &Fail{Message: message, HTTPStatus: status}
	switch {
	case status == 429, status == 529, status == 0 && isLimit(message):
		f.limited(readLimit(message, now))
	case status == 0, status == 408, status >= 500:
		f.Retryable = true // not the task's fault: later, or elsewhere
	}
	return f
}

// firstLine is a line for progress.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return clip(line, 500)
}
