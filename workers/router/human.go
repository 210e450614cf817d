package router

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Policy is how failures are met where a dispatch does not say it. Zero fields
// take the fleet's defaults.
type Policy struct {
	MaxRetries  *int
	MaxLosses   int
	OnBlocked   string
	Escalate    string
	AlertRepeat time.Duration
	GiveUpAfter time.Duration
}

func (p Policy) terms() fleet.Policy {
	t := fleet.Policy{
		MaxRetries: fleet.DefaultMaxRetries, MaxLosses: cmp.Or(p.MaxLosses, fleet.DefaultMaxLosses), OnBlocked: p.OnBlocked, Escalate: p.Escalate,
		AlertRepeat: cmp.Or(p.AlertRepeat, fleet.DefaultAlertRepeat).Seconds(),
		GiveUpAfter: cmp.Or(p.GiveUpAfter, fleet.DefaultGiveUpAfter).Seconds(),
	}
	if p.MaxRetries != nil {
		t.MaxRetries = *p.MaxRetries
	}
	return t
}

// policyOf is the policy of a task from now to its end.
func policyOf(t *fleet.Task, defaults fleet.Policy) fleet.Policy {
	p := fleet.Policy{
		MaxRetries: defaults.MaxRetries, MaxLosses: cmp.Or(t.MaxLosses, defaults.MaxLosses), Agent: t.Agent, Alternatives: t.Alternatives,
		OnBlocked:   cmp.Or(t.OnBlocked, defaults.OnBlocked),
		Escalate:    cmp.Or(t.Escalate, defaults.Escalate),
		AlertRepeat: cmp.Or(t.AlertRepeat, defaults.AlertRepeat),
		GiveUpAfter: cmp.Or(t.GiveUpAfter, defaults.GiveUpAfter),
	}
	if t.MaxRetries != nil {
		p.MaxRetries = *t.MaxRetries
	}
	return p
}

func waitsForHuman(e *fleet.Event) bool {
	return e.State == fleet.StateInputRequired && e.Facts.Await == fleet.AwaitHuman
}

// awaitHuman makes n a record that waits for a human: without holder and slot.
func awaitHuman(n *fleet.Event) {
	letGo(n)
	n.Facts.Human = nil
	n.Facts.Await, n.Facts.AskedSeq = fleet.AwaitHuman, n.Seq
	p := n.Facts.Policy
	alert := n.Time.Add(p.Repeat())
	until := n.Time.Add(seconds(cmp.Or(p.GiveUpAfter, fleet.DefaultGiveUpAfter.Seconds())))
	n.Facts.AlertAt, n.Facts.GiveUpAt = &alert, &until
}

// unanswered asks the policy what becomes of a task that waits for a human. It
// returns nil while the task goes on waiting.
func unanswered(e *fleet.Event, set settings, now time.Time) *fleet.Event {
	n := *e
	s := escalationState(&n, set)
	if s.GiveUpAt = e.Time; e.Facts.GiveUpAt != nil {
		s.GiveUpAt = *e.Facts.GiveUpAt
	}
	r, action := applyPolicy(&n, s, nil, now)
	if _, ok := action.(escalation.Wait); ok {
		return nil
	}
	return r
}

// resumed is the record of what a human decided.
func resumed(e *fleet.Event, h *fleet.HumanAnswer, r *fleet.Result, now time.Time) *fleet.Event {
	var n *fleet.Event
	switch h.Verb {
	case fleet.VerbComplete:
		n = done(e, r, now)
	case fleet.VerbCancel:
		n = canceled(e, subjects.AgentID(h.By), h.Text, now)
	default:
		n = next(e, fleet.KindResumed, fleet.StateQueued, now)
		letGo(n)
		n.Reason = e.Reason
		if c := e.Facts.Counters; c != nil {
			n.Facts.Counters = &fleet.Counters{Retries: c.Retries}
		} else if len(e.Facts.Attempts) > 0 {
			n.Facts.Counters = &fleet.Counters{}
		}
	}
	n.Facts.Human, n.Data.Human = h, h
	return n
}

// rememberDecision has n and what follows it know the answer h if it comes again.
func rememberDecision(n *fleet.Event, h *fleet.HumanAnswer, digest string) *fleet.Event {
	if h.AnswerID != "" {
		known := n.Facts.Decisions
		known = slices.Clone(known[max(0, len(known)-fleet.MaxDecisions+1):])
		n.Facts.Decisions = append(known, fleet.Decision{AnswerID: h.AnswerID, By: h.By, Digest: digest})
	}
	return n
}

// decisionDigest is the same for two answers that decide the same.
func decisionDigest(h *fleet.HumanAnswer, result json.RawMessage) string {
	sum := sha256.Sum256(fleet.MustEncode([]any{h.Verb, h.AgentID, h.Text, result}))
	return hex.EncodeToString(sum[:8])
}

// isRepeat reports whether an answer has taken effect already, in whichever wait
// of the task. It is an error if another one had its id.
func isRepeat(e *fleet.Event, h *fleet.HumanAnswer, digest string) (bool, error) {
	for _, d := range e.Facts.Decisions {
		switch {
		case d.AnswerID != h.AnswerID || d.By != h.By:
		case d.Digest != digest:
			return false, subjects.Errorf(subjects.CodeIdempotencyConflict, "%s has given another answer with the id %q", h.By, h.AnswerID).
				WithRemedy("give each answer an id of its own; a repeat must say the same")
		default:
			return true, nil
		}
	}
	return false, nil
}

// isOfWait reports whether the record seq is of the wait for a human that e is
// in; 0 is any.
func isOfWait(e *fleet.Event, seq uint64) bool {
	return waitsForHuman(e) && (seq == 0 || seq >= e.Facts.AskedSeq && seq <= e.Seq)
}

// apiResume takes a human's decision in.
func (w *Worker) apiResume(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	req, err := fleet.DecodeRequest[fleet.TaskResume](data)
	if err != nil {
		return nil, err
	}
	if from != w.cfg.Deputy && !w.operator(from) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not decide for a human", from).
			WithRemedy("an operator may; the owner of a task can cancel it")
	}
	h := &fleet.HumanAnswer{
		Verb: req.Verb, By: string(from), AgentID: req.AgentID, Text: req.Text, AnswerID: req.AnswerID, Time: w.now(),
	}
	if from == w.cfg.Deputy && req.By != "" {
		h.By = req.By
	}
	if req.Verb != fleet.VerbReassign {
		h.AgentID = ""
	}
	var result *fleet.Result
	if req.Verb == fleet.VerbComplete {
		if result, err = humanResult(req.Result); err != nil {
			return nil, err
		}
	}
	if req.Verb == fleet.VerbReassign && !w.known(req.AgentID) {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no agent %q has announced itself", req.AgentID).
			At("/agent_id").WithRemedy("agent list shows who has")
	}
	repeat, digest := false, decisionDigest(h, req.Result)
	n, err := w.change(ctx, req.TaskID, func(v *view) (_ *fleet.Event, err error) {
		if repeat, err = isRepeat(v.ev, h, digest); repeat || err != nil {
			return nil, err
		}
		if !isOfWait(v.ev, req.Seq) {
			return nil, tooLate(v.ev)
		}
		now := w.now()
		if !v.ev.Facts.Deadline.After(now) {
			return expired(v.ev, now), nil
		}
		if result != nil {
			if err := w.check(ctx, v, result); err != nil {
				return nil, err
			}
		}
		return rememberDecision(resumed(v.ev, h, result, now), h, digest), nil
	})
	if err != nil {
		return nil, err
	}
	reply := w.show(ctx, &view{ev: n}, false)
	reply.Duplicate = repeat
	return reply, nil
}

// humanResult reads what a human hands in as the result.
func humanResult(data json.RawMessage) (*fleet.Result, error) {
	r, err := fleet.DecodeResult(data)
	if err != nil {
		e := subjects.AsError(err)
		return nil, e.At("/result" + e.Pointer)
	}
	if r.Status != fleet.StatusDone && r.Status != fleet.StatusPartial {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected done or partial, got %q", r.Status).
			At("/result/status").WithRemedy("cancel ends a task that nobody can do")
	}
	return r, nil
}

// known reports whether an agent of that id has announced itself.
func (w *Worker) known(id subjects.AgentID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for in := range w.core.fleet.All() {
		if in.Agent == id && in.Announce != nil {
			return true
		}
	}
	return false
}

// tooLate is what a human is told whose answer changes nothing.
func tooLate(e *fleet.Event) error {
	const thanks = "; your answer came too late and changes nothing"
	h := e.Facts.Human
	switch {
	case h != nil && e.State.Terminal():
		return subjects.Errorf(subjects.CodeLateResult, "the task has ended (%s) after %s answered %q%s", e.State, h.By, h.Verb, thanks).
			WithRemedy("dispatch it again if it is still wanted")
	case e.State.Terminal():
		return subjects.Errorf(subjects.CodeLateResult, "the task has ended (%s) at %s%s", e.State, e.Time.Format(time.RFC3339), thanks).
			WithRemedy("dispatch it again if it is still wanted")
	case waitsForHuman(e):
		return subjects.Errorf(subjects.CodeLateResult, "the task has gone on since, and waits for a human again since its record %d%s", e.Facts.AskedSeq, thanks).
			WithRemedy("look at it again: parley escalation show " + string(e.TaskID))
	case h != nil:
		return subjects.Errorf(subjects.CodeLateResult, "%s has answered already, with %q; the task is %s%s", h.By, h.Verb, e.State, thanks).
			WithRemedy("task get shows how it goes on")
	}
	return subjects.Errorf(subjects.CodeLateResult, "the task is %s and waits for no human's answer to this escalation", e.State).
		WithRemedy("task get shows it; task answer answers an agent's question")
}

// escalated is the level of escalation that the record n after cur is, "" for
// none; "0" says that a wait for a human is over.
func escalated(cur, n *fleet.Event) string {
	if cur != nil && waitsForHuman(cur) {
		switch {
		case !waitsForHuman(n):
			return "0"
		case cur.Facts.AskedSeq == n.Facts.AskedSeq:
			return ""
		}
	}
	if level := n.Escalates(); level > 0 {
		return strconv.Itoa(level)
	}
	return ""
}

// spentLate notes what an attempt spent that had ended without saying so. It
// returns nil when there is nothing to note, or nowhere.
func spentLate(e *fleet.Event, c claim, tokens int64, now time.Time) *fleet.Event {
	if e.State.Terminal() || tokens <= 0 {
		return nil
	}
	for i, a := range slices.Backward(e.Facts.Attempts) {
		if a.Attempt == 0 || !c.is(holder{a.AgentID, a.InstanceID, a.Epoch}, a.Attempt) {
			continue
		}
		if a.Tokens != 0 { // it was told
			return nil
		}
		n := beside(e, fleet.KindSpent, now)
		n.Facts.Attempts = slices.Clone(e.Facts.Attempts)
		n.Facts.Attempts[i].Tokens = tokens
		n.Facts.TokensSpent += tokens
		n.Data.Spent = &fleet.Spent{AgentID: a.AgentID, Attempt: a.Attempt, Tokens: tokens}
		return n
	}
	return nil
}
