package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"parley/subjects"
	"parley/workers/agent"
)

// errUnreadable: the agent has answered, and the answer cannot be read. Asking again
// cannot help, and would have the work done again.
var errUnreadable = errors.New("its answer cannot be read")

// unreadable is err, as errUnreadable where what the agent answered is the reason:
// it is neither an error that the agent reports nor one of the connection.
func (r *receipt) unreadable(err error) error {
	_, reported := errors.AsType[*a2a.Error](err)
	_, unsent := errors.AsType[*url.Error](err)
	_, isStatus := errors.AsType[*statusError](err)
	_, isOwn := errors.AsType[*refused](err)
	status, broken := r.state()
	switch {
	case err == nil, errors.Is(err, errUnreadable), isOwn:
		return err
	case errors.Is(err, errMalformed):
	case reported, isRefusal(err), isStatus, errors.Is(err, errTooLong), errors.Is(err, errIdle),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case status/100 > 2:
		return &statusError{code: status}
	case unsent, broken:
		return err
	}
	return fmt.Errorf("%w: %w", errUnreadable, err)
}

// fatal is how the attempt fails, if err says that it makes no sense to go on. msg is
// the message that was sent last.
func (w *work) fatal(by way, msg *a2a.Message, err error) *agent.Fail {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*refused](err); ok {
		return &agent.Fail{Retryable: true, Err: own.error}
	}
	status, isStatus := errors.AsType[*statusError](err)
	switch {
	case isAuth(err), errors.Is(err, errTooLong), isHost(err):
		return w.r.failure(err)
	case errors.Is(err, a2a.ErrTaskNotFound) && by != bySend:
		return &agent.Fail{Retryable: true, Err: err, Message: "the remote agent does not know its task any more"}
	case errors.Is(err, errUnreadable) && (by == byGet || by == bySend && (w.story.task == "" || msg.TaskID != "")):
		return w.r.failure(err)
	case by != bySend, w.story.task != "" && w.sends < maxSends && errors.Is(err, a2a.ErrUnsupportedOperation):
		return nil // an ended task takes no answer: look at it
	case isStatus && status.refuses(), isRefusal(err):
		return w.r.failure(err)
	case (errors.Is(err, a2a.ErrInternalError) || errors.Is(err, a2a.ErrServerError) || errors.Is(err, errEmpty) || isStatus && !status.away()) && w.sends >= maxSends:
		return w.r.failure(err)
	}
	return nil
}

// failure is an error as the fleet is told it.
func (r *Remote) failure(err error) *agent.Fail {
	f := &agent.Fail{Retryable: true, Err: err, Message: "the remote agent: " + errText(err)}
	if s, ok := errors.AsType[*statusError](err); ok {
		f.HTTPStatus, f.RetryAfter = s.code, s.after
	}
	switch {
	case isAuth(err):
		f.Code, f.Retryable = subjects.CodeAuthFailed, false
	case isHost(err):
		f.Code, f.Retryable = subjects.CodeHostNotAllowed, false
	case errors.Is(err, errTooLong):
		f.Code, f.Retryable = subjects.CodePayloadTooLarge, false
	case errors.Is(err, errUnreadable), isRefusal(err):
		f.Retryable = false
	case errors.Is(err, errEmpty):
		f.Code = subjects.CodeResultInvalid
	}
	return f
}

func isAuth(err error) bool {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.code == http.StatusUnauthorized || s.code == http.StatusForbidden || s.code == http.StatusProxyAuthRequired
	}
	e, ok := errors.AsType[*subjects.Error](err)
	return errors.Is(err, a2a.ErrUnauthenticated) || errors.Is(err, a2a.ErrUnauthorized) || ok && e.Code == subjects.CodeAuthFailed
}

func isHost(err error) bool {
	e, ok := errors.AsType[*subjects.Error](err)
	return ok && e.Code == subjects.CodeHostNotAllowed
}

// isRefusal reports whether the agent will say the same to the same message.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{
		a2a.ErrParseError, a2a.ErrInvalidRequest, a2a.ErrMethodNotFound, a2a.ErrInvalidParams, a2a.ErrUnsupportedOperation,
		a2a.ErrUnsupportedContentType, a2a.ErrExtensionSupportRequired, a2a.ErrVersionNotSupported, a2a.ErrTaskNotFound, a2a.ErrTaskNotCancelable,
	}, func(e error) bool { return errors.Is(err, e) })
}

// isProtocol reports whether an error is the agent's answer.
func isProtocol(err error) bool {
	status, isStatus := errors.AsType[*statusError](err)
	return isRefusal(err) || isAuth(err) || isStatus && status.refuses()
}

func retryAfter(err error) time.Duration {
	if s, ok := errors.AsType[*statusError](err); ok {
		return min(s.after, time.Minute)
	}
	return 0
}

func errText(err error) string {
	if err == nil {
		return "its stream ends before its task does"
	}
	text := err.Error()
	const most = 1 << 10 // the SDK quotes whole answers
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// pause waits for d or for ctx, whose cause it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
