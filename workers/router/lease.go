package router

import (
	"fmt"
	"slices"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// How long an agent may hold what the record denies before it is told to drop it:
// it may not have heard yet. What it may just have accepted is left to it for as
// long as that may be on its way into the record, at another router too.
const (
	denyFor     = 5 * time.Second
	acceptedFor = offerTimeout + writeTimeout
)

// What is absent is believed only after one lease of listening: at least
// minListen, at most maxListen, however slow a heartbeat is announced. A router
// that heard nothing for isolationTimeout, since it was cut off or stood still, listens
// anew.
const (
	// stagger is how much later a router fires what another one owns: doubles
	// are harmless, but cost a write.
	stagger          = 2 * time.Second
	minListen        = 3 * time.Second
	maxListen        = 30 * time.Second
	isolationTimeout = 2 * time.Second
	// stoodStill is how long a router may do nothing before it believes that
	// records have been stored meanwhile that it has not read.
	stoodStill = 500 * time.Millisecond
)

// listen begins one lease of listening: until it is over no agent is missed.
func (c *core) listen(now time.Time) {
	lasts := max(c.longestLease(), minListen)
	c.settled, c.settleAt, c.ticked = false, now.Add(lasts), now
	c.listens, c.orphansAt, c.judgeAt, c.judges = now, time.Time{}, time.Time{}, false
	for _, h := range c.hot {
		h.lost, h.renewed = "", now
	}
}

// longestLease is the longest lease of the known instances, at most maxListen; 0
// where none sends heartbeats.
func (c *core) longestLease() time.Duration {
	longest := time.Duration(0)
	for in := range c.fleet.All() {
		longest = max(longest, min(lease(in), maxListen))
	}
	return longest
}

// mayJudge reports whether this router has listened for a lease, so that it can say
// what nobody could ever do: for the default one, where it knows of none. Before,
// all classes are looked at again when it has.
func (c *core) mayJudge(now time.Time) bool {
	switch {
	case c.judges:
		return true
	case now.Before(c.judgeAt):
		return false
	}
	lasts := c.longestLease()
	if lasts == 0 {
		lasts = fleet.MissedHeartbeats * fleet.DefaultHeartbeat
	}
	c.judgeAt = c.listens.Add(max(lasts, minListen))
	c.judges = c.settled && !c.judgeAt.After(now)
	return c.judges
}

// announce takes in what an instance says of itself.
func (c *core) announce(a *fleet.Announce, at, now time.Time) {
	in, _ := c.fleet.Announce(a, at, now)
	if in == nil {
		return
	}
	c.warnOutdated(in, a.Worker.Epoch)
	c.restarted(in, now)
	c.feed(in, now)
}

// warnOutdated has a process told whose epoch is lower than that of its instance.
func (c *core) warnOutdated(in *Instance, epoch int64) {
	if epoch != 0 && epoch < in.Epoch && c.caughtUp && c.ring.Owns(string(in.Agent)) {
		c.do(outdated{instanceKey{in.Agent, in.ID}, epoch, in.Epoch})
	}
}

// beat takes in a heartbeat: it renews leases, ends those of an earlier epoch,
// and shows what an agent holds that it should not. rival is the epoch of a newer
// process of the same instance, once it is clear that the older one goes on.
func (c *core) beat(agent subjects.AgentID, instance subjects.InstanceID, hb *fleet.Heartbeat, now time.Time) (rival int64) {
	in, known := c.fleet.Beat(agent, instance, hb, now)
	if !known {
		return 0
	}
	if hb.Epoch != 0 && hb.Epoch < in.Epoch && in.stale == staleBeats {
		rival = in.Epoch
	}
	if in.stale > 0 && in.stale%staleBeats == 0 {
		c.warnOutdated(in, hb.Epoch)
	}
	for _, held := range hb.Holding {
		if held.TokensSpent > 0 {
			c.noteSpent(held.TaskID, agent, held.Attempt, held.TokensSpent)
		}
	}
	for task := range in.Held {
		s := c.x.find(task)
		h := c.hot[s]
		if h == nil {
			continue
		}
		if h.ev.Epoch != 0 && h.ev.Epoch != hb.Epoch {
			c.outlived(in, task, h, now)
			continue
		}
		if _, holds := in.Holding[task]; holds {
			h.renewed, h.lost = now, ""
			if (h.ev.Facts.Answer != nil && !h.told || h.unheard()) && c.owned(c.x.at(s)) {
				c.do(tell{task, h.ev, h.heard})
			}
		} else if silent := now.Sub(h.renewed); c.settled && in.Heartbeat > 0 && silent > lease(in) {
			c.lose(task, h, fmt.Sprintf("%s/%s has not named the task among what it holds for %s", agent, instance, silent.Round(time.Second)), now)
		}
	}
	c.deny(in, hb, now)
	c.feed(in, now)
	return rival
}

// staleBeats is how many heartbeats of an instance's earlier epochs say that it
// has not ended: one or two may have been on their way.
const staleBeats = 3

// lease is how long a lease lasts without renewal.
func lease(in *Instance) time.Duration {
	if plant.Bug("lease_short") {
		return in.Heartbeat / 2
	}
	return fleet.MissedHeartbeats * in.Heartbeat
}

// listened is when this router has listened for a lease of the instance.
func (c *core) listened(in *Instance) time.Time { return c.listens.Add(lease(in)) }

// left reports whether an agent is gone: the lease of each of its instances is
// over, and this router has listened for as long. One that only missed an offer
// is within its lease.
func (c *core) left(agent subjects.AgentID, now time.Time) bool {
	if !c.settled || now.Sub(c.ticked).Abs() > isolationTimeout {
		return false
	}
	for in := range c.fleet.Of(agent) {
		if !in.lapsed || c.listened(in).After(now) {
			return false
		}
	}
	return true
}

// areAbsent reports whether none of those agents is there that alone may do the
// tasks of a class, if there are any: each is away, limited or left out. An agent
// that is busy, drained or unwell is there.
func (c *core) areAbsent(cl *Class, now time.Time) bool {
	return len(cl.only) > 0 && !plant.Bug("widen_never") &&
		!slices.ContainsFunc(cl.only, func(id subjects.AgentID) bool { return !c.isAbsent(cl, id, now) })
}

func (c *core) isAbsent(cl *Class, id subjects.AgentID, now time.Time) bool {
	if slices.Contains(cl.not, id) || c.left(id, now) {
		return true
	}
	if !c.settled || now.Sub(c.ticked).Abs() > isolationTimeout {
		return false
	}
	for in := range c.fleet.Of(id) {
		gone := in.lapsed && !c.listened(in).After(now)
		if !gone && !in.limited && cl.leavesOut(in, false, now) == nil {
			return false
		}
	}
	return true
}

// isOverdue reports whether the instance should have been heard by now.
func (in *Instance) isOverdue(now time.Time) bool {
	return in.Heartbeat > 0 && now.Sub(in.LastSeen) > in.Heartbeat*3/2
}

// deny looks for work that no record names.
func (c *core) deny(in *Instance, hb *fleet.Heartbeat, now time.Time) {
	key := instanceKey{in.Agent, in.ID}
	was := c.denied[key]
	delete(c.denied, key)
	if !c.caughtUp || len(hb.Holding) == 0 {
		return
	}
	denied := make(map[subjects.TaskID]time.Time)
	for _, held := range hb.Holding {
		who := holder{in.Agent, in.ID, hb.Epoch}
		if c.holds(held.TaskID, who) || c.isLostHere(held.TaskID, who) {
			continue
		}
		since, ok := was[held.TaskID]
		if !ok {
			since = now
		}
		denied[held.TaskID] = since
		if now.Sub(since) >= c.mayHold(held) && c.ring.Owns(string(held.TaskID)) {
			c.do(recall{to: key, task: held.TaskID, attempt: held.Attempt, offer: held.OfferID, why: subjects.CodeSuperseded, denied: true})
		}
	}
	if len(denied) > 0 {
		c.denied[key] = denied
	}
}

// isLostHere reports whether the task waits since h was lost with it: h may go on
// until another one has the task.
func (c *core) isLostHere(task subjects.TaskID, h holder) bool {
	hot := c.hot[c.x.find(task)]
	return hot != nil && hot.ev.State == fleet.StateQueued && isLostHolder(hot.ev, h) && !plant.Bug("epoch_banned")
}

// mayHold is for how long an agent may hold a task that the record does not give
// to it.
func (c *core) mayHold(held fleet.Holding) time.Duration {
	if s := c.x.find(held.TaskID); s != 0 {
		if e := c.x.at(s); e.state == codeOfState(fleet.StateQueued) && int(e.attempt)+1 == held.Attempt {
			return acceptedFor
		}
	}
	return denyFor
}

// holds reports whether the record names h as the holder of task.
func (c *core) holds(task subjects.TaskID, h holder) bool {
	hot := c.hot[c.x.find(task)]
	if hot == nil || !held(hot.ev) {
		return false
	}
	was := holderOf(hot.ev)
	return was.agent == h.agent && was.instance == h.instance && (was.epoch == 0 || was.epoch == h.epoch)
}

// restarted ends the leases of an instance's earlier epochs.
func (c *core) restarted(in *Instance, now time.Time) {
	for task := range in.Held {
		if h := c.hot[c.x.find(task)]; h != nil {
			c.outlived(in, task, h, now)
		}
	}
}

// outlived ends the lease of task if it is of an earlier epoch.
func (c *core) outlived(in *Instance, task subjects.TaskID, h *hot, now time.Time) {
	if h.ev.Epoch != 0 && in.Epoch > h.ev.Epoch {
		c.lose(task, h, fmt.Sprintf("%s/%s has restarted", in.Agent, in.ID), now)
	}
}

// silence ends the leases of instances that are not heard any more. Each is told
// of once: so not before something can be done about it.
func (c *core) silence(now time.Time) {
	if !c.caughtUp {
		return
	}
	gone := c.fleet.Expire(now)
	for _, in := range gone {
		delete(c.denied, instanceKey{in.Agent, in.ID})
	}
	if !c.settled {
		return
	}
	for _, in := range gone {
		c.widenOrphans(in.Agent, now)
		for task := range in.Held {
			if h := c.hot[c.x.find(task)]; h != nil && in.Heartbeat > 0 {
				c.lose(task, h, fmt.Sprintf("%s/%s was last heard %s ago", in.Agent, in.ID, now.Sub(in.LastSeen).Round(time.Second)), now)
			}
		}
	}
}

// orphans ends the leases of holders that this router has not heard while it has
// listened: they were gone before it came. Whose heartbeats are so slow that it
// has not listened for a lease yet gets the rest of it; so do those who alone may
// do what waits.
func (c *core) orphans(now time.Time) {
	c.orphansAt = time.Time{}
	for s, h := range c.hot {
		if !held(h.ev) || h.ev.Epoch == 0 {
			continue
		}
		who := holderOf(h.ev)
		in := c.fleet.Get(who.agent, who.instance)
		switch {
		case in != nil && in.lapsed && in.Heartbeat > 0 && c.listened(in).After(now):
			c.lookAt(c.listened(in), now)
		case in == nil || in.lapsed && in.Heartbeat > 0:
			c.lose(c.x.id(s), h, fmt.Sprintf("%s/%s is not heard", who.agent, who.instance), now)
		case in.Epoch > h.ev.Epoch:
			c.restarted(in, now)
		}
	}
	for _, cl := range c.classes {
		if cl.owned {
			c.widenClass(cl, now)
		}
	}
}

// lookAt has orphans look again at that time, if it is to come.
func (c *core) lookAt(at, now time.Time) {
	if at.After(now) && (c.orphansAt.IsZero() || at.Before(c.orphansAt)) {
		c.orphansAt = at
	}
}

// lose marks a lease as ended and sees to it that the owner of the task acts
// now, any other router a little later.
func (c *core) lose(task subjects.TaskID, h *hot, why string, now time.Time) {
	if !c.caughtUp || h.lost != "" || !held(h.ev) {
		return
	}
	h.lost = why
	s := c.x.find(task)
	e := c.x.at(s)
	at := now
	if !c.owned(e) {
		at = now.Add(stagger)
	}
	e.due = min(e.due, at.UnixNano())
	c.timers.push(timer{at.UnixNano(), s})
}

func (c *core) owned(e *entry) bool { return e.class != 0 && c.byNum[e.class].owned }

// tick fires what is due. It is called often while the bus is heard; it costs
// nothing while nothing is due.
func (c *core) tick(now time.Time) {
	if gap := now.Sub(c.ticked); gap.Abs() > stoodStill {
		if gap < 0 {
			c.setBack(gap)
		}
		if gap < 0 || gap > isolationTimeout {
			c.listen(now)
		}
		c.stood++
		if c.caughtUp {
			c.caughtUp = false
			c.do(catchUp{})
		}
	}
	c.ticked = now
	if c.ring.Expire(now) {
		c.ringChanged(now)
	}
	if c.caughtUp && !c.settled && !now.Before(c.settleAt) {
		c.settled = true
		c.orphans(now)
		c.reevaluateAll(now)
	} else if c.caughtUp && !c.orphansAt.IsZero() && !now.Before(c.orphansAt) {
		c.orphans(now)
	}
	if c.caughtUp && c.settled && !c.judges && !c.judgeAt.IsZero() && c.mayJudge(now) {
		c.reevaluateAll(now)
	}
	c.silence(now)
	c.endProbes(now)
	c.warm(now)
	c.trim()
	for {
		t, ok := c.timers.pop(now.UnixNano())
		if !ok {
			return
		}
		if int(t.slot) <= int(c.x.top) && c.x.at(t.slot).id.kind != 0 {
			c.fire(t.slot, c.x.at(t.slot), now)
		}
	}
}

// setBack puts up with a clock that was set back: whoever was heard just now is
// not heard in the future.
func (c *core) setBack(by time.Duration) {
	c.fleet.Shift(by)
	c.ring.Shift(by)
	clear(c.denied)
	for agent, at := range c.warmAt {
		c.warmAt[agent] = at.Add(by)
	}
}

// fire does what an entry is due for, and arms its next timer: in a second, if
// what it starts does not lead to another record before.
func (c *core) fire(s slot, e *entry, now time.Time) {
	if e.due > now.UnixNano() {
		return // another timer is armed
	}
	arm := func(at int64) {
		e.due = at
		c.timers.push(timer{at, s})
	}
	soon := now.Add(time.Second).UnixNano()
	h, due := c.hot[s], e.deadline
	if h != nil && h.ev.State != fleet.StateQueued {
		due = dueAt(h.ev).UnixNano()
	}
	if plant.Bug("late") {
		due += int64(15 * time.Second)
	}
	switch gone := h != nil && h.lost != ""; {
	case !c.caughtUp, e.flags&acting != 0:
		arm(soon)
	case due > now.UnixNano() && !gone:
		arm(due)
		if e.state == codeOfState(fleet.StateQueued) && e.flags&offering == 0 {
			c.enqueue(s, e, now) // its retry is due
			if cl := c.byNum[e.class]; len(cl.out) > 0 {
				c.reopenClass(cl, now) // somebody may be left out no longer
			}
			c.armLifted(s, e, now)
		}
	case !c.owned(e) && now.UnixNano() < min(due, e.due)+int64(stagger) && !gone:
		c.timers.push(timer{min(due, e.due) + int64(stagger), s})
	case gone:
		arm(soon)
		e.flags |= acting
		c.do(lost{c.x.id(s), holderOf(h.ev), h.lost})
	default:
		arm(soon)
		e.flags |= acting
		c.do(timedOut{c.x.id(s)})
	}
}

// acted ends what fire began.
func (c *core) acted(id subjects.TaskID) {
	if s := c.x.find(id); s != 0 {
		c.x.at(s).flags &^= acting
	}
}
