package escalation

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"parley/bus"
	"parley/subjects"
)

// lookEvery is how often long waits are held against the records, and how long
// that is: every leader knows by then whether a task waits.
const lookEvery = 10 * time.Minute

// endStale ends waits that are over although no record here said so: the records
// may be purged before they are read, or be read by another replica just before
// this one stores the wait.
func (w *Worker) endStale(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		long := make(map[subjects.TaskID]*waiting)
		before := w.now().Add(-lookEvery)
		w.with(func(v *view) {
			for _, g := range v.groups {
				maps.Copy(long, g.tasks)
			}
		})
		maps.DeleteFunc(long, func(_ subjects.TaskID, m *waiting) bool { return m.Task.Since.After(before) })
		for task, m := range long {
			over, err := w.isOver(ctx, m)
			if err == nil && over {
				w.log.Info("a task waits for no human any more, which no record said here", slog.String("task_id", string(task)))
				err = w.dropWait(ctx, task, m.rev)
			}
			if ctx.Err() != nil {
				return nil
			}
			if err != nil && !errors.Is(err, bus.ErrConflict) {
				w.log.Warn("look after a wait", slog.String("task_id", string(task)), attrErr(err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// isOver reports whether the task of m waits no more as m says.
func (w *Worker) isOver(ctx context.Context, m *waiting) (bool, error) {
	e, err := w.latest(ctx, m.Task.TaskID)
	if e == nil || err != nil {
		return err == nil, err
	}
	if e.Facts.DispatchSeq != m.Dispatch && e.Facts.DispatchSeq > 0 && m.Dispatch > 0 {
		return true, nil // its id is another task's by now
	}
	return e.Seq >= m.Task.Seq && !asksHuman(e, m.Task.Seq), nil
}
