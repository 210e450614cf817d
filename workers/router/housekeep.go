package router

import (
	"context"
	"log/slog"
	"time"

	"parley/bus"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	checkpointEvery = 10 * time.Second
	lookAtDisk      = 5 * time.Second
	sweepEvery      = 10 * time.Second
	keepAfterEnd    = 24 * time.Hour
	fullAt          = 0.8 // of the stream's bytes: no new tasks above it
)

// housekeep does what only one router need do, and looks at the disk.
func (w *Worker) housekeep(ctx context.Context) {
	disk := time.NewTicker(lookAtDisk)
	defer disk.Stop()
	save := time.NewTimer(checkpointEvery)
	defer save.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	w.lookAtDisk(ctx)
	var saved uint64
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(w.work, stopGrace/2)
			w.saveIfNew(last, saved, false)
			cancel()
			return
		case <-disk.C:
			w.lookAtDisk(ctx)
			if w.owns("inbox") && !plant.Bug("inbox_kept") {
				if err := w.bus.DropDone(ctx, subjects.StreamInbox, inboxDurable); err != nil && ctx.Err() == nil {
					w.log.Warn("clear up the inbox", slog.Any("error", err))
				}
			}
		case <-save.C:
			began := time.Now()
			saved = w.saveIfNew(ctx, saved, true)
			// A large index is written seldom enough to cost one part in twenty;
			// most of the time that it takes is rest.
			save.Reset(max(checkpointEvery, 20/(1+restShare)*time.Since(began)))
		case <-sweep.C:
			if w.owns("sweep") {
				if err := w.sweep(ctx); err != nil && ctx.Err() == nil {
					w.log.Warn("purge ended tasks", slog.Any("error", err))
				}
			}
		}
	}
}

func (w *Worker) owns(job string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.ring.Owns(job)
}

// saveIfNew writes a checkpoint if anything was recorded since the last.
func (w *Worker) saveIfNew(ctx context.Context, saved uint64, leisurely bool) uint64 {
	w.mu.Lock()
	tail := w.tail
	w.mu.Unlock()
	if tail == saved || !w.owns("checkpoint") {
		return saved
	}
	if err := w.checkpoint(ctx, leisurely); err != nil {
		if ctx.Err() == nil {
			w.log.Warn("save the index", slog.Any("error", err))
		}
		return saved
	}
	return tail
}

// lookAtDisk closes the doors while the stream is nearly full.
func (w *Worker) lookAtDisk(ctx context.Context) {
	st, err := w.bus.StreamState(ctx, subjects.StreamTasks)
	if err != nil {
		w.log.Debug("look at the task stream", slog.Any("error", err))
		return
	}
	full := st.MaxBytes > 0 && float64(st.Bytes) > fullAt*float64(st.MaxBytes)
	if was := w.full.Swap(full); was != full {
		w.log.Warn("task store", slog.Bool("full", full), slog.Uint64("bytes", st.Bytes), slog.Int64("max_bytes", st.MaxBytes))
	}
}

// sweep purges the tasks that ended long ago, oldest first. The stream itself
// says which: its records are in the order of time, so the sweep reads from the
// front and stops at the first that is too young. What it does not reach
// expires by its own TTL.
func (w *Worker) sweep(ctx context.Context) error {
	st, err := w.bus.StreamState(ctx, subjects.StreamTasks)
	if err != nil {
		return err
	}
	excess := int(st.Subjects) - w.liveTasks() - w.cfg.KeepEnded
	old := w.now().Add(-keepAfterEnd)
	read, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		task subjects.TaskID
		seq  uint64
	}
	var purge []end
	stopped := false
	err = w.bus.Tail(read, bus.Tail{
		Stream: subjects.StreamTasks, StartSeq: max(st.FirstSeq, w.sweptTo), HeadersOnly: true,
		Handle: func(m bus.Msg) {
			if stopped {
				return
			}
			if m.Seq >= st.LastSeq || m.Time.After(old) && len(purge) >= excess || len(purge) >= maxSweep {
				stopped = true
				cancel()
				return
			}
			w.sweptTo = m.Seq
			vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject)
			if ok && m.Header.Get(subjects.HeaderKind) == fleet.KindOutcome {
				purge = append(purge, end{subjects.TaskID(vars[0]), m.Seq})
			}
		},
		CaughtUp: func(uint64) { cancel() },
	})
	if err != nil && read.Err() == nil {
		return err
	}
	for _, e := range purge { // whoever was faster may have a new task of that id
		if err := w.bus.PurgeUpTo(ctx, subjects.StreamTasks, subjects.Task(e.task), e.seq); err != nil {
			return err
		}
	}
	if len(purge) > 0 {
		w.log.Info("ended tasks purged", slog.Int("tasks", len(purge)))
	}
	return nil
}

// maxSweep bounds one sweep, so that purging never crowds out the work.
const maxSweep = 2000
