package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// errBehind says that an agent knows of an attempt that the record does not
// name yet.
var errBehind = errors.New("the record is behind what the agent says")

// errUnsure has a decision made again, by what the stream's leader has.
var errUnsure = errors.New("the record may be behind")

// onResult takes in TASK_RESULT, or prose that contains one.
func (w *Worker) onResult(ctx context.Context, m bus.Msg) {
	r, err := fleet.ReadResult(m.Data)
	vars, ok := subjects.Tokens(subjects.ResultPattern, m.Subject)
	if err != nil || !ok || !isFailure(r) {
		w.takeResult(ctx, m, r, err)
		return
	}
	if w.failures.turn(ctx, subjects.AgentID(vars[0]), w.pool.Go, func() { w.takeResult(w.patience(), m, r, nil) }) {
		return
	}
	if m.Reply == "" { // it will not come again
		w.takeResult(ctx, m, r, nil)
		return
	}
	w.comeAgain(m)
}

// takeResult takes in what was read from m.
func (w *Worker) takeResult(ctx context.Context, m bus.Msg, r *fleet.Result, err error) {
	w.report(m, subjects.ResultPattern, func(c claim, task subjects.TaskID) (*fleet.Event, error) {
		if err != nil {
			return nil, err
		}
		if err := sameSender(c.agent, task, r.AgentID, r.TaskID); err != nil {
			return nil, err
		}
		c.instance, c.epoch, c.attempt = r.InstanceID, r.Epoch, r.Attempt
		crash.Point("after_result")
		return w.result(ctx, task, c, r)
	})
}

// onProgress takes in TASK_PROGRESS: artifacts and questions become records,
// the rest has been heard live by whoever wanted to.
func (w *Worker) onProgress(ctx context.Context, m bus.Msg) {
	w.report(m, subjects.ProgressPattern, func(c claim, task subjects.TaskID) (*fleet.Event, error) {
		p, err := fleet.DecodeProgress(m.Data)
		if err != nil {
			return nil, err
		}
		if err := sameSender(c.agent, task, "", p.TaskID); err != nil {
			return nil, err
		}
		c.epoch, c.attempt = p.Epoch, p.Attempt
		if p.TokensSpent != nil {
			w.with(func(core *core, _ time.Time) { core.noteSpent(task, c.agent, p.Attempt, *p.TokensSpent) })
		}
		if p.Artifact == nil && p.Question == nil && m.Reply == "" {
			return nil, nil
		}
		if p.Artifact != nil && m.Reply == "" { // its result could overtake it, and nobody would know
			return nil, subjects.Errorf(subjects.CodeInvalidMessage, "an artifact was published: it must be a request").
				At("/artifact").WithRemedy("request it, repeat it until it is answered, and hand in the result then")
		}
		return w.progress(ctx, task, c, p, markOf(m.Header.Get("Nats-Msg-Id")))
	})
}

// sameSender refuses a payload that speaks for somebody or something else than
// its subject.
func sameSender(agent subjects.AgentID, task subjects.TaskID, saysAgent subjects.AgentID, saysTask subjects.TaskID) error {
	switch {
	case saysTask != "" && saysTask != task:
		return subjects.Errorf(subjects.CodeForbidden, "task_id is %s, the subject says %s", saysTask, task).
			At("/task_id").WithRemedy("leave task_id out, or publish on the subject of that task")
	case saysAgent != "" && saysAgent != agent:
		return subjects.Errorf(subjects.CodeForbidden, "agent_id is %s, the subject says %s", saysAgent, agent).
			At("/agent_id").WithRemedy("leave agent_id out: the subject alone says who writes")
	}
	return nil
}

// report answers an agent's message once what it says is stored.
func (w *Worker) report(m bus.Msg, pattern string, handle func(claim, subjects.TaskID) (*fleet.Event, error)) {
	var n *fleet.Event
	var err error
	var about []any
	if vars, ok := subjects.Tokens(pattern, m.Subject); ok {
		n, err = handle(claim{agent: subjects.AgentID(vars[0])}, subjects.TaskID(vars[1]))
		if err != nil {
			about = []any{slog.String("agent_id", vars[0]), slog.String("task_id", vars[1]), slog.Any("error", err)}
		}
	} else {
		err = subjects.Errorf(subjects.CodeInvalidID, "subject %s does not follow %s", m.Subject, pattern)
		about = []any{slog.Any("error", err)}
	}
	switch {
	case err == nil && m.Reply != "":
		w.respond(m, fleet.ResultReply{OK: true, TaskID: n.TaskID, State: n.State, Seq: n.Seq})
	case err == nil:
	case m.Reply == "":
		switch subjects.CodeOf(err) {
		case subjects.CodeInvalidMessage, subjects.CodeInvalidID, subjects.CodePayloadTooLarge, subjects.CodeVersionMismatch, subjects.CodeNotFound, subjects.CodeResultInvalid:
			w.bus.Skip(m, err)
		default:
			w.log.Warn("refuse what an agent reports", about...)
		}
	default:
		if bus.AsError(err).Code == subjects.CodeInternal {
			w.log.Error("take in what an agent reports", about...)
		}
		w.refuseReport(m, err)
	}
}

func (w *Worker) respond(m bus.Msg, v any) {
	if err := m.Respond(fleet.MustEncode(v), nil); err != nil {
		w.log.Debug("answer an agent", slog.String("subject", m.Subject), slog.Any("error", err))
	}
}

// refuseReport answers what an agent reports with an error.
func (w *Worker) refuseReport(m bus.Msg, err error) {
	if err := m.Respond(bus.Refusal(err)); err != nil {
		w.log.Debug("answer an agent", slog.String("subject", m.Subject), slog.Any("error", err))
	}
}

// patiently repeats change while the record is behind the agent, for a while; not
// where too much of what that agent says waits for records already. A task that the
// stream's leader does not know may have been offered by another router already: the
// leader has yet to apply its record.
func (w *Worker) patiently(ctx context.Context, task subjects.TaskID, agent subjects.AgentID, decide func(*view) (*fleet.Event, error)) (*fleet.Event, error) {
	n, err := w.change(ctx, task, decide)
	if !isStale(err) {
		return n, err
	}
	if !w.behind.enter(agent) {
		return nil, unavailable(err)
	}
	defer w.behind.leave(agent)
	give := w.now().Add(behindTimeout)
	for wait := 5 * time.Millisecond; !w.now().After(give); wait = min(2*wait, 200*time.Millisecond) {
		if !w.offerOver(ctx, task) {
			select {
			case <-ctx.Done():
				return nil, unavailable(ctx.Err())
			case <-time.After(wait):
			}
			if _, err := w.reread(ctx, task); err != nil && !isStale(err) {
				return nil, err
			}
		}
		if n, err = w.change(ctx, task, decide); !isStale(err) {
			return n, err
		}
	}
	return nil, unavailable(err)
}

// isStale reports whether the record may be behind what an agent says.
func isStale(err error) bool { return errors.Is(err, errBehind) || errors.Is(err, errNoTask) }

// offerOver waits for the end of this router's own offer of the task, if one
// is under way: a fast agent's result overtakes the record of its acceptance.
func (w *Worker) offerOver(ctx context.Context, task subjects.TaskID) bool {
	over := w.offering(task)
	if over == nil {
		return false
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	return true
}

// offering is closed when this router's own offer of the task is over; nil when
// there is none.
func (w *Worker) offering(task subjects.TaskID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.core.hot[w.core.x.find(task)]; h != nil && h.offered != nil {
		return h.offered
	}
	return nil
}

// result decides what a result means and stores it.
func (w *Worker) result(ctx context.Context, task subjects.TaskID, c claim, r *fleet.Result) (*fleet.Event, error) {
	var refusal error   // what the agent is told although its result was taken in
	var began time.Time // for the last time: what was waited for before is no work
	n, err := w.patiently(ctx, task, c.agent, func(cur *view) (*fleet.Event, error) {
		v := cur
		refusal, began = nil, time.Now()
		now := w.now()
		ok := r.Status == fleet.StatusDone || r.Status == fleet.StatusPartial
		means := stand(v.ev, c)
		if means == countsOld && !ok {
			if err := w.repeats(cur, c, now); err != nil {
				return nil, err
			}
		}
		if means != behind { // whether it counts or not, it was spent
			if err := w.ledger.charge(ctx, v.ev, c, r.TokensSpent, now); err != nil {
				return nil, err
			}
		}
		switch means {
		case repeated:
			if !sameResult(v.ev, r) {
				return nil, lateResult(v.ev, c)
			}
			return nil, nil
		case behind:
			return nil, errBehind
		case late:
			if plant.Bug("second_outcome") && v.ev.State.Terminal() {
				return done(v.ev, r, now), nil
			}
			if n := spentLate(v.ev, c, r.TokensSpent, now); n != nil {
				refusal = lateResult(v.ev, c)
				return n, nil
			}
			return nil, lateResult(v.ev, c)
		case countsOld:
			if !ok && !plant.Bug("replay_counts") { // that attempt has failed already
				return spentLate(v.ev, c, r.TokensSpent, now), nil
			}
			v = asOf(v, past(v.ev, c))
		case counts:
		}
		if !v.ev.Facts.Deadline.After(now) {
			return expired(v.ev, now), nil
		}
		if !ok {
			return w.fail(ctx, v, failureOf(r))
		}
		if err := w.check(ctx, v, r); err != nil {
			if subjects.CodeOf(err) != subjects.CodeResultInvalid {
				return nil, err
			}
			refusal = err
			if means == countsOld { // that attempt has ended already
				return spentLate(cur.ev, c, r.TokensSpent, now), nil
			}
			return w.fail(ctx, v, failure{
				code: subjects.CodeResultInvalid, message: withoutCode(err), retryable: true,
				tokens: r.TokensSpent, result: fleet.MustEncode(r),
			})
		}
		if plant.Sometimes("result_lost", 50) {
			return nil, nil
		}
		return done(v.ev, r, now), nil
	})
	if isFailure(r) && !began.IsZero() {
		w.failures.took(time.Since(began))
	}
	if err == nil {
		err = refusal
	}
	if short := shortened(r, err); short != nil {
		if _, ferr := w.result(ctx, task, c, short); ferr != nil {
			return n, ferr
		}
	}
	return n, err
}

// shortened is what becomes of a result that is too long to be kept: its attempt
// has failed. It returns nil where err says something else.
func shortened(r *fleet.Result, err error) *fleet.Result {
	if subjects.CodeOf(err) != subjects.CodePayloadTooLarge || len(r.Output)+len(r.Parts)+len(r.Artifacts)+len(r.Unknown) == 0 {
		return nil
	}
	return &fleet.Result{
		Status: fleet.StatusError, TokensSpent: r.TokensSpent,
		Error: &fleet.ResultError{Code: subjects.CodeResultInvalid, Message: withoutCode(err), Retryable: true},
	}
}

// repeats returns nil where a failure is that of a past attempt once more. One that
// does not say its attempt may be of the next already, which this router, or
// another one, is offering, wherever its agent may have the task now.
func (w *Worker) repeats(v *view, c claim, now time.Time) error {
	switch {
	case c.attempt != 0:
		return nil
	case w.offering(v.ev.TaskID) != nil:
		return errBehind
	case !v.sure:
		return errUnsure
	case mayHave(v.ev, c.agent, now):
		return errBehind
	}
	return nil
}

// sameResult reports whether r is what made e the outcome: an agent may have done
// the same attempt twice, if its first acceptance was overtaken. Of an outcome
// that came from elsewhere any agent may be told.
func sameResult(e *fleet.Event, r *fleet.Result) bool {
	if e.State != fleet.StateDone && e.State != fleet.StatePartial {
		return true
	}
	was, err := fleet.DecodeReply[fleet.Result](e.Data.Result)
	return err == nil && was.Status == r.Status && sameJSON(was.Output, r.Output) && sameJSON(was.Artifacts, r.Artifacts)
}

func sameJSON(a, b json.RawMessage) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	x, err1 := decodeJSON(a)
	y, err2 := decodeJSON(b)
	return err1 == nil && err2 == nil && reflect.DeepEqual(x, y)
}

// lateResult is what an agent is told whose work does not count.
func lateResult(e *fleet.Event, c claim) error {
	msg := fmt.Sprintf("task %s is %s", e.TaskID, e.State)
	switch {
	case e.State.Terminal() && e.AgentID != "":
		msg += fmt.Sprintf(" (attempt %d by %s)", e.Attempt, e.AgentID)
	case held(e):
		msg += fmt.Sprintf(", held by %s/%s in attempt %d", e.AgentID, e.InstanceID, e.Attempt)
	}
	return subjects.Errorf(subjects.CodeLateResult, "%s; what %s reports of it does not count", msg, c.agent).
		WithRemedy("drop the work: the task was given to another, or has ended")
}

// failureOf reads a failed attempt's TASK_RESULT.
func failureOf(r *fleet.Result) failure {
	f := failure{tokens: r.TokensSpent, result: fleet.MustEncode(r)}
	if r.Status == fleet.StatusBlocked {
		f.code = subjects.CodeNoCapableAgent
	} else {
		f.code, f.retryable = subjects.CodeAgentError, true
	}
	if r.BlockedReason != nil {
		f.message = *r.BlockedReason
	}
	if e := r.Error; e != nil {
		if e.Code != "" {
			f.code = escalation.SaidByAgent(e.Code)
		}
		if e.HTTPStatus == 429 || e.HTTPStatus == 529 {
			f.code = subjects.CodeRateLimited
		}
		f.retryable = e.Retryable && r.Status == fleet.StatusError
		f.retryAfter, f.resetAt, f.limitTier = seconds(e.RetryAfterSeconds), e.ResetAt, e.LimitTier
		if f.message == "" {
			f.message = e.Message
		}
	}
	return f
}

// progress records an artifact or a question, each once: mark stands for the
// message that it came by. Of other progress it says only whether it is the
// holder's.
func (w *Worker) progress(ctx context.Context, task subjects.TaskID, c claim, p *fleet.Progress, mark string) (*fleet.Event, error) {
	return w.patiently(ctx, task, c.agent, func(v *view) (*fleet.Event, error) {
		switch stand(v.ev, c) {
		case behind:
			return nil, errBehind
		case repeated, late, countsOld:
			return nil, lateResult(v.ev, c)
		case counts:
		}
		now := w.now()
		if p.Artifact == nil && p.Question == nil {
			return nil, nil
		}
		// Its agent was not told that it is stored, or it is a copy.
		again := mark != "" && slices.Contains(v.ev.Facts.Heard, mark) && !plant.Bug("piece_twice")
		if p.Artifact != nil {
			if again {
				return nil, nil
			}
			n := published(v.ev, p.Artifact, now)
			n.Facts.Heard = hear(v.ev.Facts.Heard, mark)
			return n, nil
		}
		if open := v.ev.Facts.Question; open != nil {
			if open.ID == p.Question.ID {
				return nil, nil
			}
			return nil, subjects.Errorf(subjects.CodeInvalidMessage, "question %s is still open", open.ID).
				At("/question/id").WithRemedy("wait for its answer, then ask the next")
		}
		if a := v.ev.Facts.Answer; a != nil && a.QuestionID == p.Question.ID {
			w.with(func(core *core, _ time.Time) { core.untold(task) })
			return nil, nil
		}
		if again {
			return nil, nil
		}
		n := asked(v.ev, p.Question, now)
		n.Facts.Heard = hear(v.ev.Facts.Heard, mark)
		return n, nil
	})
}

// maxHeard is how many messages an attempt is remembered by: every record repeats
// them.
const maxHeard = 64

// hear adds the mark of a message to those that are remembered.
func hear(marks []string, mark string) []string {
	if mark == "" {
		return marks
	}
	return append(slices.Clone(marks[max(0, len(marks)+1-maxHeard):]), mark)
}

// markOf stands for a message by its id; "" for one that has none.
func markOf(messageID string) string {
	if messageID == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(messageID))
	return hex.EncodeToString(sum[:8])
}

// withoutCode is what err says, without the result_invalid that stands beside it.
func withoutCode(err error) string {
	return strings.TrimLeft(strings.TrimPrefix(err.Error(), string(subjects.CodeResultInvalid)), ": ")
}
