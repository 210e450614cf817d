package router

import "time"

// Shift moves every time that the fleet has noted, since the clock was set by so
// much: whoever was heard a second ago was heard a second ago.
func (f *Fleet) Shift(by time.Duration) {
	shift := func(t *time.Time) {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
	f.now = f.now.Add(by)
	f.due = f.due[:0]
	for _, a := range f.agents {
		shift(&a.coolUntil)
		a.due = 0
		f.armAgent(a)
	}
	for in := range f.All() {
		for _, t := range []*time.Time{&in.LastSeen, &in.known, &in.announceAt, &in.healthAt, &in.goneUntil, &in.busyUntil, &in.restUntil} {
			shift(t)
		}
		in.due = 0
		f.arm(in)
	}
}
