package router

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// This file decides what the next record of a task is. It reads no clock and
// does no I/O: a record and what happened go in, the next record comes out.

// settings are what the fleet as a whole says about failures.
type settings struct {
	backoff escalation.Backoff
	human   bool         // a human contact is configured
	policy  fleet.Policy // for what a dispatch leaves out
	// ceilings are what one task shares, when it is judged.
	ceilings []escalation.Ceiling
}

// queued is record 1 of a dispatch that is valid and accepted at now. payload
// is the dispatch as it is stored and offered.
func queued(d *fleet.Dispatch, from subjects.AgentID, payload json.RawMessage, hash string, set settings, now time.Time) (*fleet.Event, error) {
	deadline, err := d.DeadlineAt(now)
	if err != nil {
		return nil, err
	}
	t := &d.Task
	timeout := t.TimeoutSeconds
	if timeout == 0 {
		timeout = fleet.DefaultTimeout.Seconds()
	}
	priority := t.Priority
	if priority == "" {
		priority = fleet.Normal
	}
	return &fleet.Event{
		Header: fleet.Header{Type: fleet.TypeEvent, ProtocolVersion: fleet.Version},
		TaskID: t.TaskID, Seq: 1, Kind: fleet.KindQueued, State: fleet.StateQueued, Time: now,
		Data: fleet.Data{Dispatch: payload},
		Facts: fleet.Facts{
			From: from, Created: now, Deadline: deadline, Priority: priority,
			Requirements: d.Requirements,
			Policy:       policyOf(t, set.policy),
			Timeout:      timeout, TokenBudget: t.TokenBudget, ReplySchema: t.ReplySchema,
			HasSchema:     len(t.ResultSchema) > 0 && string(t.ResultSchema) != "null",
			SessionBudget: t.SessionBudget, RunBudget: t.RunBudget,
			SessionID: t.SessionID, RunID: t.RunID, PayloadHash: hash, ContextID: contextOf(d), Traceparent: d.Traceparent,
		},
	}, nil
}

func contextOf(d *fleet.Dispatch) string {
	if d.Input == nil {
		return ""
	}
	return d.Input.ContextID
}

// refused is the only record of a dispatch that came by the raw door and
// cannot be done as it stands.
func refused(id subjects.TaskID, from subjects.AgentID, why *subjects.Error, now time.Time) *fleet.Event {
	e := &fleet.Event{
		Header: fleet.Header{Type: fleet.TypeEvent, ProtocolVersion: fleet.Version},
		TaskID: id,
		Facts:  fleet.Facts{From: from, Created: now, Deadline: now, Priority: fleet.Normal},
	}
	message := why.Message
	if why.Pointer != "" {
		message += " at " + why.Pointer
	}
	if why.Remedy != "" {
		message += "; " + why.Remedy
	}
	return ended(e, escalation.GiveUp{State: fleet.StateError, Code: why.Code, Message: message}, nil, now)
}

// next begins the record after e.
func next(e *fleet.Event, kind string, state fleet.State, now time.Time) *fleet.Event {
	n := *e
	n.Seq++
	if plant.Sometimes("seq_gap", 100) {
		n.Seq++
	}
	n.Kind, n.State, n.Time = kind, state, now
	n.Reason, n.Data, n.WriteID, n.Unknown = nil, fleet.Data{}, "", nil
	return &n
}

// beside is a record of what changes neither the state nor why it is so.
func beside(e *fleet.Event, kind string, now time.Time) *fleet.Event {
	n := next(e, kind, e.State, now)
	n.Reason = e.Reason
	return n
}

// holder is who has a task in hand.
type holder struct {
	agent    subjects.AgentID
	instance subjects.InstanceID
	epoch    int64
}

func holderOf(e *fleet.Event) holder { return holder{e.AgentID, e.InstanceID, e.Epoch} }

// held reports whether somebody has the task in hand.
func held(e *fleet.Event) bool {
	return e.State == fleet.StateWorking ||
		e.State == fleet.StateInputRequired && e.Facts.Await == fleet.AwaitAgentQuestion
}

// working is the record that says who holds the task from now on.
func working(e *fleet.Event, h holder, now time.Time) *fleet.Event {
	n := next(e, fleet.KindWorking, fleet.StateWorking, now)
	n.Attempt++
	n.AgentID, n.InstanceID, n.Epoch = h.agent, h.instance, h.epoch
	n.Facts.NotBefore = nil
	n.Facts.Answer = nil
	n.Facts.AlertAt, n.Facts.GiveUpAt, n.Facts.AskedSeq = nil, nil, 0
	if plant.Bug("row_always_broken") {
		breakLossRow(n)
	}
	ends := now.Add(time.Duration(e.Facts.Timeout * float64(time.Second)))
	n.Facts.AttemptEnds = &ends
	return n
}

// failure is how an attempt went wrong.
type failure struct {
	code       subjects.Code
	message    string
	retryable  bool
	retryAfter time.Duration
	resetAt    *time.Time // when a limit ends, by the provider's clock
	limitTier  string     // the model tier that a limit holds for, "" for all
	tokens     int64
	result     json.RawMessage // what the agent said, if it did
	refused    *holder         // set when the agent refused the offer: no record names it
}

// failed asks the policy what a failed attempt leads to.
func failed(e *fleet.Event, f failure, set settings, now time.Time) (*fleet.Event, escalation.Action) {
	h, attempt := holderOf(e), e.Attempt
	if f.refused != nil {
		h, attempt = *f.refused, e.Attempt+1
	}
	n := *e
	n.Attempt = attempt
	n.Facts.TokensSpent += f.tokens
	n.Facts.Attempts = append(slices.Clip(keptAttempts(e.Facts.Attempts)), fleet.Attempt{
		Attempt: attempt, AgentID: h.agent, InstanceID: h.instance, Epoch: h.epoch,
		Ended: now, Code: f.code, Message: clip(f.message, 2000), Retryable: f.retryable, Tokens: f.tokens,
		Refused: f.refused != nil,
	})
	s := escalationState(&n, set)
	if plant.Bug("retry_forever") {
		s.Policy.MaxRetries += 10
	}
	s.RetryAfter = f.retryAfter
	return applyPolicy(&n, s, f.result, now)
}

// judgeNobody asks the policy what becomes of a queued task that no known agent
// could ever do. It returns nil while the task goes on waiting.
func judgeNobody(e *fleet.Event, why []fleet.Reason, set settings, now time.Time) (*fleet.Event, escalation.Action) {
	n := *e
	s := escalationState(&n, set)
	s.Nobody = why
	r, a := applyPolicy(&n, s, nil, now)
	if _, ok := a.(escalation.Wait); ok {
		return nil, a
	}
	return r, a
}

// widenCandidates asks the policy whether others may have a queued task whose candidates are
// away, limited or left out. It returns nil while the task goes on waiting.
func widenCandidates(e *fleet.Event, set settings, now time.Time) *fleet.Event {
	n := *e
	s := escalationState(&n, set)
	s.Away = true
	r, a := applyPolicy(&n, s, nil, now)
	if _, ok := a.(escalation.Wait); ok {
		return nil
	}
	return r
}

// barred asks the policy whether a queued task may begin another attempt. It
// returns nil while it may; what a human has allowed is not asked again.
func barred(e *fleet.Event, set settings, now time.Time) *fleet.Event {
	if e.Facts.Human != nil {
		return nil
	}
	n := *e
	s := escalationState(&n, set)
	s.Starting = true
	r, a := applyPolicy(&n, s, nil, now)
	if _, ok := a.(escalation.Wait); ok {
		return nil
	}
	return r
}

// applyPolicy turns the policy's answer into the next record of e.
func applyPolicy(e *fleet.Event, s escalation.State, result json.RawMessage, now time.Time) (*fleet.Event, escalation.Action) {
	s, action := escalation.Next(s, now)
	e.Facts.Attempts, e.Facts.Widened = s.Attempts, s.Widened
	if e.Facts.Counters != nil || *s.Counters != (fleet.Counters{}) {
		e.Facts.Counters = s.Counters
	}
	var last fleet.Attempt
	var reason *fleet.Reason
	if k := len(s.Attempts); k > 0 {
		last = s.Attempts[k-1]
		reason = &fleet.Reason{Code: last.Code, Message: last.Message}
	}
	requeue := func(kind string) *fleet.Event {
		n := next(e, kind, fleet.StateQueued, now)
		letGo(n)
		n.Reason, n.Data.Result = reason, result
		return n
	}
	switch a := action.(type) {
	case escalation.Retry:
		n := requeue(fleet.KindRetry)
		n.Facts.Human = nil // what it decided has been tried
		n.Facts.NotBefore = &a.At
		return n, action
	case escalation.Reassign, escalation.Wait:
		n := requeue(fleet.KindReroute)
		n.Facts.Human = nil
		return n, action
	case escalation.Requeue:
		kind := fleet.KindReturned
		if escalation.ClassOf(last.Code) == escalation.ClassLoss {
			kind = fleet.KindLost
			if c := e.Facts.Counters; plant.Bug("loss_counts_retry") {
				e.Facts.Counters = &fleet.Counters{Retries: c.Retries + 1, Losses: c.Losses, LossesTotal: c.LossesTotal}
			}
		}
		n := requeue(kind)
		if !a.At.IsZero() {
			n.Facts.NotBefore = &a.At
		}
		return n, action
	case escalation.Widen:
		n := beside(e, fleet.KindWidened, now)
		return n, action
	case escalation.AskHuman:
		n := next(e, fleet.KindHuman, fleet.StateInputRequired, now)
		awaitHuman(n)
		n.Reason, n.Data.Result = &fleet.Reason{Code: a.Code, Message: a.Message}, result
		return n, action
	case escalation.GiveUp:
		return ended(e, a, result, now), action
	case escalation.Expire:
		return expired(e, now), action
	}
	panic(fmt.Sprintf("router: unknown action %T", action))
}

// withAnswer is messages with the answer to a question of an attempt that has
// ended: the next attempt is told it, too.
func withAnswer(messages []fleet.Message, a *fleet.Answer) []fleet.Message {
	if a == nil || len(messages) >= maxMessages {
		return messages
	}
	m := fleet.Message{
		ID: "answer." + a.QuestionID, MessageID: a.MessageID, From: a.From, Parts: a.Parts,
		Text: "The answer to the question " + a.QuestionID + " of an earlier attempt: " + a.Text,
	}
	if len(fleet.MustEncode(append(slices.Clip(messages), m))) > maxMessagesSize {
		return messages
	}
	return append(slices.Clip(messages), m)
}

// letGo takes the task out of its holder's hands.
func letGo(n *fleet.Event) {
	n.AgentID, n.InstanceID, n.Epoch = "", "", 0
	n.Facts.AttemptEnds, n.Facts.NotBefore = nil, nil
	n.Facts.ClockLeft, n.Facts.Await = 0, ""
	n.Facts.Messages = withAnswer(n.Facts.Messages, n.Facts.Answer)
	n.Facts.Question, n.Facts.Answer, n.Facts.Heard = nil, nil, nil
	n.Facts.AlertAt, n.Facts.GiveUpAt, n.Facts.AskedSeq = nil, nil, 0
}

// done is the outcome of a task whose result counts.
func done(e *fleet.Event, r *fleet.Result, now time.Time) *fleet.Event {
	state := fleet.StateDone
	if r.Status == fleet.StatusPartial {
		state = fleet.StatePartial
	}
	n := outcome(e, state, now)
	n.Facts.TokensSpent += r.TokensSpent
	if plant.Sometimes("tokens_twice", 20) {
		n.Facts.TokensSpent += r.TokensSpent
	}
	if plant.Sometimes("stranger_counts", 50) {
		n.AgentID = "somebody"
	}
	res := *r
	sign(&res, n)
	n.Data.Result = fleet.MustEncode(&res)
	return n
}

// ended is the outcome of a task that did not get done. result is the last
// attempt's TASK_RESULT, if there is one: it becomes the task's.
func ended(e *fleet.Event, why escalation.GiveUp, result json.RawMessage, now time.Time) *fleet.Event {
	state, code, message := why.State, why.Code, why.Message
	n := outcome(e, state, now)
	n.Reason = &fleet.Reason{Code: code, Message: clip(message, 4000)}
	res := &fleet.Result{}
	if len(result) > 0 {
		if r, err := fleet.DecodeResult(result); err == nil {
			res = r
		}
	}
	res.Status = fleet.StatusError
	if state == fleet.StateBlocked {
		res.Status = fleet.StatusBlocked
		res.BlockedReason = &message
	}
	if res.Error == nil || state != fleet.StateBlocked {
		res.Error = &fleet.ResultError{Code: code, Message: message}
	}
	res.Error.Retryable = false
	sign(res, n)
	n.Data.Result = fleet.MustEncode(res)
	return n
}

func outcome(e *fleet.Event, state fleet.State, now time.Time) *fleet.Event {
	n := next(e, fleet.KindOutcome, state, now)
	n.Facts.AttemptEnds, n.Facts.NotBefore = nil, nil
	n.Facts.ClockLeft, n.Facts.Await = 0, ""
	n.Facts.AlertAt, n.Facts.GiveUpAt, n.Facts.AskedSeq = nil, nil, 0
	n.Facts.Heard = nil
	n.Facts.Question = nil // the answer stays: whoever gave it may ask again whether it was taken
	return n
}

// sign fills in what the fleet knows better than the agent.
func sign(r *fleet.Result, n *fleet.Event) {
	r.Header = fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version}
	r.TaskID, r.State = n.TaskID, n.State
	r.TokensSpent = n.Facts.TokensSpent
	r.Attempt, r.AgentID, r.InstanceID, r.Epoch = n.Attempt, n.AgentID, n.InstanceID, n.Epoch
	if r.NextSteps == nil {
		r.NextSteps = []string{}
	}
}

func canceled(e *fleet.Event, by subjects.AgentID, why string, now time.Time) *fleet.Event {
	message := fmt.Sprintf("canceled by %s", by)
	if why != "" {
		message += ": " + clip(why, 1000)
	}
	return ended(e, escalation.GiveUp{State: fleet.StateCanceled, Code: subjects.CodeCanceled, Message: message}, nil, now)
}

func expired(e *fleet.Event, now time.Time) *fleet.Event {
	message := "the deadline " + e.Facts.Deadline.Format(time.RFC3339) + " passed"
	if k := len(e.Facts.Attempts); k > 0 {
		last := e.Facts.Attempts[k-1]
		message += fmt.Sprintf("; the last attempt, by %s, ended with %s: %s", last.AgentID, last.Code, last.Message)
	} else if e.Attempt == 0 {
		message += " before an agent took the task"
	}
	return ended(e, escalation.GiveUp{State: fleet.StateExpired, Code: subjects.CodeDeadlineExceeded, Message: message}, nil, now)
}

// asked is the record of a question: the holder and its lease stay, the clock
// of the attempt stops.
func asked(e *fleet.Event, q *fleet.Question, now time.Time) *fleet.Event {
	n := next(e, fleet.KindQuestion, fleet.StateInputRequired, now)
	breakLossRow(n)
	n.Facts.Await = fleet.AwaitAgentQuestion
	n.Facts.Question, n.Data.Question = q, q
	if ends := e.Facts.AttemptEnds; ends != nil {
		n.Facts.ClockLeft = max(1, ends.Sub(now).Seconds())
	}
	n.Facts.AttemptEnds = nil
	return n
}

// answered is the record of an answer: the clock of the attempt runs again.
func answered(e *fleet.Event, a *fleet.Answer, now time.Time) *fleet.Event {
	n := next(e, fleet.KindAnswer, fleet.StateWorking, now)
	ends := now.Add(time.Duration(e.Facts.ClockLeft * float64(time.Second)))
	n.Facts.AttemptEnds, n.Facts.ClockLeft = &ends, 0
	n.Facts.Await, n.Facts.Question = "", nil
	n.Facts.Answer, n.Data.Answer = a, a
	return n
}

// added is the record of a follow-up; nothing else changes.
func added(e *fleet.Event, m fleet.Message, now time.Time) *fleet.Event {
	n := beside(e, fleet.KindMessage, now)
	n.Facts.Messages = append(slices.Clip(e.Facts.Messages), m)
	n.Data.Message = &m
	return n
}

// published is the record of a piece of output; nothing else changes.
func published(e *fleet.Event, a *fleet.Artifact, now time.Time) *fleet.Event {
	n := beside(e, fleet.KindArtifact, now)
	breakLossRow(n)
	n.Data.Artifact = a
	return n
}

// reported reports whether the attempt that e ends was ended by its agent's own
// word, so that the agent holds the task no longer.
func reported(e *fleet.Event) bool {
	switch e.State {
	case fleet.StateDone, fleet.StatePartial:
		return true
	case fleet.StateCanceled, fleet.StateExpired:
		return false
	case fleet.StateQueued, fleet.StateError, fleet.StateBlocked, fleet.StateInputRequired, fleet.StateWorking:
	}
	if len(e.Facts.Attempts) == 0 {
		return false
	}
	code := e.Facts.Attempts[len(e.Facts.Attempts)-1].Code
	return code != subjects.CodeAgentLost && code != subjects.CodeAgentTimeout
}

// need is who may do the task from here on: the key of its class.
func need(e *fleet.Event) Need {
	c := candidates(e)
	n := Need{Requirements: e.Facts.Requirements, Only: c.Only}
	for _, x := range c.Exclude {
		if x.Instance == "" && x.Until.IsZero() {
			n.Exclude = append(n.Exclude, x.Agent)
		} else {
			n.LeaveOut = append(n.LeaveOut, x)
		}
	}
	return n
}

// dueAt is when something must be done about e, whatever else happens.
func dueAt(e *fleet.Event) time.Time {
	due := e.Facts.Deadline
	for _, t := range []*time.Time{e.Facts.AttemptEnds, e.Facts.NotBefore, e.Facts.GiveUpAt} {
		if t != nil && t.Before(due) {
			due = *t
		}
	}
	return due
}

// ttl is how long the stream keeps the record e, if it is not purged before with
// its task. The outcome goes last, so that no earlier record is ever the latest
// again.
func ttl(e *fleet.Event) time.Duration {
	keep := max(e.Facts.Deadline.Sub(e.Time), 0) + fleet.KeepOverdue
	if e.State.Terminal() {
		keep += time.Minute
	}
	return keep
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
