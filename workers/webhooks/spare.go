package webhooks

import (
	"cmp"
	"slices"
	"time"

	"parley/subjects/fleet"
)

// dead reports whether e is a push notification that died and is known.
func (x *index) dead(e *entry) bool {
	return e.state.State == fleet.DeliveryDead && e.state.Schedule == fleet.SchedulePush && x.entries[e.id] == e
}

// trim drops from the list of those that died the oldest ones that are not known
// any more.
func (x *index) trim() {
	for len(x.died) > 0 && !x.dead(x.died[0]) {
		x.died = x.died[1:]
	}
}

// spare are at most limit of the push notifications that died, the oldest first,
// but none that did so after before. They are so until they are forgotten.
func (x *index) spare(before time.Time, limit int) (list []*entry) {
	x.trim()
	for _, e := range x.died {
		switch {
		case !x.dead(e):
			continue
		case len(list) == limit, e.state.Updated.After(before):
			return list
		}
		list = append(list, e)
	}
	return list
}

// surplus are those of the push notifications that died at one receiver which come
// before its latest ones.
func (x *index) surplus(latest int) (list []*entry) {
	x.trim()
	of := make(map[string]int)
	for _, e := range slices.Backward(x.died) {
		if !x.dead(e) {
			continue
		}
		if of[e.state.Endpoint]++; of[e.state.Endpoint] > latest {
			list = append(list, e)
		}
	}
	return list
}

// away takes at most limit push notifications in hand that wait for receivers that
// are away, the oldest first.
func (x *index) away(now time.Time, limit int) (list []*entry) {
	for _, l := range x.lanes {
		if l.failures < x.limits.openAfter {
			continue
		}
		for _, order := range l.orders {
			for _, e := range order {
				if e.state.Schedule == fleet.SchedulePush && !e.busy && !e.leased.After(now) && !e.pause.After(now) {
					list = append(list, e)
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	list = list[:min(limit, len(list))]
	for _, e := range list {
		x.take(e)
	}
	return list
}
