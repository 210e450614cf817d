package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"parley/subjects/fleet"
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

// followUpLocked keeps a follow-up for the handler; one that it has is ignored.
func (h *held) followUpLocked(m fleet.Message) {
	if slices.ContainsFunc(h.followUps, func(old fleet.Message) bool { return old.ID == m.ID }) {
		return
	}
	h.followUps = append(h.followUps, m)
	close(h.followed)
	h.followed = make(chan struct{})
}

// followUp is the n-th follow-up, or what is closed when there is another one.
func (a *hand) followUp(h *held, n int) (*fleet.Message, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < len(h.followUps) {
		return &h.followUps[n], nil
	}
	return nil, h.followed
}

// input gives an answer to the question it is for, or a follow-up to the task;
// a repeated one is
// taken and ignored. false when no such question was asked.
func (a *hand) input(c *fleet.Control) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.tasks[c.TaskID]
	if h == nil {
		return false
	}
	if c.ID != "" {
		h.followUpLocked(fleet.Message{ID: c.ID, MessageID: c.MessageID, Text: c.Text, Parts: c.Parts, MessageExtras: c.MessageExtras})
		return true
	}
	if h.answered[c.QuestionID] {
		return true
	}
	q := h.questions[c.QuestionID]
	if q == nil {
		return false
	}
	h.answered[c.QuestionID] = true
	q.answer <- fleet.Answer{QuestionID: c.QuestionID, MessageID: c.MessageID, Text: c.Text, Parts: c.Parts, MessageExtras: c.MessageExtras}
	q.arrived()
	return true
}
