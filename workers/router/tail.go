package router

import (
	"context"
	"log/slog"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// readRecords builds the index from the checkpoint and the rest of the stream,
// and then follows every record that any router writes.
func (w *Worker) readRecords(ctx context.Context, caughtUp chan<- struct{}) error {
	began := time.Now()
	start := w.restore(ctx)
	return w.bus.Tail(ctx, bus.Tail{
		Stream: subjects.StreamTasks, StartSeq: start + 1, Handle: w.onRecord,
		CaughtUp: func(last uint64) {
			w.mu.Lock()
			w.tail = max(w.tail, last)
			w.mu.Unlock()
			crash.Point("after_catch_up")
			w.log.Info("task records read", slog.Int("live_tasks", w.liveTasks()), slog.String("took", time.Since(began).String()))
			caughtUp <- struct{}{}
		},
	})
}

// onRecord takes in a record as it was stored. One that this router is writing
// just now is not decoded: its write knows it.
func (w *Worker) onRecord(m bus.Msg) {
	vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject)
	if !ok {
		w.bus.Skip(m, subjects.Errorf(subjects.CodeInvalidID, "the subject is of no task"))
		w.with(func(*core, time.Time) { w.tail = m.Seq })
		return
	}
	plant.Linger("leak_goroutines")
	id := subjects.TaskID(vars[0])
	if w.knows(id, m) {
		return
	}
	ev, err := fleet.DecodeEvent(m.Data)
	if err == nil && ev.TaskID != id {
		err = subjects.Misplaced("task")
	}
	if err != nil {
		w.bus.Skip(m, err)
		w.with(func(*core, time.Time) { w.tail = m.Seq })
		return
	}
	w.with(func(c *core, now time.Time) {
		c.apply(ev, m.Seq, now)
		w.tail = m.Seq
	})
}

// knows reports whether the record is nothing new, or will be made known by the
// write that is under way.
func (w *Worker) knows(id subjects.TaskID, m bus.Msg) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.core.knows(id, m.Header.Get(subjects.HeaderKind), m.Seq)
	if id := m.Header.Get(subjects.HeaderWriteID); !known {
		if _, known = w.writing[id]; known {
			w.writing[id] = m.Seq
		}
	}
	if known {
		w.tail = m.Seq
	}
	return known
}

// askTimeout is how long a server that says nothing is waited for: it may have
// gone while it was asked.
const askTimeout = 2 * time.Second

// catchUp waits until the tail has read all that is stored by now. If the router
// stands still once more meanwhile, more may have been stored.
func (w *Worker) catchUp() {
	tick := time.NewTicker(tickEvery / 10)
	defer tick.Stop()
	var last, stood uint64
	for asked := false; ; {
		done := false
		w.with(func(c *core, now time.Time) {
			asked = asked && stood == c.stood
			stood = c.stood
			if done = asked && w.tail >= last; done {
				c.goOn(now)
			}
		})
		if done {
			return
		}
		if !asked {
			ask, cancel := context.WithTimeout(w.work, askTimeout)
			if st, err := w.bus.StreamState(ask, subjects.StreamTasks); err == nil {
				last, asked = st.LastSeq, true
			}
			cancel()
		}
		select {
		case <-tick.C:
		case <-w.work.Done():
			return
		}
	}
}

// appliedLocked is the stream sequence up to which every record has been
// applied. It needs the lock.
func (w *Worker) appliedLocked() uint64 {
	applied := w.tail
	for _, seq := range w.writing {
		if seq != 0 {
			applied = min(applied, seq-1)
		}
	}
	return applied
}

// lastSeq is the stream sequence of the latest record of id that was applied, 0
// when none is remembered.
func (c *core) lastSeq(id subjects.TaskID) uint64 {
	if s := c.x.find(id); s != 0 {
		return c.x.at(s).lastSeq
	}
	return c.recent.bySeq[id]
}

// knows reports whether the record of id at seq has been applied, or is older
// than what has.
func (c *core) knows(id subjects.TaskID, kind string, seq uint64) bool {
	if s := c.x.find(id); s != 0 {
		return kind != fleet.KindOutcome && c.x.at(s).lastSeq >= seq
	}
	end, ok := c.recent.bySeq[id]
	return ok && end >= seq
}
