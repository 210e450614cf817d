package escalation

import (
	"sync"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxRecent is how many tasks recent remembers; the next ones are looked up.
const maxRecent = 1024

// recent remembers the records with which tasks began to wait for a human, from
// when they are read until a record that ends the wait is. Whoever finds one
// there knows that this worker has yet to read what comes of it: no leader needs
// to be asked whether it is still true. Its zero value is ready.
type recent struct {
	mu    sync.Mutex // guards all below
	tasks map[subjects.TaskID]*began
	order []subjects.TaskID // a ring, the oldest at next
	next  int
}

type began struct {
	seq   uint64       // of the record in the stream
	event *fleet.Event // nil until it was fetched
}

// expect notes that the record seq of the stream has a task wait. It is called
// in the order of the stream, as over is.
func (r *recent) expect(task subjects.TaskID, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks == nil {
		r.tasks = make(map[subjects.TaskID]*began)
	}
	if _, known := r.tasks[task]; !known {
		if len(r.order) < maxRecent {
			r.order = append(r.order, task)
		} else {
			delete(r.tasks, r.order[r.next])
			r.order[r.next] = task
			r.next = (r.next + 1) % maxRecent
		}
	}
	r.tasks[task] = &began{seq: seq}
}

// over notes that a task waits no more.
func (r *recent) over(task subjects.TaskID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tasks[task]; b != nil {
		*b = began{}
	}
}

// put gives the record seq of the stream, if that is still what is expected.
func (r *recent) put(e *fleet.Event, seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tasks[e.TaskID]; b != nil && b.seq == seq {
		b.event = e
	}
}

// get is the record with which a task began to wait, if it is the task's record
// seq and none that ends the wait was read; nil otherwise.
func (r *recent) get(task subjects.TaskID, seq uint64) *fleet.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.tasks[task]; b != nil && b.event != nil && asksHuman(b.event, seq) {
		return b.event
	}
	return nil
}
