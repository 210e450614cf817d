package fleet

import (
	"bytes"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"parley/subjects"
)

// EncodeResult is Encode for a result that somebody else has made: it refuses
// what DecodeResult would.
func EncodeResult(r *Result) ([]byte, error) {
	data, err := Encode(r)
	if err != nil {
		return nil, err
	}
	if err := strict.check(data); err != nil {
		return data, err
	}
	var p problems
	r.check(&p)
	return data, p.err()
}

func (r *Result) check(p *problems) {
	p.taskID("/task_id", r.TaskID, false)
	p.counted("/tokens_spent", r.TokensSpent, maxCount)
	p.attempt("/attempt", r.Attempt)
	p.epoch("/epoch", r.Epoch)
	p.agentID("/agent_id", r.AgentID, false)
	p.instanceID("/instance_id", r.InstanceID)
	p.state(r.State, true)
	p.object("/artifacts", &r.Artifacts)
	p.parts("/parts", r.Parts)
	if r.Error != nil {
		r.Error.check(p)
	}
	switch r.Status {
	case StatusDone:
	case StatusBlocked:
		if r.BlockedReason == nil || strings.TrimSpace(*r.BlockedReason) == "" {
			p.add(invalid("/blocked_reason", "expected text, as the status is blocked, got nothing").
				WithRemedy("say what the agent is blocked by"))
		}
	case StatusError:
		if r.Error == nil {
			p.add(invalid("/error", "expected object, as the status is error, got nothing").
				WithRemedy(`say what failed: "error": {"message": "…"}`))
		}
	case StatusPartial:
		if len(r.Remaining) == 0 && len(r.NextSteps) == 0 {
			p.add(invalid("/remaining", "expected what remains, as the status is partial, got nothing").
				WithRemedy("list what is left to do in remaining or next_steps"))
		}
	case "":
		p.invalid("/status", "expected one of done, blocked, error, partial, got nothing")
	default:
		p.invalid("/status", "expected one of done, blocked, error, partial, got %q", clip(string(r.Status)))
	}
}

func (e *ResultError) check(p *problems) {
	if strings.TrimSpace(e.Message) == "" {
		p.invalid("/error/message", "expected text, got nothing")
	}
	if e.Code == "" {
		e.Code = subjects.CodeAgentError
	}
	p.between("/error/retry_after_seconds", e.RetryAfterSeconds, 0, maxTimeout)
	p.counted("/error/http_status", int64(e.HTTPStatus), 999)
	p.word("/error/limit_tier", e.LimitTier)
}

// UnmarshalJSONFrom also takes a text for the whole error, its message: the
// source asks for an error summary without giving it a shape.
func (e *ResultError) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '"' {
		*e = ResultError{}
		return json.UnmarshalDecode(d, &e.Message)
	}
	type plain ResultError // without this method
	return json.UnmarshalDecode(d, (*plain)(e))
}

// ReadResult reads what an agent hands in: a TASK_RESULT in JSON, prose that
// contains one (see FindResult), or anything else, which is a result of
// StatusDone with it as Output: prose as a JSON string, a JSON object that has
// nothing of a TASK_RESULT as it stands. A TASK_RESULT that breaks the rules is
// an error, never prose: its sender may not have said that it is done.
func ReadResult(data []byte) (*Result, error) {
	if err := strict.checkText(data); err != nil {
		return nil, err
	}
	if !utf8.Valid(data) {
		return nil, invalid("", "not UTF-8").WithRemedy("send JSON or text in UTF-8")
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 { // other white space than JSON's
		return nil, empty()
	}
	var syntax error
	if data[0] == '{' {
		r := new(Result)
		err := unmarshal(data, r)
		switch {
		case err == nil && foreign(r) && !deeper(data, MaxDepth):
			return done(data), nil
		case err == nil, !isSyntax(err):
			return DecodeResult(data)
		}
		syntax = err
	}
	r, problem := findResult(string(data))
	switch {
	case r != nil:
		return r, nil
	case problem != nil:
		return nil, problem
	case syntax != nil && data[len(data)-1] == '}' && bytes.Contains(data, []byte(`"status"`)):
		return nil, syntax
	}
	r = done(MustEncode(string(data)))
	if err := fits(r, len(data)); err != nil {
		return nil, err
	}
	return r, nil
}

func done(output []byte) *Result {
	return &Result{
		Header: Header{Type: TypeResult, ProtocolVersion: Version},
		Status: StatusDone, NextSteps: []string{}, Output: bytes.Clone(output),
	}
}

// foreign reports whether a JSON object has members, but none of TASK_RESULT.
func foreign(r *Result) bool {
	return len(r.Unknown) > 0 && reflect.DeepEqual(r, &Result{Unknown: r.Unknown})
}
