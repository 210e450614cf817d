package router

import (
	"hash/fnv"
	"time"

	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects/fleet"
)

// ladder is what the policy of escalation looks at.
func ladder(e *fleet.Event, set settings) escalation.State {
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.TaskID))
	deadline, budget := e.Facts.Deadline, e.Facts.TokenBudget
	if plant.Bug("deadline_ignored") {
		deadline = deadline.Add(time.Hour)
	}
	if plant.Bug("budget_ignored") {
		budget = 0
	}
	return escalation.State{
		Policy: e.Facts.Policy, Attempts: e.Facts.Attempts, Deadline: deadline,
		TokenBudget: budget, TokensSpent: e.Facts.TokensSpent, Ceilings: set.ceilings,
		HumanContact: set.human, Decided: e.Facts.Human != nil, Seed: h.Sum64(), Backoff: set.backoff,
	}
}
