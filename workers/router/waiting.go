package router

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// This file tells why a task waits (ADR 23). It is computed when it is read, and
// never stored: one limit must not write a million records.

// waitingOf says why the task waits, nil where it does not.
func (c *core) waitingOf(ev *fleet.Event, now time.Time) *fleet.Waiting {
	switch at := ev.Facts.NotBefore; {
	case plant.Bug("wait_silent"):
		return nil
	case plant.Bug("wait_stale") && ev.State == fleet.StateQueued:
		return &fleet.Waiting{Why: fleet.WaitBusy, Since: ev.Time}
	case waitsForHuman(ev):
		return &fleet.Waiting{Why: fleet.WaitHuman, Since: ev.Time, Until: ev.Facts.GiveUpAt}
	case ev.State != fleet.StateQueued:
		return nil
	case at != nil && at.After(now):
		return &fleet.Waiting{Why: fleet.WaitRetry, Since: ev.Time, Until: at}
	}
	c.fleet.advance(now)
	w := c.fleet.whyWaits(c.fleet.Compile(need(ev)))
	if w.Since.Before(ev.Time) {
		w.Since = ev.Time
	}
	return &w
}

// whyWaits says why no task of a class is offered now: by the instances that could
// do it, the one that needs the least to happen.
func (f *Fleet) whyWaits(c *Class) fleet.Waiting {
	none := fleet.Waiting{Why: fleet.WaitNoAgentYet}
	if len(c.only) == 1 {
		none.Who = string(c.only[0])
	}
	if f.announced.empty() {
		return none
	}
	b := append(f.scratch[0][:0], f.announced...)
	f.scratch[0] = b
	if !f.narrow(c, b, hasMCP) || !f.leastTiers(c, b) {
		return none
	}
	var best *fleet.Waiting
	for p := range b.all() {
		w := f.whyInstanceWaits(c, f.at[p])
		if best == nil || compareWaits(&w, best) < 0 {
			best = &w
		}
		if best.Why == fleet.WaitBusy {
			break
		}
	}
	if best == nil {
		return none
	}
	return *best
}

// leastTiers leaves in b those of any tier that will do, and reports whether
// anybody is left.
func (f *Fleet) leastTiers(c *Class, b bitmap) bool {
	if c.tiers != nil {
		for p := range b.all() {
			if c.above(f.at[p]) < 0 {
				b.remove(p)
			}
		}
	}
	return !b.empty()
}

// waitOrder says which of two causes is closer to its end.
var waitOrder = []string{fleet.WaitBusy, fleet.WaitLimited, fleet.WaitUnwell, fleet.WaitDrained, fleet.WaitAway}

func compareWaits(a, b *fleet.Waiting) int {
	if d := cmp.Compare(slices.Index(waitOrder, a.Why), slices.Index(waitOrder, b.Why)); d != 0 {
		return d
	}
	switch {
	case a.Until != nil && b.Until != nil:
		return a.Until.Compare(*b.Until)
	case a.Why == fleet.WaitAway:
		return b.Since.Compare(a.Since) // the one that was heard last
	}
	return 0
}

// whyInstanceWaits says why one instance, which could do a task of a class, is not
// offered it now.
func (f *Fleet) whyInstanceWaits(c *Class, in *Instance) fleet.Waiting {
	w := fleet.Waiting{Why: fleet.WaitBusy, Who: string(in.Agent)}
	l := f.closedLimit(in)
	sick := c.sick(in)
	out := c.leavesOut(in, false, f.now)
	switch {
	case in.lapsed || !in.heard:
		w.Why, w.Since, w.Message = fleet.WaitAway, in.LastSeen, "last heard "+stamp(in.LastSeen)
	case in.Draining:
		w.Why = fleet.WaitDrained
	case l != nil:
		w.Why, w.Who, w.Since, w.Until, w.Message, w.Guessed = fleet.WaitLimited, l.Account, l.Since, &l.Until, l.Message, l.Step > 0
	case len(sick) > 0:
		w.Why, w.Message = fleet.WaitUnwell, sick[0].Message
	case out != nil:
		w.Why, w.Until, w.Message = fleet.WaitUnwell, &out.Until, "it could not begin this task"
	case in.owner.cooling:
		w.Why, w.Until, w.Message = fleet.WaitUnwell, &in.owner.coolUntil, "its last attempts were all lost"
	}
	return w
}

// limitsReply lists the limits of an account, "" for all, by account and tier.
func (c *core) limitsReply(account string) fleet.AgentLimitsReply {
	reply := fleet.AgentLimitsReply{Limits: []fleet.AccountLimit{}}
	for _, l := range c.fleet.Limits {
		if account == "" || l.Account == account {
			reply.Limits = append(reply.Limits, *l)
		}
	}
	slices.SortFunc(reply.Limits, func(a, b fleet.AccountLimit) int {
		return cmp.Or(strings.Compare(a.Account, b.Account), strings.Compare(a.Tier, b.Tier))
	})
	return reply
}

// maxCauses bounds the causes that are told at a time, and maxLooked the waiting
// tasks of each class and priority that are looked at one by one. The lock is given
// back after lockedWork tasks and classes. Causes are gathered again after
// causesFresh at the earliest, and in at most a twentieth of the time.
const (
	maxCauses   = 1000
	maxLooked   = 10_000
	lockedWork  = 2000
	causesFresh = time.Second
)

// causeSet gathers why tasks wait in the fleet, class by class. Tasks that nobody
// is to be told of are counted, and no more.
type causeSet struct {
	byKey map[string]*fleet.WaitingCause
	more  bool // there are more than maxCauses
}

// add takes in why the tasks of a class wait, and returns how many were looked at.
func (g *causeSet) add(c *core, cl *class) (looked int) {
	w := c.fleet.whyWaits(cl.Class)
	key := w.Why + "\x00" + w.Who
	k := g.byKey[key]
	if k == nil {
		if len(g.byKey) == maxCauses {
			g.more = true
			return 1
		}
		k = &fleet.WaitingCause{Waiting: w, Class: cl.label()}
		g.byKey[key] = k
	}
	if w.Until != nil && k.Until != nil && w.Until.After(*k.Until) {
		k.Until = w.Until // the limits of two model tiers
	}
	k.Tasks += cl.queued
	for l := range cl.queues {
		n := 0
		for s := cl.queues[l].head; s != 0 && n < maxLooked; s = c.x.at(s).next {
			n++
			c.addWaiting(k, cl, s, w.Until)
		}
		looked += n
	}
	return looked + 1
}

// addWaiting takes in one waiting task: since when it waits, and how much is left.
func (c *core) addWaiting(k *fleet.WaitingCause, cl *class, s slot, until *time.Time) {
	e := c.x.at(s)
	created, deadline := time.Unix(0, e.created).UTC(), time.Unix(0, e.deadline).UTC()
	if e.flags&silent != 0 {
		k.Silent++
		if k.OldestSilent.IsZero() || created.Before(k.OldestSilent) {
			k.OldestSilent = created
		}
		return
	}
	if k.Oldest.IsZero() || created.Before(k.Oldest) || created.Equal(k.Oldest) && c.x.id(s) < k.TaskID {
		k.Oldest, k.TaskID, k.Class = created, c.x.id(s), cl.label()
	}
	if k.Deadline.IsZero() || deadline.Before(k.Deadline) {
		k.Deadline = deadline
	}
	if until != nil && deadline.Before(*until) {
		k.Late++
	}
}

// list lists the causes in order.
func (g *causeSet) list() []fleet.WaitingCause {
	out := make([]fleet.WaitingCause, 0, len(g.byKey))
	for _, k := range g.byKey {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b fleet.WaitingCause) int {
		return cmp.Or(strings.Compare(a.Why, b.Why), strings.Compare(a.Who, b.Who))
	})
	return out
}

// waitingCauses keeps why tasks wait, for those who ask often.
type waitingCauses struct {
	mu    sync.Mutex // guards all below; held while gathering, so that it is done once
	until time.Time  // they are gathered again
	reply fleet.TaskWaitingReply
}

// causes gathers why tasks wait in the fleet. The lock of the core is held for a
// moment at a time: there may be very many classes and tasks.
func (w *Worker) causes() fleet.TaskWaitingReply {
	kept := &w.whyWaiting
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if w.now().Before(kept.until) {
		return kept.reply
	}
	began := w.now()
	set := causeSet{byKey: make(map[string]*fleet.WaitingCause)}
	w.mu.Lock()
	classes := slices.Collect(maps.Values(w.core.classes))
	w.mu.Unlock()
	for len(classes) > 0 {
		w.mu.Lock()
		c := w.core
		c.fleet.advance(w.now())
		for work := 0; len(classes) > 0 && work < lockedWork; classes = classes[1:] {
			if cl := classes[0]; cl.queued > 0 && c.classes[cl.Key()] == cl {
				work += set.add(c, cl)
			} else {
				work++
			}
		}
		w.mu.Unlock()
	}
	w.mu.Lock()
	ready := w.core.settled
	w.mu.Unlock()
	now := w.now()
	kept.reply = fleet.TaskWaitingReply{Causes: set.list(), Ready: ready, More: set.more}
	kept.until = now.Add(max(causesFresh, 20*now.Sub(began)))
	return kept.reply
}

// apiWaiting serves task waiting: why tasks wait, cause by cause.
func (w *Worker) apiWaiting(_ context.Context, from subjects.AgentID, _ []byte) (any, error) {
	if !w.operator(from) && from != w.cfg.Deputy {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not see why all tasks wait", from).
			WithRemedy("an operator may; task get says it of a task of your own")
	}
	return w.causes(), nil
}
