package router

import (
	"time"

	"parley/subjects/fleet"
)

// levels are the priorities, most urgent first; their weights say how many of
// fifteen starts each gets while all have tasks that wait.
var (
	levels  = [...]fleet.Priority{fleet.Critical, fleet.High, fleet.Normal, fleet.Low}
	weights = [len(levels)]int{8, 4, 2, 1}
)

// ageing is how long a task waits until it may have the turns of the next level,
// too; a level further each time, and never those of the first.
const ageing = time.Minute

func levelOf(p fleet.Priority) uint8 {
	for i, l := range levels {
		if p == l {
			return uint8(i)
		}
	}
	return 2 // normal
}

// list is a queue of entries, oldest first, linked through the index.
type list struct{ head, tail slot }

// class holds the tasks that ask for the same agents.
type class struct {
	*Class
	need   Need
	num    uint32
	tasks  int // entries that name it, waiting or not
	queues [len(levels)]list
	queued int  // in queues
	owned  bool // this router offers its tasks
	parked bool // nobody could ever do it when last asked
	// offeredAt is when one of its tasks was last offered, ns.
	offeredAt int64
}

// Of a class that flows something has been offered within flowsFor. The others
// leave it room: together they keep half of what the router keeps of waiting
// tasks in memory, and each at most maxHotStill tasks.
const (
	flowsFor    = 5 * time.Second
	maxHotStill = 500
)

func (c *class) flows(now time.Time) bool { return now.UnixNano()-c.offeredAt <= int64(flowsFor) }

// enqueue puts s where its age puts it; nearly always that is the end.
func (c *class) enqueue(x *index, s slot) {
	e := x.at(s)
	if e.flags&inQueue != 0 {
		return
	}
	l := &c.queues[e.priority]
	after := c.place(x, l, e.created)
	e.prev = after
	if after == 0 {
		e.next = l.head
		l.head = s
	} else {
		a := x.at(after)
		e.next = a.next
		a.next = s
	}
	if e.next == 0 {
		l.tail = s
	} else {
		x.at(e.next).prev = s
	}
	e.flags |= inQueue
	c.queued++
}

// place finds the entry that one created then comes after, 0 for none. It looks
// from both ends: most tasks are the newest, or close to it; one that comes
// back is older than most.
func (c *class) place(x *index, l *list, created int64) slot {
	after, before := l.tail, l.head
	for after != 0 && x.at(after).created > created {
		if x.at(before).created > created {
			return x.at(before).prev
		}
		after, before = x.at(after).prev, x.at(before).next
	}
	return after
}

// dequeue takes s out, wherever it is.
func (c *class) dequeue(x *index, s slot) {
	e := x.at(s)
	if e.flags&inQueue == 0 {
		return
	}
	l := &c.queues[e.priority]
	if e.prev == 0 {
		l.head = e.next
	} else {
		x.at(e.prev).next = e.next
	}
	if e.next == 0 {
		l.tail = e.prev
	} else {
		x.at(e.next).prev = e.prev
	}
	e.prev, e.next = 0, 0
	e.flags &^= inQueue
	c.queued--
}

// turns deals starts to the priorities 8:4:2:1 (smooth weighted round robin),
// so that none that waits is ever passed over for long.
type turns [len(levels)]int

// next picks among the levels that have something to start.
func (t *turns) next(has [len(levels)]bool) int {
	best, sum := -1, 0
	for i, ok := range has {
		if !ok {
			continue
		}
		t[i] += weights[i]
		sum += weights[i]
		if best < 0 || t[i] > t[best] {
			best = i
		}
	}
	if best >= 0 {
		t[best] -= sum
	}
	return best
}

// heads gives the oldest task of each level. A level that has none gets the
// oldest of those that have waited for so long: old tasks, however many, take no
// turns from younger ones of a higher level.
func heads(x *index, now int64, classes func(yield func(*class) bool)) (at [len(levels)]slot) {
	for c := range classes {
		for l := range c.queues {
			if h := c.queues[l].head; h != 0 && (at[l] == 0 || x.at(h).created < x.at(at[l]).created) {
				at[l] = h
			}
		}
	}
	own := at
	for l, h := range own {
		if h == 0 {
			continue
		}
		created := x.at(h).created
		lifts := int(max(0, now-created) / int64(ageing)) // whoever stored it may have been ahead
		for up := max(1, l-lifts); up < l; up++ {
			if own[up] == 0 && (at[up] == 0 || created < x.at(at[up]).created) {
				at[up] = h
				break
			}
		}
	}
	return at
}
