package router

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Announce takes in what an instance says of itself, stored at the time at.
// The fleet keeps a, which must not change any more. An announce that is older
// than what is known is dropped. One of an earlier epoch counts once the process
// of the later one has been silent for its lease: a clock was set back, or epochs
// are counted in another unit. changed reports whether anything but the time
// is new.
func (f *Fleet) Announce(a *fleet.Announce, at, now time.Time) (in *Instance, changed bool) {
	f.advance(now)
	if at.IsZero() || at.After(now) {
		at = now
	}
	if a.Retired && f.Get(a.Worker.AgentID, a.Instance()) == nil || !at.After(f.agent(a.Worker.AgentID).retiredAt) {
		f.tidy(f.agent(a.Worker.AgentID))
		return nil, false
	}
	in, known := f.instance(a.Worker.AgentID, a.Instance())
	if in.Announce != nil && at.Before(in.announceAt) {
		return in, false
	}
	if a.Worker.Epoch != 0 && a.Worker.Epoch < in.Epoch {
		if !in.silent() {
			in.earlier, in.earlierAt = a, at
			return in, false
		}
		in.Epoch = 0 // this process is the one that is left: it has restarted
	}
	wasLive, wasOpen := in.Live, f.open.has(in.place)
	restarted := a.Worker.Epoch > in.Epoch
	newest := restarted || !at.Before(in.LastSeen)
	if at.Before(in.healthAt) && !restarted {
		a = withHealth(a, in.health)
	} else {
		in.health = nil
	}
	changed = restarted || in.Announce == nil || !reflect.DeepEqual(in.Announce, a)
	if changed {
		f.replace(in, a)
		in.busy, in.newsAt = false, at
	}
	in.announceAt, in.Epoch = at, max(in.Epoch, a.Worker.Epoch)
	in.Heartbeat, in.TTL, in.Max = a.Heartbeat(), a.TTL(), a.MaxParallel()
	if restarted {
		in.stale, in.earlier = 0, nil
		in.forgive()
		f.setHolding(in, nil)
	}
	if newest {
		in.Active, in.drains = max(a.Session.ActiveTasks, 0), false
		in.fresh = nil
	}
	if restarted || at.After(in.LastSeen) || !in.heard {
		in.gone = false
	}
	in.retired = a.Retired
	f.hear(in, at)
	if in.IdleSince.IsZero() {
		in.IdleSince = at
	}
	if f.forgettable(in) && in.retired {
		f.forget(in)
		return nil, true
	}
	f.refresh(in)
	if !known {
		f.succeed(in)
	}
	if changed || in.Live != wasLive || f.open.has(in.place) != wasOpen {
		f.generation++
		changed = true
	}
	return in, changed
}

// Retire takes in that what the agent has announced until a time is gone for good;
// the zero time: nothing is. What is known to hold tasks is forgotten once it
// does not.
func (f *Fleet) Retire(agent subjects.AgentID, at time.Time) {
	f.agent(agent).retiredAt = at
	var gone []*Instance
	for in := range f.Of(agent) {
		if in.retired = in.retired || !in.announceAt.After(at) && !at.IsZero(); f.forgettable(in) {
			gone = append(gone, in)
		}
	}
	for _, in := range gone {
		f.forget(in)
	}
	f.tidy(f.agent(agent))
}

// Beat takes in a heartbeat: it renews the lease and is the latest account of
// what the instance holds. One of an earlier epoch than is known changes nothing,
// unless its announce counts by now. known is false for the first that is heard of an instance.
func (f *Fleet) Beat(agent subjects.AgentID, inst subjects.InstanceID, b *fleet.Heartbeat, now time.Time) (in *Instance, known bool) {
	f.advance(now)
	in, known = f.instance(agent, inst)
	if e := in.earlier; e != nil && e.Worker.Epoch == b.Epoch && in.silent() {
		f.Announce(e, in.earlierAt, now)
	}
	if b.Epoch != 0 && b.Epoch < in.Epoch {
		in.stale++
		return in, known
	}
	if b.Epoch > in.Epoch {
		in.stale = 0
		in.forgive()
	}
	wasLive, wasDraining, wasUsed := in.Live, in.Draining, in.Used()
	f.hear(in, now)
	in.gone = false
	news := b.Epoch > in.Epoch || b.ActiveTasks != in.Active || b.Draining != in.drains
	in.Epoch = max(in.Epoch, b.Epoch)
	in.Active, in.drains = max(b.ActiveTasks, 0), b.Draining
	in.fresh = nil
	news = f.setHolding(in, b.Holding) || news
	sick := f.setHealth(in, b.MCPHealth, now)
	if news || sick || !in.busyAsked && in.Free() {
		in.busy = false
	}
	if wasUsed > 0 && in.Used() == 0 {
		in.IdleSince = now
	}
	f.refresh(in)
	if sick || in.Live != wasLive || in.Draining != wasDraining {
		f.generation++
	}
	return in, known
}

// silent reports whether nothing was heard of the process of the latest epoch for
// its lease, or nobody answers for one without heartbeats.
func (in *Instance) silent() bool {
	return in.heard && (in.lapsed || in.gone && in.Heartbeat == 0)
}

// Gone notes that nobody answers for the instance: it is not live until it is
// heard again. One without heartbeats cannot be heard; it is asked again after
// a while. Its lease runs on.
func (f *Fleet) Gone(agent subjects.AgentID, inst subjects.InstanceID) {
	in := f.Get(agent, inst)
	if in == nil {
		return
	}
	in.gone = true
	in.goneUntil = f.now.Add(fleet.MissedHeartbeats * fleet.DefaultHeartbeat)
	f.refresh(in)
}

// Rests of an instance after offers that it did not answer in time.
const (
	missedRest     = time.Second // doubled by each further one
	missedRestMost = 30 * time.Second
)

// Missed notes that the instance did not answer an offer in time, and returns
// until when it is left alone, however well it sounds: each such offer costs it
// the work that it begins and has to drop.
func (f *Fleet) Missed(in *Instance) time.Time {
	f.Gone(in.Agent, in.ID)
	in.misses++
	rest := missedRestMost
	if in.misses <= 5 {
		rest = missedRest << (in.misses - 1)
	}
	in.restUntil = f.now.Add(rest)
	f.refresh(in)
	return in.restUntil
}

// Answered notes that the instance has answered an offer.
func (f *Fleet) Answered(in *Instance) { in.misses = 0 }

// Accepted notes that the instance has accepted an offer: it is not busy.
func (f *Fleet) Accepted(in *Instance) { in.refusals = 0 }

// forgive is for a new process.
func (in *Instance) forgive() { in.misses, in.restUntil = 0, time.Time{} }

// Drain notes that an operator drains every instance of agent, present and
// future, or ends that.
func (f *Fleet) Drain(agent subjects.AgentID, on bool, by string) {
	a := f.agent(agent)
	a.drained, a.drainedBy = on, ""
	if on {
		a.drainedBy = by
	}
	f.refreshAll(a)
}

// Cool keeps agent from being offered anything until then. A time that has
// passed ends its cool-down.
func (f *Fleet) Cool(agent subjects.AgentID, until time.Time, code subjects.Code) {
	a := f.agent(agent)
	a.cooling, a.coolUntil, a.coolCode = until.After(f.now), until, code
	f.refreshAll(a)
}

// Rests of an instance that refused an offer as busy, unless it asked for another.
// The first are short: an agent may free its slot only once its result has been
// answered, which is when it is offered the next task.
const (
	busyFirst = 10 * time.Millisecond
	busyMost  = time.Second
)

// Busy keeps one instance from being offered anything for a while, or until its
// result, heartbeat or announce shows a free slot. It returns until when; asked is
// how long the instance asked for, 0 for nothing.
func (f *Fleet) Busy(in *Instance, asked time.Duration) time.Time {
	rest := busyMost
	if in.refusals < 7 {
		rest = min(busyFirst<<in.refusals, busyMost)
	}
	if asked > 0 {
		rest = min(asked, time.Minute)
	}
	in.refusals++
	in.busy, in.busyAsked, in.busyUntil = true, asked > 0, f.now.Add(rest)
	f.refresh(in)
	return in.busyUntil
}

// Hold notes that the record of a task names the instance as its holder.
func (f *Fleet) Hold(agent subjects.AgentID, inst subjects.InstanceID, task subjects.TaskID, attempt int) {
	in, _ := f.instance(agent, inst)
	if _, ok := in.Held[task]; !ok {
		in.fresh = put(in.fresh, task, struct{}{})
		if _, holding := in.Holding[task]; holding {
			in.extra--
		}
	}
	in.Held = put(in.Held, task, attempt)
	f.refresh(in)
}

// Release notes that the record of a task does not name the instance any more.
// If the instance has said that it holds the task, the slot stays taken until
// it says otherwise: see Finish.
func (f *Fleet) Release(agent subjects.AgentID, inst subjects.InstanceID, task subjects.TaskID, now time.Time) {
	f.advance(now)
	in := f.Get(agent, inst)
	if in == nil {
		return
	}
	if _, ok := in.Held[task]; ok {
		delete(in.Held, task)
		in.IdleSince = now
		if _, holding := in.Holding[task]; holding {
			in.extra++
		}
	}
	f.refresh(in)
}

// Finish notes that the instance itself says, by a result, that it has done
// with a task: what its earlier heartbeats said of the task is out of date. The
// slot is free once the record has let go, too, in either order.
func (f *Fleet) Finish(agent subjects.AgentID, inst subjects.InstanceID, task subjects.TaskID, now time.Time) {
	f.advance(now)
	in := f.Get(agent, inst)
	if in == nil {
		return
	}
	_, fresh := in.fresh[task]
	_, held := in.Held[task]
	_, holding := in.Holding[task]
	if holding || held && !fresh {
		in.Active = max(in.Active-1, 0)
	}
	if holding {
		delete(in.Holding, task)
		f.unhold(in, task)
		if !held {
			in.extra--
		}
	}
	if held {
		in.fresh = put(in.fresh, task, struct{}{}) // counted no more
	}
	in.IdleSince = now
	in.busy = in.busy && in.busyAsked
	f.refresh(in)
}

// Warm notes that the instance has worked in a session, and so has its context
// at hand.
func (f *Fleet) Warm(agent subjects.AgentID, inst subjects.InstanceID, session subjects.SessionID) {
	in := f.Get(agent, inst)
	if in == nil || in.session == session {
		return
	}
	f.dropFeatures(in)
	in.session = session
	f.addFeatures(in)
}

// Offer counts offers in flight: +1 when one is made, -1 when it is answered.
func (f *Fleet) Offer(in *Instance, n int) {
	in.Offering = max(in.Offering+n, 0)
	if len(f.limits) > 0 {
		f.countProbe(in, n)
	}
	f.refresh(in)
}

// hear renews the lease.
func (f *Fleet) hear(in *Instance, at time.Time) {
	in.heard = true
	if at.After(in.LastSeen) || in.LastSeen.IsZero() {
		in.LastSeen = at
	}
	switch ended := !in.leaseEnds().After(f.now); {
	case !ended:
		in.lapsed = false
	case !in.lapsed && len(in.Held) > 0:
		f.lapse(in)
	default:
		in.lapsed = true
	}
}

// setHolding replaces what the instance says that it holds, and reports
// whether that is new.
func (f *Fleet) setHolding(in *Instance, now []fleet.Holding) bool {
	same := len(now) == len(in.Holding)
	for _, h := range now {
		attempt, ok := in.Holding[h.TaskID]
		same = same && ok && attempt == h.Attempt
	}
	if same {
		return false
	}
	for id := range in.Holding {
		f.unhold(in, id)
	}
	in.Holding, in.extra = nil, 0
	for _, h := range now {
		if _, twice := in.Holding[h.TaskID]; !twice {
			f.holders[h.TaskID] = append(f.holders[h.TaskID], in)
			if _, held := in.Held[h.TaskID]; !held {
				in.extra++
			}
		}
		in.Holding = put(in.Holding, h.TaskID, h.Attempt)
	}
	return true
}

func (f *Fleet) unhold(in *Instance, task subjects.TaskID) {
	rest := slices.DeleteFunc(f.holders[task], func(o *Instance) bool { return o == in })
	if len(rest) == 0 {
		delete(f.holders, task)
	} else {
		f.holders[task] = rest
	}
}

// setHealth takes in what a heartbeat says has changed, and reports whether it
// has.
func (f *Fleet) setHealth(in *Instance, news fleet.MCPHealth, now time.Time) bool {
	if len(news) == 0 {
		return false
	}
	in.health, in.healthAt = in.health.With(news), now
	if in.Announce == nil {
		return false
	}
	for server, health := range news {
		if was, ok := in.Announce.MCPHealth[server]; !ok || was != health {
			a := withHealth(in.Announce, news)
			if maps.Equal(a.MCPHealth, in.Announce.MCPHealth) {
				return false // there is no room for more
			}
			f.replace(in, a)
			in.newsAt = now
			return true
		}
	}
	return false
}

func withHealth(a *fleet.Announce, news fleet.MCPHealth) *fleet.Announce {
	merged := *a
	merged.MCPHealth = a.MCPHealth.With(news)
	return &merged
}

// replace puts a in the place of the instance's announce.
func (f *Fleet) replace(in *Instance, a *fleet.Announce) {
	f.dropFeatures(in)
	in.Announce, in.skills, in.account = a, skillNames(a.Capabilities.Skills), f.accountOf(a)
	f.addFeatures(in)
}

// skillNames lists the ids and names of A2A skills.
func skillNames(skills []json.RawMessage) []string {
	var names []string
	for _, raw := range skills {
		var skill struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &skill) != nil {
			continue
		}
		for _, n := range []string{skill.ID, skill.Name} {
			if n != "" {
				names = append(names, n)
			}
		}
	}
	return names
}
