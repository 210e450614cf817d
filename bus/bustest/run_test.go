package bustest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
)

// observed is a test of which is kept what it finds wrong; finish ends it.
type observed struct {
	testing.TB
	ctx      context.Context //nolint:containedctx // a test has one
	cleanups []func()
	wrong    []string
}

func (o *observed) Context() context.Context { return o.ctx }

func (o *observed) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

func (o *observed) Errorf(format string, args ...any) {
	o.wrong = append(o.wrong, fmt.Sprintf(format, args...))
}

func (o *observed) finish() {
	for _, f := range slices.Backward(o.cleanups) {
		f()
	}
}

// TestRun: a worker outlives the context of its test, is waited for, and an
// error of its is told once, however often it is stopped.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want []string
	}{
		{"no error", nil, nil},
		{"an error", errors.New("no bus"), []string{"Run = no bus, want nil"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				o := &observed{TB: t, ctx: ctx}
				began := time.Now()
				stop := bustest.Run(o, func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Minute) // it drains
					return c.err
				})
				cancel()
				time.Sleep(time.Hour)
				stop()
				if took := time.Since(began); took != time.Hour+time.Minute {
					t.Errorf("it ended after %v, want an hour and a minute", took)
				}
				stop()
				o.finish()
				if diff := cmp.Diff(c.want, o.wrong); diff != "" {
					t.Errorf("what is wrong (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// server is a worker that takes a second to be ready, and says that it is
// still so in the end if it lies.
type server struct {
	ready atomic.Bool
	lies  bool
}

func (s *server) Ready() error {
	if !s.ready.Load() {
		return errors.New("not yet")
	}
	return nil
}

func (s *server) Run(ctx context.Context) error {
	<-time.After(time.Second)
	s.ready.Store(true)
	<-ctx.Done()
	s.ready.Store(s.lies)
	return nil
}

// TestServe: a worker is ready at first, and not in the end.
func TestServe(t *testing.T) {
	t.Parallel()
	for lies, want := range map[bool][]string{
		false: nil, true: {"Run = *bustest_test.server is ready after Run has returned, want nil"},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := &observed{TB: t, ctx: t.Context()}
			s := &server{lies: lies}
			bustest.Serve(o, s)
			if err := s.Ready(); err != nil {
				t.Errorf("Ready = %v, want nil", err)
			}
			o.finish() // the end of the test stops it too
			if diff := cmp.Diff(want, o.wrong); diff != "" {
				t.Errorf("a worker that lies: %t: what is wrong (-want +got):\n%s", lies, diff)
			}
		})
	}
}
