package router

import (
	"hash/fnv"
	"slices"
	"time"

	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects/fleet"
)

// escalationState is what the policy of escalation looks at.
func escalationState(e *fleet.Event, set settings) escalation.State {
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.TaskID))
	deadline, budget := e.Facts.Deadline, e.Facts.TokenBudget
	if plant.Bug("deadline_ignored") {
		deadline = deadline.Add(time.Hour)
	}
	if plant.Bug("budget_ignored") {
		budget = 0
	}
	if plant.Bug("shared_budget_ignored") {
		set.ceilings = nil
	}
	policy := e.Facts.Policy
	if plant.Bug("retry_skipped") {
		policy.MaxRetries = 0
	}
	if plant.Bug("suspect_never") {
		policy.MaxLosses = 10 * maxRequeued
	}
	if k := len(e.Facts.Attempts); k > 0 && plant.Bug("level_skipped") {
		policy.Agent, policy.Alternatives = e.Facts.Attempts[k-1].AgentID, nil
	}
	return escalation.State{
		Policy: policy, Attempts: e.Facts.Attempts, Counters: e.Facts.Counters, Made: e.Attempt, Widened: e.Facts.Widened, Deadline: deadline,
		TokenBudget: budget, TokensSpent: e.Facts.TokensSpent, Ceilings: set.ceilings,
		HumanContact: set.human, Decided: e.Facts.Human != nil, Seed: h.Sum64(), Backoff: set.backoff,
	}
}

// Every record repeats the attempts that have ended, and a hundred agents may fail
// one after another. So the messages of all but the last few are shortened. Of
// attempts in a row that used up nothing (lost, handed back, limited), no more than
// maxRequeued are kept; the counters tell the others.
const (
	maxRequeued = 16
	keptWhole   = 32
	keptShort   = 100 // bytes
)

// keptAttempts are the attempts that the next record repeats.
func keptAttempts(attempts []fleet.Attempt) []fleet.Attempt {
	n, row := len(attempts), 0
	for row < n && attempts[n-1-row].Level == 0 && escalation.ClassOf(attempts[n-1-row].Code).Requeues() {
		row++
	}
	if row >= maxRequeued {
		return slices.Concat(attempts[:n-row], attempts[n-maxRequeued+1:])
	}
	if n < keptWhole {
		return attempts
	}
	attempts = slices.Clone(attempts)
	for i := range n - keptWhole + 1 {
		attempts[i].Message = clip(attempts[i].Message, keptShort)
	}
	return attempts
}
