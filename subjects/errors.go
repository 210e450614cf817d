package subjects

import (
	"errors"
	"fmt"
	"time"
)

// Code is the machine's half of an error: one code, one meaning, at every door
// (subject replies, events, CLI exit status, HTTP problems, JSON-RPC data).
type Code string

// The codes. CodeInfo tells what each means and what to do about it.
const (
	CodeInvalidMessage      Code = "invalid_message"
	CodeInvalidID           Code = "invalid_id"
	CodePayloadTooLarge     Code = "payload_too_large"
	CodeVersionMismatch     Code = "version_mismatch"
	CodeAuthFailed          Code = "auth_failed"
	CodeHostNotAllowed      Code = "host_not_allowed"
	CodeForbidden           Code = "forbidden"
	CodeRateLimited         Code = "rate_limited"
	CodeIdempotencyConflict Code = "idempotency_conflict"
	CodeNotFound            Code = "not_found"
	CodeSessionExpired      Code = "session_expired"
	CodeContextConflict     Code = "context_conflict"
	CodeSecretInContext     Code = "secret_in_context"
	CodeNoCapableAgent      Code = "no_capable_agent"
	CodeMCPUnhealthy        Code = "mcp_unhealthy"
	CodeDirtyRepo           Code = "dirty_repo"
	CodeAgentBusy           Code = "agent_busy"
	CodeAgentLost           Code = "agent_lost"
	CodeAgentTimeout        Code = "agent_timeout"
	CodeAgentError          Code = "agent_error"
	CodeResultInvalid       Code = "result_invalid"
	CodeLateResult          Code = "late_result"
	CodeSuperseded          Code = "superseded"
	CodeBudgetExhausted     Code = "budget_exhausted"
	CodeDeadlineExceeded    Code = "deadline_exceeded"
	CodeHopLimit            Code = "hop_limit"
	CodeCycle               Code = "cycle"
	CodeCanceled            Code = "canceled"
	CodeUnavailable         Code = "unavailable"
	CodeInternal            Code = "internal"
	CodeCheckFailed         Code = "check_failed"
	CodeSecretInChanges     Code = "secret_in_changes"
	CodeLoginRequired       Code = "login_required"
	CodeSetupFailed         Code = "setup_failed"
	CodePermissionDenied    Code = "permission_denied"
)

// Error is what every door answers when it refuses: what was wrong, where, and
// what to do. Err, when set, is the cause for the log; it never travels.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Pointer is the JSON pointer (RFC 6901) of the offending value.
	Pointer string `json:"pointer,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	// RetryAfterSeconds is set with CodeRateLimited and CodeUnavailable.
	RetryAfterSeconds float64 `json:"retry_after_seconds,omitzero"`
	// Also lists further problems of the same message.
	Also []*Error `json:"also,omitempty"`

	Err error `json:"-"`
}

// Errorf returns an *Error; %w in format sets its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// At sets the JSON pointer and returns e.
func (e *Error) At(pointer string) *Error { e.Pointer = pointer; return e }

// WithRemedy sets what to do about it and returns e.
func (e *Error) WithRemedy(remedy string) *Error { e.Remedy = remedy; return e }

// RetryAfter sets when a repeat may succeed and returns e.
func (e *Error) RetryAfter(d time.Duration) *Error {
	e.RetryAfterSeconds = d.Seconds()
	return e
}

// Error gives code, place, message and remedy in one line.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Pointer != "" {
		s += " at " + e.Pointer
	}
	s += ": " + e.Message
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is matches by code, so errors.Is(err, &Error{Code: CodeNotFound}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// CodeOf returns the code of err: CodeInternal for an error that is not ours,
// and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Misplaced is why a message is not taken that says it is of another thing than
// its subject, or its key, says.
func Misplaced(what string) *Error {
	return Errorf(CodeInvalidMessage, "it is of another %s than where it is kept", what)
}

// AsError returns err as an *Error. One that is not ours becomes CodeInternal
// with its text kept for the log only.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: CodeInternal, Message: "an internal error", Remedy: "see the worker's log", Err: err}
}
