package agent

import (
	"context"
	"errors"
	"time"
)

// turn is the attempt that h stands for now, and what ends when it changes.
func (a *hand) turn(h *held) (attempt int, moved context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return h.attempt, h.moved
}

// ask opens a question and stops the attempt's clock.
func (a *hand) ask(h *held, id string, q *open) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.questions[id] != nil || h.answered[id] {
		return errors.New("a question of this id was asked before")
	}
	h.questions[id] = q
	if h.asking++; h.asking == 1 {
		h.stopClockLocked()
		h.clockLeft = max(time.Until(h.clockEnds), 0)
	}
	return nil
}

// asked closes a question and lets the clock run on.
func (a *hand) asked(h *held, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(h.questions, id)
	if h.asking--; h.asking == 0 && h.phase == working && a.tasks[h.id] == h {
		a.runClockLocked(h)
	}
}
