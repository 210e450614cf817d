package router

import (
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// enqueue lets the task wait for an agent, and offers it if one is free.
func (c *core) enqueue(s slot, e *entry, now time.Time) {
	cl := c.byNum[e.class]
	first := cl.queued == 0
	cl.enqueue(c.x, s)
	if !cl.owned {
		return
	}
	if !c.unserved.has(cl) {
		c.waiting.add(cl)
	}
	switch {
	case first:
		c.pump(cl, now)
	case cl.parked:
		if could, why := c.fleet.Capable(cl.Class); could {
			c.pump(cl, now)
		} else {
			c.despair(s, why)
		}
	case e.attempt > 0 && c.deserted(cl, now):
		c.maroon(s)
	}
}

// unwait takes the class out of those that wait for somebody.
func (c *core) unwait(cl *class) {
	c.waiting.remove(cl)
	c.unserved.remove(cl)
}

// wake has every class looked at again, since agents have changed.
func (c *core) wake() {
	for cl := range c.unserved.all() {
		c.waiting.add(cl)
	}
	c.unserved = newClassSet()
}

// pump offers the tasks of one class while somebody is free for them.
func (c *core) pump(cl *class, now time.Time) {
	if !c.caughtUp || !cl.owned {
		return
	}
	for cl.queued > 0 {
		at := heads(c.x, now.UnixNano(), func(yield func(*class) bool) { yield(cl) })
		s := at[c.turns.next(some(at))]
		in, ok := c.fleet.Choose(cl.Class, Want{Session: c.sessions[s], Task: c.x.id(s)}, now)
		if !ok {
			c.park(cl, now)
			if c.generation == c.fleet.Generation() && !c.fleet.Served(cl.Class) {
				c.waiting.remove(cl)
				c.unserved.add(cl)
			}
			return
		}
		c.offer(s, in, now)
	}
}

// feed offers tasks to one instance while it has room.
func (c *core) feed(in *Instance, now time.Time) {
	if !c.caughtUp {
		return
	}
	if c.generation != c.fleet.Generation() {
		c.wake()
	}
	for in.Free() {
		at := heads(c.x, now.UnixNano(), func(yield func(*class) bool) {
			goOn := func(cl *class) bool { return !c.fleet.CanNow(cl.Class, in, now) || yield(cl) }
			for cl := range c.waiting.open {
				if !goOn(cl) {
					return
				}
			}
			for cl := range c.waiting.only[in.Agent] {
				if !goOn(cl) {
					return
				}
			}
		})
		level := c.turns.next(some(at))
		if level < 0 {
			return
		}
		c.offer(at[level], in, now)
	}
}

func some(at [len(levels)]slot) (has [len(levels)]bool) {
	for i, s := range at {
		has[i] = s != 0
	}
	return has
}

func (c *core) offer(s slot, in *Instance, now time.Time) {
	e := c.x.at(s)
	c.byNum[e.class].offeredAt = now.UnixNano()
	c.unqueue(s, e)
	e.flags = e.flags&^waits | offering
	if h := c.hot[s]; h != nil {
		h.offered = make(chan struct{})
	}
	c.fleet.Offer(in, +1)
	c.do(offer{c.x.id(s), e.lastSeq, in, in.Epoch})
}

// offerAgain is when a task is offered again if this router could not see its
// offer through.
const offerAgain = time.Second

// offered ends an offer: the slot that was kept for it is free again (a record
// holds it, if the task was taken), and a task that is still queued waits on; for
// a moment, if the offer failed here.
func (c *core) offered(id subjects.TaskID, in *Instance, failed bool, now time.Time) {
	c.fleet.Offer(in, -1)
	if s := c.x.find(id); s != 0 && c.x.at(s).flags&offering != 0 {
		e := c.x.at(s)
		e.flags &^= offering
		if h := c.hot[s]; h != nil && h.offered != nil {
			close(h.offered)
			h.offered = nil
		}
		if e.state == codeOfState(fleet.StateQueued) && e.due > now.UnixNano() && e.flags&inQueue == 0 {
			switch h := c.hot[s]; {
			case h != nil && h.ev.Facts.NotBefore != nil && h.ev.Facts.NotBefore.After(now): // its timer is armed
			case failed:
				e.due = min(e.due, now.Add(offerAgain).UnixNano())
				c.timers.push(timer{e.due, s})
			default:
				c.enqueue(s, e, now)
			}
		}
	}
	c.feed(in, now)
}

// park looks why nobody is free for a class: if nobody ever could be, its tasks
// do not wait in vain.
func (c *core) park(cl *class, now time.Time) {
	could, why := c.fleet.Capable(cl.Class)
	cl.parked = !could
	if could {
		c.strandClass(cl, now)
		return
	}
	for l := range cl.queues {
		for s := cl.queues[l].head; s != 0; s = c.x.at(s).next {
			c.despair(s, why)
		}
	}
}

// despair asks, once, what becomes of a task that nobody could ever do.
func (c *core) despair(s slot, why []fleet.Reason) {
	if e := c.x.at(s); c.settled && e.flags&waits == 0 {
		e.flags |= waits
		c.do(hopeless{c.x.id(s), why})
	}
}

// strand looks at the tasks that only agent and others that have left may do:
// those that it was to try again, and those that have named alternatives.
func (c *core) strand(agent subjects.AgentID, now time.Time) {
	for _, classes := range []classSet{c.waiting, c.unserved} {
		for cl := range classes.only[agent] {
			c.strandClass(cl, now)
		}
	}
}

// strandClass asks what becomes of the tasks of a class, if all have left that
// alone may do them.
func (c *core) strandClass(cl *class, now time.Time) {
	if cl.queued == 0 || !c.deserted(cl, now) {
		return
	}
	for l := range cl.queues {
		for s := cl.queues[l].head; s != 0; s = c.x.at(s).next {
			c.maroon(s)
		}
	}
}

// maroon asks what becomes of a task that was tried before, once all have left
// that alone may do it: to be gone is to fail again. One that waits for its first
// attempt by its pin goes on waiting.
func (c *core) maroon(s slot) {
	if e := c.x.at(s); e.attempt > 0 && e.flags&acting == 0 {
		e.flags |= acting
		c.do(stranded{c.x.id(s)})
	}
}

// deserted reports whether all have left that alone may do the tasks of a class.
// Whom this router has yet to hear is looked at again when it has listened.
func (c *core) deserted(cl *class, now time.Time) bool {
	if !c.settled {
		return false // all are looked at when it has
	}
	if c.allLeft(cl.need.Only, now) {
		return true
	}
	for _, id := range cl.need.Only {
		for in := range c.fleet.Of(id) {
			if in.lapsed {
				c.lookAt(c.listened(in), now)
			}
		}
	}
	return false
}

// hopelessNow re-checks, just before the record is written, that nobody could
// ever do the task. If that is not so, or not certain any more, it may be asked
// again.
func (c *core) hopelessNow(ev *fleet.Event) ([]fleet.Reason, bool) {
	could, why := c.fleet.Capable(c.fleet.Compile(need(ev)))
	still := !could && c.settled
	if s := c.x.find(ev.TaskID); s != 0 && !still {
		c.x.at(s).flags &^= waits
	}
	return why, still
}

// ringChanged gives this router the classes that are now its own.
func (c *core) ringChanged(now time.Time) {
	for _, cl := range c.classes {
		owned := c.ring.OwnsHash(cl.Hash())
		if owned == cl.owned {
			continue
		}
		cl.owned = owned
		if owned && cl.queued > 0 {
			c.waiting.add(cl)
			c.pump(cl, now)
		} else if !owned {
			c.unwait(cl)
		}
	}
}

// goOn begins or resumes offering: everything stored by then has been read.
func (c *core) goOn(now time.Time) {
	c.caughtUp = true
	c.ringChanged(now)
	c.lookAgain(now)
}

// lookAgain asks of every class that waits whether anybody could ever do it:
// after the router has settled, and when what agents announce has changed.
func (c *core) lookAgain(now time.Time) {
	c.generation = c.fleet.Generation()
	c.wake()
	for cl := range c.waiting.all() {
		c.pump(cl, now)
	}
}

// reconsider looks again at classes that wait, if what agents announce has
// changed since.
func (c *core) reconsider(now time.Time) {
	if c.generation != c.fleet.Generation() {
		c.lookAgain(now)
	}
}
