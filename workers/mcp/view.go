package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"parley/subjects"
	"parley/subjects/fleet"
)

// preview is how many characters of an output are shown unasked.
const preview = 500

// task is a task as a model is shown it.
type task struct {
	TaskID   subjects.TaskID  `json:"task_id"`
	State    fleet.State      `json:"state,omitempty"`
	Ended    bool             `json:"ended"`
	Agent    subjects.AgentID `json:"agent,omitempty"`
	Attempt  int              `json:"attempt,omitempty"`
	Brief    string           `json:"brief,omitempty"`
	Created  *time.Time       `json:"created,omitempty"`
	Updated  *time.Time       `json:"updated,omitempty"`
	Tokens   int64            `json:"tokens_spent,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	WaitsFor string           `json:"waits_for,omitempty"` // agent_question: fleet_message answers; human
	Question string           `json:"question,omitempty"`
	Output   string           `json:"output,omitempty"`
	Chars    int              `json:"output_chars,omitempty"`
	Error    string           `json:"error,omitempty"` // of this entry: it could not be looked at

	away bool // the error is that the fleet could not answer just now
}

// over reports whether waiting for it brings nothing more.
func (t *task) over() bool { return t.Ended || t.Error != "" && !t.away }

// shown is a view in short.
func shown(v *fleet.TaskView) *task {
	t := &task{
		TaskID: v.TaskID, State: v.State, Ended: v.State.Terminal(), Agent: v.AgentID, Attempt: v.Attempt, Brief: v.Brief,
		Created: &v.Created, Updated: &v.Updated, Tokens: v.TokensSpent, Reason: reason(v.Reason), WaitsFor: v.Await,
	}
	if v.Question != nil {
		t.Question = v.Question.Text
	}
	if v.Result != nil {
		t.Agent = v.Result.AgentID
		whole := rendered(v.Result)
		t.Chars = utf8.RuneCountInString(whole)
		t.Output = page(whole, 0, preview)
	}
	return t
}

func reason(r *fleet.Reason) string {
	switch {
	case r == nil:
		return ""
	case r.Message == "":
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Message
}

// rendered is a result as text: its output, and what its parts hold beside it.
func rendered(r *fleet.Result) string {
	var pieces []string
	if text := plain(r.Output); text != "" {
		pieces = append(pieces, text)
	}
	if text := partsText(r.Parts); text != "" && (len(pieces) == 0 || text != pieces[0]) {
		pieces = append(pieces, text)
	}
	return strings.Join(pieces, "\n\n")
}

// plain is JSON for a reader: a string as it is, the rest indented.
func plain(data json.RawMessage) string {
	var s string
	switch {
	case len(data) == 0 || string(data) == "null":
		return ""
	case json.Unmarshal(data, &s) == nil:
		return s
	}
	var v any
	if json.Unmarshal(data, &v) == nil {
		if nice, err := json.MarshalIndent(v, "", "  "); err == nil {
			return string(nice)
		}
	}
	return string(data)
}

// partsText is what parts say; of what is no text, where it is.
func partsText(parts []fleet.Part) string {
	var pieces []string
	for i := range parts {
		p := &parts[i]
		switch name := strings.TrimSpace(p.Filename + " " + p.MediaType); {
		case p.Text != nil:
			pieces = append(pieces, *p.Text)
		case len(p.Data) > 0:
			pieces = append(pieces, plain(p.Data))
		case p.URL != "":
			pieces = append(pieces, strings.TrimSpace("["+name+"] "+p.URL))
		case p.Raw != "":
			pieces = append(pieces, fmt.Sprintf("[%s: %d bytes of base64]", name, len(p.Raw)))
		}
	}
	return strings.Join(pieces, "\n\n")
}

// page is limit characters of s from offset on.
func page(s string, offset, limit int) string {
	n := 0
	begin, end := len(s), len(s)
	for i := range s {
		if n == offset {
			begin = i
		}
		if n == offset+limit {
			end = i
			break
		}
		n++
	}
	return s[begin:end]
}
