package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// claude reads what Claude Code prints: one result object (--output-format
// json), a line per event of which the last is that object (stream-json), or
// all of them in one array (json with --verbose).
type claude struct {
	result  *claudeEvent
	session string
	turns   map[string]claudeUsage // by message; each of its pieces says anew what it has spent
	sum     claudeUsage            // of all turns so far
	current map[string]string      // ids of the messages under way, by whose sub-agent's they are
	denials []claudeDenial         // told while the command ran
	limit   *limit                 // told while the command ran; nil: none holds
}

type claudeEvent struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`

	// type result
	IsError    bool                   `json:"is_error"`
	Status     int                    `json:"api_error_status"`
	Result     string                 `json:"result"`
	Structured json.RawMessage        `json:"structured_output"`
	Errors     []any                  `json:"errors"`
	Session    string                 `json:"session_id"`
	Cost       float64                `json:"total_cost_usd"`
	Turns      int64                  `json:"num_turns"`
	Usage      claudeUsage            `json:"usage"`
	Models     map[string]claudeModel `json:"modelUsage"`
	Denials    []claudeDenial         `json:"permission_denials"`

	// type system, subtype api_retry
	Attempt     int    `json:"attempt"`
	MaxRetries  int    `json:"max_retries"`
	ErrorStatus int    `json:"error_status"`
	Error       string `json:"error"`

	// type assistant
	Message struct {
		ID      string `json:"id"`
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
			Name string `json:"name"` // of a tool
		} `json:"content"`
		Usage claudeUsage `json:"usage"`
	} `json:"message"`
}

// claudeDenial is a call that Claude Code did not allow: in a result, and as
// system event permission_denied.
type claudeDenial struct {
	Tool  string         `json:"tool_name"`
	ID    string         `json:"tool_use_id"`
	Input map[string]any `json:"tool_input"`
}

type claudeUsage struct {
	Input         int64 `json:"input_tokens"`
	Output        int64 `json:"output_tokens"`
	CacheCreation int64 `json:"cache_creation_input_tokens"`
	CacheRead     int64 `json:"cache_read_input_tokens"`
}

type claudeModel struct {
	Input         int64 `json:"inputTokens"`
	Output        int64 `json:"outputTokens"`
	CacheCreation int64 `json:"cacheCreationInputTokens"`
	CacheRead     int64 `json:"cacheReadInputTokens"`
}

func (c *claude) line(b []byte, cut bool) (note string, tokens int64) {
	b = bytes.TrimSpace(b)
	if cut || len(b) == 0 {
		return "", 0
	}
	var events []json.RawMessage
	switch b[0] {
	case '{':
		events = []json.RawMessage{b}
	case '[':
		if json.Unmarshal(b, &events) != nil {
			return "", 0
		}
	}
	for _, raw := range events {
		if n := c.event(raw); n != "" {
			note = n
		}
	}
	return note, c.sum.spent().tokens()
}

func (c *claude) event(raw []byte) (note string) {
	var kind struct {
		Type    string `json:"type"`
		Subtype string `json:"subtype"`
	}
	if json.Unmarshal(raw, &kind) != nil {
		return ""
	}
	switch {
	case kind.Type == "system" && kind.Subtype == "permission_denied":
		return c.denial(raw)
	case kind.Type == "stream_event":
		c.partial(raw)
		return ""
	case kind.Type == "rate_limit_event":
		c.limitEvent(raw)
		return ""
	case kind.Type == "result", kind.Type == "assistant", kind.Type == "system":
	default:
		return "" // the shape of other events is none of ours
	}
	e := new(claudeEvent)
	if json.Unmarshal(raw, e) != nil {
		return ""
	}
	switch e.Type {
	case "result":
		c.result = e
	case "assistant":
		c.session = e.Session
		c.turn(e.Message.ID, e.Message.Usage)
		for _, part := range e.Message.Content {
			switch {
			case part.Text != "":
				note = firstLine(part.Text)
			case part.Name != "":
				note = "uses " + part.Name
			}
		}
	case "system":
		if e.Subtype == "api_retry" {
			note = fmt.Sprintf("the model's API answers %d %s, retry %d of %d", e.ErrorStatus, e.Error, e.Attempt, e.MaxRetries)
		}
	}
	return note
}

// denial takes in the event of a call that was not allowed.
func (c *claude) denial(raw []byte) (note string) {
	var d claudeDenial
	if json.Unmarshal(raw, &d) != nil {
		return ""
	}
	c.denials = append(c.denials, d)
	return "was not allowed to use " + d.Tool
}

// calls are those that were not allowed: all that the result names, and what
// was told before of others. Headless, there is nobody whom Claude Code could
// ask; it does not say whether a rule or that was the reason.
func (c *claude) calls() *callLog {
	log := new(callLog)
	named := map[string]bool{}
	all := c.denials
	if c.result != nil {
		all = slices.Concat(c.result.Denials, all)
	}
	for _, d := range all {
		if d.ID == "" || !named[d.ID] {
			named[d.ID] = true
			log.deny(toolCall{Kind: d.Tool, Title: titleOf(d.Input)})
		}
	}
	return log
}

// turn counts what a message has spent. The figures of a message only grow: an
// assistant event repeats those that the message began with.
func (c *claude) turn(id string, u claudeUsage) {
	if id != "" {
		was := c.turns[id]
		u = claudeUsage{
			Input: max(u.Input, was.Input), Output: max(u.Output, was.Output),
			CacheCreation: max(u.CacheCreation, was.CacheCreation), CacheRead: max(u.CacheRead, was.CacheRead),
		}
		c.sum.add(was, -1)
		c.turns[id] = u
	}
	c.sum.add(u, 1)
}

// partial takes in a stream_event (--include-partial-messages): what a message
// has spent by its end, which no assistant event says.
func (c *claude) partial(raw []byte) {
	var e struct {
		Session string `json:"session_id"`
		Parent  string `json:"parent_tool_use_id"` // of a sub-agent's message
		Event   struct {
			Type    string `json:"type"`
			Message struct {
				ID    string      `json:"id"`
				Usage claudeUsage `json:"usage"`
			} `json:"message"` // of message_start
			Usage claudeUsage `json:"usage"` // of message_delta
		} `json:"event"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return
	}
	switch e.Event.Type {
	case "message_start":
		c.session = cmp.Or(e.Session, c.session)
		c.current[e.Parent] = e.Event.Message.ID
		c.turn(e.Event.Message.ID, e.Event.Message.Usage)
	case "message_delta":
		if id := c.current[e.Parent]; id != "" {
			c.turn(id, e.Event.Usage)
		}
	}
}

func (u *claudeUsage) add(v claudeUsage, times int64) {
	u.Input += times * v.Input
	u.Output += times * v.Output
	u.CacheCreation += times * v.CacheCreation
	u.CacheRead += times * v.CacheRead
}

func (u *claudeUsage) spent() *spent {
	return &spent{Tool: "claude", Input: u.Input, Output: u.Output, CacheCreation: u.CacheCreation, CacheRead: u.CacheRead}
}

func (c *claude) report(now time.Time) report {
	e := c.result
	if e == nil {
		return report{spent: c.unfinished(), calls: c.calls()}
	}
	r := report{text: e.Result, answered: e.Subtype == "success", spent: e.spent(), calls: c.calls()}
	if s := string(e.Structured); s != "" && s != "null" {
		r.text = s
	}
	if e.IsError || !r.answered || claudeLimit.MatchString(e.Result) {
		r.fail = e.fail(now)
	}
	if r.fail != nil && r.fail.Code == subjects.CodeRateLimited && c.limit != nil {
		if !c.limit.resetAt.IsZero() {
			r.fail.ResetAt, r.fail.RetryAfter = c.limit.resetAt, 0
		}
		r.fail.LimitTier = cmp.Or(c.limit.tier, r.fail.LimitTier)
	}
	return r
}

// unfinished is what the turns of a command have spent that ended, or was
// ended, before it could print a result.
func (c *claude) unfinished() *spent {
	if c.sum == (claudeUsage{}) {
		return nil
	}
	s := c.sum.spent()
	s.Session = c.session
	return s
}

// spent adds up all models: usage is of the main loop only. Of a session that
// was resumed, the models' use and the cost are of the whole session.
func (e *claudeEvent) spent() *spent {
	s := &spent{Tool: "claude"}
	if len(e.Models) == 0 {
		s = e.Usage.spent()
	}
	s.Session, s.CostUSD, s.Turns = e.Session, e.Cost, e.Turns
	s.cumulative = len(e.Models) > 0
	for _, m := range e.Models {
		s.Input += m.Input
		s.Output += m.Output
		s.CacheCreation += m.CacheCreation
		s.CacheRead += m.CacheRead
	}
	return s
}

// fail is why a result is none. API errors come as subtype success with
// is_error; the other subtypes have errors and no result.
func (e *claudeEvent) fail(now time.Time) *Fail {
	var said []string
	for _, s := range e.Errors {
		said = append(said, fmt.Sprint(s))
	}
	message := cmp.Or(strings.Join(said, "; "), e.Result, "claude: "+e.Subtype)
	switch e.Subtype {
	case "error_max_budget_usd":
		return &Fail{Code: subjects.CodeBudgetExhausted, Message: message}
	case "error_max_turns":
		return &Fail{Message: message} // it would run into them again
	case "error_max_structured_output_retries":
		return &Fail{Code: subjects.CodeResultInvalid, Retryable: true, Message: message}
	}
	return apiFailure(e.Status, message, now)
}

// claudeLimit is what Claude Code says, and nothing else, when a usage limit is
// reached; there are versions that call that a success.
var claudeLimit = regexp.MustCompile(`^Claude AI usage limit reached\|\d+$`)

// limitEvent takes in a rate_limit_event: the state of a usage limit.
func (c *claude) limitEvent(raw []byte) {
	var e struct {
		Info struct {
			Status   string `json:"status"`
			ResetsAt int64  `json:"resetsAt"`
			Type     string `json:"rateLimitType"` // five_hour, seven_day, seven_day_opus …
		} `json:"rate_limit_info"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return
	}
	if c.limit = nil; e.Info.Status != "rejected" {
		return
	}
	c.limit = new(limit)
	if at := strconv.FormatInt(e.Info.ResetsAt, 10); len(at) == 10 || len(at) == 13 {
		c.limit.resetAt = epochTime(at)
	}
	if tier, ok := strings.CutPrefix(e.Info.Type, "seven_day_"); ok && (tier == "opus" || tier == "sonnet" || tier == "haiku") {
		c.limit.tier = tier
	}
}
