package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// onOffer answers an offer: accepted, busy, or blocked before anything is
// spent. The work begins once the answer is sent.
func (w *Worker) onOffer(life context.Context, m bus.Msg) {
	now := time.Now()
	d, err := fleet.DecodeDispatch(m.Data)
	if err == nil && d.Task.TaskID == "" {
		err = subjects.Errorf(subjects.CodeInvalidMessage, "an offer names its task").At("/task/task_id")
	}
	if err != nil {
		e := subjects.AsError(err)
		w.log.Warn("refuse an offer that cannot be read", slog.Any("error", err))
		w.refuse(m, d, &fleet.ResultError{Code: e.Code, Message: e.Error()})
		return
	}
	if d.Epoch > w.epoch {
		w.log.Debug("an offer is for a newer process of this instance", slog.String("task_id", string(d.Task.TaskID)), slog.Int64("newer_epoch", d.Epoch))
		return
	}
	fillOffer(d, now)
	if w.cfg.Only != nil && !w.cfg.Only(d) {
		w.busy(m, "it takes tasks of its own only")
		return
	}
	ctx, h := w.newHeld(life, d)
	verdict, why, e := w.hand.admit(h, now, func() *fleet.ResultError {
		if e := check(d, w.state.get(), w.abilities(), now); e != nil {
			return e
		}
		return w.limitNow(now)
	})
	switch {
	case verdict == takeOver:
		w.log.Debug("accepted again", slog.String("task_id", string(h.id)), slog.Int("attempt", h.attempt))
		w.accept(m)
	case e != nil && e.Code == subjects.CodeRateLimited:
		w.limited(m, d, e)
	case e != nil:
		w.refuse(m, d, e)
	case verdict == refuseBusy:
		w.busy(m, why)
	case d.Requirements.CleanRepo:
		// What is known of the work tree is some seconds old: look again, and
		// let other offers pass meanwhile.
		w.wg.Go(func() {
			w.lookAtRepo(ctx)
			e := checkRepo(d, w.state.get())
			if e != nil {
				w.hand.forget(h)
				w.refuse(m, d, e)
				return
			}
			w.start(ctx, life, m, h)
		})
		return
	default:
		w.start(ctx, life, m, h)
		return
	}
	h.cancel(errGone)
}

// start accepts the offer of a reserved task and begins to work on it.
func (w *Worker) start(ctx, life context.Context, m bus.Msg, h *held) {
	if err := w.hand.begin(h); err != nil {
		w.hand.forget(h)
		w.busy(m, "the offer was canceled: "+err.Error())
		return
	}
	if !w.accept(m) {
		w.hand.forget(h)
		return
	}
	w.log.Debug("accepted", slog.String("task_id", string(h.id)), slog.Int("attempt", h.attempt),
		slog.String("trace_id", fleet.TraceOf(h.id, h.task.Dispatch.Traceparent).TraceID()))
	w.work.Go(func() { w.do(ctx, life, h) })
}

// newHeld makes the task of an offer, and the context of its handler.
func (w *Worker) newHeld(life context.Context, d *fleet.Dispatch) (context.Context, *held) {
	ctx, cancel := context.WithCancelCause(life)
	h := &held{
		id: d.Task.TaskID, attempt: d.Attempt,
		limit:    cmp.Or(time.Duration(d.Task.TimeoutSeconds*float64(time.Second)), fleet.DefaultTimeout),
		deadline: *d.Deadline, cancel: cancel,
		offers:   map[string]bool{},
		followed: make(chan struct{}), followUps: slices.Clone(d.Messages), questions: map[string]*open{}, answered: map[string]bool{},
	}
	if d.OfferID != "" {
		h.offers[d.OfferID] = true
	}
	h.moved, h.move = context.WithCancel(context.Background())
	l := link{w, h}
	h.task = &Task{Dispatch: d, agent: w.cfg.ID, line: l}
	h.pace.every, h.pace.send = w.cfg.MinProgress, l.send
	return ctx, h
}

// fillOffer sets what an offer may leave out.
func fillOffer(d *fleet.Dispatch, now time.Time) {
	d.Attempt = max(d.Attempt, 1)
	if d.Deadline == nil {
		d.Deadline = new(now.Add(fleet.DefaultDeadline))
	}
	// What the agent does is part of its attempt.
	trace := fleet.TraceOf(d.Task.TaskID, d.Traceparent)
	d.Traceparent = trace.Traceparent(trace.Span(fleet.SpanAttempt, d.Attempt))
}

func (w *Worker) accept(m bus.Msg) bool {
	return w.respond(m, &fleet.Ack{Header: header(fleet.TypeAck), Accepted: true, Epoch: w.epoch})
}

func (w *Worker) busy(m bus.Msg, why string) {
	w.respond(m, &fleet.Ack{
		Header: header(fleet.TypeAck), Epoch: w.epoch,
		Reason: &fleet.Reason{Code: subjects.CodeAgentBusy, Message: why},
	})
}

// limited answers an offer while a limit of the handler holds.
func (w *Worker) limited(m bus.Msg, d *fleet.Dispatch, e *fleet.ResultError) {
	w.log.Debug("offer refused until a limit ends", slog.String("task_id", string(d.Task.TaskID)), slog.Any("reset_at", e.ResetAt))
	w.respond(m, &fleet.Ack{
		Header: header(fleet.TypeAck), Epoch: w.epoch,
		Reason:            &fleet.Reason{Code: e.Code, Message: clip(e.Message, maxMessage)},
		RetryAfterSeconds: e.RetryAfterSeconds, ResetAt: e.ResetAt, LimitTier: e.LimitTier,
	})
}

// refuse answers an offer with a blocked result that cost nothing. d is nil
// when the offer could not be read.
func (w *Worker) refuse(m bus.Msg, d *fleet.Dispatch, e *fleet.ResultError) {
	r := refusal(fleet.Result{
		Header: header(fleet.TypeResult), NextSteps: []string{}, Epoch: w.epoch,
		AgentID: w.cfg.ID, InstanceID: w.cfg.Instance,
	}, e)
	if d != nil {
		r.TaskID, r.Attempt = d.Task.TaskID, d.Attempt
	}
	w.log.Info("offer was refused", slog.String("task_id", string(r.TaskID)), slog.String("code", string(e.Code)), slog.String("reason", e.Message))
	w.respond(m, &r)
}

func (w *Worker) respond(m bus.Msg, v any) bool {
	if err := m.Respond(fleet.MustEncode(v), nil); err != nil {
		w.log.Warn("answer a router", slog.String("subject", m.Subject), slog.Any("error", err))
		return false
	}
	return true
}

// abilities is what of an agent never changes and a task may require.
type abilities struct {
	tier, tiers  string // tiers: all of them, least first, each between spaces
	capabilities []string
	labels       map[string]string
}

func (w *Worker) abilities() abilities {
	v := w.state.get()
	return abilities{
		tier: w.cfg.ModelTier, tiers: " " + strings.Join(w.cfg.Tiers, " ") + " ",
		capabilities: slices.Concat(w.cfg.Tools, skillNames(v.skills), slices.Sorted(maps.Keys(v.health))),
		labels:       w.cfg.Labels,
	}
}

// check says why a task must be refused, nil if it need not be: S1's
// executor-side validation. It decides purely. The router has asked the same
// questions, of an older announce.
func check(d *fleet.Dispatch, v vitals, a abilities, now time.Time) *fleet.ResultError {
	if !now.Before(*d.Deadline) {
		return &fleet.ResultError{
			Code:    subjects.CodeDeadlineExceeded,
			Message: "the deadline " + d.Deadline.UTC().Format(time.RFC3339) + " has passed",
		}
	}
	for _, name := range d.Requirements.RequiredMCP {
		if health, known := v.health[name]; !known {
			return &fleet.ResultError{Code: subjects.CodeMCPUnhealthy, Message: fmt.Sprintf("there is no MCP server %q here", name)}
		} else if health != fleet.HealthOK {
			return &fleet.ResultError{Code: subjects.CodeMCPUnhealthy, Message: fmt.Sprintf("MCP server %q is not healthy: %s", name, health)}
		}
	}
	for _, name := range d.Requirements.RequiredCapabilities {
		if !slices.Contains(a.capabilities, name) {
			return incapable("the capability %q is missing", name)
		}
	}
	if want := d.Requirements.ModelTier; want != "" && below(a, want) {
		return incapable("the model tier is %q, the task asks for %q", a.tier, want)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Requirements.Labels)) {
		if want := d.Requirements.Labels[name]; a.labels[name] != want {
			return incapable("the label %s is %q, the task asks for %q", name, a.labels[name], want)
		}
	}
	return checkRepo(d, v)
}

// below reports whether the agent's tier is less than want. Of tiers that are
// not known here the router alone can judge.
func below(a abilities, want string) bool {
	if a.tier == "" {
		return true
	}
	have, asked := strings.Index(a.tiers, " "+a.tier+" "), strings.Index(a.tiers, " "+want+" ")
	return have >= 0 && asked >= 0 && have < asked
}

func checkRepo(d *fleet.Dispatch, v vitals) *fleet.ResultError {
	switch {
	case !d.Requirements.CleanRepo:
		return nil
	case v.repo == nil:
		return &fleet.ResultError{Code: subjects.CodeDirtyRepo, Message: "the agent has no git work tree that can be read"}
	case !v.repo.Clean:
		return &fleet.ResultError{Code: subjects.CodeDirtyRepo, Message: fmt.Sprintf("the work tree (branch %s) has uncommitted changes", v.repo.Branch)}
	}
	return nil
}

func incapable(format string, args ...any) *fleet.ResultError {
	return &fleet.ResultError{Code: subjects.CodeNoCapableAgent, Message: fmt.Sprintf(format, args...)}
}
