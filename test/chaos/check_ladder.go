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

// The pace at which a task is offered again whose agents were lost in a row.
const (
	lossBase = 10 * time.Second
	lossCap  = 5 * time.Minute
)

// lossWait is how long the nth loss in a row puts a task off.
func lossWait(n int) time.Duration {
	if n < 2 {
		return 0
	}
	return min(lossBase<<min(n-2, 10), lossCap)
}

// checkLadder checks how the failed attempts of a task were answered: each
// level after those below it, and retries at their pace.
func (f *findings) checkLadder(id string, list []rig.Record) {
	if list[0].Facts.From == forger {
		return // nobody knows what it asks for
	}
	before := map[int]int{} // levels, by attempt
	human := false          // had it
	for i := range list {
		r := &list[i]
		f.checkWait(id, r)
		for k, a := range r.Facts.Attempts {
			if level, known := before[a.Attempt]; a.Level > 0 && (!known || level != a.Level) {
				f.checkAnswer(id, r, k, human)
			}
			before[a.Attempt] = a.Level
		}
		if len(r.Facts.Attempts) == 0 && r.Reason.Code == "no_capable_agent" && (r.Kind == "human" || r.Terminal()) {
			if who := f.untried(r); len(who) > 0 {
				f.fault("5 levels", id, "seq %d says that nobody can do it, and %v had not tried", r.Seq, who)
			}
		}
		human = human || r.Kind == "human"
	}
}

// checkWait checks how long a task is put off that goes back to its queue.
func (f *findings) checkWait(id string, r *rig.Record) {
	var d time.Duration
	if r.Facts.NotBefore != nil {
		d = r.Facts.NotBefore.Sub(r.Time)
	}
	attempts := r.Facts.Attempts
	switch {
	case r.Kind == "lost":
		f.counts["losses answered"]++
		if want := lossWait(r.Facts.Counters.Losses); d != want {
			f.fault("5 backoff", id, "loss %d in a row puts it off by %s, want %s", r.Facts.Counters.Losses, d, want)
		}
	case r.Kind == "returned":
		n := 0
		for n < len(attempts) && attempts[len(attempts)-1-n].Code == "agent_busy" {
			n++
		}
		var least, most time.Duration
		if n > 1 {
			least, most = retryWait(n - 2)
		}
		if d < least || d > most {
			f.fault("5 backoff", id, "hand-back %d in a row puts it off by %s, want %s to %s", n, d, least, most)
		}
	case r.Kind == "retry" && r.Facts.NotBefore != nil:
		f.counts["retries put off"]++
		n := repeats(attempts[:max(len(attempts)-1, 0)])
		if least, most := retryWait(n); d < least || d > most {
			f.fault("5 backoff", id, "retry %d is put off by %s, want %s to %s", n+1, d, least, most)
		}
	}
}

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
var blocked = []string{
	"mcp_unhealthy", "dirty_repo", "login_required", "setup_failed",
	"no_capable_agent", "forbidden", "host_not_allowed", "permission_denied",
}

// repeatable reports whether the agent may try again after a.
func repeatable(a *rig.PastAttempt) bool {
	switch a.Code {
	case "agent_timeout", "result_invalid", "check_failed", "secret_in_changes":
		return true
	}
	return a.Retryable && !slices.Contains(blocked, a.Code)
}

// checkAnswer checks the level that record r answers attempt k on: never one
// below an earlier one, not above level 1 while its agent may try again, and not
// on level 3 while another may. At once on level 3 is what a human had before,
// what is too late or has its budget spent, and what its policy says. Losses, limits
// and hand-backs climb no level: checkCounters says when they reach a human.
func (f *findings) checkAnswer(id string, r *rig.Record, k int, human bool) {
	earlier, a := r.Facts.Attempts[:k], &r.Facts.Attempts[k]
	above := 0
	another := false // was the first to fail it
	for i := range earlier {
		above = max(above, earlier[i].Level)
		another = another || earlier[i].Level == 1 && earlier[i].AgentID != a.AgentID
	}
	if a.Level < above && above < 3 {
		f.fault("5 levels", id, "attempt %d was answered on level %d, after level %d", a.Attempt, a.Level, above)
	}
	if a.Level < 2 || a.Requeues() {
		return
	}
	policy, budget := &r.Facts.Policy, r.Facts.TokenBudget
	atOnce := human || above == 3 || !r.Facts.Deadline.IsZero() && !r.Time.Before(r.Facts.Deadline) ||
		budget > 0 && r.Facts.TokensSpent >= budget || a.Code == "budget_exhausted" ||
		r.Reason.Code == "budget_exhausted" && len(ceilings(r)) > 0 || // see checkBudgets
		a.Attempt >= attemptsMost ||
		slices.Contains(blocked, a.Code) && (policy.OnBlocked == "fail" || policy.OnBlocked == "escalate")
	if a.Level == 3 && atOnce {
		return
	}
	f.counts["levels climbed"]++
	n := repeats(earlier)
	_, most := retryWait(n)
	inTime := r.Facts.Deadline.IsZero() || r.Time.Add(most).Before(r.Facts.Deadline)
	if repeatable(a) && n < policy.MaxRetries && above < 2 && !another && inTime && a.Attempt < attemptsMost {
		f.fault("5 levels", id, "attempt %d was answered on level %d, and its agent might have tried again", a.Attempt, a.Level)
	}
	if who := f.untried(r); a.Level == 3 && len(who) > 0 {
		f.fault("5 levels", id, "attempt %d was answered on level 3, and %v had not tried", a.Attempt, who)
	}
}

// untried are the agents that may do a task and have not failed it for good yet.
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
		if !slices.ContainsFunc(r.Facts.Attempts, func(a rig.PastAttempt) bool { return a.AgentID == id && a.Level > 1 && !a.Requeues() }) {
			who = append(who, id)
		}
	}
	return who
}
