package fleet

import (
	"strings"
	"time"
)

// Describe says why a task waits, for people. clock writes a time.
func (w *Waiting) Describe(clock func(time.Time) string) string {
	until := func(before string) string {
		if w.Until == nil {
			return ""
		}
		return before + clock(*w.Until)
	}
	about := func(s string) string {
		if w.Message == "" {
			return s
		}
		return s + ": " + w.Message
	}
	switch w.Why {
	case WaitBusy:
		return "its turn comes when an agent is free"
	case WaitRetry:
		return "it is tried again" + until(" at ")
	case WaitLimited:
		if w.Guessed {
			return w.Who + " limit" + until(", tried again at ")
		}
		return w.Who + " limit" + until(" until ")
	case WaitAway:
		return about("agent " + w.Who + " is away")
	case WaitUnwell:
		return about("agent " + w.Who + " is not well" + until(" until "))
	case WaitDrained:
		return "agent " + w.Who + " is drained"
	case WaitNoAgentYet:
		if w.Who != "" {
			return "no agent " + w.Who + " has announced itself yet"
		}
		return "no agent offers what it asks for yet"
	case WaitHuman:
		return "a human decides" + until(", until ")
	}
	return strings.TrimSpace(w.Why + " " + w.Who)
}

// Remedy says what people can do so that tasks which wait go on.
func (w *Waiting) Remedy() string {
	switch w.Why {
	case WaitLimited:
		return "an agent of another account takes the tasks; parley agent limits --lift " + w.Who + "  ends the limit"
	case WaitAway:
		return "start agent " + w.Who + " again"
	case WaitUnwell:
		return "parley agent get " + w.Who + "  shows what is not well"
	case WaitDrained:
		return "parley agent resume " + w.Who
	case WaitNoAgentYet:
		if w.Who != "" {
			return "start agent " + w.Who
		}
		return "start an agent that offers what the tasks ask for; parley task explain TASK says what that is"
	}
	return "parley task ls --waiting  shows what waits"
}

// Notified reports whether people are to be told of tasks that wait so, and do so for
// long. A limit whose end is known is one of them only where it comes too late.
func (c *WaitingCause) Notified() bool {
	switch c.Why {
	case WaitAway, WaitUnwell, WaitDrained, WaitNoAgentYet:
		return c.Tasks > c.Silent
	case WaitLimited:
		return c.Tasks > c.Silent && (c.Guessed || c.Late > 0)
	}
	return false
}
