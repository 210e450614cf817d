//go:build linux

package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"parley/test/rig"
)

// How long it may take until every router knows of a limit, and until an account is
// tried whose limit is over, while tasks wait.
const (
	limitKnown = 2 * time.Second
	limitTried = time.Minute
)

// checkAccounts checks that nobody of an account is offered anything while it is
// limited, that it is tried soon after, and by one attempt at a time until that has
// shown that it is open. Where something is wrong, a router may not know of it.
func (y *yard) checkAccounts() {
	for _, list := range y.f.notes {
		for i := range list {
			e := &list[i]
			if a, ok := y.actors[place(y.actors, e.Agent, e.Instance)]; ok && e.What == rig.WasOffered {
				y.checkOffer(e, y.closings[accountOf(&a)])
			}
		}
	}
	for account, list := range y.closings {
		for i := range list {
			c := &list[i]
			y.f.counts["limits of accounts"]++
			until := y.last
			if i+1 < len(list) {
				until = list[i+1].from
			}
			y.checkProbes(c, until)
			y.checkTried(account, c, until)
		}
	}
}

// wrongFor is how long what is wrong explains that a router does not know what it
// should, beside the while after each fault.
const wrongFor = 5 * time.Second

// wrongAt reports whether something is wrong at a moment, or has just been.
func (y *yard) wrongAt(at time.Time) bool { return y.down.meet(at.Add(-wrongFor), at) }

func (y *yard) checkOffer(e *rig.Entry, list []closing) {
	at := time.Unix(0, e.At)
	for i := range list {
		c := &list[i]
		if at.After(c.from.Add(limitKnown)) && at.Before(c.reset.Add(-50*time.Millisecond)) && !y.wrongAt(at) {
			y.f.fault("30 accounts", e.Task, "it was offered to %s %s before the limit of %s was over, which had been known for %s",
				e.Agent, c.reset.Sub(at).Round(time.Millisecond), c.account, at.Sub(c.from).Round(time.Millisecond))
		}
	}
}

// checkProbes checks that one attempt at a time finds out whether an account is open.
func (y *yard) checkProbes(c *closing, until time.Time) {
	var before *try
	for i := range y.tries {
		t := &y.tries[i]
		switch {
		case t.account != c.account || t.from.Before(c.reset) || t.from.After(until):
		case !c.opens.IsZero() && !t.from.Before(c.opens):
			return
		default:
			y.f.counts["probes of accounts"]++
			if before != nil && t.from.Before(before.to) && t.from.Before(before.from.Add(probeTakes)) && !y.wrongAt(t.from) {
				y.f.fault("30 accounts", t.task, "attempt %d began while %s was to show whether %s is open", t.n, before.task, c.account)
			}
			if before == nil || t.to.After(before.to) {
				before = t
			}
		}
	}
}

// checkTried checks that an account is tried soon after its limit is over, while
// tasks wait for it.
func (y *yard) checkTried(account string, c *closing, until time.Time) {
	first := until
	for i := range y.tries {
		if t := &y.tries[i]; t.account == account && !t.from.Before(c.reset.Add(-clockSlack)) {
			if t.from.Before(first) {
				first = t.from
			}
			break
		}
	}
	late := first.Sub(c.reset)
	if late <= limitTried || y.down.quiet(c.reset, first) <= limitTried {
		return
	}
	pool := ""
	for _, p := range y.accounts[account] {
		pool = y.actors[p].Labels["pool"]
	}
	for id, list := range y.f.records {
		for i := range list {
			r := &list[i]
			waits := r.State == "queued" && r.Facts.Policy.Agent == "" && r.Facts.Requirements.Labels["pool"] == pool && !r.Stored.After(c.reset)
			if waits && (i+1 == len(list) || !list[i+1].Stored.Before(first)) {
				y.f.fault("30 accounts", id, "it waits, and nobody tries %s for %s after its limit was over", account, late.Round(time.Second))
				return
			}
		}
	}
}

// lossExcuse is how long what befell an agent, or somebody else, explains that it
// was declared lost.
const lossExcuse = 20 * time.Second

// checkLosses checks that whoever was declared lost was gone, or not heard, and that
// nobody worked on a task without a record of it but for something that was wrong.
func (y *yard) checkLosses() {
	starts, silent := map[string][]rig.Entry{}, map[string]spans{}
	for _, list := range y.f.notes {
		for i := range list {
			e := &list[i]
			who := e.Agent + "/" + e.Instance
			switch e.What {
			case rig.WasStarted:
				starts[who] = append(starts[who], *e)
			case rig.WasSilent:
				silent[who] = append(silent[who], [2]int64{e.Time, e.At})
			}
		}
	}
	explained := func(agent, instance string, epoch int64, at time.Time) bool {
		who := agent + "/" + instance
		return y.down.meet(at.Add(-lossExcuse), at) || y.dead[place(y.actors, agent, instance)].meet(at.Add(-lossExcuse), at) ||
			silent[who].meet(at.Add(-lossExcuse), at) ||
			slices.ContainsFunc(starts[who], func(e rig.Entry) bool { return e.Epoch > epoch && e.At <= at.Add(clockSlack).UnixNano() })
	}
	for id, list := range y.f.records {
		known := 0
		for i := range list {
			r := &list[i]
			a := lastAttempt(r)
			if a.Attempt <= known {
				continue
			}
			if known = a.Attempt; a.Code == "agent_lost" && !explained(a.AgentID, a.InstanceID, a.Epoch, r.Stored) {
				y.f.fault("31 losses", id, "seq %d says that %s/%s is lost, and nothing had happened to it", r.Seq, a.AgentID, a.InstanceID)
			}
		}
	}
	y.checkExecutions(explained)
}

func (y *yard) checkExecutions(explained func(agent, instance string, epoch int64, at time.Time) bool) {
	covered := map[string]bool{}
	for _, o := range y.f.ops {
		covered[o.ID] = covered[o.ID] || o.Op == "dispatch" && o.ok() && (o.Text == toil || o.Text == doomed)
	}
	type turn struct {
		task     string
		n        int
		agent    string
		instance string
		epoch    int64
	}
	times := map[turn]int{}
	for _, list := range y.f.notes {
		for i := range list {
			e := &list[i]
			if e.What != rig.WasBegun || !covered[e.Task] {
				continue
			}
			y.f.counts["executions of tasks of pools"]++
			k := turn{e.Task, e.Attempt, e.Agent, e.Instance, e.Epoch}
			if times[k]++; !y.f.had(e) || times[k] > 1 {
				if at := time.Unix(0, e.At).Add(lossExcuse / 2); !explained(e.Agent, e.Instance, e.Epoch, at) {
					y.f.fault("31 losses", e.Task, "%s/%s works on attempt %d without need, and nothing explains that", e.Agent, e.Instance, e.Attempt)
				}
			}
		}
	}
}

// shown is what a client is told of why a task waits.
type shown struct {
	Why   string     `json:"why"`
	Until *time.Time `json:"until"`
	Who   string     `json:"who"`
}

// shownTakes is how long it may take until it is shown why a task waits, and
// untilMost how far the time may be from what was told.
const (
	shownTakes = 2 * time.Second
	untilMost  = 3 * time.Second
)

// checkShown checks what clients are told of why tasks wait.
func (y *yard) checkShown() {
	for _, o := range y.f.ops {
		list := y.f.records[o.ID]
		v := int(o.end.Version)
		if o.Op != "look" || !o.ok() || v == 0 || v > len(list) || o.to-o.from > int64(slow) {
			continue
		}
		r := &list[v-1]
		from, to := time.Unix(0, o.from), time.Unix(0, o.to)
		if from.Sub(r.Stored) < shownTakes || v < len(list) && list[v].Stored.Before(to) || y.wrongAt(to) {
			continue
		}
		var is shown
		if len(o.end.Body) > 0 {
			if err := json.Unmarshal(o.end.Body, &is); err != nil {
				y.f.fault("32 waits", o.ID, "why it waits cannot be read: %v", err)
				continue
			}
		}
		y.checkWhy(o, r, &is, from, to)
	}
}

func (y *yard) checkWhy(o *op, r *rig.Record, is *shown, from, to time.Time) {
	waits := r.State == "queued" || r.Kind == "human"
	later := r.Facts.NotBefore != nil && r.Facts.NotBefore.After(to)
	if waits != (is.Why != "") {
		y.f.fault("32 waits", o.ID, "it is %s, and its client is told that it waits for %q", r.State, is.Why)
		return
	}
	if !waits {
		return
	}
	y.f.counts["reasons of waiting told"]++
	want := func(why string) {
		y.f.counts["reasons of waiting told: "+why]++
		if is.Why != why {
			y.f.fault("32 waits", o.ID, "it waits since seq %d for %s, and its client is told %s", r.Seq, why, is.Why)
		}
	}
	switch {
	case r.State != "queued":
		want("human")
	case r.Facts.NotBefore != nil && r.Facts.NotBefore.After(from) && !later: // it just ends
	case later:
		want("retry")
		if is.Until == nil || !is.Until.Equal(*r.Facts.NotBefore) {
			y.f.fault("32 waits", o.ID, "it is tried again at %s, and its client is told %v", r.Facts.NotBefore, is.Until)
		}
	case r.Facts.Policy.Agent == "" && r.Facts.Requirements.Labels["pool"] == poolLimited:
		for i := range y.closings["acct-0"] {
			c := &y.closings["acct-0"][i]
			if from.Before(c.from.Add(shownTakes)) || to.After(c.reset.Add(-clockSlack)) {
				continue
			}
			want("limited")
			off := time.Duration(0)
			if is.Until != nil {
				off = is.Until.Sub(c.reset).Abs()
			}
			if is.Until == nil || off > untilMost || is.Who != c.account {
				y.f.fault("32 waits", o.ID, "it waits until %s for %s, and its client is told %v for %q", c.reset, c.account, is.Until, is.Who)
			}
		}
	case r.Facts.Policy.Agent != "" && len(r.Facts.Policy.Alternatives) == 0:
		y.checkAway(o, r, is, from, to, want)
	}
}

// checkAway checks what is told of a task whose only agent is not there, or is there
// and has something else to do.
func (y *yard) checkAway(o *op, r *rig.Record, is *shown, from, to time.Time, want func(string)) {
	p := r.Facts.Policy.Agent + "/main"
	now := spans{{from.UnixNano(), to.UnixNano()}}
	switch {
	case y.actors[p].ID == "" || y.rests[r.Facts.Policy.Agent].meet(from, to):
	case len(now.both(y.dead[p].later(missTakes, 0))) > 0 && !y.dead[p].later(missTakes, 0).not().meet(from, to):
		want("away")
	case !y.dead[p].meet(from.Add(-mendTakes), to) && (is.Why == "away" || is.Why == "limited"):
		y.f.fault("32 waits", o.ID, "its client is told that %s is %s, which is there", strings.TrimSuffix(p, "/main"), is.Why)
	}
}

// The shares of starts that the priorities have while all of them wait, and how far
// from them they may be; so many starts are looked at at a time.
var shares = map[string]float64{"critical": 8. / 15, "high": 4. / 15, "normal": 2. / 15, "low": 1. / 15}

const (
	sharesOff = 0.2
	startsRow = 60
)

// checkFair checks that tasks of limited accounts start by their priorities, all of
// which get their turn, while tasks of each wait.
func (y *yard) checkFair() {
	type change struct {
		at    time.Time
		task  string
		level string
		begin bool // it waits; else it waits no longer
		start bool
	}
	var all []change
	for _, o := range y.f.ops {
		list := y.f.records[o.ID]
		if o.Op != "dispatch" || o.Text != toil || !o.ok() || len(list) == 0 || list[0].Facts.Requirements.Labels["pool"] != poolLimited {
			continue
		}
		level := cmp.Or(list[0].Facts.Priority, "normal")
		for i := range list {
			r := &list[i]
			before := i > 0 && list[i-1].State == "queued"
			if (r.State == "queued") != before {
				at := r.Stored
				if r.Facts.NotBefore != nil && r.State == "queued" && r.Facts.NotBefore.After(at) {
					at = *r.Facts.NotBefore
				}
				all = append(all, change{at, o.ID, level, r.State == "queued", r.Kind == "working"})
			}
		}
	}
	slices.SortFunc(all, func(a, b change) int { return a.at.Compare(b.at) })
	closed := y.closed("acct-0")
	waiting, starts, n := map[string]int{}, map[string]int{}, 0
	for _, c := range all {
		everybody := true
		for level := range shares {
			everybody = everybody && waiting[level] > 0
		}
		if c.begin {
			waiting[c.level]++
		} else {
			waiting[c.level]--
		}
		if !c.start || !everybody || closed.meet(c.at.Add(-1), c.at.Add(1)) { // by which it is found out whether it is open
			continue
		}
		y.f.counts["starts while tasks of each priority wait"]++
		starts[c.level]++
		if n++; n < startsRow {
			continue
		}
		for level, share := range shares {
			if got := float64(starts[level]) / startsRow; got-share > sharesOff || share-got > sharesOff || starts[level] == 0 {
				y.f.fault("33 fair", c.task, "of %d starts while all wait %d are %s, and its share is %.2f", startsRow, starts[level], level, share)
			}
		}
		starts, n = map[string]int{}, 0
	}
}
