package webhooks

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	listDefault = 100
	replayMost  = 1000
	changeTries = 5
)

// service answers operators.
func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "webhooks", Version: w.cfg.Version, Queue: "webhooks",
		Description: "Brings deliveries to webhooks, and looks after those that did not arrive",
		Metadata:    map[string]string{"kind": "webhooks", "worker_id": w.id},
		Figures:     func() any { return w.Figures() },
	}
	for _, e := range []struct {
		verb string
		call func(context.Context, subjects.AgentID, []byte) (any, error)
	}{
		{"list", w.apiList}, {"get", w.apiGet}, {"replay", w.apiReplay}, {"drop", w.apiDrop}, {"status", w.apiStatus},
	} {
		pattern := subjects.APIPattern("webhook", e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "webhook-" + e.verb, Subject: pattern,
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "subject %s does not follow %s", m.Subject, pattern)
				}
				from := subjects.AgentID(vars[0])
				if !slices.Contains(w.cfg.Operators, from) {
					return nil, subjects.Errorf(subjects.CodeForbidden, "%s is no operator", from).
						WithRemedy("ask as an operator; PARLEY_OPERATORS names them")
				}
				v, err := e.call(ctx, from, m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

func (w *Worker) apiList(_ context.Context, _ subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.WebhookList](data)
	if err != nil {
		return nil, err
	}
	reply := fleet.WebhookListReply{Deliveries: []fleet.DeliveryState{}, Count: make(map[string]int)}
	w.mu.Lock()
	for _, e := range w.index.entries {
		if matches(&e.state, q) {
			reply.Deliveries = append(reply.Deliveries, e.state)
		}
	}
	maps.Copy(reply.Count, w.index.count)
	w.mu.Unlock()
	newestFirst(reply.Deliveries)
	reply.Total = len(reply.Deliveries)
	reply.Deliveries = reply.Deliveries[:min(cmp.Or(q.Limit, listDefault), reply.Total)]
	return &reply, nil
}

func matches(s *fleet.DeliveryState, q fleet.WebhookList) bool {
	return s.State != "" && (q.State == "" || s.State == q.State) && (q.Endpoint == "" || s.Endpoint == q.Endpoint) &&
		(q.TaskID == "" || s.TaskID == q.TaskID)
}

func newestFirst(list []fleet.DeliveryState) {
	slices.SortFunc(list, func(a, b fleet.DeliveryState) int {
		return cmp.Or(b.Queued.Compare(a.Queued), cmp.Compare(a.DeliveryID, b.DeliveryID))
	})
}

func (w *Worker) apiGet(ctx context.Context, _ subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.WebhookRef](data)
	if err != nil {
		return nil, err
	}
	e, err := w.find(q.DeliveryID)
	if err != nil {
		return nil, err
	}
	return w.view(ctx, e)
}

// find is the entry of a delivery that is known.
func (w *Worker) find(id subjects.DeliveryID) (*entry, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.index.entries[id]; ok && e.state.State != "" {
		return e, nil
	}
	return nil, subjects.Errorf(subjects.CodeNotFound, "there is no delivery %q", id).At("/delivery_id").
		WithRemedy("parley webhook ls shows those that are kept: at most a day after they were delivered, and a week after they died")
}

// view shows a delivery whole but for what may be secret.
func (w *Worker) view(ctx context.Context, e *entry) (*fleet.WebhookView, error) {
	w.mu.Lock()
	v := &fleet.WebhookView{DeliveryState: e.state, Note: w.noteLocked(e)}
	w.mu.Unlock()
	d, err := w.load(ctx, &v.DeliveryState)
	switch {
	case errors.Is(err, errGone):
		return v, nil
	case err != nil:
		return nil, err
	}
	v.Delivery = redact(d)
	return v, nil
}

// hidden stands for what is not shown.
const hidden = "(hidden)"

// redact is d without what may be secret: who names a URL often has its secret
// in the path.
func redact(d *fleet.Delivery) *fleet.Delivery {
	c := *d
	if c.URL != "" {
		c.URL = d.Target() + "/" + hidden
	}
	c.Headers = nil
	for name := range d.Headers {
		if c.Headers == nil {
			c.Headers = make(map[string]string)
		}
		c.Headers[name] = hidden
	}
	return &c
}

// noteLocked says what a pending delivery waits for.
func (w *Worker) noteLocked(e *entry) string {
	if !e.pending() {
		return ""
	}
	if w.lookup(e.endpoint) == nil {
		return "the endpoint " + e.endpoint + " is not configured at this worker"
	}
	l := e.lane
	switch {
	case l == nil:
		return ""
	case e.busy || e.state.Sending != nil:
		return "it is being sent"
	case l.orders[e.state.Order][0] != e:
		return "it waits for " + string(l.orders[e.state.Order][0].id) + ", which goes first"
	case l.failures >= w.cfg.OpenAfter:
		return "the endpoint failed several times; one delivery is tried at " + l.probeAt.UTC().Format(time.RFC3339)
	case l.hold.After(w.now()):
		return "the receiver asked for quiet until " + l.hold.UTC().Format(time.RFC3339)
	}
	return ""
}

func (w *Worker) apiReplay(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.WebhookReplay](data)
	if err != nil {
		return nil, err
	}
	var entries []*entry
	reply := &fleet.WebhookReplayReply{Deliveries: []fleet.DeliveryState{}}
	if !q.All {
		e, err := w.find(q.DeliveryID)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
	} else {
		entries = w.dead(q)
		reply.Omitted = max(0, len(entries)-replayMost)
		entries = entries[:min(len(entries), replayMost)]
	}
	for _, e := range entries {
		s, err := w.change(ctx, e, from, "replay", func(s *fleet.DeliveryState, there bool) error { return replay(s, there, from, w.now()) })
		switch {
		case err == nil:
			reply.Deliveries = append(reply.Deliveries, s)
		case !q.All:
			return nil, err
		default:
			reply.Omitted++
		}
	}
	reply.Total = len(reply.Deliveries)
	return reply, nil
}

// dead lists dead letters, the oldest first.
func (w *Worker) dead(q fleet.WebhookReplay) (list []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.index.entries {
		if e.state.State == fleet.DeliveryDead && (q.Endpoint == "" || e.state.Endpoint == q.Endpoint) &&
			(q.Since == nil || !e.state.Updated.Before(*q.Since)) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// replay makes s pending again, with all attempts and a day before it.
func replay(s *fleet.DeliveryState, there bool, from subjects.AgentID, now time.Time) error {
	switch {
	case s.State == fleet.DeliveryDelivered || s.State == fleet.DeliveryDropped || !there:
		return subjects.Errorf(subjects.CodeNotFound, "delivery %s is %s: there is nothing left to send", s.DeliveryID, s.State).At("/delivery_id").
			WithRemedy("replay what is dead: parley webhook ls --state dead")
	case s.State == fleet.DeliveryDead:
		s.Replays++
		s.NotAfter = now.Add(fleet.DefaultNotAfter)
	}
	s.State, s.Attempts, s.NextAt, s.HoldUntil, s.By = fleet.DeliveryPending, 0, nil, nil, from
	return nil
}

func (w *Worker) apiDrop(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[fleet.WebhookRef](data)
	if err != nil {
		return nil, err
	}
	e, err := w.find(q.DeliveryID)
	if err != nil {
		return nil, err
	}
	s, err := w.change(ctx, e, from, "drop", func(s *fleet.DeliveryState, _ bool) error {
		if s.State == fleet.DeliveryDelivered {
			return subjects.Errorf(subjects.CodeNotFound, "delivery %s was delivered already", s.DeliveryID).At("/delivery_id").
				WithRemedy("there is nothing to drop")
		}
		s.State, s.NextAt, s.HoldUntil, s.By = fleet.DeliveryDropped, nil, nil, from
		return nil
	})
	if err != nil {
		return nil, err
	}
	w.log.Info("webhook dropped", slog.String("delivery_id", string(e.id)), slog.String("by", string(from)))
	if err := w.purge(ctx, e); err != nil {
		w.log.Warn("delivery not removed", slog.String("delivery_id", string(e.id)), slog.Any("error", err))
	}
	return &fleet.WebhookView{DeliveryState: s}, nil
}

// change stores what f makes of a delivery's state, at the word of from. One that is being sent is
// left alone for now: its outcome must not be lost.
func (w *Worker) change(ctx context.Context, e *entry, from subjects.AgentID, verb string, f func(s *fleet.DeliveryState, there bool) error) (fleet.DeliveryState, error) {
	for range changeTries {
		w.mu.Lock()
		s, seq, there := e.state, e.stateSeq, e.seq > 0
		sending := e.busy || e.leased.After(w.now())
		w.mu.Unlock()
		if sending {
			break
		}
		if err := f(&s, there); err != nil {
			return s, err
		}
		s.Sending, s.Updated = nil, w.now()
		err := w.end(ctx, e, &s, seq, told(&s, from, verb))
		if err == nil {
			w.poke()
			return s, nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			return s, err
		}
		if err := w.refresh(ctx, e.id); err != nil {
			return s, err
		}
	}
	return fleet.DeliveryState{}, subjects.Errorf(subjects.CodeUnavailable, "delivery %s is being sent right now", e.id).
		WithRemedy("repeat the request").RetryAfter(time.Second)
}

// refresh takes in the state that the stream's leader has.
func (w *Worker) refresh(ctx context.Context, id subjects.DeliveryID) error {
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamWebhooks, subjects.WebhookEvent(id))
	if err != nil {
		return err
	}
	s, err := fleet.DecodeDeliveryState(m.Data)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index.recorded(s, m.Seq, w.now())
	return nil
}

func (w *Worker) apiStatus(_ context.Context, _ subjects.AgentID, data []byte) (any, error) {
	if _, err := fleet.DecodeRequest[fleet.WebhookStatus](data); err != nil {
		return nil, err
	}
	f := w.Figures()
	reply := fleet.WebhookStatusReply{
		Worker: w.id, Since: f.Since, Attempts: f.Attempts, Succeeded: f.Succeeded, Failed: f.Failed, Rate: f.Rate(),
		Endpoints: []fleet.WebhookEndpoint{},
	}
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	dead := make(map[string]int)
	for _, e := range w.index.entries {
		if e.state.State == fleet.DeliveryDead {
			dead[e.state.Endpoint]++
		}
	}
	names := make(map[string]bool)
	for name := range w.endpoints {
		names[name] = true
	}
	for name := range w.index.lanes {
		names[name] = true
	}
	for name := range dead {
		names[name] = true
	}
	for name := range names {
		reply.Endpoints = append(reply.Endpoints, w.statusLocked(name, dead[name], now))
	}
	slices.SortFunc(reply.Endpoints, func(a, b fleet.WebhookEndpoint) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	return &reply, nil
}

func (w *Worker) statusLocked(name string, dead int, now time.Time) fleet.WebhookEndpoint {
	_, known := w.endpoints[name]
	s := fleet.WebhookEndpoint{
		Endpoint: name, Known: known || strings.Contains(name, "://"), Circuit: fleet.CircuitClosed, Dead: dead,
		Unreached: w.unreached[name],
	}
	l := w.index.lanes[name]
	if l == nil {
		return s
	}
	s.Failures, s.Pending, s.Error = l.failures, l.size, l.last
	for e := range l.claims {
		if e.sends() || e.leased.After(now) {
			s.Sending++
		}
	}
	if l.hold.After(now) {
		s.HoldUntil = new(l.hold.UTC())
	}
	if l.failures >= w.cfg.OpenAfter {
		s.Circuit, s.ProbeAt = fleet.CircuitOpen, new(l.probeAt.UTC())
	}
	return s
}
