package escalation

import (
	"maps"
	"strconv"
	"time"

	"parley/subjects/fleet"
)

// Chain is how humans are called. Zero fields take their defaults.
type Chain struct {
	Contacts      []string      // in the order in which they are called; none: nobody is
	GroupWait     time.Duration // to see what fails for the same cause, before the first call; default 3 s
	GroupInterval time.Duration // before a call because a group has grown; default 5 min
	CallNext      time.Duration // after a call that nobody answers; default 5 min
	AckTimeout    time.Duration // of an acknowledgement; default 30 min
}

// WithDefaults returns c with its zero fields filled.
func (c Chain) WithDefaults() Chain {
	for _, f := range []struct {
		d   *time.Duration
		def time.Duration
	}{
		{&c.GroupWait, 3 * time.Second},
		{&c.GroupInterval, 5 * time.Minute},
		{&c.CallNext, 5 * time.Minute},
		{&c.AckTimeout, 30 * time.Minute},
	} {
		if *f.d <= 0 {
			*f.d = f.def
		}
	}
	return c
}

// Group is what waits for one cause, as far as its alert depends on it.
type Group struct {
	ID     string            // of the group; one token
	Labels map[string]string // what its tasks have in common
	Tasks  int               // that wait
	Newest uint64            // grows with every task that comes
	Asked  int               // of those, that wait for what the alert's answer decided
	Repeat time.Duration     // the shortest alert_repeat of them; default 30 min
	Held   string            // why nobody is to be called, "" when somebody is
}

// AlertAction is what is to be done about an alert: exactly one of the types
// below.
//
//sumtype:decl
type AlertAction interface{ isAlertAction() }

// Open tells that an alert begins.
type Open struct{}

// Call tells a contact. Its Number within the alert makes it one delivery,
// however often it is carried out.
type Call struct {
	Contact string
	Number  int
}

// Resume says that an acknowledgement has timed out: calls go on.
type Resume struct{}

// Apply carries the human's answer out.
type Apply struct{}

// Resolve tells that an alert is over.
type Resolve struct{}

// Hold notes that calls stop, or go on again.
type Hold struct{}

func (Open) isAlertAction()    {}
func (Call) isAlertAction()    {}
func (Resume) isAlertAction()  {}
func (Apply) isAlertAction()   {}
func (Resolve) isAlertAction() {}
func (Hold) isAlertAction()    {}

// NextAlert decides what is to be done about the alert a of group g now. It
// returns the alert as it is once that is done; with no action (nil), when to
// ask again unless the group changes before (zero: no sooner). The zero Alert
// is one that never was.
//
// A call is carried out before the alert is stored: who crashes in between
// calls again, under the same number.
func (c Chain) NextAlert(a fleet.Alert, g Group, now time.Time) (fleet.Alert, AlertAction, time.Time) {
	c = c.WithDefaults()
	switch over := a.Number == 0 || a.State == fleet.AlertResolved; {
	case over && g.Tasks == 0:
		return a, nil, time.Time{}
	case over, a.Answer != nil && g.Asked == 0 && g.Tasks > 0:
		return c.open(a, g, now), Open{}, time.Time{}
	case g.Tasks == 0:
		a.State, a.Resolved, a.NextAt, a.Held = fleet.AlertResolved, &now, nil, ""
		return a, Resolve{}, time.Time{}
	case a.Answer != nil:
		return a, Apply{}, time.Time{}
	case a.State == fleet.AlertAcknowledged && a.AckUntil != nil && a.AckUntil.After(now):
		return a, nil, *a.AckUntil
	case a.State == fleet.AlertAcknowledged:
		a.State, a.AckUntil = fleet.AlertTriggered, nil
		a.Next, a.Round, a.NextAt = 0, now, &now
		return a, Resume{}, time.Time{}
	case a.Held != g.Held:
		a.Held = g.Held
		return a, Hold{}, time.Time{}
	case len(c.Contacts) == 0, g.Held != "":
		return a, nil, time.Time{}
	}
	return c.call(a, g, now)
}

// open begins the next alert of the group.
func (c Chain) open(a fleet.Alert, g Group, now time.Time) fleet.Alert {
	first := now.Add(c.GroupWait)
	n := fleet.Alert{
		Number: a.Number + 1, Group: g.Labels, State: fleet.AlertTriggered,
		Since: now, Round: first, NextAt: &first, Held: g.Held,
	}
	n.AlertID = AlertID(g.ID, n.Number)
	return n
}

// call calls whoever is to be called now.
func (c Chain) call(a fleet.Alert, g Group, now time.Time) (fleet.Alert, AlertAction, time.Time) {
	if a.NextAt == nil {
		a.NextAt = &now
	}
	// When to tell that the group has grown: by somebody who was in no call yet,
	// also where others have left it meanwhile.
	grown := time.Time{}
	if (g.Tasks > a.Told || g.Newest > a.ToldTo) && a.Calls > 0 && a.LastAt != nil {
		grown = a.LastAt.Add(c.GroupInterval)
	}
	next := min(a.Next, len(c.Contacts)-1)
	switch {
	case !a.NextAt.After(now):
		if next == 0 {
			a.Round = now
		}
		a.Next = next + 1
		at := now.Add(c.CallNext)
		if a.Next == len(c.Contacts) {
			a.Next = 0
			if again := a.Round.Add(g.repeat()); again.After(at) || len(c.Contacts) == 1 {
				at = again
			}
		}
		a.NextAt = &at
	case !grown.IsZero() && !grown.After(now):
		next = max(a.Next, 1) - 1 // who was called last in this round; the first, between rounds
	default:
		at := *a.NextAt
		if !grown.IsZero() && grown.Before(at) {
			at = grown
		}
		return a, nil, at
	}
	contact := c.Contacts[next]
	a.Calls++
	a.LastAt, a.Told, a.ToldTo = &now, g.Tasks, g.Newest
	a.Sent = maps.Clone(a.Sent)
	if a.Sent == nil {
		a.Sent = make(map[string]int)
	}
	a.Sent[contact] = a.Calls
	return a, Call{Contact: contact, Number: a.Calls}, time.Time{}
}

// NotCalled is the alert after a Call that was not made, because the contact's
// last one is still on its way: is is what NextAlert made of was. The chain goes
// on, and what would have been told is told as soon as something arrives.
func NotCalled(was, is fleet.Alert) fleet.Alert {
	is.Told, is.ToldTo, is.Sent = was.Told, was.ToldTo, was.Sent
	return is
}

func (g Group) repeat() time.Duration {
	if g.Repeat <= 0 {
		return fleet.DefaultAlertRepeat
	}
	return g.Repeat
}

// AlertID names the alert with that number of a group.
func AlertID(group string, number uint64) string {
	return group + "-" + strconv.FormatUint(number, 10)
}
