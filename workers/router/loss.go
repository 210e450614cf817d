package router

import (
	"parley/escalation"
	"parley/subjects/fleet"
)

// isLostHolder reports whether h lost the newest attempt of e.
func isLostHolder(e *fleet.Event, h holder) bool {
	n := len(e.Facts.Attempts)
	if n == 0 {
		return false
	}
	a := &e.Facts.Attempts[n-1]
	return escalation.ClassOf(a.Code) == escalation.ClassLoss && h == holder{a.AgentID, a.InstanceID, a.Epoch}
}

// takeLossBack corrects the counters of a task whose lost agent is heard again, and
// has worked on it all the time.
func takeLossBack(n *fleet.Event) {
	if c := n.Facts.Counters; c != nil && c.Losses > 0 {
		n.Facts.Counters = &fleet.Counters{Retries: c.Retries, Losses: c.Losses - 1, LossesTotal: max(c.LossesTotal-1, 0)}
	}
}

// breakLossRow begins the row of losses anew: the attempt has stored something.
func breakLossRow(n *fleet.Event) {
	if c := n.Facts.Counters; c != nil && c.Losses > 0 {
		n.Facts.Counters = &fleet.Counters{Retries: c.Retries, LossesTotal: c.LossesTotal}
	}
}
