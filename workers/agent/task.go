package agent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// Task is what a Handler works on. Its methods may be called from any
// goroutine until Handle returns. A Task made by hand, as &Task{Dispatch: d},
// has nobody to report to: progress and artifacts go nowhere and Ask fails.
type Task struct {
	// Dispatch is the offer: the task, its terms, and what only an offer
	// carries. From, Attempt, Task.TaskID and Deadline are always set.
	Dispatch *fleet.Dispatch

	agent subjects.AgentID
	line  line // nil: nobody listens
}

// line is how a task reports.
type line interface {
	progress(p progress)
	artifact(ctx context.Context, a fleet.Artifact) error
	ask(ctx context.Context, q fleet.Question) (fleet.Answer, error)
	followUp(ctx context.Context, n int) (fleet.Message, error)
	askAgents(ctx context.Context, q Question) ([]mesh.Answer, error)
}

// progress is one report; what is nil is not known.
type progress struct {
	text    string
	percent *float64
	tokens  *int64
}

// ID is the task's id.
func (t *Task) ID() subjects.TaskID { return t.Dispatch.Task.TaskID }

// Progress tells whoever listens how far the work is: what it is at, how much
// of it is done (0 to 100; negative: not known), and what it has spent so far
// (0: not known). It is heard live and not kept, and is best effort: of reports
// that come faster than Config.MinProgress only the latest is sent.
func (t *Task) Progress(text string, percent float64, tokens int64) {
	if t.line == nil {
		return
	}
	p := progress{text: clip(text, maxMessage)}
	if percent >= 0 {
		p.percent = new(math.Min(percent, 100))
	}
	if tokens > 0 {
		p.tokens = &tokens
	}
	t.line.progress(p)
}

// Artifact hands in a piece of output while the work goes on. It returns once
// the fleet has stored it. The error is ctx's cause, or what the fleet said, a
// *subjects.Error: superseded, for one. An empty ArtifactID is filled.
func (t *Task) Artifact(ctx context.Context, a fleet.Artifact) error {
	if t.line == nil {
		return nil
	}
	if a.ArtifactID == "" {
		a.ArtifactID = rand.Text()
	}
	return t.line.artifact(ctx, a)
}

// Ask asks whoever dispatched the task, or a human, and waits for the answer,
// which may take long. Until then the task is input_required, and the time does
// not count towards the attempt's. The error is as Artifact's.
func (t *Task) Ask(ctx context.Context, question string) (fleet.Answer, error) {
	return t.AskFor(ctx, fleet.Question{Text: question})
}

// AskFor is Ask with all that a question can carry. An empty ID is filled; one
// that was used before in this task is refused.
func (t *Task) AskFor(ctx context.Context, q fleet.Question) (fleet.Answer, error) {
	if t.line == nil {
		return fleet.Answer{}, errors.New("nobody to ask")
	}
	if q.ID == "" {
		q.ID = rand.Text()
	}
	return t.line.ask(ctx, q)
}

// FollowUp waits for the n-th message (from 0) that somebody has added to the
// task. Those that came before the offer are in Dispatch.Messages, too. The
// error is ctx's cause.
func (t *Task) FollowUp(ctx context.Context, n int) (fleet.Message, error) {
	if t.line == nil {
		return fleet.Message{}, errors.New("nobody to hear from")
	}
	return t.line.followUp(ctx, n)
}

// budget is how many tokens the attempt may spend, 0 for no bound.
func (t *Task) budget() int64 { return cmp.Or(t.Dispatch.TokensLeft, t.Dispatch.Task.TokenBudget) }

// wasInvalid reports whether the offer says that this agent's last result broke
// its schema: sending that one again would help nobody.
func (t *Task) wasInvalid() bool {
	n := len(t.Dispatch.Tried)
	return n > 0 && t.Dispatch.Tried[n-1].Code == subjects.CodeResultInvalid && t.Dispatch.Tried[n-1].AgentID == t.agent
}

// link is the line of a task in hand.
type link struct {
	w *Worker
	h *held
}

var _ line = link{}

func (l link) progress(p progress) {
	if p.tokens != nil {
		l.w.hand.spend(l.h, *p.tokens)
		p.tokens = new(l.h.spent.Load() + l.h.lent.Load())
	}
	l.h.pace.add(p)
}

// send publishes one report; pace calls it.
func (l link) send(p progress) {
	attempt, _ := l.w.hand.turn(l.h)
	g := l.message(attempt)
	g.Text, g.Percent, g.TokensSpent = p.text, p.percent, p.tokens
	if err := l.w.cfg.Bus.Publish(l.subject(), fleet.MustEncode(g), l.h.trace(bus.Header{})); err != nil {
		l.w.log.Debug("report progress", slog.String("task_id", string(l.h.id)), slog.Any("error", err))
	}
}

func (l link) artifact(ctx context.Context, a fleet.Artifact) error {
	return l.request(ctx, func(g *fleet.Progress) { g.Artifact = &a })
}

func (l link) ask(ctx context.Context, q fleet.Question) (fleet.Answer, error) {
	asking, arrived := context.WithCancel(ctx)
	defer arrived()
	o := &open{answer: make(chan fleet.Answer, 1), arrived: arrived}
	if err := l.w.hand.ask(l.h, q.ID, o); err != nil {
		return fleet.Answer{}, err
	}
	defer l.w.hand.asked(l.h, q.ID)
	for {
		_, moved := l.w.hand.turn(l.h)
		err := l.request(asking, func(g *fleet.Progress) { g.Question = &q })
		select {
		case a := <-o.answer:
			return a, nil
		default:
		}
		if err != nil {
			return fleet.Answer{}, err
		}
		select {
		case a := <-o.answer:
			return a, nil
		case <-ctx.Done():
			return fleet.Answer{}, context.Cause(ctx)
		case <-moved.Done(): // a new attempt knows nothing of the question
		}
	}
}

func (l link) followUp(ctx context.Context, n int) (fleet.Message, error) {
	for {
		m, more := l.w.hand.followUp(l.h, n)
		if m != nil {
			return *m, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fleet.Message{}, context.Cause(ctx)
		}
	}
}

// request sends a progress message that must be answered.
func (l link) request(ctx context.Context, fill func(*fleet.Progress)) error {
	return l.w.request(ctx, l.h, l.subject(), func(attempt int) ([]byte, error) {
		g := l.message(attempt)
		fill(g)
		data, err := fleet.Encode(g)
		if err == nil && len(data) > fleet.MaxMessage {
			err = subjects.Errorf(subjects.CodePayloadTooLarge, "the message has %d bytes, at most %d fit", len(data), fleet.MaxMessage).
				WithRemedy("send it in chunks, or a link to it")
		}
		return data, err
	})
}

func (l link) message(attempt int) *fleet.Progress {
	return &fleet.Progress{
		Header: header(fleet.TypeProgress),
		TaskID: l.h.id, Attempt: attempt, Epoch: l.w.epoch,
	}
}

func (l link) subject() string { return subjects.Progress(l.w.cfg.ID, l.h.id) }

func header(typ string) fleet.Header {
	return fleet.Header{Type: typ, ProtocolVersion: fleet.Version}
}

// request sends what build makes for the attempt that h stands for, until a
// router answers with something final; when the attempt changes meanwhile, it
// begins anew. It returns nil when the message counted, what the router said
// instead (a *subjects.Error), or ctx's cause.
func (w *Worker) request(ctx context.Context, h *held, subject string, build func(attempt int) ([]byte, error)) error {
	for {
		attempt, moved := w.hand.turn(h)
		data, err := build(attempt)
		if err != nil {
			return err
		}
		try, stop := until(ctx, moved)
		var said error
		_, err = w.cfg.Bus.RequestUntil(try, subject, data, h.trace(messageID()), requestTry, func(m bus.Msg) (again bool) {
			said, again = answer(m)
			return again
		})
		stop()
		final := err == nil || errors.Is(err, bus.ErrClosed)
		if err == nil {
			if err = said; err == nil {
				return nil
			}
		}
		now, _ := w.hand.turn(h)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case now != attempt:
			continue
		case final:
			return err
		}
		// Not allowed to speak, say: an operator may mend that.
		w.log.Error("report on a task", slog.String("task_id", string(h.id)), slog.String("subject", subject), slog.Any("error", err))
		if err := pause(ctx, requestTry); err != nil {
			return err
		}
	}
}

// requestTry is how long one request may take: a router that finds its record
// behind looks for up to 2 s before it answers.
const requestTry = 5 * time.Second

// messageID marks the repeats of one message as such.
func messageID() bus.Header { return bus.Header{"Nats-Msg-Id": {rand.Text()}} }

// trace has what is said about a task be a part of its attempt.
func (h *held) trace(of bus.Header) bus.Header {
	of.Set(subjects.HeaderTraceparent, h.task.Dispatch.Traceparent)
	return of
}

// answer reads a router's reply: nil when the message counted, what was said
// instead, and whether that asks for the same message again.
func answer(m bus.Msg) (err error, again bool) { //nolint:revive // the error is the answer
	var r struct {
		OK    bool            `json:"ok"`
		Error *subjects.Error `json:"error"`
	}
	switch bad := json.Unmarshal(m.Data, &r); {
	case bad != nil, r.Error == nil && !r.OK:
		return subjects.Errorf(subjects.CodeUnavailable, "the answer is not a router's: %q", clip(string(m.Data), 200)), true
	case r.Error == nil:
		return nil, false
	}
	switch r.Error.Code {
	case subjects.CodeUnavailable, subjects.CodeInternal, subjects.CodeRateLimited:
		return r.Error, true
	default:
		return r.Error, false
	}
}

// until is ctx that also ends when other does.
func until(ctx, other context.Context) (u context.Context, stop func()) {
	u, cancel := context.WithCancel(ctx)
	ignore := context.AfterFunc(other, cancel)
	return u, func() { ignore(); cancel() }
}

// pause waits for d or for ctx, whose cause it returns.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
