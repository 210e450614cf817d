package agent

import (
	"maps"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// How long a CANCEL for a task that is not in hand is remembered: an offer that
// timed out at the router may still be on its way here, behind its CANCEL.
const rememberCancel = 10 * time.Second

// tomb remembers a CANCEL for a task that was not in hand, or a task that was in
// hand until lately.
type tomb struct {
	attempt int  // offers up to this one are canceled; 0: all
	left    bool // it was in hand: nothing is canceled, and a CANCEL means what it was
	until   time.Time
}

func (t tomb) buries(attempt int) bool { return !t.left && (t.attempt == 0 || attempt <= t.attempt) }

// recall drops a task at a router's word; false when it is not in hand, which
// is remembered for a while. A CANCEL of an offer ends what was accepted by it and
// by no other; one of an attempt ends that, whichever offer began it.
func (a *hand) recall(c *fleet.Control, cause error, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	id, attempt := c.TaskID, c.Attempt
	h := a.tasks[id]
	if c.OfferID != "" {
		a.sweepLocked(now)
		a.canceled[c.OfferID] = now.Add(rememberCancel)
	}
	switch {
	case h == nil && c.OfferID != "":
		return false
	case h == nil:
		a.sweepLocked(now)
		if t, known := a.tombs[id]; !known || !t.left || !now.Before(t.until) {
			a.tombs[id] = tomb{attempt: attempt, until: now.Add(rememberCancel)}
		}
		return false
	case c.OfferID != "" && !h.withoutLocked(c.OfferID):
		return true // it is in hand by another offer
	case attempt != 0 && attempt < h.attempt:
		return true // meant for an earlier attempt
	case h.phase == handing:
		h.drop(cause)
	default:
		h.abortLocked(cause)
	}
	return true
}

// withoutLocked takes the acceptance of an offer back, and reports whether it was
// the last one.
func (h *held) withoutLocked(offer string) bool {
	known := h.offers[offer]
	delete(h.offers, offer)
	return known && len(h.offers) == 0
}

func (a *hand) sweepLocked(now time.Time) {
	if now.Sub(a.swept) < rememberCancel/10 {
		return
	}
	a.swept = now
	maps.DeleteFunc(a.tombs, func(_ subjects.TaskID, t tomb) bool { return !now.Before(t.until) })
	maps.DeleteFunc(a.canceled, func(_ string, until time.Time) bool { return !now.Before(until) })
}
