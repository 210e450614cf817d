package router

import (
	"encoding/json"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers"
)

// core is a router without clock, network or goroutine: records, announces and
// heartbeats go in, effects come out. Its worker guards it with one lock and
// carries the effects out.
type core struct {
	// Fixed after newCore.
	maxQueued int
	maxHot    int // queued tasks whose dispatch is kept in memory

	x        *index
	fleet    *Fleet
	ring     *workers.Ring // of the routers
	recent   *recent
	timers   timers
	turns    turns
	classes  map[string]*class // by key
	byNum    []*class          // 0 unused
	freeNum  []uint32
	waiting  classSet // owned, with tasks in their queues
	unserved classSet // of those, not in waiting: nobody serves them at generation
	hot      map[slot]*hot
	hotIdle  int                         // queued ones among hot
	sessions map[slot]subjects.SessionID // of queued tasks that have one
	waiters  map[subjects.TaskID][]chan struct{}
	denied   map[instanceKey]map[subjects.TaskID]time.Time // held by an agent, denied by the record, since
	warmAt   map[subjects.AgentID]time.Time                // when an agent has rested
	lossRows map[subjects.AgentID]lossRow

	counts   [len(states)]int // live tasks by state
	caughtUp bool
	settleAt time.Time // from then on "nobody could ever" and lost leases are believed
	settled  bool
	ticked   time.Time // when tick was last called
	stood    uint64    // how often it has stood still, or was cut off, or its clock was set back
	listens  time.Time // since when it does, see listen
	// orphansAt is when orphans has to look again; zero: it has not.
	orphansAt time.Time
	// judges says that this router has listened for long enough to say what nobody
	// could ever do; judgeAt is when it has, zero: nobody has asked yet.
	judges  bool
	judgeAt time.Time
	// generation of the fleet when all classes that wait were last looked at.
	generation uint64

	effects []effect
}

type instanceKey struct {
	agent    subjects.AgentID
	instance subjects.InstanceID
}

// hot is what a router keeps of a task that it is busy with.
type hot struct {
	ev       *fleet.Event    // its latest record
	dispatch json.RawMessage // nil: read it from the stream
	renewed  time.Time       // when its lease was last renewed, or first seen
	lost     string          // why its lease ended, "" while it has not
	told     bool            // its agent has acknowledged the answer in ev
	heard    int             // how many of ev's follow-ups its agent has acknowledged
	offered  chan struct{}   // closed when the offer under way is over
	spent    int64           // what its holder said last that the attempt has spent
	spentIn  int             // the attempt that spent is of
}

// effect is something that the worker does for the core.
type effect interface{ isEffect() }

type (
	// offer: hand task to the instance by request/reply, then call offered.
	offer struct {
		task  subjects.TaskID
		seq   uint64 // stream sequence of the record that it was chosen by
		in    *Instance
		epoch int64 // the instance's, when it was chosen
	}
	// timedOut: the deadline, or the attempt's time-out, has passed.
	timedOut struct{ task subjects.TaskID }
	// lost: the holder's lease has ended.
	lost struct {
		task subjects.TaskID
		from holder
		why  string
	}
	// unschedulable: nobody could ever do it.
	unschedulable struct {
		task subjects.TaskID
		why  []fleet.Reason
	}
	// recall: tell an instance to drop a task that is not its own (any more).
	recall struct {
		to      instanceKey
		task    subjects.TaskID
		attempt int    // it and all before it; the agent may have a later one by right
		offer   string // what it accepted by this offer alone; "": by whichever
		why     subjects.Code
		denied  bool // only if the record, read again, names another or nobody
	}
	// outdated: tell a process that its epoch is lower than that of its instance.
	outdated struct {
		to           instanceKey
		epoch, newer int64
	}
	// catchUp: read every record that is stored by now, then say caughtUpNow.
	catchUp struct{}
	// orphaned: its only candidates are away, limited or left out.
	orphaned struct{ task subjects.TaskID }
	// settleProbe: the probe of a half-open account is over; open says that the
	// account is open.
	settleProbe struct {
		key  string // of the limit
		task subjects.TaskID
		open bool
	}
	// tell: give the agent the answer to its question, and the follow-ups that
	// it has not heard.
	tell struct {
		task  subjects.TaskID
		ev    *fleet.Event
		heard int
	}
)

func (offer) isEffect()         {}
func (timedOut) isEffect()      {}
func (lost) isEffect()          {}
func (unschedulable) isEffect() {}
func (settleProbe) isEffect()   {}
func (recall) isEffect()        {}
func (catchUp) isEffect()       {}
func (orphaned) isEffect()      {}
func (tell) isEffect()          {}
func (outdated) isEffect()      {}

func newCore(self subjects.InstanceID, maxQueued, maxHot, remember int) *core {
	return &core{
		maxQueued: maxQueued, maxHot: maxHot,
		x: newIndex(), fleet: NewFleet(), ring: workers.NewRing(self), recent: newRecent(remember),
		classes: make(map[string]*class), byNum: []*class{nil},
		waiting: newClassSet(), unserved: newClassSet(), hot: make(map[slot]*hot),
		sessions: make(map[slot]subjects.SessionID),
		waiters:  make(map[subjects.TaskID][]chan struct{}),
		denied:   make(map[instanceKey]map[subjects.TaskID]time.Time),
		warmAt:   make(map[subjects.AgentID]time.Time),
		lossRows: make(map[subjects.AgentID]lossRow),
	}
}

// take hands over the effects gathered so far.
func (c *core) take() []effect {
	e := c.effects
	c.effects = nil
	return e
}

func (c *core) do(e effect) { c.effects = append(c.effects, e) }

// apply takes in a record stored at stream sequence seq, ours or another
// router's, in any order and any number of times.
func (c *core) apply(ev *fleet.Event, seq uint64, now time.Time) {
	if ev.State.Terminal() {
		c.finish(ev, seq, now)
		return
	}
	if end, ok := c.recent.bySeq[ev.TaskID]; ok && seq <= end {
		return
	}
	s := c.x.find(ev.TaskID)
	var e *entry
	if s == 0 {
		s, e = c.x.add(ev.TaskID)
		e.from = c.x.intern(ev.Facts.From)
		e.created, e.deadline = ev.Facts.Created.UnixNano(), ev.Facts.Deadline.UnixNano()
		e.priority = levelOf(ev.Facts.Priority)
		e.firstSeq = ev.Facts.DispatchSeq
		if ev.Seq == 1 {
			e.firstSeq = seq
		}
	} else if e = c.x.at(s); seq <= e.lastSeq {
		return
	} else {
		c.counts[e.state]--
	}
	var before holder // who had it so far
	if h := c.hot[s]; h != nil && held(h.ev) {
		before = holderOf(h.ev)
	}
	e.lastSeq, e.attempt, e.state = seq, uint16(ev.Attempt), codeOfState(ev.State)
	if ev.State != fleet.StateQueued || ev.Kind == fleet.KindResumed {
		e.flags &^= waits // what it asked has been answered
	}
	c.counts[e.state]++
	c.unqueue(s, e)
	c.setClass(e, ev)
	c.keep(s, e, ev, now)
	c.countLosses(ev)
	c.checkProbe(ev)
	c.expectLimit(ev, now)
	c.changeHands(ev, before, now)
	due := dueAt(ev)
	e.due = due.UnixNano()
	c.timers.push(timer{e.due, s})
	if ev.Kind == fleet.KindLost && plant.Bug("requeue_never") {
		return
	}
	if ev.State == fleet.StateQueued && e.flags&offering == 0 && (ev.Facts.NotBefore == nil || !ev.Facts.NotBefore.After(now) || plant.Bug("retry_at_once")) {
		c.enqueue(s, e, now)
		c.armLifted(s, e, now)
	}
	if h := c.hot[s]; h != nil && (ev.Kind == fleet.KindAnswer || h.unheard()) && c.caughtUp && c.owned(e) {
		c.do(tell{ev.TaskID, h.ev, h.heard})
	}
}

// changeHands keeps the fleet's account of who holds the task.
func (c *core) changeHands(ev *fleet.Event, before holder, now time.Time) {
	var after holder
	if held(ev) {
		after = holderOf(ev)
		c.fleet.Hold(after.agent, after.instance, ev.TaskID, ev.Attempt)
		if ev.Facts.SessionID != "" {
			c.fleet.Warm(after.agent, after.instance, ev.Facts.SessionID)
		}
	}
	if before.agent != "" && before != after {
		c.release(before, ev, now)
	}
}

// release frees a holder's slot and gives it something else to do. What its
// earlier heartbeats say of the task is out of date once it has reported.
func (c *core) release(h holder, ev *fleet.Event, now time.Time) {
	if reported(ev) {
		c.fleet.Finish(h.agent, h.instance, ev.TaskID, now)
	}
	c.fleet.Release(h.agent, h.instance, ev.TaskID, now)
	if in := c.fleet.Get(h.agent, h.instance); in != nil {
		c.feed(in, now)
	}
}

// finish takes in an outcome: the task leaves the index.
func (c *core) finish(ev *fleet.Event, seq uint64, now time.Time) {
	id := ev.TaskID
	s := c.x.find(id)
	if !c.recent.add(endedTask{id, ev.Facts.From, ev.AgentID, seq, ev.State, ev.Time}) && s == 0 {
		return
	}
	c.countLosses(ev)
	c.checkProbe(ev)
	h := c.hot[s]
	c.leave(id, s)
	if h != nil && held(h.ev) {
		c.release(holderOf(h.ev), ev, now)
	}
}

// vanish takes in that the records of a task are gone, unless there are newer
// ones than seq.
func (c *core) vanish(id subjects.TaskID, seq uint64, now time.Time) {
	s := c.x.find(id)
	if s == 0 || c.x.at(s).lastSeq != seq {
		return
	}
	h := c.hot[s]
	c.leave(id, s)
	if h != nil && held(h.ev) {
		c.fleet.Release(h.ev.AgentID, h.ev.InstanceID, id, now)
	}
}

// leave takes a task out of the index, and tells who waits for its end.
func (c *core) leave(id subjects.TaskID, s slot) {
	for _, w := range c.waiters[id] {
		close(w)
	}
	delete(c.waiters, id)
	if s == 0 {
		return
	}
	e := c.x.at(s)
	c.counts[e.state]--
	c.unqueue(s, e)
	c.forget(s)
	c.dropClass(e)
	c.x.remove(s)
}

// keep decides what stays in memory of the record.
func (c *core) keep(s slot, e *entry, ev *fleet.Event, now time.Time) {
	h := c.hot[s]
	if ev.State == fleet.StateQueued && ev.Facts.SessionID != "" {
		c.sessions[s] = ev.Facts.SessionID
	}
	idle := ev.State == fleet.StateQueued
	wasIdle := h != nil && h.ev.State == fleet.StateQueued
	if h == nil {
		if idle && e.flags&offering == 0 && !c.roomFor(c.byNum[e.class], now) {
			return
		}
		h = &hot{}
		c.hot[s] = h
	}
	switch {
	case idle && !wasIdle:
		c.hotIdle++
	case !idle && wasIdle:
		c.hotIdle--
	}
	if len(ev.Data.Dispatch) > 0 {
		h.dispatch = ev.Data.Dispatch
	}
	if !idle && !ev.Facts.HasSchema {
		h.dispatch = nil
	}
	if h.ev == nil || holderOf(h.ev) != holderOf(ev) || h.ev.Attempt != ev.Attempt {
		h.renewed, h.lost, h.heard = now, "", 0
	}
	h.told = false
	slim := *ev
	slim.Data = fleet.Data{}
	h.ev = &slim
}

// roomFor reports whether one more waiting task of cl may be kept in memory.
func (c *core) roomFor(cl *class, now time.Time) bool {
	if cl.flows(now) {
		return c.hotIdle < c.maxHot
	}
	return c.hotIdle < c.maxHot/2 && cl.queued < maxHotStill
}

func (c *core) forget(s slot) {
	if h := c.hot[s]; h != nil {
		if h.ev.State == fleet.StateQueued {
			c.hotIdle--
		}
		if h.offered != nil {
			close(h.offered)
		}
	}
	delete(c.hot, s)
	delete(c.sessions, s)
}

// setClass moves the entry to the class that its record asks for.
func (c *core) setClass(e *entry, ev *fleet.Event) {
	if e.class != 0 && ev.State != fleet.StateQueued {
		return
	}
	e.flags &^= wider | silent
	if candidates(ev).Wider {
		e.flags |= wider
	}
	if ev.Facts.Policy.Escalate == fleet.EscalateNever {
		e.flags |= silent
	}
	cl := c.classOf(need(ev))
	if e.class == cl.num {
		return
	}
	c.dropClass(e)
	e.class = cl.num
	e.flags &^= waits
	cl.tasks++
}

// classOf is the class of a need; it lives as long as tasks name it.
func (c *core) classOf(n Need) *class {
	compiled := c.fleet.Compile(n)
	cl := c.classes[compiled.Key()]
	if cl == nil {
		cl = &class{Class: compiled, need: n}
		if k := len(c.freeNum); k > 0 {
			cl.num, c.freeNum = c.freeNum[k-1], c.freeNum[:k-1]
			c.byNum[cl.num] = cl
		} else {
			cl.num = uint32(len(c.byNum))
			c.byNum = append(c.byNum, cl)
		}
		cl.owned = c.ring.OwnsHash(cl.Hash())
		c.classes[cl.Key()] = cl
	}
	return cl
}

// recompile makes the classes those of this core's fleet, after a restore.
func (c *core) recompile() {
	for _, cl := range c.classes {
		cl.Class = c.fleet.Compile(cl.need)
	}
	for _, h := range c.hot {
		if held(h.ev) {
			c.fleet.Hold(h.ev.AgentID, h.ev.InstanceID, h.ev.TaskID, h.ev.Attempt)
		}
	}
}

func (c *core) dropClass(e *entry) {
	if e.class == 0 {
		return
	}
	cl := c.byNum[e.class]
	e.class = 0
	if cl.tasks--; cl.tasks == 0 {
		delete(c.classes, cl.Key())
		c.unwait(cl)
		c.byNum[cl.num] = nil
		c.freeNum = append(c.freeNum, cl.num)
	}
}

func (c *core) unqueue(s slot, e *entry) {
	if e.flags&inQueue == 0 {
		return
	}
	cl := c.byNum[e.class]
	cl.dequeue(c.x, s)
	if cl.queued == 0 {
		c.unwait(cl)
	}
}

// askAgainAfter is when it is asked again about a task that nobody could ever do,
// or that all have left who may, if the answer could not be stored.
const askAgainAfter = 10 * time.Second

// askAgain asks about a task that waits once more after a rest, or when its class
// is looked at before.
func (c *core) askAgain(id subjects.TaskID, now time.Time) {
	if s := c.x.find(id); s != 0 && c.x.at(s).flags&inQueue != 0 {
		e := c.x.at(s)
		e.flags &^= waits
		e.due = min(e.due, now.Add(askAgainAfter).UnixNano())
		c.timers.push(timer{e.due, s})
	}
}

// answerTaken notes that the agent has the answer.
func (c *core) answerTaken(id subjects.TaskID, question string) {
	if h := c.hot[c.x.find(id)]; h != nil && h.ev.Facts.Answer != nil && h.ev.Facts.Answer.QuestionID == question {
		h.told = true
	}
}

// unheard reports whether the holder misses follow-ups.
func (h *hot) unheard() bool { return held(h.ev) && h.heard < len(h.ev.Facts.Messages) }

// messageTaken notes that the agent has the follow-ups up to heard.
func (c *core) messageTaken(id subjects.TaskID, attempt, heard int) {
	if h := c.hot[c.x.find(id)]; h != nil && h.ev.Attempt == attempt {
		h.heard = max(h.heard, heard)
	}
}

// untold has the answer given to the agent once more.
func (c *core) untold(id subjects.TaskID) {
	if h := c.hot[c.x.find(id)]; h != nil && h.ev.Facts.Answer != nil {
		h.told = false
		c.do(tell{id, h.ev, h.heard})
	}
}
