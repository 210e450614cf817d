package router

import (
	"sync/atomic"
	"time"

	"parley/subjects/fleet"
)

// figures count the records that this router stored.
type figures struct {
	since                                 atomic.Int64 // ns
	received, completed, canceled, failed atomic.Uint64
}

// count takes a record in that was stored.
func (f *figures) count(ev *fleet.Event) {
	if ev.Seq == 1 {
		f.received.Add(1)
	}
	switch ev.State {
	case fleet.StateDone, fleet.StatePartial:
		f.completed.Add(1)
	case fleet.StateCanceled:
		f.canceled.Add(1)
	case fleet.StateError, fleet.StateBlocked, fleet.StateExpired:
		f.failed.Add(1)
	case fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired:
	}
}

// Figures are what this router has counted since it began, and how many tasks
// wait in the fleet; any goroutine may call it.
func (w *Worker) Figures() fleet.TaskFigures {
	f := &w.figures
	t := fleet.TaskFigures{
		Received: f.received.Load(), Completed: f.completed.Load(), Canceled: f.canceled.Load(), Failed: f.failed.Load(),
	}
	if ns := f.since.Load(); ns != 0 {
		t.Since = time.Unix(0, ns).UTC()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Queued = w.core.counts[codeOfState(fleet.StateQueued)]
	return t
}
