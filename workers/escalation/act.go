package escalation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

const (
	maxIdle    = time.Minute // between looks, whatever is due
	retryApply = time.Second // an answer that could not be carried out to its end
	// keepAlert is how long an alert that is over is known: longer than any
	// delivery of it, which the next of that name would be taken for.
	keepAlert = 14 * 24 * time.Hour
	maxNamed  = 20 // tasks that a call names
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
		timer.Reset(max(0, min(next.Sub(w.now()), maxIdle)))
	}
}

// round looks at every group that has changed or is due, and returns when to
// look next.
func (w *Worker) round(ctx context.Context) (next time.Time) {
	now := w.now()
	w.endSilences(ctx, now)
	var ids []string
	w.with(func(v *view) {
		for id, g := range v.groups {
			if g.dirty || !g.due.IsZero() && !g.due.After(now) {
				ids = append(ids, id)
			}
		}
	})
	for _, id := range ids {
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
		now := w.now()
		d := due{group: id}
		w.with(func(v *view) {
			g := v.groups[id]
			g.dirty = false
			d.was, d.rev = g.alert, g.rev
			d.is, d.action, g.due = w.cfg.Chain.NextAlert(g.alert, v.state(g, now), now)
			if d.action == nil {
				return
			}
			d.shown, d.folded = g.show(maxNamed), v.folded(g)
		})
		if d.action == nil {
			return
		}
		if _, calls := d.action.(policy.Call); calls {
			if plant.Bug("told_often") {
				d.is.NextAt = new(now.Add(200 * time.Millisecond))
			}
			w.brief(ctx, &d.shown)
		}
		err := w.do(ctx, d)
		switch {
		case err == nil:
		case errors.Is(err, bus.ErrConflict):
			w.refresh(ctx, d)
		case errors.Is(err, errLater):
			w.later(id, now.Add(retryApply))
			return
		default:
			if ctx.Err() == nil {
				w.log.Warn("act on an alert", attrAlert(d.is.AlertID), attrErr(err))
			}
			w.later(id, now.Add(retryApply))
			return
		}
	}
	w.later(id, w.now().Add(retryApply))
}

func (w *Worker) later(id string, at time.Time) {
	w.with(func(v *view) { v.groups[id].due = at })
}

// refresh reads an alert that is not as d has it: another replica has changed
// it, or it is gone, and so is the mark of that.
func (w *Worker) refresh(ctx context.Context, d due) {
	switch e, err := w.kv.Get(ctx, alertKey+d.group); {
	case err == nil:
		w.onEntry(e)
	case errors.Is(err, bus.ErrNotFound):
		w.with(func(v *view) {
			if g := v.groups[d.group]; g.rev == d.rev { // nothing was heard of it since
				g.alert, g.rev = fleet.Alert{}, 0
			}
		})
	}
}

var errLater = errors.New("not everything could be done")

// due is an action with what it is about.
type due struct {
	group   string
	was, is fleet.Alert // before and after
	rev     uint64      // of was
	action  policy.AlertAction
	shown   fleet.Alert // with the tasks that wait
	folded  int
}

// do carries an action out and stores the alert as it is then.
func (w *Worker) do(ctx context.Context, d due) error {
	was, is := d.was, d.is
	e := fleet.AlertEvent{AlertID: is.AlertID, Count: d.shown.Count}
	switch a := d.action.(type) {
	case policy.Open:
		e.Event = "triggered"
	case policy.Call:
		e.Event, e.Contact, e.Call = "called", a.Contact, a.Number
		if n := was.Sent[a.Contact]; w.onItsWay(ctx, was.AlertID, n, a.Contact) {
			is = policy.NotCalled(was, is)
			e.Event, e.Message = "not_called", fmt.Sprintf("call %d is still on its way", n)
			break
		}
		crash.Point("before_call")
		if err := w.call(ctx, d, a); err != nil {
			return err
		}
		crash.Point("after_call")
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
		return w.apply(ctx, d.group)
	}
	if e.TaskID == "" && d.shown.Count == 1 && len(d.shown.Tasks) == 1 { // it is about that one
		e.TaskID = d.shown.Tasks[0].TaskID
	}
	if e.Event == "triggered" && was.Number > 0 {
		w.archive(ctx, was) // first: once it is replaced, it is found nowhere else
	}
	return w.putAlert(ctx, d.group, is, d.rev, e)
}

// putAlert stores an alert over its revision, with what has happened to it.
func (w *Worker) putAlert(ctx context.Context, id string, a fleet.Alert, rev uint64, e fleet.AlertEvent) error {
	e.AlertID = a.AlertID
	ttl := time.Duration(0)
	if a.State == fleet.AlertResolved && (a.Group["task"] != "" || a.Group["run"] != "" || a.Group["session"] != "") { // a group that ends
		ttl = keepAlert
	}
	rev, err := w.kv.Telling(told(&e)).UpdateFor(ctx, alertKey+id, fleet.MustEncode(a), rev, ttl)
	if err != nil {
		return err
	}
	w.with(func(v *view) { v.putAlert(id, a, rev) })
	w.stir()
	crash.Point("after_alert")
	w.event(ctx, e)
	return nil
}

// human is who answers by a link: it names the contact that it was sent to.
const human subjects.AgentID = "human"

// told is what the audit is told of an event of an alert.
func told(e *fleet.AlertEvent) []byte {
	who := Self
	if e.By != "" {
		if who = subjects.AgentID(e.By); !subjects.ValidToken(e.By) {
			who = human // by a link
		}
	}
	return workers.Line("", who, handshake.EventAlert, struct {
		AlertID string `json:"alert_id"`
		Kind    string `json:"kind"`
		By      string `json:"by,omitempty"`
		Contact string `json:"contact,omitempty"`
		Call    int    `json:"call,omitzero"`
		Count   int    `json:"count,omitzero"` // tasks
		Message string `json:"message,omitempty"`
	}{e.AlertID, e.Event, workers.Clip(e.By), e.Contact, e.Call, e.Count, workers.Clip(e.Message)})
}

// archive keeps an alert that is over for a while; that is for people alone.
func (w *Worker) archive(ctx context.Context, a fleet.Alert) {
	_, err := w.kv.Create(ctx, archiveKey+a.AlertID, fleet.MustEncode(a), keepAlert)
	if err != nil && !errors.Is(err, bus.ErrExists) {
		w.log.Warn("keep an old alert", attrAlert(a.AlertID), attrErr(err))
	}
}

// call hands one call to the webhooks worker. Whoever repeats it makes the same
// delivery.
func (w *Worker) call(ctx context.Context, what due, c policy.Call) error {
	if c.Number > 1 && plant.Bug("told_once") {
		return nil
	}
	is, shown := what.is, what.shown
	until := w.now().Add(fleet.DefaultNotAfter)
	for i := range shown.Tasks {
		if t := shown.Tasks[i].GiveUpAt; i == 0 || t.After(until) {
			until = t
		}
	}
	d := &fleet.Delivery{
		DeliveryID: DeliveryID(is.AlertID, c.Number, c.Contact), Endpoint: c.Contact, Order: is.AlertID,
		Schedule: fleet.ScheduleHuman, NotAfter: &until, Body: fleet.MustEncode(w.message(what, c)),
	}
	if shown.Count == 1 && len(shown.Tasks) == 1 {
		d.TaskID = shown.Tasks[0].TaskID
	}
	if len(shown.Tasks) > 0 { // one call, one trace: that of the task that waits longest
		d.Traceparent = shown.Tasks[0].Traceparent
	}
	return w.deliver(ctx, d)
}

// onItsWay reports whether a call, if there was one, still waits to be
// delivered: another one would only tell the same once more as soon as the
// contact can be reached again. In doubt it is not.
func (w *Worker) onItsWay(ctx context.Context, alert string, number int, contact string) bool {
	if number == 0 {
		return false
	}
	id := DeliveryID(alert, number, contact)
	m, err := w.bus.Last(ctx, subjects.StreamWebhooks, subjects.WebhookEvent(id))
	if errors.Is(err, bus.ErrNotFound) { // nobody has tried it yet
		_, err = w.bus.Last(ctx, subjects.StreamWebhooks, subjects.Webhook(alert, id))
		return err == nil
	}
	if err != nil {
		w.log.Warn("look for a call's delivery", attrAlert(alert), attrErr(err))
		return false
	}
	s, err := fleet.DecodeDeliveryState(m.Data)
	return err == nil && s.State == fleet.DeliveryPending
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
	// Waiting says why they wait, where no human is asked to decide: state is then
	// all that can be answered, by ack.
	Waiting  *fleet.WaitingCause `json:"waiting,omitempty"`
	Tasks    []fleet.AlertTask   `json:"tasks"` // the oldest; what agents wrote in them is not to be trusted
	Omitted  int                 `json:"truncated"`
	Folded   int                 `json:"folded,omitzero"` // tasks of other alerts that are quiet because of this one
	Since    time.Time           `json:"since"`
	GiveUpAt *time.Time          `json:"give_up_at,omitempty"` // of the first that gives up
	Link     string              `json:"link,omitempty"`       // where to answer; for one answer
	Answers  []string            `json:"answers"`              // what can be answered
	Command  string              `json:"command"`
	Sent     time.Time           `json:"sent"`
}

// maxBody is how long a call may be.
const maxBody = 20 << 10

func (w *Worker) message(what due, c policy.Call) *Message {
	is, shown := what.is, what.shown
	now := w.now()
	m := &Message{
		Type: fleet.EscalationType, Level: 3, AlertID: is.AlertID, Sequence: c.Number, Contact: c.Contact, State: is.State,
		Group: is.Group, Count: shown.Count, Tasks: shown.Tasks, Omitted: shown.Omitted, Folded: what.folded,
		Since: is.Since, Answers: append([]string{"ack"}, fleet.HumanVerbs()...), Sent: now,
		Command: "parley escalation show " + is.AlertID,
	}
	if is.Group[labelCause] != "" {
		m.Waiting, m.Answers = shown.Waiting, []string{"ack"}
		if k := shown.Waiting; k != nil && !k.Deadline.IsZero() {
			m.GiveUpAt = &k.Deadline
		}
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
	switch {
	case a.Waiting != nil:
		return summaryOfCause(a.Waiting)
	case a.Group[labelCause] != "":
		return "tasks waited: " + strings.TrimSpace(a.Group[labelCause]+" "+a.Group[labelAgent]+a.Group[labelAccount])
	}
	causes := []string{a.Group["code"]}
	for _, name := range []string{"agent", "mcp"} {
		if v := a.Group[name]; v != "" {
			causes = append(causes, "at "+name+" "+v)
		}
	}
	cause := strings.Join(causes, " ")
	if a.Count == 1 && len(a.Tasks) == 1 {
		return fmt.Sprintf("task %s waits for a human: %s", a.Tasks[0].TaskID, cause)
	}
	return fmt.Sprintf("%d tasks wait for a human: %s", a.Count, cause)
}
