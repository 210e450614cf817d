package router

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Thousands of attempts may fail at one instant: a provider that refuses, a
// disk that is full. Each ends in a record, a retry or an alert, which others
// have to wait behind. So failures, of which none is in a hurry, are taken in
// at a pace that leaves room for what goes well: less than that where one takes
// long, since then it is others that have to wait.
const (
	failuresPerSecond = 200
	fewestPerSecond   = 50 // while the machine, or the bus, has much to do
	failuresAtOnce    = 8
	maxFailures       = 256 // that wait for their turn, half of them of any one agent; more are asked to come again

	longFailure = 50 * time.Millisecond // that one takes to become a record
)

// failures lets failed attempts in.
type failures struct {
	pace  *rate.Limiter
	waits chan struct{} // one for each that waits
	of    *waiters
}

func newFailures() failures {
	return failures{
		pace: rate.NewLimiter(failuresPerSecond, failuresAtOnce), waits: make(chan struct{}, maxFailures),
		of: &waiters{most: maxFailures / 2},
	}
}

// turn has then wait for its turn on a goroutine of its own. It reports false
// when too many wait already, or too many of the agent.
func (f failures) turn(ctx context.Context, agent subjects.AgentID, spawn func(func()), then func()) bool {
	if !f.of.enter(agent) {
		return false
	}
	select {
	case f.waits <- struct{}{}:
	default:
		f.of.leave(agent)
		return false
	}
	spawn(func() {
		_ = f.pace.Wait(ctx) // when it is ctx that ends the wait, then sees it too
		<-f.waits
		f.of.leave(agent)
		then()
	})
	return true
}

// took sets the pace by how long a failure took: half of it where that was
// long, one a second more where it was not.
func (f failures) took(d time.Duration) {
	limit := f.pace.Limit() + 1
	if d > longFailure {
		limit = f.pace.Limit() / 2
	}
	f.pace.SetLimit(min(max(limit, fewestPerSecond), failuresPerSecond))
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

// comeAgain refuses a failure for now: until those that wait have had their turn.
func (w *Worker) comeAgain(m bus.Msg) {
	until := time.Duration(float64(maxFailures) / float64(w.failures.pace.Limit()) * float64(time.Second))
	w.refuseReport(m, subjects.Errorf(subjects.CodeRateLimited, "too many failed attempts wait to be taken in").
		WithRemedy("send it again once they have been").RetryAfter(until))
}
