package bustest

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// Run runs a worker until the test ends, or until stop is called, which waits
// for it and may be called again; it has to end without an error. The end of
// the test's context does not end it, so what was there before it, such as its
// connection, is closed only once it has ended.
func Run(tb testing.TB, run func(context.Context) error) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context())) // stop ends it, in the order of cleanups
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		tb.Helper()
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Run = %v, want nil", err)
		}
	})
	tb.Cleanup(stop)
	return stop
}

// Worker is what Serve runs.
type Worker interface {
	Run(ctx context.Context) error
	Ready() error // nil while it serves
}

// Serve runs a worker as Run does, and waits until it is ready; once it has
// ended it must not say that it is.
func Serve(tb testing.TB, w Worker) (stop func()) {
	tb.Helper()
	stop = Run(tb, func(ctx context.Context) error {
		if err := w.Run(ctx); err != nil {
			return err
		}
		if w.Ready() == nil {
			return fmt.Errorf("%T is ready after Run has returned", w)
		}
		return nil
	})
	Eventually(tb, fmt.Sprintf("%T is ready", w), func() bool { return w.Ready() == nil })
	return stop
}
