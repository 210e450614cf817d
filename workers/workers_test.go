package workers_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/workers"
)

var errBroken = errors.New("broken")

// journal keeps the order in which things happened.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// drains is a worker that needs d to finish what it has in hand.
func drains(j *journal, name string, d time.Duration) workers.Worker {
	return workers.Worker{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		j.add("stop " + name)
		<-time.After(d)
		j.add("end " + name)
		return nil
	}}
}

func TestRunStopsLastToFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		j := new(journal)
		begin := time.Now()
		err := workers.Run(ctx, time.Minute, drains(j, "a", time.Second), drains(j, "b", 2*time.Second), drains(j, "c", 0))
		if err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		want := []string{"stop c", "end c", "stop b", "end b", "stop a", "end a"}
		if got := j.all(); !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
		if got, want := time.Since(begin), time.Hour+3*time.Second; got != want {
			t.Errorf("Run took %v, want %v", got, want)
		}
	})
}

func TestRunFirstFailureStopsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		j := new(journal)
		err := workers.Run(t.Context(), time.Minute,
			drains(j, "a", time.Second),
			workers.Worker{Name: "b", Run: func(context.Context) error {
				<-time.After(time.Second)
				return errBroken
			}},
			workers.Worker{Name: "c", Run: func(ctx context.Context) error {
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), workers.ErrStopping) {
					t.Errorf("cause = %v, want ErrStopping", context.Cause(ctx))
				}
				return ctx.Err()
			}},
		)
		if !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "b: ") {
			t.Errorf("Run = %v, want the error of b", err)
		}
		if got, want := j.all(), []string{"stop a", "end a"}; !slices.Equal(got, want) {
			t.Errorf("order %v, want %v", got, want)
		}
	})
}

func TestRunJoinsErrorsAndBoundsTheStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		release := make(chan struct{})
		j := new(journal)
		begin := time.Now()
		err := workers.Run(ctx, 10*time.Second,
			workers.Worker{Name: "first", Run: func(ctx context.Context) error {
				<-ctx.Done()
				return errBroken
			}},
			workers.Worker{Name: "stuck", Run: func(context.Context) error {
				<-release
				return nil
			}},
			drains(j, "last", 4*time.Second),
		)
		if got, want := time.Since(begin), 12*time.Second; got != want { // a second after the grace time
			t.Errorf("Run took %v, want %v", got, want)
		}
		if !errors.Is(err, workers.ErrStillRunning) || !strings.Contains(err.Error(), "stuck: ") {
			t.Errorf("Run = %v, want ErrStillRunning of stuck", err)
		}
		if strings.Contains(err.Error(), "last") {
			t.Errorf("Run = %v, want nothing about last, which ended in time", err)
		}
		close(release)
	})
}

// One that needs all the grace time takes from those before it the order in
// which they stop, not their end.
func TestRunStopsWhoIsLeftTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		j := new(journal)
		begin := time.Now()
		const most = 900 * time.Millisecond
		err := workers.Run(ctx, 10*time.Second, drains(j, "a", most), drains(j, "b", most), drains(j, "slow", 10*time.Second+most))
		if err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if got, want := time.Since(begin), 11*time.Second+most; got != want {
			t.Errorf("Run took %v, want %v", got, want)
		}
	})
}

// Until tells a worker until when it may finish what it has in hand.
func TestUntil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var got time.Duration
		err := workers.Run(ctx, 10*time.Second,
			workers.Worker{Name: "a", Run: func(ctx context.Context) error {
				<-ctx.Done()
				got = time.Until(workers.Until(ctx))
				return nil
			}},
			drains(new(journal), "b", 3*time.Second))
		if err != nil || got != 7*time.Second {
			t.Errorf("Run = %v, and %v are left of the grace time, want 7s", err, got)
		}
		if got := workers.Until(t.Context()); !got.IsZero() {
			t.Errorf("Until of what Run has not ended = %v, want none", got)
		}
	})
}

func TestRunReportsWhoEndsByItself(t *testing.T) {
	t.Parallel()
	err := workers.Run(t.Context(), time.Minute, workers.Worker{Name: "a", Run: func(context.Context) error { return nil }})
	if !errors.Is(err, workers.ErrEnded) {
		t.Errorf("Run = %v, want ErrEnded", err)
	}
}

func TestRunOfNobodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := workers.Run(ctx, time.Minute); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if ctx.Err() == nil {
			t.Error("Run returned before its context ended")
		}
	})
}
