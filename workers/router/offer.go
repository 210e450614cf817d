package router

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// offer hands a queued task to an instance: the handshake. Nothing is spent
// unless the agent accepts and the record says that it holds the task.
func (w *Worker) offer(ctx context.Context, o offer) {
	answered, err := w.shake(ctx, o)
	if err != nil {
		w.log.Warn("offer a task", slog.String("task_id", string(o.task)), slog.String("agent_id", string(o.in.Agent)), slog.Any("error", err))
	}
	var rest time.Duration // of an instance that is busy
	w.with(func(c *core, now time.Time) {
		if answered {
			c.fleet.Answered(o.in)
		}
		if o.in.busy {
			rest = o.in.busyUntil.Sub(now)
		}
		c.offered(o.task, o.in, err != nil, now)
	})
	if rest <= 0 || rest >= tickEvery { // which sees to it
		return
	}
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return
	}
	w.with(func(c *core, now time.Time) {
		c.fleet.advance(now)
		c.feed(o.in, now)
	})
}

// shake makes the offer, and reports whether it was answered. An error says that
// it failed here, whatever the agent makes of it.
func (w *Worker) shake(ctx context.Context, o offer) (answered bool, err error) {
	in := instanceKey{o.in.Agent, o.in.ID}
	if plant.Bug("forgotten") && strings.HasSuffix(string(o.task), "7") {
		return false, nil
	}
	cur, err := w.latest(ctx, o.task)
	if err != nil {
		return false, fmt.Errorf("read the task: %w", err)
	}
	switch {
	case cur.lastSeq > o.seq: // who may have it now is chosen anew
		return false, nil
	case cur.lastSeq < o.seq: // the leader has yet to learn of it
		return false, fmt.Errorf("record %d is the last that the stream has; the agent was chosen by %d", cur.lastSeq, o.seq)
	}
	if now := w.now(); cur.ev.State != fleet.StateQueued || !cur.ev.Facts.Deadline.After(now) && !plant.Bug("deadline_ignored") {
		return false, nil
	}
	dispatch, err := w.dispatchOf(ctx, cur)
	if err != nil {
		return false, fmt.Errorf("read its dispatch: %w", err)
	}
	if barred, err := w.barred(ctx, cur); barred || err != nil {
		return false, err
	}
	probes, free, err := w.takeProbes(ctx, o, cur.ev)
	if err != nil || !free {
		return false, err
	}
	defer func() { w.freeProbes(ctx, probes, o.task, cur.ev.Attempt+1) }()
	offerID := rand.Text()
	payload := offerPayload(cur.ev, dispatch, o.epoch, w.tokensLeft(&cur.ev.Facts), offerID, w.sessionContext(ctx, cur))
	crash.Point("before_offer")
	ask, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	reply, err := w.bus.Request(ask, subjects.Offer(in.agent, in.instance), payload,
		bus.Header{subjects.HeaderTraceparent: {cur.ev.Trace().In(fleet.SpanAttempt, cur.ev.Attempt+1)}})
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		w.with(func(c *core, _ time.Time) { c.fleet.Gone(in.agent, in.instance) })
		return false, nil
	case err != nil:
		// It may have accepted: the answer was lost, or is late. Another router
		// may have given it the same attempt, by right.
		w.with(func(c *core, _ time.Time) { c.missed(o.in) })
		w.recall(ctx, recall{to: in, task: o.task, attempt: cur.ev.Attempt + 1, offer: offerID, why: subjects.CodeSuperseded, denied: true})
		return false, nil
	}
	crash.Point("after_offer")
	return true, w.replied(ctx, cur, o, offerID, reply.Data)
}

// barred reports whether no attempt may begin, since a budget is spent, the
// task's or one that it shares, and records what becomes of it.
func (w *Worker) barred(ctx context.Context, cur *view) (bool, error) {
	f := &cur.ev.Facts
	if f.TokenBudget == 0 && f.SessionBudget == 0 && f.RunBudget == 0 || barred(cur.ev, w.terms(cur.ev), w.now()) == nil {
		return false, nil
	}
	seq := cur.ev.Seq
	_, err := w.change(ctx, cur.ev.TaskID, func(v *view) (*fleet.Event, error) {
		if v.ev.State != fleet.StateQueued || v.ev.Seq != seq {
			return nil, nil
		}
		return barred(v.ev, w.terms(v.ev), w.now()), nil
	})
	if err != nil {
		return true, fmt.Errorf("record that a budget is spent: %w", err)
	}
	return true, nil
}

// offerPayload is the stored dispatch with what only an offer carries put in
// front; the rest is passed on as it came.
func offerPayload(ev *fleet.Event, dispatch json.RawMessage, epoch, tokensLeft int64, offerID string, s SessionContext) []byte {
	head := struct {
		From    subjects.AgentID `json:"from"`
		Attempt int              `json:"attempt"`
		Epoch   int64            `json:"epoch,omitzero"`
		OfferID string           `json:"offer_id,omitempty"`
		Tried   []fleet.Tried    `json:"tried,omitempty"`
		Context json.RawMessage  `json:"context,omitzero"`
		Token   string           `json:"session_token,omitempty"`

		TokensLeft int64 `json:"tokens_left,omitzero"`

		Messages []fleet.Message `json:"messages,omitempty"`

		Human *fleet.HumanAnswer `json:"human,omitempty"`
	}{
		From: ev.Facts.From, Attempt: ev.Attempt + 1, Epoch: epoch, OfferID: offerID, Tried: tried(ev), Messages: ev.Facts.Messages, Human: ev.Facts.Human,
		Context: s.Context, Token: s.Token, TokensLeft: tokensLeft,
	}
	b := fleet.MustEncode(head)
	b[len(b)-1] = ','
	return append(b, dispatch[1:]...)
}

// tried tells the next agent what was tried before.
func tried(ev *fleet.Event) []fleet.Tried {
	var out []fleet.Tried
	for _, a := range ev.Facts.Attempts {
		out = append(out, fleet.Tried{Attempt: a.Attempt, AgentID: a.AgentID, Code: a.Code, Message: clip(a.Message, 500)})
	}
	return out
}

// replied acts on what the agent answered to an offer.
func (w *Worker) replied(ctx context.Context, cur *view, o offer, offerID string, data []byte) error {
	in := o.in
	h := holder{in.Agent, in.ID, o.epoch}
	ack, ackErr := fleet.DecodeAck(data)
	if ackErr == nil {
		if ack.Accepted {
			if ack.Epoch != 0 {
				h.epoch = ack.Epoch
			}
			return w.accepted(ctx, cur, h, offerID)
		}
		f := failure{code: subjects.CodeAgentBusy, retryAfter: seconds(ack.RetryAfterSeconds), resetAt: ack.ResetAt, limitTier: ack.LimitTier}
		if ack.Reason != nil {
			f.code, f.message = escalation.SaidByAgent(ack.Reason.Code), ack.Reason.Message
		}
		return w.refused(ctx, cur, o, h, f)
	}
	r, err := fleet.DecodeResult(data)
	if err != nil {
		message := "the reply to the offer is neither HANDSHAKE_ACK nor TASK_RESULT: " + err.Error()
		if fleet.IsAck(data) {
			message = "the reply to the offer is no HANDSHAKE_ACK: " + ackErr.Error()
		}
		return w.refused(ctx, cur, o, h, failure{code: subjects.CodeAgentError, message: message})
	}
	f := failureOf(r)
	f.result = nil
	return w.refused(ctx, cur, o, h, f)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// accepted records who holds the task now. Until it is stored the agent's work
// counts for nothing; if another writer was faster, the agent is told to drop it.
func (w *Worker) accepted(ctx context.Context, cur *view, h holder, offerID string) error {
	crash.Point("after_accept")
	now := w.now()
	if !cur.ev.Facts.Deadline.After(now) && !plant.Bug("deadline_ignored") { // it took its time to accept
		w.recall(ctx, recall{to: instanceKey{h.agent, h.instance}, task: cur.ev.TaskID, attempt: cur.ev.Attempt + 1, offer: offerID, why: subjects.CodeDeadlineExceeded})
		return nil
	}
	n := working(cur.ev, h, now)
	if isLostHolder(cur.ev, h) && w.namesTask(h, cur.ev.TaskID) {
		takeLossBack(n)
	}
	err := w.store(ctx, cur, n)
	if err == nil {
		w.with(func(c *core, _ time.Time) { c.accepted(h) })
		return nil
	}
	if errors.Is(err, bus.ErrConflict) {
		now, rerr := w.reread(ctx, cur.ev.TaskID)
		if rerr == nil && held(now.ev) && holderOf(now.ev) == h {
			return nil // another router has given the same instance the same task
		}
		w.log.Debug("another writer was faster", slog.String("task_id", string(cur.ev.TaskID)), slog.Any("error", rerr))
		err = nil
	}
	w.recall(ctx, recall{to: instanceKey{h.agent, h.instance}, task: cur.ev.TaskID, attempt: n.Attempt, offer: offerID, why: subjects.CodeSuperseded})
	if err != nil {
		return fmt.Errorf("record that it was accepted: %w", err)
	}
	return nil
}

// namesTask reports whether the instance says that it holds the task.
func (w *Worker) namesTask(h holder, task subjects.TaskID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.core.fleet.Get(h.agent, h.instance)
	if in == nil {
		return false
	}
	_, names := in.Holding[task]
	return names
}

// refused deals with an agent that refused an offer before a token was spent. That
// it is busy or limited leaves no record; any other refusal does.
func (w *Worker) refused(ctx context.Context, cur *view, o offer, h holder, f failure) error {
	switch escalation.ClassOf(f.code) {
	case escalation.ClassHandBack:
		w.with(func(c *core, _ time.Time) { c.busy(o.in, f.retryAfter) })
		return nil
	case escalation.ClassCapacity:
		if err := w.storeLimit(ctx, h, f); err != nil {
			return fmt.Errorf("store the limit of the agent's account: %w", err)
		}
		return nil
	default:
	}
	f.refused = &h
	seq := cur.ev.Seq
	_, err := w.change(ctx, cur.ev.TaskID, func(v *view) (*fleet.Event, error) {
		if v.ev.State != fleet.StateQueued || v.ev.Seq != seq {
			return nil, nil
		}
		return w.fail(ctx, v, f)
	})
	if err != nil {
		return fmt.Errorf("record that it was refused: %w", err)
	}
	return nil
}

// timeOut ends what has lasted too long: the task, or the attempt.
func (w *Worker) timeOut(ctx context.Context, t timedOut) {
	w.end(ctx, t.task, func(v *view) (*fleet.Event, error) {
		now := w.now()
		switch ends := v.ev.Facts.AttemptEnds; {
		case !v.ev.Facts.Deadline.After(now) && !plant.Bug("deadline_ignored"):
			return expired(v.ev, now), nil
		case waitsForHuman(v.ev):
			return unanswered(v.ev, w.terms(v.ev), now), nil
		case ends != nil && !ends.After(now) && held(v.ev):
			return w.fail(ctx, v, w.timeOutFailure(v.ev, now))
		}
		return nil, nil
	})
}

// timeOutFailure is the failure of an attempt that took too long. Where the
// holder's heartbeat is overdue, too, it is a loss: the agent was not there to
// hand anything in.
func (w *Worker) timeOutFailure(e *fleet.Event, now time.Time) failure {
	f := failure{
		code: subjects.CodeAgentTimeout, retryable: true,
		message: "no result within " + seconds(e.Facts.Timeout).String(),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if in := w.core.fleet.Get(e.AgentID, e.InstanceID); in != nil && in.isOverdue(now) {
		f.code = subjects.CodeAgentLost
		f.message += fmt.Sprintf("; %s/%s was last heard %s ago", in.Agent, in.ID, now.Sub(in.LastSeen).Round(time.Second))
	}
	return f
}

// lose ends an attempt whose agent is gone. A router that does not reach the
// records has not heard who is alive either, and listens anew.
func (w *Worker) lose(ctx context.Context, l lost) {
	if !w.isLost(l.task) {
		return
	}
	if !w.hears(ctx, l.task) {
		return
	}
	w.end(ctx, l.task, func(v *view) (*fleet.Event, error) {
		if !held(v.ev) || holderOf(v.ev) != l.from || !w.isLost(l.task) {
			return nil, nil
		}
		return w.fail(ctx, v, failure{code: subjects.CodeAgentLost, message: l.why})
	})
}

// hears reports whether the records are within reach. Where they are not, the
// router listens anew.
func (w *Worker) hears(ctx context.Context, task subjects.TaskID) bool {
	asked := time.Now()
	_, err := w.reread(ctx, task)
	took := time.Since(asked)
	if subjects.CodeOf(err) != subjects.CodeUnavailable && took <= isolationTimeout {
		return true
	}
	w.log.Warn("nobody is declared lost: the records are out of reach", slog.String("task_id", string(task)),
		slog.String("took", took.String()), slog.Any("error", err))
	w.with(func(c *core, now time.Time) { c.listen(now) })
	return false
}

// isLost reports whether the lease of the task has ended: its holder may have
// been heard since it was found to have.
func (w *Worker) isLost(id subjects.TaskID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.core.hot[w.core.x.find(id)]
	return h != nil && h.lost != ""
}

// end applies decide, and recalls the task from its holder. An agent that is lost is
// not told: if it is heard again before another one has the task, it goes on.
func (w *Worker) end(ctx context.Context, id subjects.TaskID, decide func(*view) (*fleet.Event, error)) {
	var before *fleet.Event
	n, err := w.change(ctx, id, func(v *view) (*fleet.Event, error) {
		if v.ev.State.Terminal() {
			return nil, nil
		}
		before = v.ev
		return decide(v)
	})
	if err != nil {
		if !errors.Is(err, errNoTask) {
			w.log.Warn("record the end of an attempt", slog.String("task_id", string(id)), slog.Any("error", err))
		}
		return
	}
	if before != nil && n != before && held(before) && !held(n) && n.Kind != fleet.KindLost {
		code := subjects.CodeSuperseded
		if n.Reason != nil {
			code = n.Reason.Code
		}
		w.with(func(c *core, _ time.Time) {
			c.do(recall{to: instanceKey{before.AgentID, before.InstanceID}, task: id, attempt: before.Attempt, why: code})
		})
	}
}

// recall tells an instance to drop a task. What it does not hear now it is told
// again on every heartbeat that names the task.
func (w *Worker) recall(ctx context.Context, r recall) {
	if r.denied && !w.denies(ctx, r) {
		return
	}
	m := fleet.Control{
		Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version},
		Action: fleet.ActionCancel, TaskID: r.task, Attempt: r.attempt, OfferID: r.offer, Reason: &fleet.Reason{Code: r.why},
	}
	w.control(ctx, r.to, &m)
}

// sayOutdated tells a process that another one of its instance is the one that
// counts.
func (w *Worker) sayOutdated(ctx context.Context, o outdated) {
	w.control(ctx, o.to, &fleet.Control{
		Header: fleet.Header{Type: fleet.TypeControl, ProtocolVersion: fleet.Version},
		Action: fleet.ActionEpoch, Epoch: o.epoch,
		Reason: &fleet.Reason{Code: subjects.CodeSuperseded, Message: fmt.Sprintf(
			"epoch %d is lower than %d, which another process of %s/%s has: nothing is offered to it before that one has been silent for its lease; announce a higher epoch, or an instance of its own",
			o.epoch, o.newer, o.to.agent, o.to.instance)},
	})
}

// denies reports whether the record of a task, as the stream's leader has it,
// does not name the instance either: this router may be behind.
func (w *Worker) denies(ctx context.Context, r recall) bool {
	v, err := w.reread(ctx, r.task)
	if err != nil {
		return errors.Is(err, errNoTask)
	}
	return !held(v.ev) || v.ev.AgentID != r.to.agent || v.ev.InstanceID != r.to.instance
}

// tell gives the agent the answer to its question and the follow-ups, until it
// has taken them.
func (w *Worker) tell(ctx context.Context, t tell) {
	if !held(t.ev) {
		return
	}
	to := instanceKey{t.ev.AgentID, t.ev.InstanceID}
	if a := t.ev.Facts.Answer; a != nil && w.control(ctx, to, inputOfAnswer(t.task, a)) {
		w.with(func(c *core, _ time.Time) { c.answerTaken(t.task, a.QuestionID) })
	}
	all := t.ev.Facts.Messages
	for i := min(t.heard, len(all)); i < len(all); i++ {
		if !w.control(ctx, to, inputOfMessage(t.task, &all[i])) {
			return
		}
		w.with(func(c *core, _ time.Time) { c.messageTaken(t.task, t.ev.Attempt, i+1) })
	}
}

// control sends m and reports whether the instance took it.
func (w *Worker) control(ctx context.Context, to instanceKey, m *fleet.Control) bool {
	if m.Action == fleet.ActionCancel && plant.Bug("cancel_untold") {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reply, err := w.bus.RequestUntil(ctx, subjects.Control(to.agent, to.instance), fleet.MustEncode(m), nil, time.Second,
		func(bus.Msg) bool { return false })
	if err != nil {
		w.log.Debug("control an agent", slog.String("agent_id", string(to.agent)), slog.String("action", m.Action), slog.String("task_id", string(m.TaskID)), slog.Any("error", err))
		return false
	}
	r, err := fleet.DecodeControlReply(reply.Data)
	return err == nil && r.OK
}
