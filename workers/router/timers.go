package router

// timers is a heap of when entries are due. A timer is never removed when the
// entry changes: the one who pops it asks the entry, which knows when it is
// really due. An entry may have several; at most one of them is not stale. The
// stale ones go when there are more of them than entries: see core.trim.
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

// manyTimers are kept however few entries there are.
const manyTimers = 4096

// trim drops the timers that are stale, once they are most: that of a task that
// has ended would be kept until its deadline.
func (c *core) trim() {
	if len(c.timers) <= 2*c.x.live+manyTimers {
		return
	}
	c.timers = make(timers, 0, c.x.live+manyTimers/2)
	for s, e := range c.x.all() {
		c.timers.push(timer{e.due, s})
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
