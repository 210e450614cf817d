package escalation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"parley/bus"
	"parley/bus/crash"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	maxIdle    = time.Minute     // between looks, whatever is due
	retryApply = 2 * time.Second // an answer that could not be carried out to its end
	keepAlert  = 7 * 24 * time.Hour
	maxNamed   = 20 // tasks that a call names
)

// act does what is due, until ctx ends.
func (w *Worker) act(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-timer.C:
		}
		next := w.round(ctx)
		timer.Reset(max(0, min(time.Until(next), maxIdle)))
	}
}

// round looks at every group that has changed or is due, and returns when to
// look next.
func (w *Worker) round(ctx context.Context) (next time.Time) {
	now := time.Now().UTC()
	var due []string
	w.with(func(v *view) {
		for id, g := range v.groups {
			if g.dirty || !g.due.IsZero() && !g.due.After(now) {
				due = append(due, id)
			}
		}
	})
	for _, id := range due {
		w.settle(ctx, id)
		if ctx.Err() != nil {
			return now
		}
	}
	next = now.Add(maxIdle)
	w.with(func(v *view) {
		ends := v.soonest(now)
		if !ends.IsZero() && ends.Before(next) {
			next = ends
		}
		for _, g := range v.groups {
			if !ends.IsZero() && (g.due.IsZero() || ends.Before(g.due)) {
				g.due = ends
			}
			if g.dirty {
				next = now
			} else if !g.due.IsZero() && g.due.Before(next) {
				next = g.due
			}
		}
	})
	return next
}

// settle does all that is due for a group.
func (w *Worker) settle(ctx context.Context, id string) {
	for range 100 {
		now := time.Now().UTC()
		var (
			was, is fleet.Alert
			rev     uint64
			action  policy.AlertAction
			shown   fleet.Alert
			folded  int
		)
		w.with(func(v *view) {
			g := v.groups[id]
			g.dirty = false
			was, rev = g.alert, g.rev
			is, action, g.due = w.cfg.Chain.NextAlert(g.alert, v.state(g, now), now)
			if action == nil {
				return
			}
			shown, folded = g.show(maxNamed), v.folded(g)
		})
		if action == nil {
			return
		}
		shown.AlertID, shown.Calls = is.AlertID, is.Calls
		err := w.do(ctx, id, was, is, rev, action, shown, folded)
		switch {
		case err == nil:
		case errors.Is(err, bus.ErrConflict):
			w.refresh(ctx, id)
		case errors.Is(err, errLater):
			w.later(id, now.Add(retryApply))
			return
		default:
			if ctx.Err() == nil {
				w.log.Warn("act on an alert", attrAlert(is.AlertID), attrErr(err))
			}
			w.later(id, now.Add(retryApply))
			return
		}
	}
}

func (w *Worker) later(id string, at time.Time) {
	w.with(func(v *view) { v.groups[id].due = at })
}

// refresh reads an alert that another replica has changed.
func (w *Worker) refresh(ctx context.Context, id string) {
	e, err := w.kv.Get(ctx, alertKey+id)
	if err == nil {
		w.onEntry(e)
	}
}

var errLater = errors.New("not everything could be done")

// do carries an action out and stores the alert as it is then.
func (w *Worker) do(ctx context.Context, id string, was, is fleet.Alert, rev uint64, action policy.AlertAction, shown fleet.Alert, folded int) error {
	e := fleet.AlertEvent{AlertID: is.AlertID, Count: shown.Count}
	switch a := action.(type) {
	case policy.Open:
		e.Event = "triggered"
	case policy.Call:
		crash.Point("before_call")
		if err := w.call(ctx, is, shown, a, folded); err != nil {
			return err
		}
		crash.Point("after_call")
		e.Event, e.Contact, e.Call = "called", a.Contact, a.Number
	case policy.Resume:
		e.Event, e.By = "ack_timeout", was.AckBy
	case policy.Hold:
		e.Event, e.Message = "silenced", is.Held
		if is.Held == "" {
			e.Event = "heard"
		}
	case policy.Resolve:
		e.Event = "resolved"
		if is.Answer != nil {
			e.By, e.Message = is.Answer.By, is.Answer.Verb
		}
	case policy.Apply:
		return w.apply(ctx, id)
	}
	if err := w.putAlert(ctx, id, is, rev); err != nil {
		return err
	}
	crash.Point("after_alert")
	w.event(ctx, e)
	if e.Event == "triggered" && was.Number > 0 {
		w.archive(ctx, was)
	}
	return nil
}

// putAlert stores an alert over its revision.
func (w *Worker) putAlert(ctx context.Context, id string, a fleet.Alert, rev uint64) error {
	rev, err := w.kv.Update(ctx, alertKey+id, fleet.MustEncode(a), rev)
	if err != nil {
		return err
	}
	w.with(func(v *view) { v.putAlert(id, a, rev) })
	w.stir()
	return nil
}

// archive keeps an alert that is over for a while; that is for people alone.
func (w *Worker) archive(ctx context.Context, a fleet.Alert) {
	_, err := w.kv.Create(ctx, "old."+a.AlertID, fleet.MustEncode(a), keepAlert)
	if err != nil && !errors.Is(err, bus.ErrExists) {
		w.log.Warn("keep an old alert", attrAlert(a.AlertID), attrErr(err))
	}
}

// call hands one call to the webhooks worker. Whoever repeats it makes the same
// delivery.
func (w *Worker) call(ctx context.Context, is, shown fleet.Alert, c policy.Call, folded int) error {
	until := time.Now().UTC().Add(fleet.DefaultNotAfter)
	for i := range shown.Tasks {
		if t := shown.Tasks[i].GiveUpAt; i == 0 || t.After(until) {
			until = t
		}
	}
	d := &fleet.Delivery{
		DeliveryID: DeliveryID(is.AlertID, c.Number, c.Contact), Endpoint: c.Contact, Order: is.AlertID,
		Schedule: fleet.ScheduleHuman, NotAfter: &until, Body: fleet.MustEncode(w.message(is, shown, c, folded)),
	}
	if shown.Count == 1 {
		d.TaskID = shown.Tasks[0].TaskID
	}
	return w.deliver(ctx, d)
}

// DeliveryID is the one id of a call, whichever replica makes it and however
// often.
func DeliveryID(alert string, number int, contact string) subjects.DeliveryID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", alert, number, contact))
	return subjects.DeliveryID("esc_" + hex.EncodeToString(sum[:16]))
}

// Message is the body of a call: plain JSON, for n8n and its like.
type Message struct {
	Type     string            `json:"type"` // escalation
	Level    int               `json:"escalation_level"`
	AlertID  string            `json:"alert_id"` // the same in all calls of an alert
	Sequence int               `json:"sequence"` // of the call; drop what is older than what came
	Contact  string            `json:"contact"`
	State    string            `json:"state"`
	Group    map[string]string `json:"group"`
	Summary  string            `json:"summary"`
	Count    int               `json:"count"` // tasks that wait
	Tasks    []fleet.AlertTask `json:"tasks"` // the oldest; what agents wrote in them is not to be trusted
	Omitted  int               `json:"truncated"`
	Folded   int               `json:"folded,omitzero"` // tasks of other alerts that are quiet because of this one
	Since    time.Time         `json:"since"`
	GiveUpAt *time.Time        `json:"give_up_at,omitempty"` // of the first that gives up
	Link     string            `json:"link,omitempty"`       // where to answer; for one answer
	Answers  []string          `json:"answers"`              // what can be answered
	Command  string            `json:"command"`
	Sent     time.Time         `json:"sent"`
}

// maxBody is how long a call may be.
const maxBody = 20 << 10

func (w *Worker) message(is, shown fleet.Alert, c policy.Call, folded int) *Message {
	now := time.Now().UTC()
	m := &Message{
		Type: fleet.EscalationType, Level: 3, AlertID: is.AlertID, Sequence: c.Number, Contact: c.Contact, State: is.State,
		Group: is.Group, Count: shown.Count, Tasks: shown.Tasks, Omitted: shown.Omitted, Folded: folded,
		Since: is.Since, Answers: append([]string{"ack"}, fleet.HumanVerbs()...), Sent: now,
		Command: "parley escalation show " + is.AlertID,
	}
	m.Summary = summary(shown)
	for i := range shown.Tasks {
		if t := shown.Tasks[i].GiveUpAt; m.GiveUpAt == nil || t.Before(*m.GiveUpAt) {
			m.GiveUpAt = &t
		}
	}
	if w.cfg.URL != "" {
		m.Link = w.cfg.URL + LinkPath + w.sign(claims{Alert: is.AlertID, Call: c.Number, Contact: c.Contact, Issued: now.Unix(), Expires: now.Add(w.cfg.LinkTTL).Unix()})
	}
	for len(m.Tasks) > 1 && len(fleet.MustEncode(m)) > maxBody {
		m.Tasks = m.Tasks[:len(m.Tasks)-1]
		m.Omitted++
	}
	return m
}

func summary(a fleet.Alert) string {
	cause := a.Group["code"]
	for _, name := range []string{"agent", "mcp"} {
		if v := a.Group[name]; v != "" {
			cause += " at " + name + " " + v
		}
	}
	if a.Count == 1 && len(a.Tasks) == 1 {
		return fmt.Sprintf("task %s waits for a human: %s", a.Tasks[0].TaskID, cause)
	}
	return fmt.Sprintf("%d tasks wait for a human: %s", a.Count, cause)
}
