package router

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Want is what makes one task of a class prefer one instance to another.
type Want struct {
	Session subjects.SessionID
	Task    subjects.TaskID
	// AvoidHost is the machine that lost the task: others come first.
	AvoidHost string
}

// Choose picks the instance to offer a task of class c: eligible, with a slot
// free, and of those the one that already says it holds the task, then the one
// with the fewest tiers above what is asked, the least loaded, one that has the
// session's context, the one idle for longest, the first by agent and instance
// id. The deadline is the caller's to check.
func (f *Fleet) Choose(c *Class, w Want, now time.Time) (*Instance, bool) {
	f.advance(now)
	if in := f.holder(c, w.Task); in != nil {
		return in, true
	}
	found := append(f.scratch[0][:0], f.open...)
	f.scratch[0] = found
	if !f.narrow(c, found, hasHealthy) {
		return nil, false
	}
	if c.clean && !f.keep(found, feature{kind: hasCleanRepo}) {
		return nil, false
	}
	if !f.leastTier(c, found) {
		return nil, false
	}
	if w.AvoidHost != "" {
		f.avoid(found, feature{hasLabel, fleet.LabelHost, w.AvoidHost})
	}
	f.leastLoaded(found)
	if s := f.features[feature{kind: hasSession, name: string(w.Session)}]; s != nil {
		f.prefer(found, s)
	}
	in := f.longestIdle(found)
	return in, in != nil
}

// Served reports whether any instance serves class c, with a slot free or not.
// The answer may change with the Generation alone.
func (f *Fleet) Served(c *Class) bool {
	b := append(f.scratch[0][:0], f.serving...)
	f.scratch[0] = b
	return f.narrow(c, b, hasHealthy) && (!c.clean || f.keep(b, feature{kind: hasCleanRepo})) && f.leastTier(c, b)
}

// CanNow reports whether Choose would ever take in for a task of class c now.
// (It takes an instance that holds the task already even if no slot is free.)
func (f *Fleet) CanNow(c *Class, in *Instance, now time.Time) bool {
	f.advance(now)
	return in.place != noPlace && f.open.has(in.place) && f.fits(c, in)
}

// fits reports whether in has what c asks for.
func (f *Fleet) fits(c *Class, in *Instance) bool {
	if c.above(in) < 0 ||
		len(c.only) > 0 && !slices.Contains(c.only, in.Agent) || slices.Contains(c.not, in.Agent) && !plant.Bug("failed_again") {
		return false
	}
	if c.leavesOut(in, false, f.now) != nil {
		return false
	}
	for _, t := range c.tools {
		if !f.has(in, feature{kind: hasTool, name: t}) {
			return false
		}
	}
	for _, s := range c.mcp {
		if !f.has(in, feature{kind: hasHealthy, name: s}) {
			return false
		}
	}
	for _, l := range c.label {
		if !f.has(in, l) && !plant.Bug("label_ignored") {
			return false
		}
	}
	return !c.clean || f.has(in, feature{kind: hasCleanRepo})
}

func (f *Fleet) has(in *Instance, x feature) bool {
	s := f.features[x]
	return s != nil && s.has(in.place)
}

// holder is the best of the instances that hold task already and may have it:
// they need no slot for it. They are few.
func (f *Fleet) holder(c *Class, task subjects.TaskID) *Instance {
	var best *Instance
	for _, in := range f.holders[task] {
		if in.ready() && f.fits(c, in) && (best == nil || c.compare(in, best, "") < 0) {
			best = in
		}
	}
	return best
}

// narrow leaves in b the instances that have everything c asks for but tier
// and clean tree, MCP servers in the given sense, and reports whether there may
// be any.
func (f *Fleet) narrow(c *Class, b bitmap, mcp featureKind) bool {
	if len(c.only) > 0 {
		only := append(f.scratch[1][:0], b...)
		clear(only)
		f.scratch[1] = only
		for _, id := range c.only {
			if a := f.agents[id]; a != nil {
				a.places.or(only)
			}
		}
		b.and(only)
	}
	for _, id := range c.not {
		if a := f.agents[id]; a != nil && !plant.Bug("failed_again") {
			a.places.andNot(b)
		}
	}
	for i := range c.out {
		if a := f.agents[c.out[i].Agent]; a != nil {
			for p := range a.places.all() {
				if c.leavesOut(f.at[p], mcp == hasMCP, f.now) != nil {
					b.remove(p)
				}
			}
		}
	}
	for _, t := range c.tools {
		if !f.keep(b, feature{kind: hasTool, name: t}) {
			return false
		}
	}
	for _, s := range c.mcp {
		if !f.keep(b, feature{kind: mcp, name: s}) {
			return false
		}
	}
	for _, l := range c.label {
		if !plant.Bug("label_ignored") && !f.keep(b, l) {
			return false
		}
	}
	return true
}

// keep leaves in b those that have x, and reports whether anybody has.
func (f *Fleet) keep(b bitmap, x feature) bool {
	s := f.features[x]
	if s == nil {
		return false
	}
	s.and(b)
	return true
}

// prefer leaves in b those in s, if there are any.
func (f *Fleet) prefer(b bitmap, s *placeSet) bool {
	both := append(f.scratch[1][:0], b...)
	f.scratch[1] = both
	s.and(both)
	if both.empty() {
		return false
	}
	copy(b, both)
	return true
}

// avoid leaves in b those that do not have x, if there are any.
func (f *Fleet) avoid(b bitmap, x feature) {
	s := f.features[x]
	if s == nil {
		return
	}
	without := append(f.scratch[1][:0], b...)
	f.scratch[1] = without
	s.andNot(without)
	if !without.empty() {
		copy(b, without)
	}
}

// leastTier leaves in b those of the least tier that will do, and reports
// whether anybody is left.
func (f *Fleet) leastTier(c *Class, b bitmap) bool {
	if c.tiers == nil {
		return !b.empty()
	}
	for _, t := range c.tiers {
		if s := f.features[feature{kind: hasTier, name: t}]; s != nil && f.prefer(b, s) {
			return true
		}
	}
	return false
}

// leastLoaded leaves in b those with the smallest share of their slots taken.
func (f *Fleet) leastLoaded(b bitmap) {
	both := append(f.scratch[1][:0], b...)
	f.scratch[1] = both
	if both.and(f.idle); !both.empty() {
		copy(b, both)
		return
	}
	least := ^uint32(0)
	for i, w := range b {
		loads := f.load[i<<6:]
		if w == ^uint64(0) {
			for _, l := range loads[:64] {
				least = min(least, l)
			}
			continue
		}
		for ; w != 0; w &= w - 1 {
			least = min(least, loads[bits.TrailingZeros64(w)])
		}
	}
	for i, w := range b {
		loads := f.load[i<<6:]
		for ; w != 0; w &= w - 1 {
			if loads[bits.TrailingZeros64(w)] != least {
				b[i] &^= w & -w
			}
		}
	}
}

// longestIdle is the one in b that has been idle for longest.
func (f *Fleet) longestIdle(b bitmap) *Instance {
	best, earliest := -1, int64(0)
	look := func(p int, t int64) {
		if best < 0 || t < earliest || t == earliest && f.before(p, best) {
			best, earliest = p, t
		}
	}
	for i, w := range b {
		since := f.idleSince[i<<6:]
		if w == ^uint64(0) {
			for j, t := range since[:64] {
				if t <= earliest || best < 0 {
					look(i<<6|j, t)
				}
			}
			continue
		}
		for ; w != 0; w &= w - 1 {
			j := bits.TrailingZeros64(w)
			if t := since[j]; t <= earliest || best < 0 {
				look(i<<6|j, t)
			}
		}
	}
	if best < 0 {
		return nil
	}
	return f.at[best]
}

// before reports whether p comes before q by agent and instance id.
func (f *Fleet) before(p, q int) bool {
	if !f.ranked {
		for i, in := range f.order {
			f.rank[in.place] = uint32(i)
		}
		f.ranked = true
	}
	return f.rank[p] < f.rank[q]
}

// compare is Choose's order among the eligible, written plainly.
func (c *Class) compare(a, b *Instance, session subjects.SessionID) int {
	return cmp.Or(
		cmp.Compare(c.above(a), c.above(b)),
		cmp.Compare(a.load(), b.load()),
		-compareBool(a.warm(session), b.warm(session)),
		a.IdleSince.Compare(b.IdleSince),
		byID(a, b),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// warm reports whether the instance has the session's context at hand.
func (in *Instance) warm(session subjects.SessionID) bool {
	return session != "" && (in.session == session || in.Announce != nil && in.Announce.Session.ContextID == string(session))
}
