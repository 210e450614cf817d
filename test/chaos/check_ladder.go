//go:build linux

package main

import (
	"slices"
	"time"

	"parley/test/rig"
)

// The pace of retries, which no setting of the fleet changes.
const (
	retryBase   = time.Second
	retryCap    = time.Minute
	retryJitter = 0.2 // of it, more or less
)

// retryWait is how long retry n, from 0, is put off: at least and at most.
func retryWait(n int) (least, most time.Duration) {
	d := retryCap
	if n < 6 {
		d = min(retryBase<<n, retryCap)
	}
	jitter := time.Duration(retryJitter * float64(d))
	return d - jitter, d + jitter
}

// checkLadder checks how the failed attempts of a task were answered: each
// level after those below it, and retries at their pace.
func (f *findings) checkLadder(id string, list []rig.Record, away spans) {
	if list[0].Facts.From == forger {
		return // nobody knows what it asks for
	}
	var before []rig.PastAttempt
	human := false // had it
	for i := range list {
		r := &list[i]
		attempts := r.Facts.Attempts
		f.checkWait(id, r)
		for k, a := range attempts {
			if a.Level > 0 && (k >= len(before) || before[k].Level != a.Level) {
				f.checkAnswer(id, r, k, human, away)
			}
		}
		if len(attempts) == 0 && r.Reason.Code == "no_capable_agent" && (r.Kind == "human" || r.Terminal()) {
			if who := f.untried(r); len(who) > 0 {
				f.fault("5 levels", id, "seq %d says that nobody can do it, and %v had not tried", r.Seq, who)
			}
		}
		before, human = attempts, human || r.Kind == "human"
	}
}

// checkWait checks how long a retry is put off.
func (f *findings) checkWait(id string, r *rig.Record) {
	if r.Facts.NotBefore == nil || r.Kind != "retry" && r.Kind != "returned" {
		return
	}
	f.counts["retries put off"]++
	d := r.Facts.NotBefore.Sub(r.Time)
	if r.Kind == "returned" {
		if _, most := retryWait(10); d > most {
			f.fault("5 backoff", id, "seq %d puts it off by %s, want %s at most", r.Seq, d, most)
		}
		return
	}
	n := repeats(r.Facts.Attempts[:max(len(r.Facts.Attempts)-1, 0)])
	if least, most := retryWait(n); d < least || d > most {
		f.fault("5 backoff", id, "retry %d is put off by %s, want %s to %s", n+1, d, least, most)
	}
}

// goneExcuse is how long before an answer something that was wrong explains
// that an agent was not heard for its lease. That a router went, began or stood
// still does not: it listens before it misses anybody.
const goneExcuse = 5 * time.Second

// repeats counts the attempts that were answered on level 1.
func repeats(attempts []rig.PastAttempt) (n int) {
	for _, a := range attempts {
		if a.Level == 1 {
			n++
		}
	}
	return n
}

// blocked are the codes of an agent that could not begin.
var blocked = []string{"mcp_unhealthy", "dirty_repo", "no_capable_agent", "forbidden", "host_not_allowed"}

// repeatable reports whether the agent may try again after a.
func repeatable(a *rig.PastAttempt) bool {
	switch a.Code {
	case "agent_timeout", "result_invalid":
		return true
	case "agent_lost", "rate_limited":
		return false
	}
	return a.Retryable && !slices.Contains(blocked, a.Code)
}

// checkAnswer checks the level that record r answers attempt k on: never one
// below an earlier one, not above level 1 while its agent may try again, and not
// on level 3 while another may. At once on level 3 is what a human had before,
// what is too late or has its budget spent, and what its policy says.
func (f *findings) checkAnswer(id string, r *rig.Record, k int, human bool, away spans) {
	earlier, a := r.Facts.Attempts[:k], &r.Facts.Attempts[k]
	above := 0
	for i := range earlier {
		above = max(above, earlier[i].Level)
	}
	if a.Level < above && above < 3 {
		f.fault("5 levels", id, "attempt %d was answered on level %d, after level %d", a.Attempt, a.Level, above)
	}
	if a.Level < 2 {
		return
	}
	policy, budget := &r.Facts.Policy, r.Facts.TokenBudget
	atOnce := human || above == 3 || !r.Facts.Deadline.IsZero() && !r.Time.Before(r.Facts.Deadline) ||
		budget > 0 && r.Facts.TokensSpent >= budget || a.Code == "budget_exhausted" ||
		r.Reason.Code == "budget_exhausted" && len(ceilings(r)) > 0 || // see checkBudgets
		slices.Contains(blocked, a.Code) && (policy.OnBlocked == "fail" || policy.OnBlocked == "escalate")
	if a.Level == 3 && atOnce {
		return
	}
	f.counts["levels climbed"]++
	n := repeats(earlier)
	_, most := retryWait(n)
	inTime := r.Facts.Deadline.IsZero() || r.Time.Add(most).Before(r.Facts.Deadline)
	// Its agent may have been gone.
	gone := away.explains(r.Time.Add(-goneExcuse), goneExcuse)
	if repeatable(a) && n < policy.MaxRetries && above < 2 && inTime && !gone {
		f.fault("5 levels", id, "attempt %d was answered on level %d, and its agent might have tried again", a.Attempt, a.Level)
	}
	if who := f.untried(r); a.Level == 3 && len(who) > 0 {
		f.fault("5 levels", id, "attempt %d was answered on level 3, and %v had not tried", a.Attempt, who)
	}
}

// untried are the agents that may do a task and have not failed it yet.
func (f *findings) untried(r *rig.Record) (who []string) {
	may := r.Facts.Policy.Alternatives
	if pin := r.Facts.Policy.Agent; pin != "" {
		may = append([]string{pin}, may...)
	} else {
		may = nil
		for _, a := range f.agents {
			fits := true
			for k, v := range r.Facts.Requirements.Labels {
				fits = fits && a.Labels[k] == v
			}
			if fits {
				may = append(may, a.ID)
			}
		}
	}
	for _, id := range may {
		if !slices.ContainsFunc(r.Facts.Attempts, func(a rig.PastAttempt) bool { return a.AgentID == id && a.Level > 0 }) {
			who = append(who, id)
		}
	}
	return who
}
