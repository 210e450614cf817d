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
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	deriving      = 16               // records in hand at a time
	positionEvery = 10 * time.Second // how often it is kept how far they were read
	positionKey   = "escalation"     // where
)

// derive keeps an escalation message for every record that escalates, and ends
// the wait of tasks that wait for no human any more. Only the headers of
// records are read; the few that escalate are fetched.
func (w *Worker) derive(ctx context.Context) error {
	start, err := w.bus.Position(ctx, positionKey, subjects.StreamTasks)
	if err != nil {
		return err
	}
	low := &lowWater{done: start, open: make(map[uint64]bool)}
	slots := make(chan struct{}, deriving)
	order := turns{last: make(map[subjects.TaskID]chan struct{})}
	ctx, cancel := context.WithCancel(ctx)
	var hands sync.WaitGroup
	defer hands.Wait()
	defer cancel() // first: a stream that cannot be read any more ends the worker
	hands.Go(func() { w.keepPosition(ctx, low) })
	if start > 0 {
		start++
	}
	return w.bus.Tail(ctx, bus.Tail{
		Stream: subjects.StreamTasks, StartSeq: start, HeadersOnly: true,
		Handle: func(m bus.Msg) {
			level := m.Header.Get(subjects.HeaderLevel)
			if level != "" && !isLevel(level) {
				w.bus.Skip(m, subjects.Errorf(subjects.CodeInvalidMessage, "there is no such level of escalation"))
				level = ""
			}
			if level == "" {
				low.passed(m.Seq)
				return
			}
			task := subjects.TaskID(strings.TrimPrefix(m.Subject, subjects.Task("")))
			switch level {
			case "0":
				w.recent.over(task)
			case "3":
				w.recent.expect(task, m.Seq)
			}
			low.begin(m.Seq)
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			before, over := order.take(task)
			hands.Go(func() {
				defer func() { <-slots }()
				defer over()
				select {
				case <-before:
				case <-ctx.Done():
					return
				}
				if w.patiently(ctx, m, level) {
					low.end(m.Seq)
				}
			})
		},
	})
}

// isLevel reports whether a header is a level of escalation, 0 for the end of a
// wait.
func isLevel(s string) bool { return len(s) == 1 && s[0] >= '0' && s[0] <= '3' }

// turns has the records of one task that are in hand done one after the other:
// an escalation whose successor is there already counts as kept.
type turns struct {
	mu   sync.Mutex
	last map[subjects.TaskID]chan struct{} // guarded by mu; closed when the last one of a task is done
}

// take gives a turn: it begins once before is closed, and ends with over.
func (t *turns) take(task subjects.TaskID) (before <-chan struct{}, over func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, mine := t.last[task], make(chan struct{})
	if was == nil {
		was = make(chan struct{})
		close(was)
	}
	t.last[task] = mine
	return was, func() {
		close(mine)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.last[task] == mine {
			delete(t.last, task)
		}
	}
}

// patiently derives from m until that has worked; false when ctx ended first.
func (w *Worker) patiently(ctx context.Context, m bus.Msg, level string) bool {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := w.deriveOne(ctx, m, level)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		w.log.Warn("derive an escalation", slog.String("task_id", taskOf(m)), slog.Uint64("seq", m.Seq), attrErr(err))
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

func (w *Worker) deriveOne(ctx context.Context, m bus.Msg, level string) error {
	full, err := w.bus.Get(ctx, subjects.StreamTasks, m.Seq)
	if errors.Is(err, bus.ErrNotFound) {
		return nil // it ended long ago
	}
	if err != nil {
		return err
	}
	e, err := fleet.DecodeEvent(full.Data)
	if err == nil && subjects.Task(e.TaskID) != full.Subject {
		err = subjects.Misplaced("task")
	}
	if err != nil {
		w.bus.Skip(full, err)
		return nil
	}
	if level == "0" {
		if plant.Bug("over_lost") {
			return nil
		}
		return w.waitOver(ctx, e.TaskID, e.Seq)
	}
	n := int(level[0] - '0')
	if n == 3 {
		w.recent.put(e, m.Seq)
	}
	crash.Point("before_escalation")
	if n == 3 && plant.Bug("escalation_lost") {
		return nil
	}
	if err := w.keepEscalation(ctx, e, n, lifeOf(e, m.Seq)); err != nil {
		return err
	}
	crash.Point("after_escalation")
	return nil
}

// keepEscalation keeps the message of e, once: what was derived before the
// position was kept, or by another replica, is not derived twice. What is there is
// looked at only where something is.
func (w *Worker) keepEscalation(ctx context.Context, e *fleet.Event, level int, life string) error {
	id, told := life+strconv.FormatUint(e.Seq, 10), fleet.NewEscalation(e, level)
	r := bus.Record{
		Subject: subjects.Escalation(level, e.TaskID), WriteID: id,
		Header: bus.Header{"Nats-Msg-Id": {id}, subjects.HeaderTraceparent: {told.Traceparent}}, Data: fleet.MustEncode(told),
	}
	for look := len(e.Facts.Attempts) > 1; ; look = true {
		if look {
			switch last, err := w.bus.Last(ctx, subjects.StreamEscalations, r.Subject); {
			case err == nil:
				if isKept(last, e, life) {
					return nil
				}
				r.Expected = last.Seq
			case errors.Is(err, bus.ErrNotFound):
				r.Expected = 0
			default:
				return err
			}
		}
		if _, err := w.messages.Write(ctx, r); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
}

// taskOf is the task whose record m is.
func taskOf(m bus.Msg) string {
	if vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject); ok {
		return vars[0]
	}
	return ""
}

// lifeOf names the task whose record e is, which is the message seq of its stream:
// an id that is used again, once the records of its task have gone, is another
// task's.
func lifeOf(e *fleet.Event, seq uint64) string {
	return fmt.Sprintf("%s/%d/", e.TaskID, cmp.Or(e.Facts.DispatchSeq, seq))
}

// isKept reports whether last is the message of e, or of a later record of the
// same life.
func isKept(last bus.Msg, e *fleet.Event, life string) bool {
	was, err := fleet.DecodeEscalation(last.Data)
	if err != nil || was.Seq < e.Seq {
		return false
	}
	if id := last.Header.Get("Nats-Msg-Id"); strings.Count(id, "/") > 1 {
		return strings.HasPrefix(id, life)
	}
	return !was.Timestamp.Before(e.Facts.Created) // of a build that named no lives
}

// waitOver notes that a task waits for no human since its record seq.
func (w *Worker) waitOver(ctx context.Context, task subjects.TaskID, seq uint64) error {
	e, err := w.kv.Get(ctx, taskKey+string(task))
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	var m waiting
	if err := json.Unmarshal(e.Value, &m); err == nil && m.Task.Seq >= seq {
		return nil // it waits again
	}
	err = w.dropWait(ctx, task, e.Revision)
	if errors.Is(err, bus.ErrConflict) {
		return w.waitOver(ctx, task, seq)
	}
	return err
}

// dropWait removes the entry of a task that waited, unless it was changed.
func (w *Worker) dropWait(ctx context.Context, task subjects.TaskID, rev uint64) error {
	err := w.kv.DeleteRevision(ctx, taskKey+string(task), rev)
	if err == nil {
		crash.Point("after_wait_over")
		w.with(func(v *view) { v.drop(task) })
		w.stir()
	}
	return err
}

// keepPosition keeps how far the records were read, for who comes next.
func (w *Worker) keepPosition(ctx context.Context, low *lowWater) {
	tick := time.NewTicker(positionEvery)
	defer tick.Stop()
	kept := low.mark()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		seq := low.mark()
		if seq <= kept {
			continue
		}
		if err := w.bus.KeepPosition(ctx, positionKey, seq); err == nil {
			crash.Point("after_position")
			kept = seq
		} else if ctx.Err() == nil {
			w.log.Warn("position not kept", attrErr(err))
		}
	}
}

// lowWater knows up to where every record has been seen to.
type lowWater struct {
	mu   sync.Mutex
	done uint64 // the last one begun or passed
	open map[uint64]bool
}

func (l *lowWater) passed(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = seq
}

func (l *lowWater) begin(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = seq
	l.open[seq] = true
}

func (l *lowWater) end(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, seq)
}

func (l *lowWater) mark() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	mark := l.done
	for seq := range l.open {
		mark = min(mark, seq-1)
	}
	return mark
}

func attrErr(err error) slog.Attr   { return slog.Any("error", err) }
func attrAlert(id string) slog.Attr { return slog.String("alert_id", id) }
