package escalation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
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
	id := `"id":` + string(fleet.MustEncode(cmp.Or(m.Header.Get("Nats-Msg-Id"), string(e.TaskID)+"/"+strconv.FormatUint(e.Seq, 10))))
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
func (w *Worker) raise(ctx context.Context, task subjects.TaskID, seq uint64) (err error) {
	e := w.recent.get(task, seq)
	if e == nil {
		if e, err = w.waits(ctx, task, seq); e == nil || err != nil {
			return err
		}
	}
	m := &waiting{Task: alertTask(e), Dispatch: e.Facts.DispatchSeq}
	m.Labels, m.Group = labelsOf(e, &m.Task, w.cfg.GroupBy)
	if w.isShown(m.Group) {
		m.Task.Brief = w.readBrief(ctx, m.Dispatch)
	}
	if err := w.putWaiting(ctx, m); err != nil {
		return err
	}
	w.log.Debug("a task waits for a human", slog.String("task_id", string(task)), slog.String("group", m.Group), slog.String("code", string(m.Task.Code)))
	// It may have gone on while this was written. Where the record that says so
	// is yet to be read here, its reader finds what was written.
	if w.recent.get(task, seq) != nil {
		return nil
	}
	if e, err = w.waits(ctx, task, seq); e != nil || err != nil {
		return err
	}
	return w.waitOver(ctx, task, seq+1)
}

// latest is the latest record of a task, nil where none is left.
func (w *Worker) latest(ctx context.Context, task subjects.TaskID) (*fleet.Event, error) {
	m, err := w.bus.Last(ctx, subjects.StreamTasks, subjects.Task(task))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // see above
	}
	if err != nil {
		return nil, err
	}
	e, err := fleet.DecodeEvent(m.Data)
	if err != nil {
		return nil, bus.Never(err)
	}
	return e, nil
}

// waits is the record of a task if it is still the one that waits.
func (w *Worker) waits(ctx context.Context, task subjects.TaskID, seq uint64) (*fleet.Event, error) {
	e, err := w.latest(ctx, task)
	if e == nil || err != nil {
		return nil, err
	}
	if e.Seq < seq {
		// A leader that is new, or was replaced, does not know it yet. Who took
		// that for the end of the wait would never tell anybody.
		return nil, fmt.Errorf("task %s: record %d is not known to the stream's leader yet, %d is the last", task, seq, e.Seq)
	}
	if !asksHuman(e, seq) {
		return nil, nil //nolint:nilnil // it does not wait
	}
	return e, nil
}

// asksHuman reports whether e waits for a human since record seq. Late spending
// may have been noted since: it waits all the same.
func asksHuman(e *fleet.Event, seq uint64) bool {
	return e.State == fleet.StateInputRequired && e.Facts.Await == fleet.AwaitHuman && cmp.Or(e.Facts.AskedSeq, e.Seq) == seq
}

// putWaiting stores m unless something newer of the task is there; whoever
// watches the bucket, this worker as well, has it from there.
func (w *Worker) putWaiting(ctx context.Context, m *waiting) error {
	key, value := taskKey+string(m.Task.TaskID), fleet.MustEncode(m)
	for {
		_, err := w.kv.Create(ctx, key, value, 0)
		if !errors.Is(err, bus.ErrExists) {
			crash.Point("after_waiting")
			return err
		}
		was, err := w.kv.Get(ctx, key)
		if errors.Is(err, bus.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		var old waiting
		if json.Unmarshal(was.Value, &old) == nil && !m.after(&old) {
			return nil
		}
		if _, err = w.kv.Update(ctx, key, value, was.Revision); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
}

// isShown reports whether one more task of a group is among those that are
// shown. Of thousands most never are.
func (w *Worker) isShown(group string) (is bool) {
	w.with(func(v *view) { is = v.groups[group] == nil || len(v.groups[group].tasks) < maxNamed })
	return is
}

// brief fills in what the tasks of an alert that is to be shown are about.
func (w *Worker) brief(ctx context.Context, a *fleet.Alert) {
	var hands sync.WaitGroup
	slots := make(chan struct{}, briefsAtOnce)
	for i := range a.Tasks {
		t := &a.Tasks[i]
		var m *waiting
		w.with(func(v *view) {
			if g := v.byTask[t.TaskID]; g != nil && t.Brief == "" {
				m = g.tasks[t.TaskID]
			}
		})
		if m == nil || m.Dispatch == 0 {
			continue
		}
		slots <- struct{}{}
		hands.Go(func() {
			defer func() { <-slots }()
			t.Brief = w.readBrief(ctx, m.Dispatch)
			w.with(func(*view) { m.Task.Brief = t.Brief })
		})
	}
	hands.Wait()
}

const briefsAtOnce = 16

// readBrief reads the beginning of what a task is about, from the record that
// has its dispatch; "" when that is away.
func (w *Worker) readBrief(ctx context.Context, dispatch uint64) string {
	if dispatch == 0 {
		return ""
	}
	m, err := w.bus.Get(ctx, subjects.StreamTasks, dispatch)
	if err != nil {
		return ""
	}
	first, err := fleet.DecodeEvent(m.Data)
	if err != nil {
		return ""
	}
	d, err := fleet.DecodeReply[fleet.Dispatch](first.Data.Dispatch)
	if err != nil {
		return ""
	}
	return clip(strings.Join(strings.Fields(d.Brief), " "), 200)
}
