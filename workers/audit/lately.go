package audit

import (
	"parley/bus"
	"parley/subjects"
)

// latelyMost is how many writes are remembered: more than come in the time in
// which one is repeated.
const latelyMost = 4096

// lately knows which writes of a stream it has seen. A write that is repeated,
// since nobody answered, is stored a second time if its subject was purged
// between the two; it is told of once.
type lately struct {
	seen  map[string]bool
	order []string // oldest at next once it is full
	next  int
}

func newLately() *lately { return &lately{seen: make(map[string]bool)} }

// again reports whether m is a write that was seen, and remembers it.
func (l *lately) again(m bus.Msg) bool {
	id := m.Header.Get(subjects.HeaderWriteID)
	switch {
	case id == "":
		return false
	case l.seen[id]:
		return true
	case len(l.order) < latelyMost:
		l.order = append(l.order, id)
	default:
		delete(l.seen, l.order[l.next])
		l.order[l.next] = id
		l.next = (l.next + 1) % latelyMost
	}
	l.seen[id] = true
	return false
}
