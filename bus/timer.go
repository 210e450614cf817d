package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// At stores data on subject until a time; then JetStream itself moves it to
// target, a subject of the same stream, whoever lives then; at once, if the time
// has passed. One timer is kept per subject: the last one. Errors are those of
// Store.
func (b *Bus) At(ctx context.Context, subject, target string, at time.Time, data []byte) error {
	_, err := b.Store(ctx, subject, data, "", Header{
		// By hand: the client's option drops what is less than a second.
		jetstream.ScheduleHeader:       {timerPrefix + at.UTC().Format(time.RFC3339Nano)},
		jetstream.ScheduleTargetHeader: {target},
	})
	return err
}

// timerPrefix is how the pattern of a schedule for one time begins.
const timerPrefix = "@at "

// TimerAt is when a timer that was stored by At is due; zero for other messages.
func (m Msg) TimerAt() time.Time {
	pattern := m.Header.Get(jetstream.ScheduleHeader)
	if len(pattern) < len(timerPrefix) {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, pattern[len(timerPrefix):])
	if err != nil {
		return time.Time{}
	}
	return at
}
