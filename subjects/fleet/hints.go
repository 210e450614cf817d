package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"parley/subjects"
)

// The inline form of a dispatch, phase 1 of the source: hints in the head of a
// plain-text brief.
//
//	TASK DISPATCH (inline)
//	priority: high
//	required_mcp: [context_mode]
//
//	Brief: Refactor the auth module...

const inlineHead = "TASK DISPATCH (inline)"

// hintForm is how the value of a hint is written.
type hintForm int

const (
	textHint hintForm = iota
	numberHint
	boolHint
	listHint
	jsonHint // an object in JSON on one line
)

// hint is a key that the head may have: where it goes and how it is written.
type hint struct {
	pointer string
	form    hintForm
}

var hints = map[string]hint{
	"protocol_version": {"/protocol_version", textHint},
	"deadline":         {"/deadline", textHint},

	"task_id":         {"/task/task_id", textHint},
	"priority":        {"/task/priority", textHint},
	"reply_schema":    {"/task/reply_schema", textHint},
	"token_budget":    {"/task/token_budget", numberHint},
	"type":            {"/task/type", textHint},
	"timeout_seconds": {"/task/timeout_seconds", numberHint},
	"max_retries":     {"/task/max_retries", numberHint},
	"max_losses":      {"/task/max_losses", numberHint},
	"agent":           {"/task/agent", textHint},
	"alternatives":    {"/task/alternatives", listHint},
	"on_blocked":      {"/task/on_blocked", textHint},
	"escalate":        {"/task/escalate", textHint},
	"result_schema":   {"/task/result_schema", jsonHint},
	"session_id":      {"/task/session_id", textHint},
	"idempotency_key": {"/task/idempotency_key", textHint},
	"run_id":          {"/task/run_id", textHint},

	"required_mcp":          {"/requirements/required_mcp", listHint},
	"required_capabilities": {"/requirements/required_capabilities", listHint},
	"model_tier":            {"/requirements/model_tier", textHint},
	"clean_repo":            {"/requirements/clean_repo", boolHint},
	"labels":                {"/requirements/labels", jsonHint},
}

// decodeText reads a plain-text brief. With the line inlineHead it must have a
// head of hints; without it a head counts only if all of it are good hints and
// a brief follows, so no text is ever lost or refused for looking like one.
func decodeText(data []byte) (*Dispatch, error) {
	if err := strict.checkText(data); err != nil {
		return nil, err
	}
	if !utf8.Valid(data) {
		return nil, invalid("", "not UTF-8").WithRemedy("send a brief in UTF-8, or JSON")
	}
	text := string(data)
	h := newHead()
	marked := h.cut(text)
	err := h.read()
	var d *Dispatch
	if err == nil && (marked || len(h.values) > 0 && h.ended) {
		d, err = h.dispatch()
	}
	if err == nil && d != nil {
		err = fits(d, len(text))
	}
	switch {
	case err == nil && d != nil:
		return d, nil
	case marked:
		return nil, err
	case subjects.CodeOf(err) == subjects.CodeVersionMismatch, subjects.CodeOf(err) == subjects.CodePayloadTooLarge:
		return nil, err
	}
	plain := &Dispatch{Brief: text}
	var p problems
	plain.check(&p)
	if err := p.err(); err != nil {
		return nil, err
	}
	if err := plain.settle(TypeDispatch); err != nil {
		return nil, err
	}
	if err := fits(plain, len(text)); err != nil {
		return nil, err
	}
	return plain, nil
}

// head is the head of an inline dispatch.
type head struct {
	text   []string // its lines
	first  int      // number of the first of them, from 1
	ended  bool     // by an empty line or by Brief:
	brief  string
	values map[string]json.RawMessage // by key
	lines  map[string]int             // line number by JSON pointer
}

func newHead() head {
	return head{lines: map[string]int{}, values: map[string]json.RawMessage{}}
}

// cut splits text into head and brief and reports whether it has the line
// inlineHead.
func (h *head) cut(text string) (marked bool) {
	rest := strings.TrimLeft(text, " \t\r\n")
	h.first = 1 + strings.Count(text[:len(text)-len(rest)], "\n")
	if line, after, _ := strings.Cut(rest, "\n"); strings.EqualFold(strings.TrimSpace(line), inlineHead) {
		marked, rest = true, after
		h.first++
	}
	for rest != "" {
		line, after, _ := strings.Cut(rest, "\n")
		trimmed := strings.TrimSpace(line)
		if _, isBrief := cutBrief(trimmed); trimmed == "" || isBrief {
			h.ended = true
			break
		}
		h.text = append(h.text, trimmed)
		rest = after
	}
	h.brief = strings.TrimSpace(rest)
	if after, ok := cutBrief(h.brief); ok {
		h.brief = strings.TrimSpace(after)
	}
	return marked
}

func cutBrief(s string) (string, bool) {
	const label = "brief:"
	if len(s) < len(label) || !strings.EqualFold(s[:len(label)], label) {
		return s, false
	}
	return s[len(label):], true
}

// read turns the lines of the head into values.
func (h *head) read() error {
	for i := 0; i < len(h.text); i++ {
		at := h.first + i
		key, value, ok := strings.Cut(h.text[i], ":")
		known, isHint := hints[strings.TrimSpace(key)]
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		switch {
		case !ok:
			return invalid("", "line %d: expected key: value, got %q", at, clip(h.text[i])).
				WithRemedy("end the hints with an empty line; the brief follows")
		case !isHint:
			e := invalid("", "line %d: %q is not a hint", at, clip(key)).
				WithRemedy("use the names of TASK_DISPATCH; end the hints with an empty line; the brief follows")
			if near := subjects.Nearest(key, sortedKeys(hints)); near != "" {
				e = e.WithRemedy("did you mean " + near + "?")
			}
			return e
		case h.lines[known.pointer] != 0:
			return invalid(known.pointer, "line %d: %s is there twice", at, key)
		}
		h.lines[known.pointer] = at
		var items []string
		for value == "" && i+1 < len(h.text) && isItem(h.text[i+1]) {
			i++
			items = append(items, strings.TrimSpace(h.text[i][1:]))
		}
		raw, err := known.value(value, items)
		if err != nil {
			return invalid(known.pointer, "line %d: %w", at, err)
		}
		h.values[key] = raw
	}
	return nil
}

func isItem(line string) bool { return line == "-" || strings.HasPrefix(line, "- ") }

// value writes a hint's value as JSON.
func (k hint) value(value string, items []string) (json.RawMessage, error) {
	if items != nil && k.form != listHint {
		return nil, errors.New("expected one value, got a list")
	}
	if value == "" && items == nil {
		return json.RawMessage("null"), nil
	}
	switch k.form {
	case textHint:
		s, err := unquote(value)
		return MustEncode(s), err
	case numberHint:
		if !jsontext.Value(value).IsValid() || jsontext.Value(value).Kind() != '0' {
			return nil, fmt.Errorf("expected a number, got %q", clip(value))
		}
		return json.RawMessage(value), nil
	case boolHint:
		switch strings.ToLower(value) {
		case "true", "yes", "on":
			return json.RawMessage("true"), nil
		case "false", "no", "off":
			return json.RawMessage("false"), nil
		}
		return nil, fmt.Errorf("expected true or false, got %q", clip(value))
	case listHint:
		if items == nil {
			items = splitList(value)
		}
		list := make([]string, len(items))
		for i, item := range items {
			var err error
			if list[i], err = unquote(item); err != nil {
				return nil, err
			}
		}
		return MustEncode(list), nil
	case jsonHint:
		if value[0] != '{' || !jsontext.Value(value).IsValid() {
			return nil, fmt.Errorf("expected a JSON object on one line, got %q", clip(value))
		}
		return json.RawMessage(value), nil
	}
	panic("a hint without a form")
}

// splitList splits [a, "b, c"] or a, b at the commas outside quotes.
func splitList(s string) []string {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			s = strings.TrimSpace(inner)
		}
	}
	items := []string{}
	if s == "" {
		return items
	}
	quote, start := byte(0), 0
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote && (quote == '\'' || s[i-1] != '\\') {
				quote = 0
			}
		case (c == '"' || c == '\'') && strings.TrimSpace(s[start:i]) == "":
			quote = c
		case c == ',':
			items = append(items, strings.TrimSpace(s[start:i]))
			start = i + 1
		}
	}
	return append(items, strings.TrimSpace(s[start:]))
}

// unquote takes the quotes off: double ones hold a JSON string, single ones
// anything, with two apostrophes for one.
func unquote(s string) (string, error) {
	switch {
	case s == "" || s[0] != '"' && s[0] != '\'':
		return s, nil
	case s[0] == '"':
		var t string
		if json.Unmarshal([]byte(s), &t) != nil {
			return "", fmt.Errorf("expected a closed quotation, got %q", clip(s))
		}
		return t, nil
	case len(s) >= 2 && s[len(s)-1] == '\'':
		return strings.ReplaceAll(s[1:len(s)-1], "''", "'"), nil
	}
	return "", fmt.Errorf("expected a closed quotation, got %q", clip(s))
}

// dispatch builds the dispatch that the hints describe.
func (h *head) dispatch() (*Dispatch, error) {
	task, requirements := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	root := map[string]any{"brief": h.brief, "task": task, "requirements": requirements}
	for key, raw := range h.values {
		switch parent, _, _ := strings.Cut(hints[key].pointer[1:], "/"); parent {
		case "task":
			task[key] = raw
		case "requirements":
			requirements[key] = raw
		default:
			root[key] = raw
		}
	}
	d, err := decode[Dispatch](MustEncode(root), TypeDispatch, limits{depth: MaxDepth})
	if err != nil {
		e := subjects.AsError(err)
		h.number(e)
		for _, also := range e.Also {
			h.number(also)
		}
		return nil, e
	}
	return d, nil
}

// number puts the line that an error is about in front of its message.
func (h *head) number(e *subjects.Error) {
	for pointer, at := range h.lines {
		if e.Pointer == pointer || strings.HasPrefix(e.Pointer, pointer+"/") {
			e.Message = fmt.Sprintf("line %d: %s", at, e.Message)
			return
		}
	}
}
