package router

import (
	"time"

	"parley/escalation"
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
			c.judgeUnschedulable(s, why)
		}
	case e.flags&wider != 0 && c.isDeserted(cl, now):
		c.widenTask(s)
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
		in, ok := c.fleet.Choose(cl.Class, Want{Session: c.sessions[s], Task: c.x.id(s), AvoidHost: c.lostHost(s)}, now)
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

// lostHost is the machine of the agent that lost the task in its last attempt, ""
// where that is not known.
func (c *core) lostHost(s slot) string {
	h := c.hot[s]
	if h == nil || len(h.ev.Facts.Attempts) == 0 {
		return ""
	}
	a := &h.ev.Facts.Attempts[len(h.ev.Facts.Attempts)-1]
	if escalation.ClassOf(a.Code) != escalation.ClassLoss {
		return ""
	}
	if in := c.fleet.Get(a.AgentID, a.InstanceID); in != nil && in.Announce != nil {
		return in.Announce.Worker.Labels[fleet.LabelHost]
	}
	return ""
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
		c.widenClass(cl, now)
		return
	}
	for l := range cl.queues {
		for s := cl.queues[l].head; s != 0; s = c.x.at(s).next {
			c.judgeUnschedulable(s, why)
		}
	}
}

// judgeUnschedulable asks, once, what becomes of a task that nobody could ever do.
func (c *core) judgeUnschedulable(s slot, why []fleet.Reason) {
	if e := c.x.at(s); e.flags&waits == 0 && c.mayJudge(c.ticked) {
		e.flags |= waits
		c.do(unschedulable{c.x.id(s), why})
	}
}

// widenOrphans looks at the tasks that only agent and others that are absent may
// do: those that it was to try again, that are pinned to it, or have named
// alternatives.
func (c *core) widenOrphans(agent subjects.AgentID, now time.Time) {
	for _, classes := range []classSet{c.waiting, c.unserved} {
		for cl := range classes.only[agent] {
			c.widenClass(cl, now)
		}
	}
}

// widenClass has others do the tasks of a class, too, if all are absent that alone
// may do them.
func (c *core) widenClass(cl *class, now time.Time) {
	if cl.queued == 0 || !c.isDeserted(cl, now) {
		return
	}
	for l := range cl.queues {
		for s := cl.queues[l].head; s != 0; s = c.x.at(s).next {
			c.widenTask(s)
		}
	}
}

// widenTask has others do a task, too, if others may. What has no further
// candidates goes on waiting.
func (c *core) widenTask(s slot) {
	if e := c.x.at(s); e.flags&wider != 0 && e.flags&acting == 0 {
		e.flags |= acting
		c.do(orphaned{c.x.id(s)})
	}
}

// isDeserted reports whether all are absent that alone may do the tasks of a class.
// An agent that this router has yet to hear is looked at again when it has listened.
func (c *core) isDeserted(cl *class, now time.Time) bool {
	if !c.settled {
		return false // all are looked at when it has
	}
	if c.areAbsent(cl.Class, now) {
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

// reopenClass offers the tasks of a class again, since more may do them now.
func (c *core) reopenClass(cl *class, now time.Time) {
	if cl.owned && cl.queued > 0 {
		c.unserved.remove(cl)
		c.waiting.add(cl)
		c.pump(cl, now)
	}
}

// armLifted sees to it that a task is looked at when somebody who is left out of it
// for a while may have it again.
func (c *core) armLifted(s slot, e *entry, now time.Time) {
	if e.class == 0 || e.flags&inQueue == 0 {
		return
	}
	if at := c.byNum[e.class].nextLifted(now); !at.IsZero() && at.UnixNano() < e.due {
		e.due = at.UnixNano()
		c.timers.push(timer{e.due, s})
	}
}

// isUnschedulable re-checks, just before the record is written, that nobody could
// ever do the task. If that is not so, or not certain any more, it may be asked
// again. In a fleet to which no agent has ever announced itself a task waits,
// unless its dispatch says otherwise.
func (c *core) isUnschedulable(ev *fleet.Event) ([]fleet.Reason, bool) {
	could, why := c.fleet.Capable(c.fleet.Compile(need(ev)))
	still := !could && c.mayJudge(c.ticked)
	if still && c.fleet.announced.empty() {
		p := ev.Facts.Policy.OnBlocked
		still = p == fleet.OnBlockedFail || p == fleet.OnBlockedEscalate
	}
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
	c.reevaluateAll(now)
}

// reevaluateAll asks of every class that waits whether anybody could ever do it:
// after the router has settled, and when what agents announce has changed.
func (c *core) reevaluateAll(now time.Time) {
	c.generation = c.fleet.Generation()
	c.wake()
	for cl := range c.waiting.all() {
		c.pump(cl, now)
	}
}

// reevaluate looks again at classes that wait, if what agents announce has
// changed since.
func (c *core) reevaluate(now time.Time) {
	if c.generation != c.fleet.Generation() {
		c.reevaluateAll(now)
	}
}
