package mesh

import (
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// instance is one process of an agent, as announces and heartbeats tell.
type instance struct {
	id       subjects.InstanceID
	epoch    int64
	hands    int // messages that it takes at once
	lease    time.Duration
	seen     time.Time
	draining bool
	after    time.Time // not asked before then: it was busy, or did not listen
}

// agents are the instances of the fleet.
type agents map[subjects.AgentID]map[subjects.InstanceID]*instance

// announced takes in an announce that was stored at the time at.
func (a agents) announced(ann *fleet.Announce, at time.Time) {
	id := ann.Worker.AgentID
	if a[id] == nil {
		a[id] = map[subjects.InstanceID]*instance{}
	}
	in := a[id][ann.Instance()]
	switch {
	case ann.Retired && (in == nil || ann.Worker.Epoch >= in.epoch):
		if delete(a[id], ann.Instance()); len(a[id]) == 0 {
			delete(a, id)
		}
		return
	case in == nil:
		in = &instance{id: ann.Instance()}
		a[id][in.id] = in
	case ann.Worker.Epoch < in.epoch:
		return // of a process that has been replaced
	}
	in.hands = max(ann.Worker.MaxMessages, 1)
	in.epoch, in.draining, in.after = ann.Worker.Epoch, ann.Draining, time.Time{}
	in.lease = fleet.MissedHeartbeats * ann.Heartbeat()
	if in.lease == 0 {
		in.lease = ann.TTL()
	}
	if at.After(in.seen) {
		in.seen = at
	}
}

// beat takes in a heartbeat; woke says that the instance was thought lost.
func (a agents) beat(agent subjects.AgentID, id subjects.InstanceID, hb *fleet.Heartbeat, now time.Time) (woke bool) {
	in := a[agent][id]
	if in == nil || hb.Epoch < in.epoch {
		return false
	}
	woke = !in.live(now) || in.draining && !hb.Draining
	in.seen, in.draining = now, hb.Draining
	return woke
}

func (in *instance) live(now time.Time) bool { return now.Sub(in.seen) <= in.lease }

// lost reports whether whatever that epoch of an instance had in hand is to be
// given to another one. Who has not listened for a lease yet, since the time
// since, misses nobody.
func (a agents) lost(agent subjects.AgentID, id subjects.InstanceID, epoch int64, since, now time.Time) bool {
	in := a[agent][id]
	if in == nil {
		return now.Sub(since) > fleet.MissedHeartbeats*fleet.DefaultHeartbeat
	}
	if in.epoch > epoch {
		return true
	}
	return !in.live(now) && now.Sub(since) > in.lease
}

// choose is the instance to hand a message to: of those that live and are not
// known to be busy, the one that has the least of those taken. When there is none,
// again is when to look again; zero: when somebody announces himself.
func (a agents) choose(agent subjects.AgentID, taken map[subjects.InstanceID]int, now time.Time) (best *instance, again time.Time) {
	for _, in := range a[agent] {
		switch {
		case !in.live(now), in.draining, taken[in.id] >= in.hands:
		case in.after.After(now):
			if again.IsZero() || in.after.Before(again) {
				again = in.after
			}
		case best == nil || before(in, best, taken):
			best = in
		}
	}
	return best, again
}

// before reports whether a is to be asked before b: it has less, or was heard of
// later, so that it is less likely to have gone.
func before(a, b *instance, taken map[subjects.InstanceID]int) bool {
	switch {
	case taken[a.id] != taken[b.id]:
		return taken[a.id] < taken[b.id]
	case !a.seen.Equal(b.seen):
		return a.seen.After(b.seen)
	}
	return a.id < b.id
}

// sweep forgets the instances that were not heard of for a day: if they come
// back, they announce themselves.
func (a agents) sweep(now time.Time) {
	for id, list := range a {
		for name, in := range list {
			if now.Sub(in.seen) > 25*time.Hour+in.lease {
				delete(list, name)
			}
		}
		if len(list) == 0 {
			delete(a, id)
		}
	}
}
