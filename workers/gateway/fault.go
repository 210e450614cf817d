package gateway

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"parley/bus"
	"parley/subjects"
)

// errorDomain is the domain of every ErrorInfo.
const errorDomain = "a2a-protocol.org"

// kind is what an error is in each of the bindings (specification, 5.4).
type kind struct {
	reason string
	rpc    int // JSON-RPC
	grpc   codes.Code
	http   int
}

var (
	kindParse          = &kind{"PARSE_ERROR", -32700, codes.InvalidArgument, 400}
	kindInvalidRequest = &kind{"INVALID_REQUEST", -32600, codes.InvalidArgument, 400}
	kindNoMethod       = &kind{"METHOD_NOT_FOUND", -32601, codes.Unimplemented, 404}
	kindInvalidParams  = &kind{"INVALID_PARAMS", -32602, codes.InvalidArgument, 400}
	kindInternal       = &kind{"INTERNAL_ERROR", -32603, codes.Internal, 500}

	kindTaskNotFound    = &kind{"TASK_NOT_FOUND", -32001, codes.NotFound, 404}
	kindNotCancelable   = &kind{"TASK_NOT_CANCELABLE", -32002, codes.FailedPrecondition, 400}
	kindNoPush          = &kind{"PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, codes.FailedPrecondition, 400}
	kindUnsupported     = &kind{"UNSUPPORTED_OPERATION", -32004, codes.FailedPrecondition, 400}
	kindContentType     = &kind{"CONTENT_TYPE_NOT_SUPPORTED", -32005, codes.InvalidArgument, 400}
	kindVersion         = &kind{"VERSION_NOT_SUPPORTED", -32009, codes.FailedPrecondition, 400}
	kindExtension       = &kind{"EXTENSION_SUPPORT_REQUIRED", -32008, codes.FailedPrecondition, 400}
	kindTooLarge        = &kind{"PAYLOAD_TOO_LARGE", -32600, codes.ResourceExhausted, 413}
	kindConflict        = &kind{"IDEMPOTENCY_CONFLICT", -32602, codes.Aborted, 409}
	kindRateLimited     = &kind{"RATE_LIMITED", -32000, codes.ResourceExhausted, 429}
	kindUnavailable     = &kind{"UNAVAILABLE", -32000, codes.Unavailable, 503}
	kindUnauthenticated = &kind{"UNAUTHENTICATED", -31401, codes.Unauthenticated, 401}
	kindUnauthorized    = &kind{"UNAUTHORIZED", -31403, codes.PermissionDenied, 403}
)

// fault is an error as a client is told it.
type fault struct {
	kind    *kind
	message string
	field   string            // what is wrong with which field, as its path
	meta    map[string]string // of the ErrorInfo
	retry   time.Duration     // when a repeat may succeed; 0 not said
	cause   error             // for the log
}

func (f *fault) Error() string { return f.kind.reason + ": " + f.message }
func (f *fault) Unwrap() error { return f.cause }

func faultf(k *kind, message string) *fault { return &fault{kind: k, message: message} }

// badField is InvalidParams about one field.
func badField(field, message string) *fault {
	return &fault{kind: kindInvalidParams, field: field, message: field + ": " + message}
}

// kinds of the fleet's codes; what is missing is internal.
var kindOf = map[subjects.Code]*kind{
	subjects.CodeInvalidMessage:      kindInvalidParams,
	subjects.CodeInvalidID:           kindInvalidParams,
	subjects.CodeVersionMismatch:     kindInvalidParams,
	subjects.CodeDeadlineExceeded:    kindInvalidParams,
	subjects.CodeSessionExpired:      kindInvalidParams,
	subjects.CodePayloadTooLarge:     kindTooLarge,
	subjects.CodeRateLimited:         kindRateLimited,
	subjects.CodeIdempotencyConflict: kindConflict,
	subjects.CodeUnavailable:         kindUnavailable,
	subjects.CodeNotFound:            kindTaskNotFound,
	subjects.CodeForbidden:           kindUnauthorized,
	subjects.CodeAuthFailed:          kindUnauthenticated,
}

// asFault turns any error into what a client may know of it.
func asFault(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if e, ok := errors.AsType[*subjects.Error](err); ok {
		f := &fault{kind: kindOf[e.Code], message: e.Message, cause: err, meta: map[string]string{"code": string(e.Code)}}
		if f.kind == nil {
			f.kind = kindInternal
		}
		if e.Pointer != "" {
			f.field = strings.ReplaceAll(strings.TrimPrefix(e.Pointer, "/"), "/", ".")
			f.meta["pointer"] = e.Pointer
		}
		if e.Remedy != "" {
			f.meta["remedy"] = e.Remedy
		}
		f.retry = time.Duration(e.RetryAfterSeconds * float64(time.Second))
		return f
	}
	switch {
	case errors.Is(err, bus.ErrNoResponders), errors.Is(err, bus.ErrTimeout), errors.Is(err, bus.ErrClosed):
		return &fault{kind: kindUnavailable, message: "the fleet does not answer just now; repeat the call", retry: time.Second, cause: err}
	case errors.Is(err, errDraining):
		return &fault{kind: kindUnavailable, message: "the gateway is stopping; repeat the call, or ask for the task", retry: time.Second, cause: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &fault{kind: kindUnavailable, message: "the call was ended before its answer was there; repeat it", retry: time.Second, cause: err}
	}
	return &fault{kind: kindInternal, message: "an internal error; the gateway's log has more", cause: err}
}

// about is err of a message that the fleet has taken for a task, or may have, as
// said says: its sender is told which task. A message without an idempotency key
// is another one when it is repeated, so nobody is told to.
func about(c *call, task subjects.TaskID, said string, err error) error {
	f := *asFault(err)
	if f.meta = maps.Clone(f.meta); f.meta == nil {
		f.meta = make(map[string]string)
	}
	f.meta["taskId"] = string(task)
	switch {
	case f.kind != kindUnavailable:
		f.message = said + ": " + f.message
	case c.key == "":
		f.message = said + "; GetTask tells how the task " + string(task) + " is"
		f.retry = 0
		delete(f.meta, "remedy")
	}
	return &f
}

// reason is what the log is told of the fault.
func (f *fault) reason() error {
	if f.cause != nil {
		return f.cause
	}
	return f
}

// info is the metadata of the ErrorInfo.
func (f *fault) info(now time.Time) map[string]string {
	m := map[string]string{"timestamp": now.UTC().Format(time.RFC3339)}
	maps.Copy(m, f.meta)
	return m
}

// details are the typed details of JSON-RPC and REST.
func (f *fault) details(now time.Time) []any {
	d := []any{map[string]any{
		"@type":  "type.googleapis.com/google.rpc.ErrorInfo",
		"reason": f.kind.reason, "domain": errorDomain, "metadata": f.info(now),
	}}
	if f.field != "" {
		d = append(d, map[string]any{
			"@type":           "type.googleapis.com/google.rpc.BadRequest",
			"fieldViolations": []any{map[string]string{"field": f.field, "description": f.message}},
		})
	}
	return d
}

// rpcError is the fault as the error member of a JSON-RPC response.
func (f *fault) rpcError(now time.Time) map[string]any {
	return map[string]any{"code": f.kind.rpc, "message": f.message, "data": f.details(now)}
}

// restError is the fault as google.rpc.Status in JSON.
func (f *fault) restError(now time.Time) map[string]any {
	return map[string]any{"error": map[string]any{
		"code": f.kind.http, "status": statusName(f.kind.grpc), "message": f.message, "details": f.details(now),
	}}
}

// grpcError is the fault as a gRPC status.
func (f *fault) grpcError(now time.Time) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: f.kind.reason, Domain: errorDomain, Metadata: f.info(now)}}
	if f.field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: f.field, Description: f.message},
		}})
	}
	st, err := status.New(f.kind.grpc, f.message).WithDetails(details...)
	if err != nil {
		return status.Error(f.kind.grpc, f.message)
	}
	return st.Err()
}

// statusName is a code as google.rpc.Code writes it.
func statusName(c codes.Code) string {
	switch c {
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.Unimplemented:
		return "UNIMPLEMENTED"
	case codes.ResourceExhausted:
		return "RESOURCE_EXHAUSTED"
	case codes.Aborted:
		return "ABORTED"
	case codes.Unavailable:
		return "UNAVAILABLE"
	case codes.Unauthenticated:
		return "UNAUTHENTICATED"
	case codes.PermissionDenied:
		return "PERMISSION_DENIED"
	default:
		return "INTERNAL"
	}
}
