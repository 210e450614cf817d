package router

import (
	"context"

	"golang.org/x/time/rate"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Thousands of attempts may fail at one instant: a provider that refuses, a
// disk that is full. Each ends in a record, a retry or an alert, which others
// have to wait behind. So failures, of which none is in a hurry, are taken in
// at a pace that leaves room for what goes well.
const (
	failuresPerSecond = 200
	failuresAtOnce    = 64
	maxFailures       = 256 // that wait for their turn; more are asked to come again
)

// failures lets failed attempts in.
type failures struct {
	pace  *rate.Limiter
	waits chan struct{} // one for each that waits
}

func newFailures() failures {
	return failures{pace: rate.NewLimiter(failuresPerSecond, failuresAtOnce), waits: make(chan struct{}, maxFailures)}
}

// turn has f wait for its turn on a goroutine of its own. It reports false when
// too many wait already.
func (f failures) turn(ctx context.Context, spawn func(func()), then func()) bool {
	select {
	case f.waits <- struct{}{}:
	default:
		return false
	}
	spawn(func() {
		_ = f.pace.Wait(ctx) // when it is ctx that ends the wait, then sees it too
		<-f.waits
		then()
	})
	return true
}

// isFailure reports whether r says that an attempt has failed. What an agent
// hands back as it stops has not.
func isFailure(r *fleet.Result) bool {
	switch r.Status {
	case fleet.StatusError, fleet.StatusBlocked:
		return r.Error == nil || r.Error.Code != subjects.CodeAgentBusy
	default:
		return false
	}
}

// comeAgain refuses a failure for now.
func (w *Worker) comeAgain(m bus.Msg) {
	w.respond(m, fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeRateLimited, "%d failed attempts wait to be taken in", maxFailures).
		WithRemedy("send it again in a second")})
}
