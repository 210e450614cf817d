package router

import (
	"cmp"
	"context"
	"slices"
	"strings"
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
	if f.announced.empty() {
		return fleet.Waiting{Why: fleet.WaitNoAgentYet}
	}
	b := append(f.scratch[0][:0], f.announced...)
	f.scratch[0] = b
	best := fleet.Waiting{Why: fleet.WaitNoAgentYet}
	if !f.narrow(c, b, hasMCP) || !f.leastTiers(c, b) {
		return best
	}
	for p := range b.all() {
		w := f.whyInstanceWaits(c, f.at[p])
		if best.Who == "" && best.Why == fleet.WaitNoAgentYet || compareWaits(&w, &best) < 0 {
			best = w
		}
		if best.Why == fleet.WaitBusy {
			break
		}
	}
	return best
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
		w.Why, w.Who, w.Since, w.Until, w.Message = fleet.WaitLimited, l.Account, l.Since, &l.Until, l.Message
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
// tasks of each class that are looked at one by one.
const (
	maxCauses = 1000
	maxLooked = 10_000
)

// causes gathers why tasks wait in the fleet, for those who notify people. Tasks
// that nobody is to be told of are counted, and no more.
func (c *core) causes(now time.Time) []fleet.WaitingCause {
	c.fleet.advance(now)
	byKey := make(map[string]*fleet.WaitingCause)
	for _, cl := range c.classes {
		if cl.queued == 0 {
			continue
		}
		w := c.fleet.whyWaits(cl.Class)
		key := w.Why + "\x00" + w.Who
		if w.Why == fleet.WaitNoAgentYet {
			key += cl.Key()
		}
		k := byKey[key]
		if k == nil {
			if len(byKey) == maxCauses {
				continue
			}
			k = &fleet.WaitingCause{Waiting: w, Class: cl.label()}
			byKey[key] = k
		}
		k.Tasks += cl.queued
		c.lookAtWaiting(cl, k, now)
	}
	out := make([]fleet.WaitingCause, 0, len(byKey))
	for _, k := range byKey {
		out = append(out, *k)
	}
	slices.SortFunc(out, func(a, b fleet.WaitingCause) int {
		return cmp.Or(strings.Compare(a.Why, b.Why), strings.Compare(a.Who, b.Who), strings.Compare(a.Class, b.Class))
	})
	return out
}

// lookAtWaiting takes the tasks of a class in hand one by one: since when they wait,
// and how much is left.
func (c *core) lookAtWaiting(cl *class, k *fleet.WaitingCause, now time.Time) {
	looked := 0
	for l := range cl.queues {
		for s := cl.queues[l].head; s != 0 && looked < maxLooked; s = c.x.at(s).next {
			looked++
			e := c.x.at(s)
			if e.flags&silent != 0 {
				k.Silent++
				continue
			}
			created, deadline := time.Unix(0, e.created).UTC(), time.Unix(0, e.deadline).UTC()
			if k.Oldest.IsZero() || created.Before(k.Oldest) {
				k.Oldest = created
			}
			if k.Deadline.IsZero() || deadline.Before(k.Deadline) {
				k.Deadline = deadline
			}
			if k.Until != nil && deadline.Before(*k.Until) {
				k.Late++
			}
			if k.TaskID == "" || created.Equal(k.Oldest) {
				k.TaskID = c.x.id(s)
			}
		}
	}
}

// apiWaiting serves task waiting: why tasks wait, cause by cause.
func (w *Worker) apiWaiting(_ context.Context, from subjects.AgentID, _ []byte) (any, error) {
	if !w.operator(from) && from != w.cfg.Deputy {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not see why all tasks wait", from).
			WithRemedy("an operator may; task get says it of a task of your own")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return fleet.TaskWaitingReply{Causes: w.core.causes(w.now()), Ready: w.core.settled}, nil
}
