package router

import (
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// noteSpent takes in what the holder of a task says that its attempt has spent so
// far.
func (c *core) noteSpent(id subjects.TaskID, agent subjects.AgentID, attempt int, tokens int64) {
	h := c.hot[c.x.find(id)]
	if h == nil || tokens <= 0 || !held(h.ev) || h.ev.AgentID != agent || attempt != 0 && attempt != h.ev.Attempt {
		return
	}
	if h.spentIn != h.ev.Attempt {
		h.spentIn, h.spent = h.ev.Attempt, 0
	}
	h.spent = max(h.spent, tokens)
}

// spentSoFar is what the holder of e said last that its attempt has spent.
func (w *Worker) spentSoFar(e *fleet.Event) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.core.hot[w.core.x.find(e.TaskID)]
	if h == nil || !held(e) || h.spentIn != e.Attempt {
		return 0
	}
	return h.spent
}

// withSpent is e with what its running attempt has spent: its end is recorded
// without a result that says it.
func withSpent(e *fleet.Event, tokens int64) *fleet.Event {
	n := *e
	n.Facts.TokensSpent += tokens
	return &n
}

// tokensLeft is what the next attempt may spend by all budgets of its task, 0
// where there is none.
func (w *Worker) tokensLeft(f *fleet.Facts) (left int64) {
	take := func(budget, spent int64) {
		if budget > 0 && (left == 0 || budget-spent < left) {
			left = max(budget-spent, 1)
		}
	}
	if plant.Bug("budget_ignored") {
		return 0
	}
	take(f.TokenBudget, f.TokensSpent)
	for _, c := range w.ledger.ceilings(f) {
		take(c.Budget, c.Spent)
	}
	return left
}
