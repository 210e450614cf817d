package webhooks

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// entry is one delivery as the stream tells it.
type entry struct {
	id    subjects.DeliveryID
	seq   uint64 // of the delivery in the stream, 0 = it is not (or no longer) known
	state fleet.DeliveryState
	// stateSeq is the sequence of state's record; 0: no record yet, and state
	// says what follows from the delivery.
	stateSeq uint64
	endpoint string // its configured endpoint, "" for none

	lane    *lane     // while it is pending and its delivery is known
	leased  time.Time // by the clock here: until when somebody's claim holds; zero = nobody's
	busy    bool      // this worker has it in hand
	ends    bool      // that to end it: nothing is sent
	pause   time.Time // this worker leaves it alone until then: the bus failed it
	version uint64    // of its place in the heaps; older places are void
}

func (e *entry) pending() bool { return e.state.State == fleet.DeliveryPending }

// sends reports whether this worker has e in hand to send it.
func (e *entry) sends() bool { return e.busy && !e.ends }

// due is when the next thing may be done with e.
func (e *entry) due() time.Time {
	at := e.state.Queued
	if e.state.NextAt != nil {
		at = *e.state.NextAt
	}
	for _, t := range []time.Time{e.leased, e.pause} {
		if t.After(at) {
			at = t
		}
	}
	return at
}

// lane is all that waits for one target.
type lane struct {
	target string
	orders map[string][]*entry // pending ones, oldest first: only the first of each may go
	ready  places              // the first of each order, by due; void places among them
	size   int                 // pending ones
	claims map[*entry]struct{} // claimed by somebody, or in hand here

	failures int       // attempts that failed in a row
	probeAt  time.Time // when one is tried, if they opened the circuit
	hold     time.Time // the receiver asked for quiet until then
	last     *fleet.Reason
}

// index holds every delivery. It is a plain data structure: whoever uses it
// has the lock, and passes the time.
type index struct {
	known     func(endpoint string) bool // whether this worker may send to it
	limits    limits
	entries   map[subjects.DeliveryID]*entry
	lanes     map[string]*lane
	ends      places // pending ones, by not_after; void places among them
	count     map[string]int
	leftovers []*entry // ended well, and the delivery is still in the stream
	endings   endings
}

type limits struct {
	perEndpoint int           // exchanges at a time
	guests      int           // exchanges at a time with all guests
	openAfter   int           // failures in a row that open the circuit
	probeEvery  time.Duration // while it is open
}

// guest reports whether the target came with its deliveries, as a subscriber
// names it; the others are endpoints of whoever runs the fleet.
func (l *lane) guest() bool { return strings.Contains(l.target, "://") }

// sending is how many deliveries of the lane this worker has in hand to send them.
func (l *lane) sending() (n int) {
	for e := range l.claims {
		if e.sends() {
			n++
		}
	}
	return n
}

func newIndex(known func(string) bool, l limits) *index {
	return &index{
		known: known, limits: l, entries: make(map[subjects.DeliveryID]*entry),
		lanes: make(map[string]*lane), count: make(map[string]int), endings: make(endings),
	}
}

func (x *index) entry(id subjects.DeliveryID) *entry {
	e, ok := x.entries[id]
	if !ok {
		e = &entry{id: id}
		x.entries[id] = e
	}
	return e
}

// stored takes in a delivery that was stored at seq.
func (x *index) stored(d *fleet.Delivery, seq uint64, at time.Time) {
	e := x.entry(d.DeliveryID)
	e.seq, e.endpoint = seq, d.Endpoint
	switch {
	case e.stateSeq == 0:
		x.uncount(e)
		e.state = begin(d, at)
		x.count[e.state.State]++
	case !e.pending() && e.state.State != fleet.DeliveryDead:
		x.leftovers = append(x.leftovers, e) // it ended well: this is a repeat
	}
	x.place(e)
}

// maxNotAfter bounds how long a delivery waits: well before the stream forgets
// it.
const maxNotAfter = 14 * 24 * time.Hour

// begin is the state that follows from a delivery alone.
func begin(d *fleet.Delivery, at time.Time) fleet.DeliveryState {
	end := at.Add(fleet.DefaultNotAfter)
	if d.NotAfter != nil {
		end = *d.NotAfter
		if last := at.Add(maxNotAfter); end.After(last) {
			end = last
		}
	}
	return fleet.DeliveryState{
		DeliveryID: d.DeliveryID, State: fleet.DeliveryPending, Endpoint: d.Target(), Order: d.Order,
		Schedule: cmp.Or(d.Schedule, fleet.ScheduleHuman), TaskID: d.TaskID, Traceparent: d.Traceparent, Queued: at.UTC(), Updated: at.UTC(), NotAfter: end.UTC(),
	}
}

// recorded takes in a state that was stored at seq. What is known already is
// ignored.
func (x *index) recorded(s *fleet.DeliveryState, seq uint64, now time.Time) {
	e := x.entry(s.DeliveryID)
	if seq <= e.stateSeq {
		return
	}
	x.remove(e)
	x.uncount(e)
	e.state, e.stateSeq = *s, seq
	x.count[s.State]++
	e.leased, e.pause = time.Time{}, time.Time{}
	if s.Sending != nil {
		// The lease runs from when it was heard of: whoever claimed it has
		// begun before, so no clocks need to agree.
		e.leased = now.Add(time.Duration(s.Sending.LeaseSeconds * float64(time.Second)))
	}
	x.endings.note(e)
	x.judge(e, now)
	x.place(e)
}

func (x *index) uncount(e *entry) {
	if e.state.State != "" {
		if x.count[e.state.State]--; x.count[e.state.State] == 0 {
			delete(x.count, e.state.State)
		}
	}
}

// judge learns from an attempt how the endpoint is.
func (x *index) judge(e *entry, now time.Time) {
	s := &e.state
	if s.State == fleet.DeliveryPending && s.By != "" && s.Attempts == 0 {
		// An operator has it sent now, whatever was known of the endpoint.
		l := x.lane(s.Endpoint)
		l.probeAt, l.hold = time.Time{}, time.Time{}
	}
	if s.Sending != nil || s.Attempts == 0 || s.State == fleet.DeliveryDropped {
		return
	}
	l := x.lane(s.Endpoint)
	switch {
	case s.State == fleet.DeliveryDelivered:
		l.failures, l.probeAt, l.hold, l.last = 0, time.Time{}, time.Time{}, nil
	case s.Error == nil:
	default:
		l.last = s.Error
		if s.HoldUntil != nil && s.HoldUntil.After(l.hold) {
			l.hold = *s.HoldUntil
		}
		// An endpoint that refuses what it is sent is there, and what has run
		// out of time says nothing new.
		if s.State == fleet.DeliveryDead && s.Error.Code != subjects.CodeUnavailable && s.Error.Code != subjects.CodeRateLimited {
			return
		}
		l.failures++
		at := s.Updated
		if at.After(now) || at.IsZero() {
			at = now
		}
		l.probeAt = at.Add(x.limits.probeEvery)
	}
}

func (x *index) lane(target string) *lane {
	l, ok := x.lanes[target]
	if !ok {
		l = &lane{target: target, orders: make(map[string][]*entry), claims: make(map[*entry]struct{})}
		x.lanes[target] = l
	}
	return l
}

// place puts e where it belongs: into its lane while it is pending.
func (x *index) place(e *entry) {
	if e.lane != nil || !e.pending() || e.seq == 0 {
		if e.lane != nil {
			x.requeue(e)
		}
		return
	}
	l := x.lane(e.state.Endpoint)
	e.lane = l
	l.size++
	list := l.orders[e.state.Order]
	at, _ := slices.BinarySearchFunc(list, e, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	l.orders[e.state.Order] = slices.Insert(list, at, e)
	x.requeue(e)
	if list = l.orders[e.state.Order]; at == 0 && len(list) > 1 { // it goes before the one that was first
		x.requeue(list[1])
	}
}

// requeue gives e its place in the heaps, and makes its former ones void.
func (x *index) requeue(e *entry) {
	e.version++
	l := e.lane
	if e.busy || !e.leased.IsZero() {
		l.claims[e] = struct{}{}
	} else {
		delete(l.claims, e)
	}
	if e.busy {
		return
	}
	heap.Push(&x.ends, slot{e.state.NotAfter, e, e.version})
	if l.orders[e.state.Order][0] == e {
		heap.Push(&l.ready, slot{e.due(), e, e.version})
	}
}

// remove takes e out of its lane; the next of its order comes to the front.
func (x *index) remove(e *entry) {
	l := e.lane
	if l == nil {
		return
	}
	e.version++
	e.lane = nil
	l.size--
	delete(l.claims, e)
	list := l.orders[e.state.Order]
	at := slices.Index(list, e)
	list = slices.Delete(list, at, at+1)
	if len(list) == 0 {
		delete(l.orders, e.state.Order)
		return
	}
	l.orders[e.state.Order] = list
	if at == 0 {
		x.requeue(list[0])
	}
}

// release takes e out of this worker's hand; it is left alone until pause.
func (x *index) release(e *entry, pause time.Time) {
	e.busy, e.ends, e.pause = false, false, pause
	if e.lane != nil {
		x.requeue(e)
	}
}

// forget drops what is known of a delivery.
func (x *index) forget(e *entry) {
	if x.entries[e.id] != e {
		return
	}
	x.remove(e)
	x.uncount(e)
	delete(x.entries, e.id)
}

// next takes at most room deliveries to attempt, and at most ends of those whose
// time is over; all of them are busy from then on. wake is when to ask again,
// unless something happens before; zero for never.
func (x *index) next(now time.Time, room, ends int) (send, over []*entry, wake time.Time) {
	soonest := func(t time.Time) {
		if wake.IsZero() || t.Before(wake) {
			wake = t
		}
	}
	x.compact()
	over, t := x.expired(now, ends)
	if !t.IsZero() {
		soonest(t)
	}
	guests := x.limits.guests // room for guests: however slow they are, endpoints have the rest
	for _, l := range x.lanes {
		if l.guest() {
			guests -= l.sending()
		}
	}
	for _, l := range x.lanes {
		if l.size == 0 {
			continue
		}
		left := room - len(send)
		if l.guest() {
			left = min(left, guests)
		}
		got, at := x.from(l, now, left)
		if l.guest() {
			guests -= len(got)
		}
		send = append(send, got...)
		if !at.IsZero() {
			soonest(at)
		}
	}
	return send, over, wake
}

func (x *index) expired(now time.Time, room int) (over []*entry, wake time.Time) {
	for len(x.ends) > 0 && len(over) < room {
		s := x.ends[0]
		switch e := s.entry; {
		case e.version != s.version || e.busy:
			heap.Pop(&x.ends)
		case s.at.After(now):
			return over, s.at
		case e.leased.After(now): // it may yet succeed
			heap.Pop(&x.ends)
			heap.Push(&x.ends, slot{e.leased, e, e.version})
		case e.pause.After(now): // it could not be ended just now
			heap.Pop(&x.ends)
			heap.Push(&x.ends, slot{e.pause, e, e.version})
		default:
			heap.Pop(&x.ends)
			x.take(e)
			e.ends = true
			over = append(over, e)
		}
	}
	return over, time.Time{}
}

// from takes what may go from one lane.
func (x *index) from(l *lane, now time.Time, room int) (send []*entry, wake time.Time) {
	limit := x.limits.perEndpoint
	open := l.failures >= x.limits.openAfter
	if open {
		limit = 1
	}
	live := 0
	for e := range l.claims {
		if e.sends() || e.leased.After(now) {
			live++
			if !e.busy && (wake.IsZero() || e.leased.Before(wake)) {
				wake = e.leased
			}
		}
	}
	quiet := l.hold
	if open && l.probeAt.After(quiet) {
		quiet = l.probeAt
	}
	if quiet.After(now) {
		return nil, quiet
	}
	for len(l.ready) > 0 && live < limit && room > len(send) {
		s := l.ready[0]
		switch e := s.entry; {
		case e.version != s.version || e.lane != l:
			heap.Pop(&l.ready)
		case !x.known(e.endpoint):
			heap.Pop(&l.ready) // another worker's; it comes back with its next state
		case !e.state.NotAfter.After(now):
			heap.Pop(&l.ready) // its time is over, and its turn to be ended has yet to come
		case s.at.After(now):
			if wake.IsZero() || s.at.Before(wake) {
				wake = s.at
			}
			return send, wake
		default:
			heap.Pop(&l.ready)
			x.take(e)
			send = append(send, e)
			live++
		}
	}
	return send, wake
}

// caughtUp looks for what a worker that died left undone.
func (x *index) caughtUp() {
	for _, e := range x.entries {
		if e.seq > 0 && (e.state.State == fleet.DeliveryDelivered || e.state.State == fleet.DeliveryDropped) {
			x.leftovers = append(x.leftovers, e)
		}
	}
}

// stale returns at most limit deliveries that ended so long ago that they are
// forgotten, and drops lanes that have nothing to tell: a target that nothing
// was sent to for a day after it failed may be as well as any other.
func (x *index) stale(now time.Time, keep keep, limit int) (old []*entry) {
	x.trim()
	for target, l := range x.lanes {
		if l.size == 0 && (l.failures == 0 || now.Sub(l.probeAt) > keepFailed) && !l.hold.After(now) {
			delete(x.lanes, target)
		}
	}
	old = x.surplus(keep.deadOf)
	old = old[:min(len(old), limit)]
	surplus := x.count[fleet.DeliveryDelivered] - keep.most
	for _, e := range x.entries {
		age := now.Sub(e.state.Updated)
		switch {
		case len(old) == limit || e.busy:
		case e.pending():
			if e.seq == 0 && now.Sub(e.state.NotAfter) > keep.dead { // somebody removed the delivery
				old = append(old, e)
			}
		case e.state.State == fleet.DeliveryDead && age > keep.dead,
			e.state.State != fleet.DeliveryDead && age > keep.delivered:
			old = append(old, e)
		case e.state.State == fleet.DeliveryDelivered && surplus > 0 && age > time.Hour:
			old = append(old, e)
			surplus--
		}
	}
	return old
}

// keep says how long ended deliveries are known.
type keep struct {
	delivered, dead time.Duration
	most            int // delivered ones, once they are an hour old
	deadOf          int // push notifications that died at one receiver
}

// take gives e into this worker's hand.
func (x *index) take(e *entry) {
	e.busy = true
	e.version++
	if e.lane != nil {
		e.lane.claims[e] = struct{}{}
	}
}
