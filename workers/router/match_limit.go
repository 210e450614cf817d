package router

import (
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// This file keeps the limits of accounts (ADR 23): until when no instance of an
// account is offered anything. A limit that names a model tier holds for the
// account's instances of that tier alone.

// limit is one limit as this router knows it.
type limit struct {
	fleet.AccountLimit
	key    string
	trying int   // offers of this router's own under way, while it is half open
	due    int64 // ns; when it is half open, 0 once that has been noticed
}

// isClosed reports whether no attempt may begin under the limit now.
func (l *limit) isClosed(now time.Time) bool {
	if plant.Bug("limit_ignored") {
		return false
	}
	return !l.HalfOpen(now) || l.Probe != nil || l.trying > 0
}

// explain says why the limit keeps an instance from being offered anything.
func (l *limit) explain(now time.Time) string {
	what := "account " + l.Account
	if l.Tier != "" {
		what += ", model tier " + l.Tier
	}
	if !l.HalfOpen(now) {
		return what + ": limited until " + stamp(l.Until)
	}
	return what + ": limited until " + stamp(l.Until) + "; one attempt finds out whether it is open"
}

// accountOf is the account that limits of an announced instance hold for.
func (f *Fleet) accountOf(a *fleet.Announce) string {
	if f.believes != nil && !f.believes(a.Worker.AgentID, a.Account()) {
		return string(a.Worker.AgentID)
	}
	return a.Account()
}

// SetLimit takes in what is kept of an account's limit, nil for none any more.
func (f *Fleet) SetLimit(key string, a *fleet.AccountLimit) {
	was := f.limits[key]
	if a == nil {
		if was == nil {
			return
		}
		delete(f.limits, key)
		f.refreshAccount(was.Account)
		return
	}
	l := &limit{AccountLimit: *a, key: key}
	if was != nil {
		l.trying = was.trying
	}
	f.limits[key] = l
	if at := a.ProbeAt; at.After(f.now) {
		l.due = at.UnixNano()
		f.due.push(expiry{at: l.due, limit: l})
	}
	f.refreshAccount(a.Account)
}

// Limit returns what is known of a limit, nil for none.
func (f *Fleet) Limit(key string) *fleet.AccountLimit {
	if l := f.limits[key]; l != nil {
		return &l.AccountLimit
	}
	return nil
}

// Limits yields the limits in no particular order.
func (f *Fleet) Limits(yield func(string, *fleet.AccountLimit) bool) {
	for key, l := range f.limits {
		if !yield(key, &l.AccountLimit) {
			return
		}
	}
}

// refreshAccount brings the instances of an account up to date.
func (f *Fleet) refreshAccount(account string) {
	if s := f.features[feature{kind: hasAccount, name: account}]; s != nil {
		for p := range s.all() {
			f.refresh(f.at[p])
		}
	}
	f.generation++
}

// limitsOf are the limits that hold for the instance: at most one of its account
// and one of its model tier.
func (f *Fleet) limitsOf(in *Instance) (found [2]*limit) {
	if len(f.limits) == 0 || in.Announce == nil {
		return found
	}
	account := in.account
	found[0] = f.limits[fleet.LimitKey(account, "")]
	if tier := in.Announce.Worker.ModelTier; tier != "" {
		found[1] = f.limits[fleet.LimitKey(account, tier)]
	}
	return found
}

// closedLimit is the limit that keeps the instance from being offered anything
// now, the one that ends last; nil for none.
func (f *Fleet) closedLimit(in *Instance) *limit {
	var last *limit
	for _, l := range f.limitsOf(in) {
		if l != nil && l.isClosed(f.now) && (last == nil || l.ProbeAt.After(last.ProbeAt)) {
			last = l
		}
	}
	return last
}

// Probes are the keys of the limits of which an offer to the instance is the
// probe: those that are half open.
func (f *Fleet) Probes(in *Instance) []string {
	var keys []string
	for _, l := range f.limitsOf(in) {
		if l != nil && l.HalfOpen(f.now) && !plant.Bug("herd") {
			keys = append(keys, l.key)
		}
	}
	return keys
}

// countProbe counts this router's own offers to a half-open account, so that it
// makes one at a time.
func (f *Fleet) countProbe(in *Instance, n int) {
	for _, l := range f.limitsOf(in) {
		if l == nil || l.trying == 0 && (n < 0 || !l.HalfOpen(f.now)) {
			continue
		}
		l.trying = max(l.trying+n, 0)
		f.refreshAccount(l.Account)
	}
}

// reset of a limit as an agent reports it: bounds, and what holds where it names
// no time.
const (
	limitLeast      = 5 * time.Second
	limitMost       = 8 * 24 * time.Hour
	limitUntold     = time.Minute // doubled by each report in a row
	limitMaxUnknown = 30 * time.Minute
	limitJitter     = 30 * time.Second // at most this much later
)

// nextLimit is what is kept of an account after an agent's report f at now; was is
// what was kept before, nil for nothing. It returns nil where was says as much.
// part, from 0 to 1, spreads the accounts' probes.
func nextLimit(was *fleet.AccountLimit, account string, by subjects.AgentID, f failure, part float64, now time.Time) *fleet.AccountLimit {
	l := &fleet.AccountLimit{Account: account, Tier: f.limitTier, By: by, Message: clip(f.message, 500), Since: now}
	closed := was != nil && !was.HalfOpen(now)
	if closed {
		l.Since = was.Since
	}
	switch told := f.retryAfter > 0 || f.resetAt != nil && f.resetAt.After(now); {
	case f.retryAfter > 0:
		l.Until = now.Add(f.retryAfter)
	case told:
		l.Until = *f.resetAt
	case closed:
		return nil // another instance says the same
	default:
		if was != nil {
			l.Step = was.Step
		}
		l.Step++
		d := limitUntold
		for i := 1; i < l.Step && d < limitMaxUnknown; i++ {
			d *= 2
		}
		l.Until = now.Add(min(d, limitMaxUnknown))
	}
	if least := now.Add(limitLeast); l.Until.Before(least) {
		l.Until = least
	}
	if most := now.Add(limitMost); l.Until.After(most) {
		l.Until = most
	}
	if closed && !was.Until.Before(l.Until) {
		return nil
	}
	spread := min(limitJitter, l.Until.Sub(now)/10)
	l.ProbeAt = l.Until.Add(time.Duration(part * float64(spread)))
	if plant.Bug("early_by_skew") {
		l.Until, l.ProbeAt = l.Until.Add(-20*time.Second), l.ProbeAt.Add(-20*time.Second)
	}
	return l
}
