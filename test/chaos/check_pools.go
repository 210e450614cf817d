//go:build linux

package main

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/test/rig"
)

// This file reads of journals and records where the agents of pools were, what they
// had in hand, and when their accounts were limited.

// try is one attempt at a task, as the records tell it.
type try struct {
	task     string
	n        int
	who      string // see place
	epoch    int64
	account  string
	from, to time.Time   // stored; to of what ended it
	ended    *rig.Record // nil: nothing has
}

// counts reports whether it was a try at the work: whoever makes one is not limited.
func (t *try) counts() bool {
	if t.ended == nil || t.ended.State == "canceled" || t.ended.State == "expired" {
		return false
	}
	for i := range t.ended.Facts.Attempts {
		if a := &t.ended.Facts.Attempts[i]; a.Attempt == t.n {
			return !a.Requeues()
		}
	}
	return true
}

// closing is a time in which an account is limited, until it is known to be open.
type closing struct {
	account string
	from    time.Time // of the record that says so
	reset   time.Time // told by the provider, or assumed where it tells nothing
	untold  bool
	opens   time.Time // zero: nobody has seen that
}

// tested is when it is tried again at the latest.
func (c *closing) tested() time.Time {
	reset := c.reset
	if least := c.from.Add(limitLeast); reset.Before(least) {
		reset = least
	}
	return reset.Add(min(limitSpread, reset.Sub(c.from)/10)).Add(clockSlack)
}

// limitLeast is how long an account is limited at least, and limitSpread how much
// later than its reset it is tried at most.
const (
	limitLeast  = 5 * time.Second
	limitSpread = 30 * time.Second
)

// yard is what is known of the agents, by place.
type yard struct {
	f        *findings
	last     time.Time // that is known of anything
	actors   map[string]rig.Actor
	process  map[string]string
	accounts map[string][]string // places
	tries    []try               // in order
	dead     map[string]spans    // it does not run, or is paused, or sends no heartbeats
	full     map[string]spans    // it has no free slot
	rests    map[string]spans    // its agent is brought down again and again
	closings map[string][]closing
	down     spans // something is wrong with servers, routers, links or the machine
}

// place is where the agents are told apart: by instance, where that has a name that
// lasts.
func place(actors map[string]rig.Actor, agent, instance string) string {
	if p := agent + "/" + instance; actors[p].ID != "" {
		return p
	}
	return agent + "/"
}

func accountOf(a *rig.Actor) string { return cmp.Or(a.Labels["account"], a.ID) }

// yardOf reads it.
func (f *findings) yardOf() *yard {
	y := &yard{
		f: f, actors: map[string]rig.Actor{}, process: map[string]string{}, accounts: map[string][]string{},
		dead: map[string]spans{}, full: map[string]spans{}, rests: map[string]spans{}, closings: map[string][]closing{},
		down: f.downtime(killAgents, pauseAgents, muteAgents, skewAgents, garbage).union(),
	}
	for _, a := range f.agents {
		p := a.ID + "/" + a.Instance
		y.actors[p], y.process[p] = a, f.casts[p]
		y.accounts[accountOf(&a)] = append(y.accounts[accountOf(&a)], p)
	}
	for _, list := range f.records {
		if at := list[len(list)-1].Stored; at.After(y.last) {
			y.last = at
		}
	}
	if f.rest != nil && f.rest.At.After(y.last) {
		y.last = f.rest.At
	}
	y.readTries()
	y.readDeaths()
	y.readFull()
	y.readRests()
	y.readClosings()
	return y
}

// readTries reads the attempts.
func (y *yard) readTries() {
	for id, list := range y.f.records {
		for i := range list {
			r := &list[i]
			if r.Kind != "working" {
				continue
			}
			t := try{task: id, n: r.Attempt, who: place(y.actors, r.AgentID, r.InstanceID), epoch: r.Epoch, from: r.Stored, to: y.last}
			if a, ok := y.actors[t.who]; ok {
				t.account = accountOf(&a)
			}
			for k := range list[i+1:] {
				if next := &list[i+1+k]; !next.Held() {
					t.to, t.ended = next.Stored, next
					break
				}
			}
			y.tries = append(y.tries, t)
		}
	}
	slices.SortFunc(y.tries, func(a, b try) int { return a.from.Compare(b.from) })
}

// crashTakes is how long it takes at most until an agent starts that was taken down
// by its task.
const crashTakes = 5 * time.Second

// readDeaths reads when agents were not there.
func (y *yard) readDeaths() {
	for p, process := range y.process {
		for _, o := range slices.Concat(y.f.wounds, y.f.faults) {
			if o.ID == process && process != "" && o.Op != replaceKey {
				y.dead[p] = append(y.dead[p], [2]int64{o.from, min(o.to, y.last.UnixNano())})
			}
		}
	}
	for _, list := range y.f.notes {
		for i := range list {
			if e := &list[i]; e.What == rig.WasStarted {
				p := place(y.actors, e.Agent, e.Instance)
				y.dead[p] = append(y.dead[p], [2]int64{e.At - int64(crashTakes), e.At})
			}
		}
	}
	for p, s := range y.dead {
		y.dead[p] = s.union()
	}
}

// readFull reads when agents had all they can do, by the records and by their own
// journals.
func (y *yard) readFull() {
	type change struct {
		at int64
		by int
	}
	changes := map[string][]change{}
	add := func(p string, from, to int64) { changes[p] = append(changes[p], change{from, 1}, change{to, -1}) }
	type turn struct {
		task string
		n    int
		who  string
	}
	begun := map[turn]int64{}
	ended := map[turn]int64{}
	for _, list := range y.f.notes {
		for i := range list {
			e := &list[i]
			t := turn{e.Task, e.Attempt, place(y.actors, e.Agent, e.Instance)}
			switch {
			case e.What == rig.WasBegun && begun[t] == 0:
				begun[t] = e.At
			case e.What == rig.WasEnded:
				ended[t] = e.At
			}
		}
	}
	for i := range y.tries {
		t := &y.tries[i]
		from, to := t.from.UnixNano(), t.to.UnixNano()
		k := turn{t.task, t.n, t.who}
		if at := begun[k]; at > 0 {
			from = min(from, at)
		}
		add(t.who, from, max(to, ended[k]))
		delete(begun, k)
	}
	for k, from := range begun { // that no record names
		add(k.who, from, max(ended[k], from))
	}
	for p, list := range changes {
		slices.SortFunc(list, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), b.by-a.by) })
		slots, n := y.actors[p].MaxParallel, 0
		if strings.HasSuffix(p, "/") { // one life of it may end as the next begins
			slots = max(slots-1, 1)
		}
		var since int64
		for _, c := range list {
			if n += c.by; n == slots && c.by > 0 {
				since = c.at
			} else if n == slots-1 && c.by < 0 && slots > 0 {
				y.full[p] = append(y.full[p], [2]int64{since, c.at})
			}
		}
		y.full[p] = y.full[p].union()
	}
}

// An agent rests whose last attempts were all lost: one life of it that ends counts
// once.
const (
	crashRow      = 3
	crashRest     = 10 * time.Second
	crashRestMost = 5 * time.Minute
)

// readRests reads when agents rest since they were lost too often in a row.
func (y *yard) readRests() {
	type end struct {
		at   time.Time
		id   string
		life string // one of its processes
		lost bool
	}
	var ends []end
	for i := range y.tries {
		t := &y.tries[i]
		id, _, _ := strings.Cut(t.who, "/")
		switch {
		case t.ended == nil:
		case t.counts():
			ends = append(ends, end{at: t.to, id: id})
		case t.ended.Kind != "outcome" || t.ended.Reason.Code == "agent_lost":
			if a := lastAttempt(t.ended); a.Code == "agent_lost" {
				ends = append(ends, end{t.to, id, t.who + "/" + strconv.FormatInt(t.epoch, 10), true})
			}
		}
	}
	slices.SortFunc(ends, func(a, b end) int { return a.at.Compare(b.at) })
	row, at := map[string]int{}, map[string]time.Time{} // at: by life
	for _, e := range ends {
		if !e.lost {
			row[e.id] = 0
			continue
		}
		if e.at.Sub(at[e.life]) < crashRest {
			continue
		}
		at[e.life] = e.at
		if row[e.id]++; row[e.id] >= crashRow {
			rest := min(crashRest<<min(row[e.id]-crashRow, 10), crashRestMost)
			y.rests[e.id] = append(y.rests[e.id], [2]int64{e.at.UnixNano(), e.at.Add(rest + clockSlack).UnixNano()})
		}
	}
}

// readClosings reads when accounts were limited: from the record that followed.
func (y *yard) readClosings() {
	for _, list := range y.f.notes {
		for i := range list {
			e := &list[i]
			if e.What != rig.WasLimited {
				continue
			}
			a, ok := y.actors[place(y.actors, e.Agent, e.Instance)]
			k := slices.IndexFunc(y.f.records[e.Task], func(r rig.Record) bool {
				last := lastAttempt(&r)
				return last.Attempt == e.Attempt && last.Code == "rate_limited" && last.AgentID == e.Agent
			})
			if !ok || k < 0 {
				continue // it came too late
			}
			c := closing{account: accountOf(&a), from: y.f.records[e.Task][k].Stored, reset: time.Unix(0, e.Time)}
			if e.Time == 0 {
				c.untold, c.reset = true, c.from.Add(untoldTakes)
			}
			y.closings[c.account] = append(y.closings[c.account], c)
		}
	}
	for account, list := range y.closings {
		slices.SortFunc(list, func(a, b closing) int { return a.from.Compare(b.from) })
		var all []closing
		for _, c := range list {
			if n := len(all); n > 0 && c.from.Before(all[n-1].reset) {
				if c.reset.After(all[n-1].reset) && !c.untold {
					all[n-1].reset = c.reset
				}
				continue
			}
			all = append(all, c)
		}
		for i := range all {
			until := y.last
			if i+1 < len(all) {
				until = all[i+1].from
			}
			all[i].opens = y.opens(&all[i], until)
		}
		y.closings[account] = all
	}
}

// probeTakes is after how long an attempt that goes on shows that its account is open.
const probeTakes = time.Minute

// opens is when an attempt has shown that the account is open; zero where none has.
func (y *yard) opens(c *closing, until time.Time) (at time.Time) {
	for i := range y.tries {
		t := &y.tries[i]
		if t.account != c.account || t.from.Before(c.reset.Add(-clockSlack)) || t.from.After(until) {
			continue
		}
		shown := t.from.Add(probeTakes)
		if t.counts() && t.to.Before(shown) {
			shown = t.to
		}
		if (t.counts() || shown.Before(t.to)) && !shown.After(until) && (at.IsZero() || shown.Before(at)) {
			at = shown
		}
	}
	return at
}

// closed is when an account is limited, and while an attempt finds out whether it
// still is. more is how much longer that may take.
func (y *yard) closed(account string) (all spans) {
	for i := range y.closings[account] {
		c := &y.closings[account][i]
		to := c.tested()
		if to.Before(c.opens) {
			to = c.opens
		}
		all = append(all, [2]int64{c.from.UnixNano(), to.UnixNano()})
		for k := range y.tries {
			t := &y.tries[k]
			if t.account == account && !t.from.Before(c.reset) && (c.opens.IsZero() || t.from.Before(c.opens)) {
				all = append(all, [2]int64{t.from.UnixNano(), min(t.to.UnixNano(), t.from.Add(probeTakes).UnixNano()) + int64(clockSlack)})
			}
		}
	}
	return all.union()
}

// union is the same times, in order, none of which meets another.
func (s spans) union() (all spans) {
	for _, d := range slices.Clone(s).inOrder() {
		if n := len(all); n > 0 && d[0] <= all[n-1][1] {
			all[n-1][1] = max(all[n-1][1], d[1])
			continue
		}
		all = append(all, d)
	}
	return all
}

// both is when both are. They are unions.
func (s spans) both(o spans) (all spans) {
	for i, k := 0, 0; i < len(s) && k < len(o); {
		from, to := max(s[i][0], o[k][0]), min(s[i][1], o[k][1])
		if from < to {
			all = append(all, [2]int64{from, to})
		}
		if s[i][1] < o[k][1] {
			i++
		} else {
			k++
		}
	}
	return all
}

// not is when it is not. It is a union.
func (s spans) not() (all spans) {
	at := int64(math.MinInt64)
	for _, d := range s {
		all = append(all, [2]int64{at, d[0]})
		at = d[1]
	}
	return append(all, [2]int64{at, math.MaxInt64})
}

// later begins each of them later, and ends it later; what is then nothing is left out.
func (s spans) later(from, to time.Duration) (all spans) {
	for _, d := range s {
		if x := [2]int64{d[0] + int64(from), d[1] + int64(to)}; x[0] < x[1] {
			all = append(all, x)
		}
	}
	return all
}
