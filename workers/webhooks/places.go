package webhooks

import (
	"container/heap"
	"slices"
	"time"

	"parley/subjects/fleet"
)

// slot is a place in a heap.
type slot struct {
	at      time.Time
	entry   *entry
	version uint64
}

// places is a heap of slots, the earliest first, then in the stream's order.
type places []slot

// Len is for package heap.
func (p *places) Len() int { return len(*p) }

// Less is for package heap.
func (p *places) Less(i, j int) bool {
	a, b := &(*p)[i], &(*p)[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.entry.seq < b.entry.seq
}

// Swap is for package heap.
func (p *places) Swap(i, j int) { (*p)[i], (*p)[j] = (*p)[j], (*p)[i] }

// Push is for package heap.
func (p *places) Push(s any) { *p = append(*p, s.(slot)) } //nolint:errcheck,forcetypeassert // nothing else is pushed

// Pop is for package heap.
func (p *places) Pop() any {
	old := *p
	s := old[len(old)-1]
	old[len(old)-1] = slot{}
	*p = old[:len(old)-1]
	return s
}

// compact drops void places where they are most of all, such as those of
// deliveries that ended long before their time.
func (x *index) compact() {
	if len(x.ends) < 1024 || len(x.ends) < 4*x.count[fleet.DeliveryPending] {
		return
	}
	x.ends = slices.DeleteFunc(x.ends, func(s slot) bool { return s.entry.version != s.version || s.entry.busy })
	heap.Init(&x.ends)
}
