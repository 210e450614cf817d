package router

// timers is a heap of when entries are due. A timer is never removed when the
// entry changes: the one who pops it asks the entry, which knows when it is
// really due. An entry may have several; at most one of them is not stale.
type timers []timer

type timer struct {
	at   int64 // ns
	slot slot
}

func (h *timers) push(t timer) {
	*h = append(*h, t)
	q := *h
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if q[up].at <= q[i].at {
			break
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
}

// pop takes the earliest timer that is due at now.
func (h *timers) pop(now int64) (timer, bool) {
	q := *h
	if len(q) == 0 || q[0].at > now {
		return timer{}, false
	}
	t := q[0]
	last := len(q) - 1
	q[0] = q[last]
	q = q[:last]
	*h = q
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(q) {
			break
		}
		if c+1 < len(q) && q[c+1].at < q[c].at {
			c++
		}
		if q[i].at <= q[c].at {
			break
		}
		q[i], q[c] = q[c], q[i]
		i = c
	}
	return t, true
}
