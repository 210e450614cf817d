package mesh

import (
	"container/heap"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers"
)

const (
	// ringAgain is how much later a worker looks at a timer that is another's.
	ringAgain = 3 * time.Second
	// settleFor is how long an instance that has answered a message may take to
	// say that it is done with it, before the answer alone says so.
	settleFor = time.Second
	// lookAgain is how often the holders of messages are looked at.
	lookAgain = time.Second
	// askAgain is how long after it was written down that an instance is handed
	// a message it is asked about it again.
	askAgain = handTry + time.Second
	// deafAfter is how long a worker that hears nothing, not even itself,
	// believes that it hears.
	deafAfter = 3 * time.Second
)

// core decides what is to be done. It is pure: time and what happened go in,
// steps come out. Whoever takes a step says when it is over.
type core struct {
	*index
	ring   *workers.Ring
	agents agents
	since  time.Time // it listens since then
	echo   time.Time // when it last heard itself
	timers timers
	watch  map[*entry]bool // those whose holder must be looked at
}

func newCore(self subjects.InstanceID, l Limits, now time.Time) *core {
	return &core{index: newIndex(l), ring: workers.NewRing(self), agents: agents{}, since: now, echo: now, watch: map[*entry]bool{}}
}

// step is what is to be done about a message: hand it over to an instance, or
// write down that it has come to an end.
type step struct {
	*entry
	decided uint64    // the revision that it was decided by: it holds for no other
	to      *instance // write it down and hand it over; nil: write down the end
	of      int64     // the epoch of that instance
	state   mesh.State
	reason  *fleet.Reason
}

// timer is a message, or an inbox, to be looked at.
type timer struct {
	at  time.Time
	e   *entry
	box subjects.AgentID
}

type timers []timer

// Len is for package heap.
func (t *timers) Len() int { return len(*t) }

// Less is for package heap.
func (t *timers) Less(i, j int) bool { return (*t)[i].at.Before((*t)[j].at) }

// Swap is for package heap.
func (t *timers) Swap(i, j int) { (*t)[i], (*t)[j] = (*t)[j], (*t)[i] }

// Push is for package heap.
func (t *timers) Push(v any) {
	if x, ok := v.(timer); ok {
		*t = append(*t, x)
	}
}

// Pop is for package heap.
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func (c *core) at(when time.Time, e *entry) { heap.Push(&c.timers, timer{at: when, e: e}) }

func (c *core) boxAt(when time.Time, a subjects.AgentID) {
	heap.Push(&c.timers, timer{at: when, box: a})
}

// message takes in a message; see index.arrived.
func (c *core) message(s stored) *entry {
	e := c.arrived(s)
	if e == nil {
		return nil
	}
	if !e.ended() {
		c.at(e.expires, e)
		if e.reply {
			c.at(e.answerBy, e)
		}
	}
	if asked := c.entries[key{e.to, e.ref}]; asked != nil && asked.answer == e && !asked.ended() {
		c.at(e.at.Add(settleFor), asked)
	}
	c.watched(e)
	return e
}

// record takes in a record; see index.recorded.
func (c *core) record(ack *mesh.Ack, rev uint64, now time.Time) {
	e := c.recorded(ack, rev)
	if e == nil {
		return
	}
	c.watched(e)
	if e.state == mesh.Processed && e.reply && e.answer != nil {
		c.at(now, e)
	}
}

// watched notes whether somebody holds a message, as its record says.
func (c *core) watched(e *entry) {
	if e.held() {
		c.watch[e] = true
		return
	}
	if !c.watch[e] {
		return
	}
	delete(c.watch, e)
	for _, in := range c.agents[e.to] {
		in.after = time.Time{} // somebody has a hand free
	}
}

// wake makes an inbox due.
func (c *core) wake(a subjects.AgentID) {
	if c.boxes[a] != nil {
		c.due[a] = true
	}
}

// wakeAll makes every inbox due: others may own them now.
func (c *core) wakeAll() {
	for a := range c.boxes {
		c.due[a] = true
	}
}

// look finds the messages whose holder is lost.
func (c *core) look(now time.Time) {
	if now.Sub(c.echo) > deafAfter {
		c.since = now // it does not even hear itself: it listens anew
	}
	for e := range c.watch {
		if !e.busy && c.agents.lost(e.to, e.instance, e.epoch, c.since, now) {
			e.sure = true
			c.wake(e.to)
		}
	}
}

// next returns the steps to take now. Each of their entries is busy until
// over is called.
func (c *core) next(now time.Time) (steps []step) {
	for len(c.timers) > 0 && !c.timers[0].at.After(now) {
		t, ok := heap.Pop(&c.timers).(timer)
		switch {
		case !ok:
		case t.e == nil:
			c.wake(t.box)
		default:
			if s, due := c.ended(t.e, now); due {
				steps = append(steps, s)
			}
		}
	}
	for a := range c.due {
		delete(c.due, a)
		if b := c.boxes[a]; b != nil && c.ring.Owns(string(a)) {
			steps = c.hand(steps, a, b, now)
		}
	}
	return steps
}

// ended says what end a message has come to by the time now.
func (c *core) ended(e *entry, now time.Time) (step, bool) {
	s := step{entry: e, decided: e.rev}
	switch {
	case c.entries[e.key] != e, e.ended():
		return s, false
	case e.answer != nil && (e.state == mesh.Processed || e.state == mesh.Delivered):
		if e.state == mesh.Delivered && e.answer.at.Add(settleFor).After(now) {
			return s, false
		}
		s.state = mesh.Answered
	case e.state == mesh.Processed && !e.answerBy.After(now):
		s.state = mesh.Unanswered
		s.reason = because(subjects.CodeAgentTimeout, "no answer came within "+e.answerBy.Sub(e.at).String())
	case !e.state.Left() && !e.expires.After(now):
		s.state, s.reason = mesh.Expired, c.whyExpired(e)
	default:
		return s, false
	}
	if e.busy || !c.ring.Owns(string(e.to)) {
		c.at(now.Add(ringAgain), e)
		return s, false
	}
	e.busy = true
	return s, true
}

func (c *core) whyExpired(e *entry) *fleet.Reason {
	switch {
	case e.fetched:
		return because(subjects.CodeDeadlineExceeded, "nobody fetched the answer")
	case e.state == mesh.Delivered:
		return because(subjects.CodeAgentTimeout, "the instance "+string(e.instance)+" has it, and has not dealt with it")
	case len(c.agents[e.to]) == 0:
		return because(subjects.CodeAgentLost, "no instance of "+string(e.to)+" has announced itself")
	}
	return because(subjects.CodeDeadlineExceeded, "no instance of "+string(e.to)+" took it")
}

// hand appends the steps that an inbox calls for.
func (c *core) hand(steps []step, a subjects.AgentID, b *box, now time.Time) []step {
	var again time.Time
	aside := b.aside[:0]
	for _, e := range b.aside {
		switch {
		case e.state.Left():
		case e.busy:
			aside = append(aside, e)
		case e.quiet.After(now):
			aside, again = append(aside, e), earlier(again, e.quiet)
		default:
			e.busy = true
			steps = append(steps, step{entry: e, decided: e.rev, state: mesh.Refused, reason: e.refusal})
			aside = append(aside, e)
		}
	}
	b.aside = aside
	taken := map[subjects.InstanceID]int{}
	for _, p := range b.pairs {
		switch e := p[0]; {
		case e.toward != "":
			taken[e.toward]++
		case e.held() && !e.sure:
			taken[e.instance]++
		}
	}
	for _, from := range b.order {
		e := b.pairs[from][0]
		s := step{entry: e, decided: e.rev}
		switch {
		case e.busy:
			continue
		case e.quiet.After(now):
			again = earlier(again, e.quiet)
			continue
		case e.state == mesh.Delivered && !e.sure:
			continue
		case e.state == mesh.Delivering && !e.sure:
			// It may have it, or not: ask the same one, once whoever wrote that
			// down has had the time to.
			if s.to = c.agents[a][e.instance]; s.to == nil {
				continue
			}
			if when := later(s.to.after, e.changed.Add(askAgain)); when.After(now) {
				again = earlier(again, when)
				continue
			}
		default:
			in, when := c.agents.choose(a, taken, now)
			if in == nil {
				again = earlier(again, when)
				continue
			}
			s.to = in
			taken[in.id]++
		}
		s.of = s.to.epoch
		e.busy, e.toward = true, s.to.id
		steps = append(steps, s)
	}
	if len(b.order) > 1 { // somebody else's turn to be first
		b.order = append(b.order[1:], b.order[0])
	}
	if !again.IsZero() {
		c.boxAt(again, a)
	}
	return steps
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// failed has a step that was not taken looked at again: after a while, unless a
// record says more before.
func (c *core) failed(s step, now time.Time) {
	if s.rev == s.decided {
		s.quiet = now.Add(lookAgain)
	}
	c.at(now.Add(lookAgain), s.entry) // its end may be what was to be written
}

// over ends a step: the message may be looked at again.
func (c *core) over(s step) {
	s.busy, s.toward = false, ""
	c.wake(s.entry.to)
}
