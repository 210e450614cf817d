package agent

import (
	"bytes"
	"encoding/json"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxAnswer is the longest answer that is sure to fit into a result, what the
// quoting of text adds included.
const maxAnswer = fleet.MaxMessage - 64<<10

// ReadAnswer turns what an agent said into a result, as its dispatch asked for
// it. It decides purely.
func ReadAnswer(text string, d *fleet.Dispatch) (fleet.Result, error) {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if text == "" {
		if WantsJSON(d) {
			return fleet.Result{}, notJSON("nothing")
		}
		return Text(""), nil
	}
	if strings.Contains(text, `"`+fleet.TypeResult+`"`) {
		r, err := fleet.ReadResult([]byte(text))
		if err != nil {
			return fleet.Result{}, &Fail{Code: subjects.CodeResultInvalid, Retryable: true, Message: "the TASK_RESULT in the answer: " + err.Error(), Err: err}
		}
		if r.Output == nil && len(d.Task.ResultSchema) == 0 {
			r.Output = fleet.MustEncode(text)
		}
		return *r, nil
	}
	if !WantsJSON(d) {
		return Text(text), nil
	}
	value := []byte(unfence(text))
	switch {
	case json.Valid(value):
		return fleet.Result{Status: fleet.StatusDone, Output: value}, nil
	case len(d.Task.ResultSchema) > 0:
		return Text(text), nil // the schema may want a text; who checks it says so
	}
	return fleet.Result{}, notJSON(clip(text, 200))
}

// WantsJSON reports whether a dispatch asks for a JSON value.
func WantsJSON(d *fleet.Dispatch) bool {
	return d.Task.ReplySchema == fleet.ReplyJSON || len(d.Task.ResultSchema) > 0
}

func notJSON(got string) error {
	return &Fail{Code: subjects.CodeResultInvalid, Retryable: true, Message: "the answer is not one JSON value: " + got}
}

// unfence takes a JSON value out of the code fence that models like to put
// around it, with or without words before and after.
func unfence(text string) string {
	if json.Valid([]byte(text)) {
		return text
	}
	_, rest, ok := strings.Cut(text, "```")
	if !ok {
		return text
	}
	_, rest, _ = strings.Cut(rest, "\n") // the fence's language
	inside, _, closed := strings.Cut(rest, "```")
	if value := bytes.TrimSpace([]byte(inside)); closed && json.Valid(value) {
		return string(value)
	}
	return text
}
