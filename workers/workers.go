// Package workers runs what a Parley process is made of. The workers
// themselves live in one package each beside this file; none imports another.
//
// Every worker has the same life: a constructor wires it and starts nothing,
// Run blocks, owns every goroutine that it starts and returns when its context
// has ended. The end of the context means drain: stop taking, finish or hand
// back what is in hand, return nil. Whoever needs longer than the grace time is
// left behind, which loses nothing, since workers keep nothing that is not
// stored.
package workers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Worker is one thing that runs until it is told to stop. Name and Run are
// required. A struct, so that any package's Run method is one without an
// adapter type.
type Worker struct {
	// Name is what errors and health checks call it.
	Name string
	// Run blocks until ctx ends and returns nil then. Any other return, nil
	// included, is a failure that stops every other worker too.
	Run func(ctx context.Context) error
	// Ready, if set, is nil once the worker serves, and otherwise says why not.
	Ready func() error
}

var (
	// ErrStopping is the cause with which Run ends a worker's context.
	ErrStopping = errors.New("the process is stopping")
	// ErrStillRunning is returned for a worker that the grace time left behind.
	ErrStillRunning = errors.New("still running after the grace time")
	// ErrEnded is returned for a worker that ended although nobody stopped it.
	ErrEnded = errors.New("ended by itself")
)

// running is one worker at work.
type running struct {
	name string
	stop context.CancelCauseFunc
	done chan struct{} // closed after err is set
	err  error
}

// Run starts all workers, first to last, and blocks until ctx ends or the first
// of them returns. Then it stops them one by one, last to first, so that a
// worker may rely on those before it to the end; together they have the grace
// time, and what is left of them is told at once when it is over. It returns every worker's error, joined, and nil if all stopped as
// they should.
func Run(ctx context.Context, grace time.Duration, all ...Worker) error {
	ended := make(chan struct{}, len(all))
	started := make([]*running, len(all))
	for i, w := range all {
		// A worker outlives ctx: each is stopped in its turn.
		own, stop := context.WithCancelCause(context.WithoutCancel(ctx))
		r := &running{name: w.Name, stop: stop, done: make(chan struct{})}
		started[i] = r
		go func() {
			r.err = outcome(own, w.Run(own))
			close(r.done)
			ended <- struct{}{}
		}()
	}
	if len(all) == 0 {
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
	case <-ended:
	}
	return stop(started, grace)
}

// outcome is what a worker's return means, told by whether it was stopped.
func outcome(ctx context.Context, err error) error {
	switch stopped := ctx.Err() != nil; {
	case stopped && errors.Is(err, context.Canceled):
		return nil
	case !stopped && err == nil:
		return ErrEnded
	}
	return err
}

// lateFor is how long those that are left have together once the grace time is
// over.
const lateFor = time.Second

// stopping is ErrStopping with the end of the grace time.
type stopping struct{ until time.Time }

func (stopping) Error() string { return ErrStopping.Error() }

func (stopping) Unwrap() error { return ErrStopping }

// Until is when the grace time is over, for a worker whose context Run has
// ended; zero for any other context.
func Until(ctx context.Context) time.Time {
	s, _ := errors.AsType[stopping](context.Cause(ctx))
	return s.until
}

// stop ends the workers last to first within the grace time. Once it is over,
// all that are left are told at once: most of them need no more than that.
func stop(started []*running, grace time.Duration) error {
	until := time.Now().Add(grace)
	over, cancelOver := context.WithDeadline(context.Background(), until)
	defer cancelOver()
	for _, r := range slices.Backward(started) {
		r.stop(stopping{until})
		select {
		case <-r.done:
		case <-over.Done():
		}
	}
	late, cancelLate := context.WithDeadline(context.Background(), until.Add(lateFor))
	defer cancelLate()
	var errs []error
	for _, r := range slices.Backward(started) {
		select {
		case <-r.done:
		case <-late.Done():
		}
		select {
		case <-r.done:
			if r.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", r.name, r.err))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: %w", r.name, ErrStillRunning))
		}
	}
	return errors.Join(errs...)
}
