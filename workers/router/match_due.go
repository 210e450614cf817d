package router

import (
	"cmp"
	"time"
)

// expiry says when to look at an instance, or at an agent, again.
type expiry struct {
	at int64 // ns
	in *Instance
	a  *agentState

	limit *limit
}

// expiries is a heap. An entry is never removed when its instance's plans
// change; the one that is due at another time than the instance says is stale.
type expiries []expiry

func (h *expiries) push(e expiry) {
	q := append(*h, e)
	*h = q
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if q[up].at <= q[i].at {
			return
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
}

// pop takes the earliest entry that is due at now.
func (h *expiries) pop(now int64) (expiry, bool) {
	q := *h
	if len(q) == 0 || q[0].at > now {
		return expiry{}, false
	}
	e, last := q[0], len(q)-1
	q[0], q[last] = q[last], expiry{}
	q = q[:last]
	*h = q
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if q[c].at < q[least].at {
				least = c
			}
		}
		if least == i {
			return e, true
		}
		q[i], q[least] = q[least], q[i]
		i = least
	}
}

// Expire returns the instances whose lease has ended since it was last called:
// they missed fleet.MissedHeartbeats heartbeats, or outlived their announce, or
// are named by a record and were not heard for as long. None is live; one that
// was heard again before anybody asked is not among them.
func (f *Fleet) Expire(now time.Time) (lost []*Instance) {
	f.advance(now)
	for _, in := range f.lost {
		in.untold = false
		if in.lapsed {
			lost = append(lost, in)
		}
	}
	f.lost = nil
	return lost
}

// lapse ends the instance's lease.
func (f *Fleet) lapse(in *Instance) {
	in.lapsed = true
	if !in.untold {
		in.untold = true
		f.lost = append(f.lost, in)
	}
}

// NextExpiry is when to call Expire next, zero while nothing can expire. It may
// be early: leases are renewed without changing it.
func (f *Fleet) NextExpiry() time.Time {
	if len(f.due) == 0 {
		return time.Time{}
	}
	return time.Unix(0, f.due[0].at).UTC()
}

// advance does what has become due by now: leases and cool-downs end, and
// instances that nobody has heard of for long are forgotten.
func (f *Fleet) advance(now time.Time) {
	if now.After(f.now) {
		f.now = now
	}
	for {
		e, ok := f.due.pop(now.UnixNano())
		switch {
		case !ok:
			return
		case e.in != nil && e.at == e.in.due:
			e.in.due = 0
			f.expire(e.in)
		case e.a != nil && e.at == e.a.due:
			e.a.due = 0
			if e.a.cooling = e.a.coolUntil.After(f.now); !e.a.cooling {
				f.refreshAll(e.a)
			}
			f.armAgent(e.a)
		case e.limit != nil && f.limits[e.limit.key] == e.limit && e.at == e.limit.due:
			e.limit.due = 0
			f.refreshAccount(e.limit.Account)
		}
	}
}

func (f *Fleet) expire(in *Instance) {
	if in.busy && !in.busyUntil.After(f.now) {
		in.busy = false
		f.generation++
	}
	if !in.restUntil.IsZero() && !in.restUntil.After(f.now) {
		in.restUntil = time.Time{}
		f.generation++
	}
	if in.gone && in.Heartbeat == 0 && !in.goneUntil.After(f.now) {
		in.gone = false
		f.generation++
	}
	if !in.lapsed && !in.leaseEnds().After(f.now) {
		f.lapse(in)
	}
	f.refresh(in)
	if f.forgettable(in) {
		f.forget(in)
	}
}

// leaseEnds is when the instance's lease ends unless it is heard before. One
// that a record names has a lease from then on, to be heard in.
func (in *Instance) leaseEnds() time.Time {
	life := lease(in)
	if in.Heartbeat == 0 {
		life = in.TTL
	}
	return in.lastKnown().Add(life)
}

// lastKnown is when the instance was last heard or, if it never was, when a
// record named it first.
func (in *Instance) lastKnown() time.Time {
	if in.heard {
		return in.LastSeen
	}
	return in.known
}

// forgettable reports whether nobody misses the instance any more.
func (f *Fleet) forgettable(in *Instance) bool {
	if len(in.Held) > 0 || in.Offering > 0 {
		return false
	}
	if in.retired {
		return true
	}
	if !in.lapsed {
		return false
	}
	gone := f.now.Sub(in.lastKnown())
	return gone >= keepInstance || gone >= keepSuperseded && (in.Announce == nil || f.superseded(in))
}

// succeed forgets the instances of the same agent that nobody misses now that in
// is known: a stream of announces has all that there were, oldest first.
func (f *Fleet) succeed(in *Instance) {
	var past []*Instance
	for p := range in.owner.places.all() {
		if o := f.at[p]; o != in && f.forgettable(o) {
			past = append(past, o)
		}
	}
	for _, o := range past {
		f.forget(o)
	}
}

// superseded reports whether another instance of the same agent, which was
// heard since, can do all that in can.
func (f *Fleet) superseded(in *Instance) bool {
	for p := range in.owner.places.all() {
		o := f.at[p]
		later := cmp.Or(o.lastKnown().Compare(in.lastKnown()), byID(o, in))
		if later > 0 && o.Announce != nil && f.canAll(o, in) {
			return true
		}
	}
	return false
}

// canAll reports whether o has all that a task may ask for and in has, however
// well either is.
func (f *Fleet) canAll(o, in *Instance) bool {
	all := true
	in.each(func(x feature) {
		switch x.kind {
		case hasTool, hasMCP, hasTier, hasLabel:
			all = all && f.has(o, x)
		case hasHealthy, hasCleanRepo, hasSession, hasAccount:
		}
	})
	return all
}

// arm sees to it that the instance is looked at in time.
func (f *Fleet) arm(in *Instance) {
	var at time.Time
	if in.lapsed {
		if at = in.lastKnown().Add(keepSuperseded); !at.After(f.now) {
			at = f.now.Add(forgetEvery)
		}
	} else if at = in.leaseEnds(); in.gone && in.Heartbeat == 0 && in.goneUntil.Before(at) {
		at = in.goneUntil
	}
	if in.busy && in.busyUntil.Before(at) {
		at = in.busyUntil
	}
	if !in.restUntil.IsZero() && in.restUntil.Before(at) {
		at = in.restUntil
	}
	if due := at.UnixNano(); in.due == 0 || due < in.due {
		in.due = due
		f.due.push(expiry{at: due, in: in})
	}
}

func (f *Fleet) armAgent(a *agentState) {
	if due := a.coolUntil.UnixNano(); a.cooling && (a.due == 0 || due < a.due) {
		a.due = due
		f.due.push(expiry{at: due, a: a})
	}
}

// forget drops an instance that is neither heard nor named by a record.
func (f *Fleet) forget(in *Instance) {
	for id := range in.Holding {
		f.unhold(in, id)
	}
	f.dropFeatures(in)
	for _, b := range []*bitmap{&f.announced, &f.open, &f.idle, &f.serving} {
		b.remove(in.place)
	}
	in.owner.places.remove(in.place)
	f.tidy(in.owner)
	delete(f.instances, agentInstance{in.Agent, in.ID})
	f.unplace(in)
	f.at[in.place] = nil
	f.unused = append(f.unused, in.place)
	in.place, in.due = noPlace, 0
	f.generation++
}
