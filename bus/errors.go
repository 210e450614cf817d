package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The errors that callers tell apart, by errors.Is.
var (
	// ErrNoResponders is returned when nobody is there to answer, or the
	// stream has no leader now. Nothing was done; repeating may help.
	ErrNoResponders = errors.New("no responders")
	// ErrTimeout is returned when no answer came in time, or the connection
	// broke before it came. It is ambiguous: the request may have been done.
	ErrTimeout = errors.New("timed out")
	// ErrConflict is returned when the expected sequence or revision was
	// another one. Nothing was stored.
	ErrConflict = errors.New("wrong last sequence")
	// ErrFull is returned when a stream refuses a message because of its
	// limits or the server's resources. Nothing was stored.
	ErrFull = errors.New("stream is full")
	// ErrNotFound is returned when the message, key, object, stream or
	// consumer does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned when a key, stream or consumer is to be created that
	// exists.
	ErrExists = errors.New("already exists")
	// ErrClosed is returned when the bus or the subscription is closed.
	ErrClosed = errors.New("closed")
	// ErrDenied is returned when the server's permissions forbid it.
	ErrDenied = errors.New("permission denied")
	// ErrTLS is returned by Connect when the server and this process do not
	// agree on TLS: a certificate that is not trusted, or missing on one side.
	ErrTLS = errors.New("no secure connection")
)

// errRefused marks a write that the server refused for a reason of its own
// content (headers, size); repeating it is useless.
var errRefused = errors.New("refused")

// errInProcess is the conflict of a replicated stream with a write of the same
// subject that is proposed and not yet stored: another's, which may yet fail,
// or one's own earlier try. What becomes of it is not known yet.
var errInProcess = fmt.Errorf("%w: a write of the subject is in process", ErrConflict)

// errNoStream is the ErrNotFound of the stream itself.
var errNoStream = fmt.Errorf("%w", ErrNotFound)

// errIncomplete is what the commit of a batch is told whose messages before it
// were not taken: another leader, too many batches at once, no room for it.
// Nothing was stored.
var errIncomplete = fmt.Errorf("%w: the batch is incomplete", ErrNoResponders)

// JetStream error codes that have a meaning here; TestJetStreamErrors holds the
// table against the server's. 10057 (delete failed) is not among them: it stands
// for whatever prevents it, and deleteMsg looks.
var jsErrors = map[jetstream.ErrorCode]error{
	10071: ErrConflict,  // wrong last sequence: N
	10164: errInProcess, // wrong last sequence, without a number
	10070: ErrConflict,  // wrong last message id

	10077: ErrFull, // maximum messages, bytes exceeded
	10047: ErrFull, // insufficient storage resources
	10023: ErrFull, // insufficient resources
	10028: ErrFull, // insufficient memory resources
	10002: ErrFull, // account resource limits
	10122: ErrFull, // stream max bytes exceeds account limit
	10026: ErrFull, // maximum consumers
	10027: ErrFull, // maximum streams

	10037: ErrNotFound, // message
	10043: ErrNotFound, // sequence
	10059: errNoStream, // stream
	10014: ErrNotFound, // consumer
	10149: ErrNotFound, // consumer

	10058: ErrExists, // stream, with another configuration
	10013: ErrExists, // consumer
	10105: ErrExists, // consumer, and active
	10148: ErrExists, // consumer

	10004: ErrNoResponders, // incomplete results
	10008: ErrNoResponders, // JetStream temporarily unavailable
	10009: ErrNoResponders, // not leader
	10118: ErrNoResponders, // stream offline
	10119: ErrNoResponders, // consumer offline
	10124: ErrNoResponders, // stream is being moved
	10226: ErrNoResponders, // stream is being reconfigured
	10158: ErrNoResponders, // duplicate message id in process
	10163: ErrNoResponders, // expected last sequence per subject not ready
	10167: ErrNoResponders, // too many requests
	10210: ErrNoResponders, // too many atomic batches in flight
	10211: ErrNoResponders, // too many batches in flight
	10176: errIncomplete,   // atomic batch
	10039: ErrNoResponders, // JetStream not enabled for account (starting)
	10076: ErrNoResponders, // JetStream not enabled (starting)
}

// clientErrors maps the client library's errors, first match wins.
var clientErrors = []struct{ is, ours error }{
	{nats.ErrNoResponders, ErrNoResponders},
	{jetstream.ErrNoStreamResponse, ErrNoResponders},
	{nats.ErrTimeout, ErrTimeout},
	{nats.ErrDisconnected, ErrTimeout},
	{nats.ErrStaleConnection, ErrTimeout},
	{nats.ErrReconnectBufExceeded, ErrNoResponders},
	{jetstream.ErrKeyNotFound, ErrNotFound},
	{jetstream.ErrKeyDeleted, ErrNotFound},
	{jetstream.ErrObjectNotFound, ErrNotFound},
	{jetstream.ErrBucketNotFound, ErrNotFound},
	{jetstream.ErrStreamNotFound, ErrNotFound},
	{jetstream.ErrConsumerNotFound, ErrNotFound},
	{jetstream.ErrMsgNotFound, ErrNotFound},
	{jetstream.ErrKeyExists, ErrExists},
	{nats.ErrConnectionClosed, ErrClosed},
	{nats.ErrConnectionDraining, ErrClosed},
	{nats.ErrConnectionReconnecting, ErrNoResponders},
	{nats.ErrBadSubscription, ErrClosed},
	{nats.ErrTLS, ErrTLS},
	{nats.ErrSecureConnRequired, ErrTLS},
	{nats.ErrSecureConnWanted, ErrTLS},
	{nats.ErrPermissionViolation, ErrDenied},
	{nats.ErrAuthorization, ErrDenied},
	{nats.ErrAuthExpired, ErrDenied},
	{nats.ErrAuthRevoked, ErrDenied},
	{nats.ErrAccountAuthExpired, ErrDenied},
}

// mapError turns an error of the client library into one of ours: our
// sentinel, and the library's text behind it. A context's error stays in the
// chain; a deadline is ErrTimeout too.
func mapError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrTimeout, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return apiError(api)
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" { // what crypto/tls makes of the other side's alert
		return fmt.Errorf("%w: %s", ErrTLS, err.Error())
	}
	if js, ok := errors.AsType[jetstream.JetStreamError](err); ok {
		if api := js.APIError(); api != nil && !errors.Is(err, jetstream.ErrKeyExists) {
			return apiError(api)
		}
	}
	for _, m := range clientErrors {
		if errors.Is(err, m.is) {
			return fmt.Errorf("%w: %s", m.ours, err.Error())
		}
	}
	if isOurs(err) {
		return err
	}
	return errors.New(err.Error()) // the library's own value stays behind the door
}

func apiError(api *jetstream.APIError) error {
	if ours, ok := jsErrors[api.ErrorCode]; ok {
		return fmt.Errorf("%w: %s (%d)", ours, api.Description, api.ErrorCode)
	}
	return fmt.Errorf("%w: %s (%d)", errRefused, api.Description, api.ErrorCode)
}

// notYet is err of a look into a stream that is to be there: a cluster knows its
// name before all of it knows the stream. It says nothing of what is in it.
func notYet(err error) error {
	if errors.Is(err, errNoStream) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %s", ErrNoResponders, err.Error())
	}
	return err
}

func isOurs(err error) bool {
	for _, ours := range []error{
		ErrNoResponders, ErrTimeout, ErrConflict, ErrFull, ErrNotFound,
		ErrExists, ErrClosed, ErrDenied, ErrTLS, errRefused,
	} {
		if errors.Is(err, ours) {
			return true
		}
	}
	return false
}

// wrap adds what was tried to an error of the library.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, mapError(err))
}
