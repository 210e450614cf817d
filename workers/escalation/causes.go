package escalation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Tasks that wait for an account, an agent or terms have no record that says so: the
// routers compute it. This file asks them, and notifies people of what lasts: once
// for a cause, however many tasks and classes wait for it.

const (
	askCausesEvery = 5 * time.Second
	// causeGone is how often in a row a cause is missing from what the routers say
	// until it counts as over: two routers may differ for a moment.
	causeGone = 3
)

// Labels of an alert about tasks that wait.
const (
	labelCause   = "cause" // a fleet.WaitAway and so on
	labelAgent   = "agent"
	labelAccount = "account"
)

// waitCause is why tasks wait, since when, and whether people are to be notified.
type waitCause struct {
	Group   string             `json:"group"`
	Labels  map[string]string  `json:"labels"`
	Waiting fleet.WaitingCause `json:"waiting"`
	Began   time.Time          `json:"began"` // when an escalation worker saw it first
	Notify  bool               `json:"notify,omitzero"`

	rev uint64 // of its entry
}

// newCause is the cause that a router tells of, with its group.
func newCause(k fleet.WaitingCause, now time.Time) *waitCause {
	c := &waitCause{Labels: map[string]string{labelCause: k.Why}, Waiting: k, Began: now}
	switch {
	case k.Who == "":
	case k.Why == fleet.WaitLimited:
		c.Labels[labelAccount] = k.Who
	default:
		c.Labels[labelAgent] = k.Who
	}
	sum := sha256.Sum256(fleet.MustEncode(c.Labels))
	c.Group = hex.EncodeToString(sum[:6])
	return c
}

// notifyAt is when people are to be notified of the cause, if it lasts: after a while,
// or after half of what was left until the first deadline; at once if a limit ends
// too late.
func (c *waitCause) notifyAt(after time.Duration) time.Time {
	k := &c.Waiting
	if k.Why == fleet.WaitLimited && k.Late > 0 {
		return c.Began
	}
	if left := k.Deadline.Sub(c.Began) / 2; !k.Deadline.IsZero() && left < after {
		after = max(left, 0)
	}
	return c.Began.Add(after)
}

// watchCauses asks the routers why tasks wait, until ctx ends.
func (w *Worker) watchCauses(ctx context.Context) error {
	tick := time.NewTicker(askCausesEvery)
	defer tick.Stop()
	missing := make(map[string]int) // by group: how often in a row
	failing := false
	for {
		err := w.lookAtCauses(ctx, missing)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failing && !errors.Is(err, bus.ErrNoResponders) {
			w.log.Warn("why tasks wait is not known", attrErr(err))
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// lookAtCauses takes in why tasks wait now.
func (w *Worker) lookAtCauses(ctx context.Context, missing map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askCausesEvery)
	defer cancel()
	m, err := w.bus.Request(ctx, subjects.API(Self, "task", "waiting"), []byte("{}"), nil)
	if err != nil {
		return err
	}
	reply, err := fleet.DecodeReply[fleet.TaskWaitingReply](m.Data)
	if err != nil {
		return err
	}
	if !reply.Ready {
		return nil // a router that does not know yet who is there
	}
	now := w.now()
	there := make(map[string]bool)
	for _, k := range reply.Causes {
		c := newCause(k, now)
		if k.Tasks == k.Silent || !k.Notified() && w.causeOf(c.Group) == nil {
			continue
		}
		there[c.Group] = true
		delete(missing, c.Group)
		if err := w.takeCause(ctx, c, now); err != nil {
			return err
		}
	}
	if reply.More {
		return nil // it may be one of those that were left out
	}
	for _, c := range w.knownCauses() {
		if there[c.Group] {
			continue
		}
		if missing[c.Group]++; missing[c.Group] < causeGone {
			continue
		}
		delete(missing, c.Group)
		if err := w.endCause(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// causeOf is the cause of a group as far as it is known here, nil for none.
func (w *Worker) causeOf(group string) (c *waitCause) {
	w.with(func(v *view) {
		if g := v.groups[group]; g != nil {
			c = g.cause
		}
	})
	return c
}

func (w *Worker) knownCauses() (list []*waitCause) {
	w.with(func(v *view) {
		for _, g := range v.groups {
			if g.cause != nil {
				list = append(list, g.cause)
			}
		}
	})
	return list
}

// takeCause stores a cause that is new, and that people are to be notified of one; in
// between, what is known of it is kept here alone. Who loses a race hears of the
// winner's from the bucket.
func (w *Worker) takeCause(ctx context.Context, c *waitCause, now time.Time) error {
	was := w.causeOf(c.Group)
	if was != nil {
		c.Began, c.Notify, c.rev = was.Began, was.Notify, was.rev
	}
	due := !c.Notify && !plant.Bug("wait_silent") && c.Waiting.Notified() && !c.notifyAt(w.cfg.WaitAlert).After(now)
	if was != nil && !due {
		w.with(func(v *view) { v.putCause(c) })
		return nil
	}
	if due {
		w.logCause(ctx, c, now)
		c.Notify = true
	}
	var err error
	key, value := waitKey+c.Group, fleet.MustEncode(c)
	crash.Point("before_cause")
	if was == nil {
		c.rev, err = w.kv.Create(ctx, key, value, 0)
	} else {
		c.rev, err = w.kv.Update(ctx, key, value, c.rev)
	}
	if errors.Is(err, bus.ErrExists) || errors.Is(err, bus.ErrConflict) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep why tasks wait: %w", err)
	}
	crash.Point("after_cause")
	w.with(func(v *view) { v.putCause(c) })
	w.stir()
	return nil
}

// endCause forgets a cause for which nothing waits any more: its alert is resolved.
func (w *Worker) endCause(ctx context.Context, c *waitCause) error {
	err := w.kv.DeleteRevision(ctx, waitKey+c.Group, c.rev)
	if errors.Is(err, bus.ErrConflict) || errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget why tasks waited: %w", err)
	}
	crash.Point("after_cause_end")
	w.with(func(v *view) { v.dropCause(c.Group) })
	w.stir()
	return nil
}

// logCause appends to CHANGE.log that people are notified, once for a cause.
func (w *Worker) logCause(ctx context.Context, c *waitCause, now time.Time) {
	e := &fleet.Escalation{
		ProtocolVersion: fleet.EscalationVersion, MessageType: fleet.EscalationType, Level: 3, Reason: fleet.ReasonError,
		OriginalAgent: subjects.AgentID(c.Labels[labelAgent]), Timestamp: now, TaskID: c.Waiting.TaskID, State: fleet.StateQueued,
		Error: fleet.EscalationError{Code: "WAITING", Message: summaryOfCause(&c.Waiting), Details: fleet.MustEncode(struct {
			Waiting *fleet.WaitingCause `json:"waiting"`
		}{&c.Waiting})},
	}
	id := `"id":` + string(fleet.MustEncode("wait/"+c.Group+"/"+strconv.FormatInt(c.Began.UnixMilli(), 10)))
	line := append([]byte("{"+id+","), fleet.MustEncode(e)[1:]...)
	if err := w.lines.append(line, id); err != nil {
		w.log.Error("append to CHANGE.log", slog.String("group", c.Group), attrErr(err))
		w.event(ctx, fleet.AlertEvent{Event: "change_log_failed", Message: err.Error()})
	}
}

// summaryOfCause says in a line why tasks wait.
func summaryOfCause(k *fleet.WaitingCause) string {
	n := k.Tasks - k.Silent
	s := strconv.Itoa(n) + " tasks wait: "
	if n == 1 {
		s = "1 task waits: "
	}
	s += k.Describe(func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") })
	if k.Late > 0 {
		s += "; too late for " + strconv.Itoa(k.Late)
	}
	return s
}

// putCause takes in a cause, unless a later revision of it is known.
func (v *view) putCause(c *waitCause) {
	g := v.group(c.Group, c.Labels)
	if g.cause == nil || g.cause.rev <= c.rev {
		g.cause = c
	}
}

func (v *view) dropCause(group string) {
	if g := v.groups[group]; g != nil && g.cause != nil {
		g.cause, g.dirty = nil, true
	}
}

// decodeCause reads a cause's entry.
func decodeCause(e bus.Entry) (*waitCause, error) {
	c := new(waitCause)
	if err := json.Unmarshal(e.Value, c); err != nil {
		return nil, err
	}
	if c.Group != strings.TrimPrefix(e.Key, waitKey) || c.Labels[labelCause] == "" {
		return nil, fmt.Errorf("it is about the group %q", c.Group)
	}
	c.rev = e.Revision
	return c, nil
}

// refuseDecision is what an answer to an alert about tasks that wait is told: nobody
// waits for a decision.
func (w *Worker) refuseDecision(a *fleet.Alert) error {
	k := fleet.WaitingCause{Waiting: fleet.Waiting{Why: a.Group[labelCause], Who: a.Group[labelAgent] + a.Group[labelAccount]}}
	return subjects.Errorf(subjects.CodeInvalidMessage, "alert %s is about tasks that wait (%s): there is nothing to decide, they go on by themselves", a.AlertID, k.Why).
		WithRemedy(k.Remedy() + "; parley task cancel TASK  ends a task; parley escalation ack " + a.AlertID + "  stops the calls")
}
