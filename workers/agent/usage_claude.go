package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"parley/subjects"
)

// claude reads what Claude Code prints: one result object (--output-format
// json), a line per event of which the last is that object (stream-json), or
// all of them in one array (json with --verbose).
type claude struct {
	result *claudeEvent
	tokens int64 // of the turns so far
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

	// type system, subtype api_retry
	Attempt     int    `json:"attempt"`
	MaxRetries  int    `json:"max_retries"`
	ErrorStatus int    `json:"error_status"`
	Error       string `json:"error"`

	// type assistant
	Message struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
			Name string `json:"name"` // of a tool
		} `json:"content"`
		Usage claudeUsage `json:"usage"`
	} `json:"message"`
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
	return note, c.tokens
}

func (c *claude) event(raw []byte) (note string) {
	var kind struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(raw, &kind) != nil {
		return ""
	}
	switch kind.Type {
	case "result", "assistant", "system":
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
		u := e.Message.Usage
		c.tokens += u.Input + u.Output + u.CacheCreation
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

func (c *claude) report() report {
	e := c.result
	if e == nil {
		return report{}
	}
	r := report{text: e.Result, answered: e.Subtype == "success", spent: e.spent()}
	if s := string(e.Structured); s != "" && s != "null" {
		r.text = s
	}
	if e.IsError || !r.answered {
		r.fail = e.fail()
	}
	return r
}

// spent adds up all models: usage is of the main loop only.
func (e *claudeEvent) spent() *spent {
	s := &spent{Tool: "claude", Session: e.Session, CostUSD: e.Cost, Turns: e.Turns}
	for _, m := range e.Models {
		s.Input += m.Input
		s.Output += m.Output
		s.CacheCreation += m.CacheCreation
		s.CacheRead += m.CacheRead
	}
	if len(e.Models) == 0 {
		u := e.Usage
		s.Input, s.Output, s.CacheCreation, s.CacheRead = u.Input, u.Output, u.CacheCreation, u.CacheRead
	}
	return s
}

// fail is why a result is none. API errors come as subtype success with
// is_error; the other subtypes have errors and no result.
func (e *claudeEvent) fail() *Fail {
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
	return apiFailure(e.Status, message)
}
