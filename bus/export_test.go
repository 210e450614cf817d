package bus

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Errors that only tests tell apart.
var (
	ErrRefused   = errRefused
	ErrInProcess = errInProcess
)

// APIErrorOf is what the bus makes of a JetStream error; known says that the
// table has it.
func APIErrorOf(code int) (err error, known bool) { //nolint:revive // the error is the value here
	_, known = jsErrors[jetstream.ErrorCode(code)]
	return apiError(&jetstream.APIError{ErrorCode: jetstream.ErrorCode(code)}), known
}

// MapError is what the bus makes of an error of the client library.
func MapError(err error) error { return mapError(err) }

// APIErrorCodes counts the codes of the table.
func APIErrorCodes() int { return len(jsErrors) }

// Hear is what a tail does with every message.
func (b *Bus) Hear(stream string, seq uint64) { b.hear(stream, seq) }

// TailCatchesUp is whether a tail on a stream with so many copies says that it has
// caught up, once it has read up to last, of target that there were.
func TailCatchesUp(b *Bus, t Tail, last, target uint64, copies int) (told bool) {
	t.CaughtUp = func(uint64) { told = true }
	(&tailRun{Tail: t, b: b, last: last, target: target, copies: copies}).nowCaughtUp()
	return told
}

// SetClockAhead has b know that the clock of this machine is ahead of the servers'.
func (b *Bus) SetClockAhead(d time.Duration) { now := time.Now(); b.clock.learn(now, now.Add(-d)) }
