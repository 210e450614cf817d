package escalation_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/escalation"
	"parley/subjects/fleet"
)

func TestChainDefaults(t *testing.T) {
	t.Parallel()
	want := escalation.Chain{GroupWait: 3 * time.Second, GroupInterval: 5 * time.Minute, CallNext: 5 * time.Minute, AckTimeout: 30 * time.Minute}
	if diff := cmp.Diff(want, escalation.Chain{}.WithDefaults()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// alarm is an alert under way.
type alarm struct {
	chain escalation.Chain
	alert fleet.Alert
	group escalation.Group
	now   time.Time
	log   []string
	calls []escalation.Call
}

// until lets time pass and does what is due.
func (a *alarm) until(at time.Time) {
	for {
		alert, action, next := a.chain.NextAlert(a.alert, a.group, a.now)
		if action == nil {
			if next.IsZero() || next.After(at) {
				a.now = at
				return
			}
			a.now = next
			continue
		}
		a.alert = alert
		what := fmt.Sprintf("%T", action)[len("escalation."):]
		switch action := action.(type) {
		case escalation.Call:
			what = fmt.Sprintf("call %d %s", action.Number, action.Contact)
			a.calls = append(a.calls, action)
		case escalation.Apply:
			a.group.Tasks -= a.group.Asked
			a.group.Asked = 0
		case escalation.Open, escalation.Resume, escalation.Resolve, escalation.Hold:
		}
		a.log = append(a.log, fmt.Sprintf("%s %s", a.now.Sub(start), what))
	}
}

func TestNextAlert(t *testing.T) {
	t.Parallel()
	a := &alarm{chain: escalation.Chain{Contacts: []string{"ann", "bob"}}, group: escalation.Group{ID: "g", Tasks: 1}, now: start}
	a.until(start.Add(40 * time.Minute))
	a.group.Tasks = 9
	a.until(start.Add(50 * time.Minute))
	until := a.now.Add(30 * time.Minute)
	a.alert.State, a.alert.AckUntil = fleet.AlertAcknowledged, &until
	a.until(start.Add(81 * time.Minute))
	a.group.Held = "silence"
	a.until(start.Add(3 * time.Hour))
	a.group.Held = ""
	a.until(start.Add(3*time.Hour + time.Minute))
	a.alert.Answer = &fleet.AlertAnswer{}
	a.group.Asked = 8
	a.until(start.Add(4 * time.Hour))
	a.group.Tasks = 0
	a.until(start.Add(5 * time.Hour))
	want := []string{
		"0s Open", "3s call 1 ann", "5m3s call 2 bob", "30m3s call 3 ann", "35m3s call 4 bob",
		"40m3s call 5 ann", // it has grown, 5 min after the last call
		"1h20m0s Resume", "1h20m0s call 6 ann",
		"1h21m0s Hold", "3h0m0s Hold", "3h0m0s call 7 bob",
		"3h1m0s Apply", "3h1m0s Open", "3h1m3s call 1 ann", "3h6m3s call 2 bob", "3h31m3s call 3 ann", "3h36m3s call 4 bob",
		"4h0m0s Resolve",
	}
	if diff := cmp.Diff(want, a.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if a.alert.Number != 2 || a.alert.AlertID != "g-2" || a.alert.State != fleet.AlertResolved {
		t.Errorf("alert = %+v", a.alert)
	}
}

// TestNotCalled: a call that is not made leaves the chain as if it were, its
// number is not used again, and what it would have told is told soon.
func TestNotCalled(t *testing.T) {
	t.Parallel()
	c := escalation.Chain{Contacts: []string{"ann"}}
	g := escalation.Group{ID: "g", Labels: map[string]string{}, Tasks: 1}
	was, _, _ := c.NextAlert(fleet.Alert{}, g, start)
	was, _, _ = c.NextAlert(was, g, start.Add(3*time.Second))
	now := start.Add(2 * time.Hour)
	g.Tasks = 2
	is, action, _ := c.NextAlert(was, g, now)
	if action != (escalation.Call{Contact: "ann", Number: 2}) || is.Sent["ann"] != 2 || was.Sent["ann"] != 1 {
		t.Fatalf("%+v, sent %v after %v; want call 2", action, is.Sent, was.Sent)
	}
	is = escalation.NotCalled(was, is)
	if is.Calls != 2 || is.Told != 1 || is.Sent["ann"] != 1 || !is.NextAt.After(now) {
		t.Errorf("alert %+v", is)
	}
	if _, action, next := c.NextAlert(is, g, now); action != nil || !next.Equal(now.Add(5*time.Minute)) {
		t.Errorf("%v, then at %s; want to tell that it has grown 5 min later", action, next.Sub(now))
	}
}

// TestNewcomerIsTold: who joins an alert as another one leaves it is told of,
// though there are no more tasks than the last call named.
func TestNewcomerIsTold(t *testing.T) {
	t.Parallel()
	c := escalation.Chain{Contacts: []string{"ann"}}
	g := escalation.Group{ID: "g", Labels: map[string]string{}, Tasks: 1, Newest: 7}
	a, _, _ := c.NextAlert(fleet.Alert{}, g, start)
	a, _, _ = c.NextAlert(a, g, start.Add(3*time.Second))
	if _, action, next := c.NextAlert(a, g, start.Add(4*time.Second)); action != nil || next.Before(start.Add(20*time.Minute)) {
		t.Errorf("%v, then at %s; want nothing before the repeat", action, next)
	}
	g.Newest = 9
	if _, action, next := c.NextAlert(a, g, start.Add(4*time.Second)); action != nil || !next.Equal(start.Add(5*time.Minute+3*time.Second)) {
		t.Errorf("%v, then at %s; want to tell of the newcomer 5 min after the last call", action, next.Sub(start))
	}
	a, action, _ := c.NextAlert(a, g, start.Add(6*time.Minute))
	if action != (escalation.Call{Contact: "ann", Number: 2}) || a.ToldTo != 9 {
		t.Errorf("%+v, told to %d; want call 2, told to 9", action, a.ToldTo)
	}
}

// TestAlertsAreHeard: whatever happens to an alert, its calls have numbers of
// their own; nobody is called while somebody sees to it, or it is held; and
// while neither holds somebody is called within the time of a repeat.
func TestAlertsAreHeard(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := &alarm{group: escalation.Group{ID: "g", Tasks: 1}, now: start}
		a.chain.Contacts = []string{"ann", "bob", "cid"}[:rapid.IntRange(1, 3).Draw(t, "contacts")]
		a.group.Repeat = time.Duration(rapid.IntRange(1, 3600).Draw(t, "repeat")) * time.Second
		longest := max(a.group.Repeat, time.Duration(len(a.chain.Contacts))*5*time.Minute) + 5*time.Minute
		free := start // since when calls may be made
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before := len(a.calls)
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				a.group.Tasks++
			case 1:
				until := a.now.Add(30 * time.Minute)
				if a.alert.State == fleet.AlertTriggered {
					a.alert.State, a.alert.AckUntil = fleet.AlertAcknowledged, &until
					free = until
				}
			case 2:
				a.group.Held = "x"
			case 3:
				if a.group.Held != "" {
					a.group.Held = ""
					if a.now.After(free) {
						free = a.now
					}
				}
			}
			quiet := a.group.Held != ""
			from := a.now
			pass := time.Duration(rapid.IntRange(0, 5400).Draw(t, "pass")) * time.Second
			a.until(a.now.Add(pass))
			if quiet && len(a.calls) != before {
				t.Fatalf("somebody was called while it was held: %v", a.log)
			}
			if a.alert.State == fleet.AlertAcknowledged && len(a.calls) != before && free.After(a.now) {
				t.Fatalf("somebody was called while somebody saw to it: %v", a.log)
			}
			begun := free
			if from.After(begun) {
				begun = from
			}
			if !quiet && a.now.Sub(begun) > longest && len(a.calls) == before {
				t.Fatalf("nobody was called for %s: %v", a.now.Sub(begun), a.log)
			}
		}
		for i, c := range a.calls {
			if c.Number != i+1 {
				t.Fatalf("call %d has number %d", i+1, c.Number)
			}
		}
	})
}
