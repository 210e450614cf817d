package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Why the context of a handler, or of an inbox, was canceled (context.Cause).
var (
	// ErrCanceled: somebody canceled the task. Nothing is handed in for it but
	// what it has spent.
	ErrCanceled = errors.New("the task was canceled")
	// ErrSuperseded: the fleet does not count this work any more: it gave the
	// task to somebody else, or this agent up. Nothing is handed in for it but
	// what it has spent.
	ErrSuperseded = errors.New("the attempt was superseded")
	// ErrTimeout: the attempt's timeout_seconds are over, or the time for a message.
	ErrTimeout = errors.New("the attempt's time is over")
	// ErrDeadline: the task's deadline has passed.
	ErrDeadline = errors.New("the task's deadline has passed")
	// ErrBudget: the attempt has spent more tokens than it may.
	ErrBudget = errors.New("the token budget is spent")
	// ErrStopping: the agent stops; the task goes back to the fleet, unfailed.
	ErrStopping = errors.New("the agent is stopping")
)

// errGone: nobody will be able to read what is sent for the task.
var errGone = errors.New("the task is not in hand any more")

// Fail is a handler's error that says how the attempt ended.
type Fail struct { //nolint:errname // it reads as what it is: return &agent.Fail{…}
	Code       subjects.Code // absent agent_error
	Message    string
	Retryable  bool
	RetryAfter time.Duration
	HTTPStatus int       // of the model's API, when that is the reason
	ResetAt    time.Time // when a rate_limited ends, by the clock of whoever set the limit; or RetryAfter says it
	LimitTier  string    // the model tier that a rate_limited holds for; absent all
	Err        error     // the cause, for the log; Message is its text when absent
}

// Error gives code and message.
func (f *Fail) Error() string { return string(f.code()) + ": " + f.message() }

// Unwrap returns the cause.
func (f *Fail) Unwrap() error { return f.Err }

func (f *Fail) code() subjects.Code {
	if f.Code == "" {
		return subjects.CodeAgentError
	}
	return f.Code
}

func (f *Fail) message() string {
	switch {
	case f.Message != "":
		return f.Message
	case f.Err != nil && f.Err.Error() != "":
		return f.Err.Error()
	}
	return "the agent failed without saying why"
}

// Blocked is the error of a handler that cannot do the task, and would not be
// able to if asked again: the fleet asks another agent. reason is for a human.
func Blocked(reason string) error { return &blockedError{reason} }

type blockedError struct{ reason string }

func (b *blockedError) Error() string { return "blocked: " + b.reason }

// verdict turns what a handler returned into the attempt's result. send is
// false when nobody waits for one and nothing was spent. It decides purely; ids are filled by settle.
func verdict(ctx context.Context, r fleet.Result, err error) (out fleet.Result, send bool) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrCanceled):
		return failed(r, subjects.CodeCanceled, &Fail{Err: ErrCanceled}), r.TokensSpent > 0
	case errors.Is(cause, ErrSuperseded): // as what is handed back, it is no failure of the task
		return failed(r, subjects.CodeAgentBusy, &Fail{Err: ErrSuperseded, Retryable: true}), r.TokensSpent > 0
	}
	if err == nil {
		return complete(r), true
	}
	f := &Fail{Retryable: true, Err: err}
	if own, ok := errors.AsType[*Fail](err); ok {
		f = own
	}
	blocked, isBlocked := errors.AsType[*blockedError](err)
	switch {
	case errors.Is(cause, ErrStopping):
		f = &Fail{Code: subjects.CodeAgentBusy, Retryable: true, Message: "handed back: " + ErrStopping.Error()}
	case errors.Is(cause, ErrTimeout):
		f = &Fail{Code: subjects.CodeAgentTimeout, Retryable: true, Message: ErrTimeout.Error()}
	case errors.Is(cause, ErrBudget) && !isBlocked:
		f = &Fail{Code: subjects.CodeBudgetExhausted, Message: fmt.Sprintf("%v: %d tokens", ErrBudget, r.TokensSpent)}
	case errors.Is(cause, ErrDeadline):
		f = &Fail{Code: subjects.CodeDeadlineExceeded, Message: ErrDeadline.Error()}
	case isBlocked:
		r.Status, r.BlockedReason, r.Error = fleet.StatusBlocked, new(clip(orUnsaid(blocked.reason), maxMessage)), nil
		return r, true
	}
	return failed(r, f.code(), f), true
}

// failed makes r the result of a failed attempt; what it spent stays.
func failed(r fleet.Result, code subjects.Code, f *Fail) fleet.Result {
	r.Status = fleet.StatusError
	r.BlockedReason = nil
	r.Error = &fleet.ResultError{
		Code: code, Message: clip(f.message(), maxMessage), Retryable: f.Retryable,
		RetryAfterSeconds: f.RetryAfter.Seconds(), HTTPStatus: f.HTTPStatus, LimitTier: f.LimitTier,
	}
	if !f.ResetAt.IsZero() {
		r.Error.ResetAt = &f.ResetAt
	}
	return r
}

// refusal makes r a blocked result.
func refusal(r fleet.Result, e *fleet.ResultError) fleet.Result {
	e.Message = clip(e.Message, maxMessage)
	r.Status = fleet.StatusBlocked
	r.BlockedReason = &e.Message
	r.Error = e
	return r
}

// complete fills what a handler left out of a result that it returned without
// an error, so that it follows the rules of TASK_RESULT.
func complete(r fleet.Result) fleet.Result {
	switch r.Status {
	case "":
		r.Status = fleet.StatusDone
	case fleet.StatusBlocked:
		if r.BlockedReason == nil || *r.BlockedReason == "" {
			r.BlockedReason = new(orUnsaid(""))
		}
	case fleet.StatusError:
		if r.Error == nil {
			r.Error = &fleet.ResultError{Code: subjects.CodeAgentError, Retryable: true}
		}
		r.Error.Message = orUnsaid(r.Error.Message)
	case fleet.StatusPartial:
		if len(r.Remaining) == 0 && len(r.NextSteps) == 0 {
			r.Remaining = []string{"the agent did not say what"}
		}
	case fleet.StatusDone:
	}
	return r
}

func orUnsaid(s string) string {
	if s == "" {
		return "the agent did not say why"
	}
	return s
}

// maxMessage bounds the message of an error, in bytes.
const maxMessage = 4 << 10

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", trimRune(s[:n]), len(s))
}

// trimRune drops a rune that was cut at the end of s.
func trimRune(s string) string {
	for i := 1; i <= 3 && i <= len(s); i++ {
		if c := s[len(s)-i]; c >= 0xC0 {
			return s[:len(s)-i]
		} else if c < 0x80 {
			return s
		}
	}
	return s
}
