package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// One sweep purges so many tasks, so many at a time: purging never crowds out
// the work.
const (
	maxSweep     = 2000
	purgesAtOnce = 8
)

// sweepIfOwned sweeps if that is this router's, and returns when to ask again:
// while more is to be purged, after as long a rest as the sweep took.
func (w *Worker) sweepIfOwned(ctx context.Context) time.Duration {
	if !w.owns("sweep") {
		return sweepEvery
	}
	began := time.Now()
	more, err := w.sweep(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		w.log.Warn("purge ended tasks", slog.Any("error", err))
	case more:
		return min(time.Since(began), sweepEvery)
	}
	return sweepEvery
}

// end is the outcome of a task that may be purged.
type end struct {
	task subjects.TaskID
	seq  uint64
}

// sweep purges the tasks that ended long ago, oldest first, and reports whether
// there may be more. The stream itself says which: its records are in the order
// of time, so the sweep reads from the front and stops at the first that is too
// young. What it does not reach expires by its own TTL.
func (w *Worker) sweep(ctx context.Context) (more bool, err error) {
	ends, next, err := w.endedLongAgo(ctx)
	if err != nil {
		return false, err
	}
	if err := w.purge(ctx, ends, next); err != nil {
		return false, err
	}
	return len(ends) == maxSweep, nil
}

// endedLongAgo reads what may be purged, and up to which record it has looked.
func (w *Worker) endedLongAgo(ctx context.Context) (ends []end, next uint64, err error) {
	st, err := w.bus.StreamState(ctx, subjects.StreamTasks)
	if err != nil {
		return nil, 0, err
	}
	excess := int(st.Subjects) - w.liveTasks() - w.cfg.KeepEnded
	old := w.now().Add(-fleet.KeepEnded)
	read, cancel := context.WithCancel(ctx)
	defer cancel()
	next = w.sweptTo
	stopped := false
	err = w.bus.Tail(read, bus.Tail{
		Stream: subjects.StreamTasks, StartSeq: max(st.FirstSeq, w.sweptTo), HeadersOnly: true,
		Handle: func(m bus.Msg) {
			if stopped {
				return
			}
			if m.Seq >= st.LastSeq || m.Time.After(old) && len(ends) >= excess || len(ends) == maxSweep {
				stopped = true
				cancel()
				return
			}
			next = m.Seq
			vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject)
			if ok && m.Header.Get(subjects.HeaderKind) == fleet.KindOutcome {
				ends = append(ends, end{subjects.TaskID(vars[0]), m.Seq})
			}
		},
		CaughtUp: func(uint64) { cancel() },
	})
	if err != nil && read.Err() == nil {
		return nil, 0, err
	}
	return ends, next, nil
}

// purge deletes the records of tasks that have ended. The next sweep begins at
// record next; at the first of ends that is still there, where one fails.
func (w *Worker) purge(ctx context.Context, ends []end, next uint64) error {
	var (
		loops   sync.WaitGroup
		mu      sync.Mutex
		begun   int
		failure error
		failed  = len(ends)
	)
	take := func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		begun++
		return begun - 1, begun <= failed
	}
	for range min(purgesAtOnce, len(ends)) {
		loops.Go(func() {
			for i, ok := take(); ok; i, ok = take() {
				// Whoever was faster may have a new task of that id.
				err := w.bus.PurgeUpTo(ctx, subjects.StreamTasks, subjects.Task(ends[i].task), ends[i].seq)
				if err == nil {
					crash.Point("after_purge")
					continue
				}
				mu.Lock()
				if i < failed {
					failed, failure = i, err
				}
				mu.Unlock()
			}
		})
	}
	loops.Wait()
	if w.sweptTo = next; failure != nil {
		w.sweptTo = ends[failed].seq
	}
	if failed > 0 {
		w.log.Info("ended tasks purged", slog.Int("tasks", failed))
	}
	return failure
}
