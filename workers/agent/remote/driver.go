package remote

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/cenkalti/backoff/v4"

	"parley/subjects/fleet"
	"parley/workers/agent"
)

// maxSends is how often one message is sent to an agent that answers it with an
// internal error of its own.
const maxSends = 3

// way is how the next events are got.
type way int

const (
	bySend      way = iota // by sending a message
	bySubscribe            // by SubscribeToTask
	byGet                  // by GetTask
)

// work is one attempt. Its fields are owned by Handle.
type work struct {
	r     *Remote
	t     *agent.Task
	card  *a2a.AgentCard
	c     *a2aclient.Client
	route fleet.Route
	id    string // of the attempt, and of its first message

	story   story
	resume  string // the id of the event to go on behind; "" for none
	sends   int    // of the current message
	asked   int    // questions
	silent  bool   // the agent's card says that it does not stream
	deaf    bool   // the agent takes no subscriptions
	answers string // the id of the question that the current message answers
	known   func() // called when the task is known
	wg      sync.WaitGroup
}

// Handle hands a task to the remote agent and sees it through.
func (r *Remote) Handle(ctx context.Context, t *agent.Task) (fleet.Result, error) {
	route, err := nextRoute(t.Dispatch, r.cfg.Identity.address())
	if err != nil {
		return fleet.Result{}, err
	}
	card, err := r.current(ctx)
	if err != nil {
		return fleet.Result{}, r.failure(err)
	}
	c, err := r.connect(ctx, card, t.Dispatch.Traceparent)
	if err != nil {
		return fleet.Result{}, r.failure(err)
	}
	defer func() { _ = c.Destroy() }()
	w := &work{
		r: r, t: t, card: card, c: c, route: route, silent: !card.Capabilities.Streaming,
		id: "parley-" + string(t.ID()) + "-" + strconv.Itoa(max(t.Dispatch.Attempt, 1)),
	}
	hearing, deaf := context.WithCancel(ctx)
	res, err := w.run(ctx, hearing)
	deaf()
	w.wg.Wait()
	if !w.story.over() {
		w.abandon(ctx)
	}
	return res, err
}

// run goes on until the remote task has ended, or ctx, or the agent's patience.
// Follow-ups are passed on while hearing lasts.
func (w *work) run(ctx, hearing context.Context) (fleet.Result, error) {
	msg := w.first()
	next := bySend
	heard := time.Now() // of the agent
	again := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(200*time.Millisecond), backoff.WithMaxInterval(10*time.Second), backoff.WithMaxElapsedTime(0),
	)
	w.known = sync.OnceFunc(func() { w.wg.Go(func() { w.passOn(hearing) }) })
	for {
		news, err := w.consume(ctx, next, msg)
		switch {
		case ctx.Err() != nil:
			return fleet.Result{TokensSpent: w.story.tokens}, context.Cause(ctx)
		case w.story.over():
			return w.story.outcome(w.t.Dispatch)
		}
		if news > 0 || err == nil && next == byGet {
			heard = time.Now()
		}
		if news > 1 || news > 0 && next != bySubscribe {
			again.Reset()
		}
		if w.story.asks() && !w.unheard(msg) {
			answer, askErr := w.ask(ctx)
			if askErr != nil {
				return fleet.Result{TokensSpent: w.story.tokens}, askErr
			}
			msg, next, heard, w.sends = answer, bySend, time.Now(), 0
			continue
		}
		if news == 0 && err == nil && next != byGet {
			err = errEmpty
		}
		if f := w.fatal(next, msg, err); f != nil {
			return fleet.Result{TokensSpent: w.story.tokens}, f
		}
		if news == 0 && !errors.Is(err, errIdle) && time.Since(heard) > w.r.cfg.Patience {
			return fleet.Result{TokensSpent: w.story.tokens}, &agent.Fail{
				Retryable: true, Err: err, Message: "the remote agent was silent for " + w.r.cfg.Patience.String() + ": " + errText(err),
			}
		}
		if err != nil {
			w.r.log.Debug("the remote agent is asked again", slog.String("task_id", string(w.t.ID())), slog.Any("error", err))
		}
		wait := max(again.NextBackOff(), retryAfter(err))
		if err := pause(ctx, wait); err != nil {
			return fleet.Result{TokensSpent: w.story.tokens}, err
		}
		next = w.after(ctx, next, msg, err)
	}
}

// errEmpty: a stream that has nothing in it.
var errEmpty = errors.New("its stream ends before anything is told")

// first is the message that begins the task.
func (w *work) first() *a2a.Message {
	d := w.t.Dispatch
	via := make([]any, len(w.route.Via))
	for i, address := range w.route.Via {
		via[i] = address
	}
	meta := map[string]any{fleet.RouteURI: map[string]any{"via": via}}
	text := agent.Prompt(d)
	if speaks(w.card, fleet.ContractURI) {
		meta[fleet.ContractURI] = terms(d)
	}
	m := &a2a.Message{
		ID: w.id, Role: a2a.MessageRoleUser, Parts: a2a.ContentParts{a2a.NewTextPart(strings.TrimSuffix(text, "\n"))},
		Metadata: meta, ContextID: w.id,
	}
	if s := d.Task.SessionID; s != "" {
		m.ContextID = string(s) // the agent may remember what else belongs to it
	}
	for _, uri := range []string{fleet.ContractURI, fleet.RouteURI} {
		if speaks(w.card, uri) {
			m.Extensions = append(m.Extensions, uri)
		}
	}
	if d.Input != nil {
		for _, p := range a2aParts(d.Input.Parts) {
			if p.Text() == "" {
				m.Parts = append(m.Parts, p)
			}
		}
	}
	return m
}

// terms are those of a dispatch that a fleet behind the agent can keep. What it
// requires of an agent is ours, and has been met.
func terms(d *fleet.Dispatch) map[string]any {
	t := map[string]any{"escalate": string(fleet.EscalateNever)}
	if d.Task.Priority != "" {
		t["priority"] = string(d.Task.Priority)
	}
	if d.Task.TokenBudget > 0 {
		t["token_budget"] = d.Task.TokenBudget
	}
	if d.Deadline != nil {
		t["deadline"] = d.Deadline.UTC().Format(time.RFC3339Nano)
	}
	if d.Task.TimeoutSeconds > 0 {
		t["timeout_seconds"] = d.Task.TimeoutSeconds
	}
	return t
}

// consume gets events in one way until there are no more, and tells them on. It
// returns how many there were.
func (w *work) consume(ctx context.Context, by way, msg *a2a.Message) (n int, err error) {
	if by == byGet {
		return w.look(ctx)
	}
	sctx, pulse, end := newPulse(ctx, w.r.cfg.Idle)
	defer end()
	sctx, got := withReceipt(sctx)
	defer func() { err = got.unreadable(err) }()
	if by == bySend && w.silent {
		pulse.timer.Stop() // the answer may take as long as the task
	}
	params := a2aclient.ServiceParams{}
	if by == bySend {
		params[headerKey] = []string{msg.ID}
	}
	if by == bySubscribe && w.resume != "" {
		params["Last-Event-ID"] = []string{w.resume}
	}
	sctx = a2aclient.AttachServiceParams(sctx, params)
	stream := w.c.SubscribeToTask(sctx, &a2a.SubscribeToTaskRequest{ID: w.story.task})
	if by == bySend {
		w.sends++
		stream = w.c.SendStreamingMessage(sctx, &a2a.SendMessageRequest{Message: msg, Config: &a2a.SendMessageConfig{ReturnImmediately: w.silent}})
	}
	for e, err := range stream {
		if err != nil {
			if errors.Is(context.Cause(sctx), errIdle) {
				err = errIdle
			}
			return n, err
		}
		if !w.silent {
			pulse.alive()
		}
		id := pulse.take()
		if err := w.tell(ctx, e); err != nil {
			w.resume = ""
			return n, err
		}
		w.resume = id
		n++
		if w.story.over() || w.story.asks() && !w.unheard(msg) {
			return n, nil
		}
	}
	if errors.Is(context.Cause(sctx), errIdle) {
		return n, errIdle
	}
	return n, nil
}

// Headers of requests.
const (
	headerKey        = "Idempotency-Key"
	headerTrace      = "traceparent"
	headerExtensions = "A2A-Extensions"
)

func withKey(ctx context.Context, key string) context.Context {
	return a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{headerKey: {key}})
}

// look asks for the task as it is.
func (w *work) look(ctx context.Context) (int, error) {
	c, cancel := context.WithTimeout(ctx, w.r.cfg.Timeout)
	defer cancel()
	c, got := withReceipt(c)
	task, err := w.c.GetTask(c, &a2a.GetTaskRequest{ID: w.story.task})
	if err != nil {
		return 0, got.unreadable(err)
	}
	was := w.story.state
	if err := w.tell(ctx, task); err != nil {
		return 0, got.unreadable(err)
	}
	w.resume = ""
	if w.story.state == was {
		return 0, nil
	}
	return 1, nil
}

// tell takes an event in and tells it on.
func (w *work) tell(ctx context.Context, e a2a.Event) error {
	news, err := w.story.add(e)
	if w.story.task != "" {
		w.known()
	}
	for _, n := range news {
		if n.artifact == nil {
			w.t.Progress(n.progress, -1, n.tokens)
			continue
		}
		if err := w.t.Artifact(ctx, *n.artifact); err != nil {
			return &refused{err}
		}
	}
	return err
}

// refused is the fleet's error, not the agent's.
type refused struct{ error }

func (r *refused) Unwrap() error { return r.error }

// unheard reports whether the agent still waits for msg, an answer that was
// sent and may not have arrived.
func (w *work) unheard(msg *a2a.Message) bool {
	return msg.TaskID != "" && w.sends > 0 && w.sends < maxSends && w.story.status != nil && w.story.status.ID == w.answers &&
		!slices.Contains(w.story.sent, msg.ID)
}

// after is how to go on after by ended.
func (w *work) after(ctx context.Context, by way, msg *a2a.Message, err error) way {
	switch {
	case w.story.task == "":
		w.adopt(ctx, msg)
		if w.story.task == "" {
			return bySend
		}
		return byGet
	case errors.Is(err, a2a.ErrUnsupportedOperation), errors.Is(err, a2a.ErrMethodNotFound), errors.Is(err, a2a.ErrInvalidRequest):
		w.deaf = w.deaf || by == bySubscribe
		return byGet
	case w.story.asks(): // it has not heard the answer
		return bySend
	case errors.Is(err, errIdle), errors.Is(err, errEmpty), errors.Is(err, errUnreadable):
		w.resume = ""
		return byGet
	case w.silent, w.deaf, err != nil && by != byGet && w.resume == "":
		return byGet
	}
	return bySubscribe
}

// adopt looks for the task that a message has begun whose answer was lost.
func (w *work) adopt(ctx context.Context, msg *a2a.Message) {
	c, cancel := context.WithTimeout(ctx, w.r.cfg.Timeout)
	defer cancel()
	l, err := w.c.ListTasks(c, &a2a.ListTasksRequest{ContextID: msg.ContextID})
	if err != nil || l == nil {
		return
	}
	for _, t := range l.Tasks {
		mine := t != nil && t.ContextID == msg.ContextID && (msg.ContextID == w.id ||
			slices.ContainsFunc(t.History, func(m *a2a.Message) bool { return m != nil && m.ID == msg.ID }))
		if mine && t.ID != "" {
			w.story.task, w.story.context = t.ID, t.ContextID
			return
		}
	}
}

// ask passes the agent's question on, and makes a message of the answer.
func (w *work) ask(ctx context.Context) (*a2a.Message, error) {
	w.asked++
	a, err := w.t.AskFor(ctx, w.story.question(w.id+"-q"+strconv.Itoa(w.asked)))
	if err != nil {
		return nil, err
	}
	if w.answers = ""; w.story.status != nil {
		w.answers = w.story.status.ID
	}
	m := w.reply(w.id+"-a"+strconv.Itoa(w.asked), a.Text, a.Parts)
	w.story.state = a2a.TaskStateWorking // until it says otherwise
	return m, nil
}

// reply is a message to the task.
func (w *work) reply(id, text string, parts []fleet.Part) *a2a.Message {
	m := &a2a.Message{ID: id, Role: a2a.MessageRoleUser, TaskID: w.story.task, ContextID: w.story.context, Parts: a2aParts(parts)}
	if len(m.Parts) == 0 {
		m.Parts = a2a.ContentParts{a2a.NewTextPart(text)}
	}
	return m
}

// passOn hands follow-ups to the remote task, until ctx ends.
func (w *work) passOn(ctx context.Context) {
	task, where := w.story.task, w.story.context
	for n := len(w.t.Dispatch.Messages); ; n++ {
		m, err := w.t.FollowUp(ctx, n)
		if err != nil {
			return
		}
		msg := (&work{story: story{task: task, context: where}}).reply(w.id+"-m"+strconv.Itoa(n), m.Text, m.Parts)
		for {
			c, cancel := context.WithTimeout(ctx, w.r.cfg.Timeout)
			c, got := withReceipt(c)
			_, err = w.c.SendMessage(c, &a2a.SendMessageRequest{Message: msg, Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
			cancel()
			if err = got.unreadable(err); errors.Is(err, errUnreadable) {
				err = nil // it has the message
			}
			if err == nil || ctx.Err() != nil || isProtocol(err) || errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if pause(ctx, time.Second) != nil {
				return
			}
		}
		if err != nil && ctx.Err() == nil {
			w.r.log.Warn("pass a follow-up on", slog.String("task_id", string(w.t.ID())), slog.Any("error", err))
			w.t.Progress("a follow-up could not be passed on: "+errText(err), -1, 0)
		}
	}
}

// abandon cancels the remote task, which nobody waits for any more.
func (w *work) abandon(ctx context.Context) {
	// The reason to cancel is that ctx has ended.
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(w.r.cfg.Timeout, 10*time.Second))
	defer cancel()
	if w.story.task == "" && w.sends > 0 {
		w.adopt(c, &a2a.Message{ID: w.id, ContextID: w.id})
	}
	if w.story.task == "" {
		return
	}
	for range maxSends {
		_, err := w.c.CancelTask(c, &a2a.CancelTaskRequest{ID: w.story.task})
		if err == nil || isProtocol(err) {
			return
		}
		w.r.log.Info("cancel the remote task", slog.String("task_id", string(w.t.ID())), slog.Any("error", err))
		if pause(c, time.Second) != nil {
			return
		}
	}
}
