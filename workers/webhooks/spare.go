package webhooks

import (
	"cmp"
	"slices"
	"time"

	"parley/subjects/fleet"
)

// ending is how a delivery ended, by the record that says so.
type ending struct {
	entry *entry
	seq   uint64
}

// endings are those of push notifications, by state and in the order in which they
// were heard of; those that do not hold any more are void.
type endings map[string][]ending

// note takes in how e ended, if that may make room.
func (s endings) note(e *entry) {
	switch e.state.State {
	case fleet.DeliveryDead, fleet.DeliveryDelivered:
		if e.state.Schedule == fleet.SchedulePush {
			s[e.state.State] = append(s[e.state.State], ending{e, e.stateSeq})
		}
	}
}

// void reports whether it has been forgotten, or said otherwise, that s is so.
func (x *index) void(s ending) bool {
	return s.entry.stateSeq != s.seq || x.entries[s.entry.id] != s.entry
}

// trim drops void endings: the oldest ones, and all where they are most.
func (x *index) trim() {
	for state, list := range x.endings {
		at := slices.IndexFunc(list, func(s ending) bool { return !x.void(s) })
		if at < 0 {
			at = len(list)
		}
		clear(list[:at])
		list = list[at:]
		if len(list) > 1024 && len(list) > 4*x.count[state] {
			list = slices.DeleteFunc(list, x.void)
		}
		x.endings[state] = list
	}
}

// spare are at most limit of the push notifications that ended in state, the oldest
// first, but none that did so after before. They are so until they are forgotten.
func (x *index) spare(state string, before time.Time, limit int) (list []*entry) {
	x.trim()
	for _, s := range x.endings[state] {
		switch {
		case x.void(s):
			continue
		case len(list) == limit, s.entry.state.Updated.After(before):
			return list
		}
		list = append(list, s.entry)
	}
	return list
}

// surplus are those of the push notifications that died at one receiver which come
// before its latest ones, the oldest first.
func (x *index) surplus(latest int) (list []*entry) {
	of := make(map[string]int)
	for _, s := range slices.Backward(x.endings[fleet.DeliveryDead]) {
		if x.void(s) {
			continue
		}
		if of[s.entry.state.Endpoint]++; of[s.entry.state.Endpoint] > latest {
			list = append(list, s.entry)
		}
	}
	slices.Reverse(list)
	return list
}

// away takes at most limit push notifications in hand, to end them, that wait for
// receivers that are away, the oldest first.
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
		e.ends = true
	}
	return list
}
