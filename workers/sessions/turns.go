package sessions

import (
	"context"
	"sync/atomic"
	"time"

	"parley/bus"
	"parley/subjects"
)

// turns let so many work at a time. The others wait, for bus.StoreTime at most,
// and only so many of them: the rest of the worker's calls go on.
type turns struct {
	places  chan struct{}
	waiting atomic.Int64
}

// maxTurns is how many wait for a turn.
const maxTurns = atOnce / 8

func newTurns(atOnce int) *turns { return &turns{places: make(chan struct{}, atOnce)} }

// take waits for a turn, which ends with done.
func (t *turns) take(ctx context.Context) (done func(), err error) {
	defer t.waiting.Add(-1)
	if t.waiting.Add(1) <= maxTurns {
		patience := time.NewTimer(bus.StoreTime)
		defer patience.Stop()
		select {
		case t.places <- struct{}{}:
			return func() { <-t.places }, nil
		case <-ctx.Done():
			return nil, unavailable(ctx.Err())
		case <-patience.C:
		}
	}
	return nil, subjects.Errorf(subjects.CodeRateLimited, "more is appended now than can be looked through").
		WithRemedy("repeat later").RetryAfter(time.Second)
}
