package router

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"parley/bus"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// atOnce is how many calls a router deals with at a time, and maxWaiting how many of
// them may wait for the end of a task: a goroutine each. The rest is for the others.
const (
	atOnce     = 1 << 14
	maxWaiting = atOnce / 4 * 3
)

// service is the routers' half of the fleet's API.
func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "fleet", Version: "2.0.0", Queue: "routers",
		Description: "Parley: dispatch tasks to a fleet of agents and follow them",
		Metadata:    map[string]string{"kind": "router", "router_id": string(w.cfg.ID), bus.MetaProgram: w.cfg.Version},
		Concurrency: atOnce,
		Figures:     func() any { return w.Figures() },
	}
	for _, e := range []struct {
		noun, verb, does string
		call             func(context.Context, subjects.AgentID, bus.Msg) (any, error)
	}{
		{"task", "dispatch", "accept a TASK_DISPATCH or a plain-text brief", w.apiDispatch},
		{"task", "get", "a task as its latest record tells it", of(w.apiGet)},
		{"task", "wait", "a task once it has ended, or when the time is over", of(w.apiWait)},
		{"task", "list", "the tasks that live and those that ended lately", of(w.apiList)},
		{"task", "events", "the records of a task", of(w.apiEvents)},
		{"task", "cancel", "end a task", of(w.apiCancel)},
		{"task", "answer", "answer the open question of a task", of(w.apiAnswer)},
		{"task", "message", "add a follow-up to a task that is under way", of(w.apiMessage)},
		{"task", "resume", "answer a task that waits for a human", of(w.apiResume)},
		{"task", "explain", "why each agent was or was not chosen", of(w.apiExplain)},
		{"agent", "drain", "offer an agent nothing more", of(w.apiDrain(true))},
		{"agent", "resume", "offer an agent tasks again", of(w.apiDrain(false))},
		{"agent", "limits", "the accounts that are limited, and until when", of(w.apiLimits)},
		{"agent", "lift", "end the limits of an account", of(w.apiLift)},
		{"task", "waiting", "why tasks wait, cause by cause", of(w.apiWaiting)},
	} {
		pattern := subjects.APIPattern(e.noun, e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: e.noun + "-" + e.verb, Subject: pattern,
			Metadata: map[string]string{"description": e.does},
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				if e.verb != "wait" { // which has its own
					ctx = w.patience()
				}
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "subject %s does not follow %s", m.Subject, pattern)
				}
				v, err := e.call(ctx, subjects.AgentID(vars[0]), m)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// of is a call that needs no more of a request than its data.
func of(call func(context.Context, subjects.AgentID, []byte) (any, error)) func(context.Context, subjects.AgentID, bus.Msg) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, m bus.Msg) (any, error) {
		return call(ctx, from, m.Data)
	}
}

func (w *Worker) operator(from subjects.AgentID) bool { return slices.Contains(w.cfg.Operators, from) }

// visible is the task if from may see it: its own, or any for an operator. To
// others a task does not exist.
func (w *Worker) visible(ctx context.Context, from subjects.AgentID, task subjects.TaskID) (*view, error) {
	id, err := subjects.ParseTaskID(string(task))
	if err != nil {
		return nil, subjects.AsError(err).At("/task_id")
	}
	v, err := w.latest(ctx, id)
	if err != nil {
		return nil, err
	}
	if v.ev.Facts.From != from && !w.operator(from) && !plant.Bug("stranger_sees") {
		return nil, errNoTask
	}
	return v, nil
}

func (w *Worker) apiGet(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskRef](data)
	if err != nil {
		return nil, err
	}
	v, err := w.visible(ctx, from, req.TaskID)
	if err == nil && !v.sure {
		v, err = w.reread(ctx, req.TaskID) // what the caller has heard of is there
	}
	if err != nil {
		return nil, err
	}
	if v.ev.Seq > 1 && plant.Sometimes("stale_task", 5) {
		stale := *v.ev
		stale.Seq--
		v.ev = &stale
	}
	return w.show(ctx, v, true), nil
}

// show is what a caller sees of a task.
func (w *Worker) show(ctx context.Context, v *view, brief bool) fleet.TaskView {
	e := v.ev
	t := fleet.TaskView{
		TaskID: e.TaskID, State: e.State, From: e.Facts.From, Priority: e.Facts.Priority,
		Attempt: e.Attempt, AgentID: e.AgentID, InstanceID: e.InstanceID,
		Created: e.Facts.Created, Updated: e.Time, Deadline: e.Facts.Deadline,
		TokensSpent: e.Facts.TokensSpent, TokenBudget: e.Facts.TokenBudget, Seq: e.Seq,
		Reason: e.Reason, NotBefore: e.Facts.NotBefore, Question: e.Facts.Question, Attempts: e.Facts.Attempts,
		RunID: e.Facts.RunID, SessionID: e.Facts.SessionID, Labels: e.Facts.Requirements.Labels,
		Await: e.Facts.Await, AlertAt: e.Facts.AlertAt, GiveUpAt: e.Facts.GiveUpAt, Human: e.Facts.Human,
	}
	w.mu.Lock()
	t.Waiting = w.core.waitingOf(e, w.now())
	w.mu.Unlock()
	for _, c := range w.ledger.ceilings(&e.Facts) {
		t.Shared = append(t.Shared, fleet.SharedBudget{Of: c.Of, TokenBudget: c.Budget, TokensSpent: c.Spent})
	}
	if e.State.Terminal() {
		result := e.Data.Result
		if r, err := fleet.DecodeReply[fleet.Result](result); err == nil {
			t.Result = &r
		}
	}
	if brief && v.firstSeq != 0 {
		if raw, err := w.dispatchOf(ctx, v); err == nil {
			describe(&t, raw)
		}
	}
	return t
}

// describe adds what only the dispatch tells.
func describe(t *fleet.TaskView, dispatch json.RawMessage) {
	d, err := fleet.DecodeReply[fleet.Dispatch](dispatch)
	if err != nil {
		return
	}
	t.Brief, t.Type, t.NodeID = clip(d.Brief, 200), d.Task.Type, d.Task.NodeID
}

func (w *Worker) apiWait(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskWait](data)
	if err != nil {
		return nil, err
	}
	timeout := 4 * time.Second
	if req.TimeoutSeconds > 0 {
		timeout = min(seconds(req.TimeoutSeconds), time.Minute)
	}
	defer w.waiting.Add(-1)
	if w.waiting.Add(1) > maxWaiting {
		return nil, subjects.Errorf(subjects.CodeRateLimited, "%d calls wait for tasks to end, which is as many as a router takes", maxWaiting).
			WithRemedy("repeat later, or listen to fleet.outcome.<you>.<task> and then ask task get").RetryAfter(time.Second)
	}
	ended := make(chan struct{})
	w.mu.Lock()
	w.core.waiters[req.TaskID] = append(w.core.waiters[req.TaskID], ended)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.core.waiters[req.TaskID] = slices.DeleteFunc(w.core.waiters[req.TaskID], func(c chan struct{}) bool { return c == ended })
		if len(w.core.waiters[req.TaskID]) == 0 {
			delete(w.core.waiters, req.TaskID)
		}
	}()
	v, err := w.visible(ctx, from, req.TaskID)
	if err != nil {
		return nil, err
	}
	if v.ev.State.Terminal() {
		return w.show(ctx, v, false), nil
	}
	over := time.NewTimer(timeout)
	defer over.Stop()
	select {
	case <-ended:
	case <-over.C:
	case <-ctx.Done():
		return nil, unavailable(ctx.Err())
	}
	if v, err = w.visible(ctx, from, req.TaskID); err != nil {
		return nil, err
	}
	return w.show(ctx, v, false), nil
}

func (w *Worker) apiEvents(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskEvents](data)
	if err != nil {
		return nil, err
	}
	v, err := w.visible(ctx, from, req.TaskID)
	if err != nil {
		return nil, err
	}
	limit := 100
	if req.Limit > 0 {
		limit = min(req.Limit, 1000)
	}
	start := v.firstSeq
	if start == 0 {
		start = v.lastSeq
	}
	reply := fleet.TaskEventsReply{Events: []fleet.Event{}}
	for size := 0; ; {
		page, more, err := w.bus.History(ctx, subjects.StreamTasks, subjects.Task(req.TaskID), start, limit+1)
		if err != nil {
			return nil, unavailable(err)
		}
		for _, m := range page {
			start = m.Seq + 1
			ev, err := fleet.DecodeEvent(m.Data)
			if err != nil {
				return nil, err
			}
			if ev.Seq <= req.AfterSeq {
				continue
			}
			if size += len(m.Data); len(reply.Events) == limit || size > fleet.MaxMessage/2 && len(reply.Events) > 0 {
				reply.More = true
				return reply, nil
			}
			reply.Events = append(reply.Events, *ev)
		}
		if !more {
			return reply, nil
		}
	}
}

func (w *Worker) apiCancel(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskCancel](data)
	if err != nil {
		return nil, err
	}
	if _, err := w.visible(ctx, from, req.TaskID); err != nil {
		return nil, err
	}
	var before *fleet.Event
	n, err := w.change(ctx, req.TaskID, func(v *view) (*fleet.Event, error) {
		before = v.ev
		if v.ev.State.Terminal() {
			return nil, nil
		}
		if plant.Bug("cancel_lost") {
			lie := *v.ev
			lie.State = fleet.StateCanceled
			v.ev = &lie
			return nil, nil
		}
		spent := w.spentSoFar(v.ev)
		n := canceled(withSpent(v.ev, spent), from, req.Reason, w.now())
		if spent > 0 {
			n.Data.Spent = &fleet.Spent{AgentID: v.ev.AgentID, Attempt: v.ev.Attempt, Tokens: spent}
		}
		return n, nil
	})
	if err != nil {
		return nil, err
	}
	if held(before) && n.State == fleet.StateCanceled {
		w.wg.Go(func() {
			w.recall(w.work, recall{to: instanceKey{before.AgentID, before.InstanceID}, task: req.TaskID, attempt: before.Attempt, why: subjects.CodeCanceled})
		})
	}
	return w.show(ctx, &view{ev: n}, false), nil
}

func (w *Worker) apiAnswer(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskAnswer](data)
	if err != nil {
		return nil, err
	}
	if _, err := w.visible(ctx, from, req.TaskID); err != nil {
		return nil, err
	}
	n, err := w.change(ctx, req.TaskID, func(v *view) (*fleet.Event, error) {
		open := v.ev.Facts.Question
		if a := v.ev.Facts.Answer; open == nil && a != nil && cmp.Or(req.QuestionID, a.QuestionID) == a.QuestionID && a.Text == req.Text {
			return nil, nil // answered so already
		}
		if open == nil || req.QuestionID != "" && req.QuestionID != open.ID {
			return nil, subjects.Errorf(subjects.CodeInvalidMessage, "task %s is %s and has no such open question", req.TaskID, v.ev.State).
				At("/question_id").WithRemedy("task get shows the open question, if there is one")
		}
		if req.Text == "" && len(req.Parts) == 0 {
			return nil, subjects.Errorf(subjects.CodeInvalidMessage, "the answer is empty").At("/text").WithRemedy("give text or parts")
		}
		return answered(v.ev, &fleet.Answer{
			QuestionID: open.ID, From: from, MessageID: req.MessageID, Text: req.Text, Parts: req.Parts, MessageExtras: req.MessageExtras,
		}, w.now()), nil
	})
	if err != nil {
		return nil, err
	}
	v := w.delivered(ctx, n, inputOfAnswer(n.TaskID, &fleet.Answer{
		QuestionID: cmp.Or(req.QuestionID, questionOf(n)), MessageID: req.MessageID, Text: req.Text, Parts: req.Parts, MessageExtras: req.MessageExtras,
	}))
	return v, nil
}

// questionOf is the question that the last answer is for.
func questionOf(e *fleet.Event) string {
	if e.Facts.Answer == nil {
		return ""
	}
	return e.Facts.Answer.QuestionID
}

func (w *Worker) apiExplain(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskRef](data)
	if err != nil {
		return nil, err
	}
	v, err := w.visible(ctx, from, req.TaskID)
	if err != nil {
		return nil, err
	}
	now := w.now()
	w.mu.Lock()
	cl := w.core.fleet.Compile(need(v.ev))
	x := fleet.TaskExplanation{TaskID: v.ev.TaskID, State: v.ev.State, Agents: w.core.fleet.Explain(cl, now)}
	could, _ := w.core.fleet.Capable(cl)
	settled := w.core.settled
	x.Waiting = w.core.waitingOf(v.ev, now)
	w.mu.Unlock()
	eligible := 0
	for i := range x.Agents {
		a := &x.Agents[i]
		a.Holder = held(v.ev) && a.AgentID == v.ev.AgentID && a.InstanceID == v.ev.InstanceID
		if a.Eligible {
			eligible++
		}
	}
	if n := len(x.Agents); n > maxExplained {
		slices.SortStableFunc(x.Agents, func(a, b fleet.AgentVerdict) int { return cmp.Compare(rank(a), rank(b)) })
		x.Agents, x.Omitted = x.Agents[:maxExplained], n-maxExplained
	}
	x.Summary = summary(v.ev, eligible, could, settled, now)
	return x, nil
}

// maxExplained bounds an explanation: the holder and the eligible come first.
const maxExplained = 1000

func rank(a fleet.AgentVerdict) int {
	switch {
	case a.Holder:
		return 0
	case a.Eligible:
		return 1
	}
	return 2
}

func summary(e *fleet.Event, eligible int, could, settled bool, now time.Time) string {
	switch {
	case e.State.Terminal() && e.AgentID != "":
		return "the task has ended: " + string(e.State) + ", by " + string(e.AgentID)
	case e.State.Terminal():
		return "the task has ended: " + string(e.State)
	case held(e):
		return "held by " + string(e.AgentID) + "/" + string(e.InstanceID)
	case e.State == fleet.StateInputRequired:
		return "waits for a human"
	case e.Facts.NotBefore != nil && e.Facts.NotBefore.After(now):
		return "will be tried again at " + e.Facts.NotBefore.Format(time.RFC3339)
	case eligible > 0:
		return "waits for its turn; somebody is free"
	case could:
		return "waits: somebody could do it, but is busy, sick, draining or gone"
	case !settled:
		return "waits: the router listens for agents before it judges"
	}
	return "nobody known could ever do it"
}

// A listing that only the records can tell looks at so many tasks, for so long.
const (
	maxSearched = 2000
	searchFor   = 2 * time.Second
)

func (w *Worker) apiList(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskList](data)
	if err != nil {
		return nil, err
	}
	limit := 100
	if req.Limit > 0 {
		limit = min(req.Limit, 1000)
	}
	most, until := limit, time.Now().Add(searchFor)
	if needsRecords(&req) {
		most = maxSearched
	}
	found, total, counts := w.find(from, req, most)
	reply := fleet.TaskListReply{Tasks: []fleet.TaskView{}, Total: total, Count: counts}
	if needsRecords(&req) {
		reply.Total = 0
	}
	for i, f := range found {
		if needsRecords(&req) && (len(reply.Tasks) == limit || time.Now().After(until)) {
			reply.Searched = i
			break
		}
		v, err := w.atSeq(ctx, f)
		if errors.Is(err, bus.ErrNotFound) {
			continue // purged since
		}
		if err != nil {
			return nil, unavailable(err)
		}
		t := w.show(ctx, v, true)
		t.Result, t.Attempts = nil, nil
		if !needsRecords(&req) {
			reply.Tasks = append(reply.Tasks, t)
		} else if matches(&req, &t) {
			reply.Tasks = append(reply.Tasks, t)
			reply.Total++
		}
	}
	if reply.Searched == 0 && needsRecords(&req) && len(found) < total {
		reply.Searched = len(found)
	}
	return reply, nil
}
