package escalation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// maxShown is how many tasks of one alert a reply has.
const maxShown = 100

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "escalation", Version: w.cfg.Version, Queue: "escalation",
		Description: "Alerts for humans, and their answers", Metadata: map[string]string{"kind": "escalation"},
		Figures: func() any { return w.Figures() },
	}
	add := func(verb, does string, call func(context.Context, subjects.AgentID, []byte) (any, error)) {
		pattern := subjects.APIPattern("escalation", verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "escalation-" + verb, Subject: pattern, Metadata: map[string]string{"description": does},
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "subject %s does not follow %s", m.Subject, pattern)
				}
				from := subjects.AgentID(vars[0])
				if !slices.Contains(w.cfg.Operators, from) {
					w.refuse(ctx, "", string(from), "not an operator: "+m.Subject)
					return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not see to escalations", from).WithRemedy("an operator may")
				}
				v, err := call(ctx, from, m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	add("list", "what waits for a human, and the silences", w.apiList)
	add("get", "one alert, or that of a task", w.apiGet)
	add("status", "whether humans can be told", w.apiStatus)
	add("ack", "somebody sees to it", w.apiAck)
	add("silence", "call nobody about some alerts for a while", w.apiSilence)
	for _, verb := range fleet.HumanVerbs() {
		add(verb, "a human's decision: "+verb, w.apiDecide(verb))
	}
	return s
}

func (w *Worker) apiList(ctx context.Context, _ subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.EscalationList](data)
	if err != nil {
		return nil, err
	}
	var found []fleet.Alert
	var silences []fleet.Silence
	now := w.now()
	w.with(func(v *view) {
		for _, g := range v.groups {
			if g.open() || req.All && g.alert.Number > 0 {
				if a := g.show(3); follows(&a, req.After) {
					found = append(found, a)
				}
			}
		}
		for _, id := range slices.Sorted(maps.Keys(v.silences)) {
			if req.After == "" && v.silences[id].Until.After(now) {
				silences = append(silences, v.silences[id])
			}
		}
	})
	slices.SortFunc(found, func(a, b fleet.Alert) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.AlertID, b.AlertID))
	})
	return w.page(ctx, found, silences)
}

// What a reply of escalation list has room for: alerts, and of those one that is
// larger than that by itself.
const (
	maxPage  = 900 << 10
	maxAlert = fleet.MaxMessage
)

// page is the reply with the first of the alerts that were found: as many as
// fit.
func (w *Worker) page(ctx context.Context, found []fleet.Alert, silences []fleet.Silence) (any, error) {
	reply := struct {
		Alerts   []json.RawMessage `json:"alerts"`
		Silences []fleet.Silence   `json:"silences,omitempty"`
		Next     string            `json:"next,omitempty"`
	}{Alerts: []json.RawMessage{}, Silences: silences}
	size := 0
	for i := range found {
		a := &found[i]
		w.brief(ctx, a)
		data, err := fleet.Encode(a)
		if err == nil && len(data) > maxAlert && a.Answer != nil { // escalation get has it whole
			a.Answer = &fleet.AlertAnswer{HumanAnswer: a.Answer.HumanAnswer}
			data, err = fleet.Encode(a)
		}
		if err != nil {
			return nil, err
		}
		if size += len(data); i > 0 && size > maxPage {
			reply.Next = place(&found[i-1])
			break
		}
		reply.Alerts = append(reply.Alerts, data)
	}
	return &reply, nil
}

// place is where in a listing an alert is, for whoever asks for what follows.
func place(a *fleet.Alert) string {
	return strconv.FormatInt(a.Since.UnixNano(), 10) + "." + a.AlertID
}

// follows reports whether an alert comes behind a place; "" is before all.
func follows(a *fleet.Alert, after string) bool {
	nanos, id, ok := strings.Cut(after, ".")
	if !ok {
		return true
	}
	since, err := strconv.ParseInt(nanos, 10, 64)
	return err == nil && cmp.Or(cmp.Compare(a.Since.UnixNano(), since), strings.Compare(a.AlertID, id)) > 0
}

func (w *Worker) apiGet(ctx context.Context, _ subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.EscalationRef](data)
	if err != nil {
		return nil, err
	}
	return w.shown(ctx, req.ID, maxShown)
}

// shown is an alert, or that of a task, with its tasks.
func (w *Worker) shown(ctx context.Context, id string, most int) (*fleet.Alert, error) {
	gid, task := w.find(id)
	var a fleet.Alert
	w.with(func(v *view) {
		g := v.groups[gid]
		if task != nil {
			g = v.byTask[task.TaskID]
		}
		if g != nil && (task != nil || g.alert.AlertID == id) {
			a = g.show(most)
		}
	})
	if a.Number > 0 {
		w.brief(ctx, &a)
		return &a, nil
	}
	old, err := w.archived(ctx, id)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, notFound(id)
	}
	return old, err
}

func (w *Worker) apiStatus(_ context.Context, _ subjects.AgentID, data []byte) (any, error) {
	if _, err := fleet.DecodeRequest[fleet.EscalationStatus](data); err != nil {
		return nil, err
	}
	s := fleet.EscalationStatusReply{
		Contacts: append([]string{}, w.cfg.Chain.Contacts...), ChangeLog: w.cfg.ChangeLog,
		Refused: w.refused.Load(), Started: w.started,
	}
	var err error
	if s.LogLines, s.LogFailures, err = w.lines.status(); err != nil {
		s.LogError = err.Error()
	}
	w.with(func(v *view) {
		s.Waiting = len(v.byTask)
		for _, g := range v.groups {
			if g.open() {
				s.Open++
			}
		}
	})
	return s, nil
}

func (w *Worker) apiAck(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.EscalationRef](data)
	if err != nil {
		return nil, err
	}
	return w.acknowledge(ctx, string(from), req.ID)
}

func (w *Worker) apiDecide(verb string) func(context.Context, subjects.AgentID, []byte) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
		req, err := fleet.DecodeRequest[fleet.EscalationAnswer](data)
		if err != nil {
			return nil, err
		}
		done, err := w.decide(ctx, string(from), verb, &req, true)
		if err != nil {
			return nil, err
		}
		return done, nil
	}
}

// labels are those that alerts may have: agent gives way to mcp where the servers
// are not healthy; those about tasks that wait have labels of their own.
func (w *Worker) labels() []string {
	all := slices.Clone(w.cfg.GroupBy)
	if slices.Contains(all, labelAgent) && !slices.Contains(all, "mcp") {
		all = append(all, "mcp")
	}
	if !slices.Contains(all, labelAgent) {
		all = append(all, labelAgent)
	}
	return append(all, labelCause, labelAccount)
}

// Refusals that are kept one by one: whoever forges links by the thousand fills
// no stream. All are counted.
const (
	refusalsPerSecond = 2
	refusalsAtOnce    = 100
)

// refuse keeps that somebody was refused.
func (w *Worker) refuse(ctx context.Context, alert, by, why string) {
	w.refused.Add(1)
	if !w.refusals.Allow() {
		return
	}
	w.event(ctx, fleet.AlertEvent{AlertID: alert, Event: "refused", By: clip(by, 200), Message: clip(why, 500)})
}

// Figures count what waits for humans; any goroutine may call it.
func (w *Worker) Figures() fleet.AlertFigures {
	f := fleet.AlertFigures{LogFailures: w.lines.failed.Load()}
	w.mu.Lock()
	defer w.mu.Unlock()
	f.Waiting = len(w.view.byTask)
	for _, g := range w.view.groups {
		if len(g.tasks) > 0 || g.cause != nil && g.cause.Notify {
			f.Alerts++
		}
	}
	return f
}
