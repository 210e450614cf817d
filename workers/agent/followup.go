package agent

import (
	"slices"

	"parley/subjects/fleet"
)

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

// input gives an answer to the question it is for, or a follow-up to the task; a
// repeated one is taken and ignored. It returns when the handler gets it, ok
// false when no such question was asked, or nothing reaches the handler any more.
func (a *hand) input(c *fleet.Control) (delivered string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.tasks[c.TaskID]
	if h == nil {
		return "", false
	}
	m := fleet.Message{ID: c.ID, MessageID: c.MessageID, Text: c.Text, Parts: c.Parts, MessageExtras: c.MessageExtras}
	switch q := h.questions[c.QuestionID]; {
	case c.ID != "":
	case h.answered[c.QuestionID]:
		return fleet.DeliveredNow, true
	case q != nil:
		h.answered[c.QuestionID] = true
		q.answer <- fleet.Answer{QuestionID: c.QuestionID, MessageID: c.MessageID, Text: c.Text, Parts: c.Parts, MessageExtras: c.MessageExtras}
		q.arrived()
		return fleet.DeliveredNow, true
	case !a.deaf:
		return "", false
	default: // the command itself has asked
		m.ID, m.Text = answerPrefix+c.QuestionID, "The answer to the question "+c.QuestionID+": "+c.Text
	}
	known := slices.ContainsFunc(h.followUps, func(old fleet.Message) bool { return old.ID == m.ID })
	if !known && (h.closed || h.phase == handing) {
		return "", false
	}
	h.followUpLocked(m)
	if a.deaf {
		return fleet.DeliveredNextAttempt, true
	}
	return fleet.DeliveredNow, true
}

// answerPrefix begins the ids of answers that are follow-ups.
const answerPrefix = "answer."

// closeFollowUps reports whether h has no more than n follow-ups; then none is
// taken any more.
func (a *hand) closeFollowUps(h *held, n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.closed = len(h.followUps) <= n
	return h.closed
}
