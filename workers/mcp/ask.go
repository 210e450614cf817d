package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// patience is how long a call of the API may take beside the time that it is to
// wait, replacement how long it waits for a worker where there is none.
const (
	patience    = 8 * time.Second
	replacement = 2 * time.Second
)

// caller uses the fleet in somebody's name.
type caller struct {
	w    *Worker
	from subjects.AgentID
}

// ask calls the fleet's API, which may take wait. The request must be safe to
// repeat. Its error is for a model to read.
func ask[T any](ctx context.Context, c *caller, noun, verb string, wait time.Duration, req any) (T, error) {
	var none T
	data, err := fleet.Encode(req)
	if err != nil {
		return none, told(err, noun)
	}
	ctx, cancel := context.WithTimeout(ctx, wait+patience)
	defer cancel()
	subject := subjects.API(c.from, noun, verb)
	m, err := c.w.cfg.Bus.Request(ctx, subject, data, nil)
	var last bus.Msg
	repeat := func(m bus.Msg) bool {
		last = m
		return again(m.Data)
	}
	if err == nil && repeat(m) || errors.Is(err, bus.ErrNoResponders) {
		soon, stop := context.WithTimeout(ctx, wait+replacement)
		defer stop()
		m, err = c.w.cfg.Bus.RequestUntil(soon, subject, data, nil, wait+replacement, repeat)
	}
	if err != nil && last.Data != nil {
		m, err = last, nil // the refusal says more than the time-out
	}
	if err != nil {
		return none, told(err, noun)
	}
	v, err := fleet.DecodeReply[T](m.Data)
	if err != nil {
		return none, told(err, noun)
	}
	return v, nil
}

// again reports whether a reply asks for the request to be repeated.
func again(data []byte) bool {
	var r fleet.ErrorReply
	return json.Unmarshal(data, &r) == nil && r.Error != nil && r.Error.Code == subjects.CodeUnavailable
}

// refusal is an error that a model can act on.
type refusal struct {
	code     subjects.Code
	argument string // of the tool
	message  string
	remedy   string
}

func (r *refusal) Error() string {
	s := string(r.code) + ": "
	if r.argument != "" {
		s += r.argument + ": "
	}
	s += strings.TrimSuffix(r.message, ".") + "."
	if r.remedy != "" {
		s += " What to do: " + strings.TrimSuffix(r.remedy, ".") + "."
	}
	return s
}

// bad refuses an argument.
func bad(argument, message, remedy string) error {
	return &refusal{code: subjects.CodeInvalidMessage, argument: argument, message: message, remedy: remedy}
}

// refusals are several of them at once.
type refusals []*refusal

func (rs refusals) Error() string {
	var s []string
	for _, r := range rs {
		s = append(s, r.Error())
	}
	return strings.Join(s, "\n")
}

// Unwrap lets errors.As find the first.
func (rs refusals) Unwrap() []error {
	all := make([]error, len(rs))
	for i, r := range rs {
		all[i] = r
	}
	return all
}

// unavailable reports whether err says that the fleet cannot answer just now.
func unavailable(err error) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.code == subjects.CodeUnavailable
}

// workers that answer a noun, where it is not the router.
var answeredBy = map[string]string{"agent": "registry", "mesh": "mesh", "escalation": "escalation"}

// told turns any error of a call into what a model can act on.
func told(err error, noun string) error {
	if e, ok := errors.AsType[*subjects.Error](err); ok {
		all := refusals{refusalOf(e)}
		for _, also := range e.Also {
			all = append(all, refusalOf(also))
		}
		return all
	}
	r := &refusal{code: subjects.CodeUnavailable, message: "the fleet does not answer", remedy: "call the tool again in a moment; if that does not help, tell your user that the fleet (parley up, or parley serve) may not be running"}
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		worker := answeredBy[noun]
		if worker == "" {
			worker = "router"
		}
		r.message = "no " + worker + " worker is running, so nobody answers"
	case errors.Is(err, bus.ErrDenied):
		r.code, r.message, r.remedy = subjects.CodeForbidden, "the NATS credentials of this MCP server do not allow this call", "tell your user: the server needs the credentials of the caller that it acts for (--as)"
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, bus.ErrTimeout), errors.Is(err, bus.ErrClosed), errors.Is(err, context.DeadlineExceeded):
	default:
		r.code, r.message, r.remedy = subjects.CodeInternal, err.Error(), ""
	}
	return r
}

func refusalOf(e *subjects.Error) *refusal {
	r := &refusal{code: e.Code, argument: argument(e.Pointer), message: e.Message, remedy: e.Remedy}
	if e.RetryAfterSeconds > 0 {
		r.remedy = strings.TrimPrefix(r.remedy+fmt.Sprintf("; try again in %.0f seconds", max(1, e.RetryAfterSeconds)), "; ")
	}
	switch {
	case r.remedy != "":
	case e.Code == subjects.CodeForbidden:
		r.remedy = "this caller may not do that; tell your user"
	case e.Code == subjects.CodeNotFound:
		r.remedy = "check the id; fleet_status without arguments lists what there is (ended tasks are kept for a day)"
	}
	return r
}

// argument is the tool's argument that a pointer into a message is about.
func argument(pointer string) string {
	for _, group := range []string{"/task/", "/requirements/", "/"} {
		if rest, ok := strings.CutPrefix(pointer, group); ok {
			return strings.ReplaceAll(rest, "/", ".")
		}
	}
	return pointer
}
