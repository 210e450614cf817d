package router

import (
	"context"
	"log/slog"
	"time"

	"parley/bus/crash"
	"parley/subjects"
)

const (
	checkpointEvery = 10 * time.Second
	lookAtDisk      = 5 * time.Second
	sweepEvery      = 10 * time.Second
	fullAt          = 0.8 // of the stream's bytes: no new tasks above it
)

// housekeep does what only one router need do, and looks at the disk.
func (w *Worker) housekeep(ctx context.Context) {
	disk := time.NewTicker(lookAtDisk)
	defer disk.Stop()
	save := time.NewTimer(checkpointEvery)
	defer save.Stop()
	sweep := time.NewTimer(sweepEvery)
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
			if w.owns("inbox") {
				if err := w.bus.DropDone(ctx, subjects.StreamInbox, inboxDurable, w.now().Add(-keepInbox)); err != nil && ctx.Err() == nil {
					w.log.Warn("clear up the inbox", slog.Any("error", err))
				}
				crash.Point("after_inbox_clear")
			}
		case <-save.C:
			began := time.Now()
			saved = w.saveIfNew(ctx, saved, true)
			// A large index is written seldom enough to cost one part in twenty;
			// most of the time that it takes is rest.
			save.Reset(max(checkpointEvery, 20/(1+restShare)*time.Since(began)))
		case <-sweep.C:
			sweep.Reset(w.sweepIfOwned(ctx))
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
