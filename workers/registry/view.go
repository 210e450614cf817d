package registry

import (
	"cmp"
	"slices"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// keptFor is how long an instance is known that is not heard any more, and
// listedFor how long it is listed unless all are asked for. Its announce is kept
// for longer.
const (
	keptFor   = 24 * time.Hour
	listedFor = 5 * time.Minute
)

// key names an instance.
type key struct {
	agent    subjects.AgentID
	instance subjects.InstanceID
}

// compare orders instances in a listing.
func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.agent, other.agent), cmp.Compare(k.instance, other.instance))
}

// instance is what is known of one process of an agent.
type instance struct {
	announce  fleet.Announce
	announced time.Time // when the announce was stored
	seen      time.Time // when it was last heard of
	active    int
	holding   []fleet.Holding
	earlier   *fleet.Announce // of an earlier epoch, which counts once this one is silent
	earlierAt time.Time
	draining  bool // by its own word

	known    bool  // what follows has been decided once
	epoch    int64 // of the process that it tells about
	live     bool
	drained  bool // by itself or by an operator, as last told
	saidLife said // the last event live or lost that anybody told
	saidWork said // the last event draining or resumed
}

// said is an event that was told, by this registry or another.
type said struct {
	event string
	epoch int64
}

// view is what one registry has heard of the fleet. It is pure: time comes in
// as an argument, events go out as return values. It is not safe for
// concurrent use.
type view struct {
	began     time.Time // what was announced before is no news
	instances map[key]*instance
	drains    map[subjects.AgentID]fleet.AgentDrained
	retired   map[subjects.AgentID]time.Time // gone for good what announced itself until then
	cools     map[subjects.AgentID]fleet.AgentCooling
	limits    map[string]fleet.AccountLimit // by fleet.LimitKey
}

func newView(began time.Time) *view {
	return &view{
		began:     began,
		instances: make(map[key]*instance),
		drains:    make(map[subjects.AgentID]fleet.AgentDrained),
		retired:   make(map[subjects.AgentID]time.Time),
		cools:     make(map[subjects.AgentID]fleet.AgentCooling),
		limits:    make(map[string]fleet.AccountLimit),
	}
}

// announced takes an announce that was stored at the time at.
func (v *view) announced(k key, a *fleet.Announce, at, now time.Time) []fleet.AgentEvent {
	in := v.instances[k]
	switch {
	case !at.After(v.retired[k.agent]):
		return nil // an operator said that it is gone
	case in == nil && a.Retired:
		return nil
	case in == nil:
		in = new(instance)
		v.instances[k] = in
	case a.Worker.Epoch < in.announce.Worker.Epoch && alive(in, now):
		in.earlier, in.earlierAt = a, at // it counts once the other process is silent
		return nil
	case a.Worker.Epoch != in.announce.Worker.Epoch:
		in.holding = nil
	}
	in.earlier = nil
	in.announce, in.announced = *a, at
	in.announce.Worker.AgentID, in.announce.Worker.InstanceID = k.agent, k.instance
	in.active, in.draining = a.Session.ActiveTasks, a.Draining
	if at.After(in.seen) {
		in.seen = at
	}
	events := v.settle(k, in, now)
	if a.Retired {
		delete(v.instances, k)
	}
	return events
}

// retire takes an operator's word that an agent is gone for good; nil: no longer.
// It returns how many instances are known no more.
func (v *view) retire(a subjects.AgentID, r *fleet.AgentRetired) (dropped int) {
	if r == nil {
		delete(v.retired, a)
		return 0
	}
	v.retired[a] = r.At
	for _, k := range v.keys(a) {
		if !v.instances[k].announced.After(r.At) {
			delete(v.instances, k)
			dropped++
		}
	}
	return dropped
}

// heard takes a heartbeat. One of an instance that has not announced, or of a
// process that has been replaced, tells nothing.
func (v *view) heard(k key, h *fleet.Heartbeat, now time.Time) []fleet.AgentEvent {
	in := v.instances[k]
	var events []fleet.AgentEvent
	if in != nil && in.earlier != nil && in.earlier.Worker.Epoch == h.Epoch && !alive(in, now) {
		events = v.announced(k, in.earlier, in.earlierAt, now)
	}
	if in == nil || h.Epoch < in.announce.Worker.Epoch || in.announce.Stopped && h.Epoch == in.announce.Worker.Epoch {
		return nil
	}
	in.seen, in.active, in.holding, in.draining = now, h.ActiveTasks, h.Holding, h.Draining
	if len(h.MCPHealth) > 0 {
		in.announce.MCPHealth = in.announce.MCPHealth.With(h.MCPHealth)
	}
	return append(events, v.settle(k, in, now)...)
}

// drain takes an operator's word that an agent is drained; nil: no longer.
func (v *view) drain(a subjects.AgentID, d *fleet.AgentDrained, now time.Time) []fleet.AgentEvent {
	if d == nil {
		delete(v.drains, a)
	} else {
		v.drains[a] = *d
	}
	var events []fleet.AgentEvent
	for _, k := range v.keys(a) {
		events = append(events, v.settle(k, v.instances[k], now)...)
	}
	return events
}

// cool takes a router's word that an agent cools down; nil: no longer.
func (v *view) cool(a subjects.AgentID, c *fleet.AgentCooling) {
	if c == nil {
		delete(v.cools, a)
	} else {
		v.cools[a] = *c
	}
}

// limit takes a router's word that an account is limited; nil: no longer.
func (v *view) limit(key string, l *fleet.AccountLimit) {
	if l == nil {
		delete(v.limits, key)
	} else {
		v.limits[key] = *l
	}
}

// limitOf is the limit of an instance's account, or of its agent id where routers do
// not believe its account: of those for its model tier and for all, the one that ends
// last; nil for none.
func (v *view) limitOf(a *fleet.Announce) *fleet.AccountLimit {
	for _, account := range []string{a.Account(), string(a.Worker.AgentID)} {
		var last *fleet.AccountLimit
		for _, tier := range []string{"", a.Worker.ModelTier} {
			if l, ok := v.limits[fleet.LimitKey(account, tier)]; ok && (last == nil || l.Until.After(last.Until)) {
				last = &l
			}
		}
		if last != nil {
			return last
		}
	}
	return nil
}

// told takes an event that some registry has told, so that it is not told
// again.
func (v *view) told(k key, e *fleet.AgentEvent) {
	in := v.instances[k]
	if in == nil {
		return
	}
	switch s := (said{e.Event, e.Epoch}); e.Event {
	case fleet.AgentLive, fleet.AgentLost, fleet.AgentStopped:
		in.saidLife = s
	case fleet.AgentDraining, fleet.AgentResumed:
		in.saidWork = s
	}
}

// sweep finds whom time has made lost, and forgets those that are gone. Who was
// found has a lease to be heard in.
func (v *view) sweep(now time.Time) []fleet.AgentEvent {
	var events []fleet.AgentEvent
	for k, in := range v.instances {
		events = append(events, v.settle(k, in, now)...)
		if in.known && gone(in, now) {
			delete(v.instances, k)
		}
	}
	slices.SortFunc(events, func(a, b fleet.AgentEvent) int {
		return cmp.Or(cmp.Compare(a.AgentID, b.AgentID), cmp.Compare(a.InstanceID, b.InstanceID))
	})
	return events
}

// list is the listing of one agent, or of all when a is empty: of those that
// come after an instance. Unless all are asked for, those are left out that have
// stopped, and those that have been lost for a while.
func (v *view) list(a subjects.AgentID, all bool, after key, now time.Time) []fleet.AgentView {
	keys := v.keys(a)
	views := make([]fleet.AgentView, 0, len(keys))
	for _, k := range keys {
		in := v.instances[k]
		if gone(in, now) || k.compare(after) <= 0 {
			continue
		}
		if !all && !alive(in, now) && (in.announce.Stopped || now.Sub(in.seen) > lease(&in.announce)+listedFor) {
			continue
		}
		drain, byOperator := v.drains[k.agent]
		view := fleet.AgentView{
			Announce: in.announce, Live: alive(in, now), Stopped: in.announce.Stopped, Draining: in.draining || byOperator,
			DrainedBy: string(drain.By), LastSeen: in.seen, Active: in.active, Holding: in.holding,
		}
		if c, ok := v.cools[k.agent]; ok && c.Until.After(now) {
			view.CoolUntil, view.CoolCode = &c.Until, c.Code
		}
		view.Limit = v.limitOf(&in.announce)
		views = append(views, view)
	}
	return views
}

// keys names the instances of one agent, or all when a is empty, in order.
func (v *view) keys(a subjects.AgentID) []key {
	var keys []key
	for k := range v.instances {
		if a == "" || k.agent == a {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, key.compare)
	return keys
}

// lease is how long an instance lives after it was last heard of.
func lease(a *fleet.Announce) time.Duration {
	switch {
	case a.HeartbeatSeconds == nil:
		return fleet.MissedHeartbeats * fleet.DefaultHeartbeat
	case *a.HeartbeatSeconds > 0:
		return time.Duration(fleet.MissedHeartbeats * *a.HeartbeatSeconds * float64(time.Second))
	case a.TTLSeconds > 0:
		return time.Duration(a.TTLSeconds * float64(time.Second))
	}
	return fleet.DefaultTTL
}

func alive(in *instance, now time.Time) bool {
	return !in.announce.Stopped && now.Sub(in.seen) <= lease(&in.announce)
}

// gone reports whether the instance is not spoken of any more.
func gone(in *instance, now time.Time) bool {
	return !alive(in, now) && now.Sub(in.seen) > keptFor
}

// settle compares what an instance is with what was last told of it, and
// returns what is to be told now. The first look at an instance that this
// registry found when it began is no news.
func (v *view) settle(k key, in *instance, now time.Time) []fleet.AgentEvent {
	operator, byOperator := v.drains[k.agent]
	live, drained := alive(in, now), in.draining || byOperator
	epoch := in.announce.Worker.Epoch
	if !in.known && in.announced.Before(v.began) {
		// Not heard of yet: its next heartbeat may be under way.
		in.known = live || now.Sub(v.began) > lease(&in.announce)
		in.live, in.drained, in.epoch = live, drained, epoch
		return nil
	}
	var events []fleet.AgentEvent
	tell := func(last *said, event string, change func(*fleet.AgentEvent)) {
		if *last == (said{event, epoch}) {
			return
		}
		*last = said{event, epoch}
		e := fleet.AgentEvent{
			Header:  fleet.Header{Type: fleet.TypeAgentEvent, ProtocolVersion: fleet.Version},
			AgentID: k.agent, InstanceID: k.instance, Epoch: epoch, Event: event, Time: now,
		}
		change(&e)
		events = append(events, e)
	}
	plainly := func(*fleet.AgentEvent) {}
	restarted := in.known && in.epoch != epoch
	switch {
	case live && (!in.live || restarted):
		tell(&in.saidLife, fleet.AgentLive, plainly)
	case !live && in.live && in.announce.Stopped:
		tell(&in.saidLife, fleet.AgentStopped, plainly)
	case !live && in.live:
		tell(&in.saidLife, fleet.AgentLost, func(e *fleet.AgentEvent) {
			e.Reason = &fleet.Reason{
				Code: subjects.CodeAgentLost, Message: "not heard of since " + in.seen.UTC().Format(time.RFC3339),
			}
		})
	}
	switch {
	case live && drained && !in.drained:
		tell(&in.saidWork, fleet.AgentDraining, func(e *fleet.AgentEvent) { e.By, e.Message = operator.By, operator.Reason })
	case live && !drained && in.drained:
		tell(&in.saidWork, fleet.AgentResumed, plainly)
	}
	in.known, in.live, in.epoch = true, live, epoch
	if live {
		in.drained = drained
	}
	return events
}
