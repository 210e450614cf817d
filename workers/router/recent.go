package router

import (
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// recent remembers the tasks that ended last: for listings, and so that a
// record that arrives after its task's outcome raises nobody from the dead.
type recent struct {
	ring  []endedTask
	next  int
	bySeq map[subjects.TaskID]uint64
}

// endedTask is one task that ended.
type endedTask struct {
	ID    subjects.TaskID
	From  subjects.AgentID
	Agent subjects.AgentID // who did it, if anybody
	Seq   uint64           // stream sequence of the outcome
	State fleet.State
	Ended time.Time
}

func newRecent(n int) *recent {
	return &recent{ring: make([]endedTask, 0, n), bySeq: make(map[subjects.TaskID]uint64, n)}
}

// add notes an outcome and reports whether it is news.
func (r *recent) add(t endedTask) bool {
	if seq, ok := r.bySeq[t.ID]; ok {
		r.bySeq[t.ID] = max(seq, t.Seq)
		return false
	}
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, t)
	} else {
		delete(r.bySeq, r.ring[r.next].ID)
		r.ring[r.next] = t
		r.next = (r.next + 1) % len(r.ring)
	}
	r.bySeq[t.ID] = t.Seq
	return true
}

// newest lists what is remembered, latest first.
func (r *recent) newest() []endedTask {
	out := make([]endedTask, 0, len(r.ring))
	for i := range r.ring {
		out = append(out, r.ring[(r.next+len(r.ring)-1-i)%len(r.ring)])
	}
	return out
}
