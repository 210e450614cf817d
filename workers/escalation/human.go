package escalation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// seeToHumans logs what is a human's, and raises alerts for what waits.
func (w *Worker) seeToHumans(ctx context.Context) error {
	return w.bus.Consume(ctx, bus.Consumer{
		Stream: subjects.StreamEscalations, Durable: "escalation", Subjects: []string{subjects.HumanPattern},
		Concurrency: 64, AckWait: 10 * time.Second, MaxAckPending: 1024, DeadLetter: true,
	}, w.onHuman)
}

// onHuman takes in an escalation to level 3.
func (w *Worker) onHuman(ctx context.Context, m bus.Msg) error {
	e, err := fleet.DecodeEscalation(m.Data)
	if err != nil {
		return bus.Never(fmt.Errorf("decode an escalation: %w", err))
	}
	crash.Point("before_log")
	w.logHuman(ctx, e, m)
	crash.Point("after_log")
	if e.State != fleet.StateInputRequired {
		return nil // it ended: nobody waits
	}
	if err := w.raise(ctx, e.TaskID, e.Seq); err != nil {
		return err
	}
	crash.Point("after_raise")
	return nil
}

// logHuman appends to CHANGE.log. What cannot be written there is kept as an
// event instead: nobody's alert waits for a disk.
func (w *Worker) logHuman(ctx context.Context, e *fleet.Escalation, m bus.Msg) {
	id := `"id":"` + recordID(e.TaskID, e.Seq) + `"`
	line := append([]byte("{"+id+","), m.Data[1:]...)
	mark := ""
	if m.Delivered > 1 {
		mark = id // somebody may have written it and crashed
	}
	if err := w.lines.append(line, mark); err != nil {
		w.log.Error("append to CHANGE.log", slog.String("task_id", string(e.TaskID)), attrErr(err))
		w.event(ctx, fleet.AlertEvent{Event: "change_log_failed", TaskID: e.TaskID, Message: err.Error()})
	}
}

// raise makes a task that waits part of an alert.
func (w *Worker) raise(ctx context.Context, task subjects.TaskID, seq uint64) error {
	e, err := w.waits(ctx, task, seq)
	if e == nil || err != nil {
		return err
	}
	labels, id := labelsOf(e, w.cfg.GroupBy)
	m := &waiting{Group: id, Labels: labels, Task: alertTask(e, w.brief(ctx, e))}
	rev, err := w.putWaiting(ctx, m)
	if err != nil {
		return err
	}
	// It may have gone on while this was written.
	if e, err = w.waits(ctx, task, seq); err != nil {
		return err
	}
	if e == nil {
		return w.waitOver(ctx, task, seq+1)
	}
	if rev > 0 {
		w.log.Debug("a task waits for a human", slog.String("task_id", string(task)), slog.String("group", id), slog.String("code", string(m.Task.Code)))
		m.rev = rev
		w.with(func(v *view) { v.put(m) })
		w.stir()
	}
	return nil
}

// waits is the record of a task if it is still the one that waits.
func (w *Worker) waits(ctx context.Context, task subjects.TaskID, seq uint64) (*fleet.Event, error) {
	m, err := w.bus.Last(ctx, subjects.StreamTasks, subjects.Task(task))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // no record waits
	}
	if err != nil {
		return nil, err
	}
	e, err := fleet.DecodeEvent(m.Data)
	if err != nil {
		return nil, bus.Never(err)
	}
	if e.Seq < seq {
		// A leader that is new, or was replaced, does not know it yet. Who took
		// that for the end of the wait would never tell anybody.
		return nil, fmt.Errorf("task %s: record %d is not known to the stream's leader yet, %d is the last", task, seq, e.Seq)
	}
	// Late spending may have been noted since: it waits all the same.
	if e.State != fleet.StateInputRequired || e.Facts.Await != fleet.AwaitHuman || cmp.Or(e.Facts.AskedSeq, e.Seq) != seq {
		return nil, nil //nolint:nilnil // see above
	}
	return e, nil
}

// putWaiting stores m unless something newer of the task is there; the revision
// is 0 then.
func (w *Worker) putWaiting(ctx context.Context, m *waiting) (uint64, error) {
	key, value := taskKey+string(m.Task.TaskID), fleet.MustEncode(m)
	for {
		rev, err := w.kv.Create(ctx, key, value, 0)
		if !errors.Is(err, bus.ErrExists) {
			return rev, err
		}
		was, err := w.kv.Get(ctx, key)
		if errors.Is(err, bus.ErrNotFound) {
			continue
		}
		if err != nil {
			return 0, err
		}
		var old waiting
		if json.Unmarshal(was.Value, &old) == nil && old.Task.Seq >= m.Task.Seq {
			return 0, nil
		}
		if rev, err = w.kv.Update(ctx, key, value, was.Revision); !errors.Is(err, bus.ErrConflict) {
			return rev, err
		}
	}
}

// brief is the beginning of what the task is about, for people.
func (w *Worker) brief(ctx context.Context, e *fleet.Event) string {
	raw := e.Data.Dispatch
	if len(raw) == 0 && e.Facts.DispatchSeq > 0 {
		m, err := w.bus.Get(ctx, subjects.StreamTasks, e.Facts.DispatchSeq)
		if err != nil {
			return ""
		}
		first, err := fleet.DecodeEvent(m.Data)
		if err != nil {
			return ""
		}
		raw = first.Data.Dispatch
	}
	d, err := fleet.DecodeReply[fleet.Dispatch](raw)
	if err != nil {
		return ""
	}
	return clip(strings.Join(strings.Fields(d.Brief), " "), 200)
}
