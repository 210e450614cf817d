package escalation

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

const (
	applying    = 32              // tasks at a time
	applyFor    = 2 * time.Second // then something else has its turn, and the rest follows
	maxProblems = 5               // that one reply tells
	// answerWait is how long a human's call waits for routers. The answer is kept
	// by then, and is carried out all the same.
	answerWait = 3 * time.Second
)

// decide takes in what a human decided about an alert, or about one task. What
// comes again with its request id is the first answer still. With byContent so is
// the same answer to an alert without one.
func (w *Worker) decide(ctx context.Context, by, verb string, req *fleet.EscalationAnswer, byContent bool) (*fleet.EscalationAnswered, error) {
	if err := req.Check(verb); err != nil {
		return nil, err
	}
	h := fleet.HumanAnswer{Verb: verb, By: by, Text: req.Text, Time: w.now()}
	if verb == fleet.VerbReassign {
		h.AgentID = req.AgentID
	}
	answer := fleet.AlertAnswer{HumanAnswer: h, Result: req.Result, RequestID: req.RequestID}
	id, task := w.find(req.ID)
	switch {
	case task != nil:
		return w.decideOne(ctx, *task, req, answer)
	case id == "":
		return w.decideUnknown(ctx, req, answer)
	}
	for {
		done, err := w.decideGroup(ctx, id, req.ID, answer, byContent)
		if !errors.Is(err, bus.ErrConflict) { // as when its contact is called at the same time
			return done, err
		}
	}
}

// decideGroup takes in the answer to alert, which is or was that of group id;
// ErrConflict when the group's alert has changed meanwhile.
func (w *Worker) decideGroup(ctx context.Context, id, alert string, answer fleet.AlertAnswer, byContent bool) (*fleet.EscalationAnswered, error) {
	rev, a, err := w.readAlert(ctx, id)
	if err != nil {
		return nil, err
	}
	was := a
	if a.AlertID != alert { // it is over
		if was, err = w.archived(ctx, alert); err != nil && !errors.Is(err, bus.ErrNotFound) {
			return nil, err
		}
	}
	if was != nil && isAnswer(was.Answer, &answer, byContent) {
		done := &fleet.EscalationAnswered{ID: alert, Verb: answer.Verb, By: answer.By, Duplicate: true}
		if was == a {
			done.Tasks = w.left(id)
		}
		return done, nil
	}
	if err := open(a, alert); err != nil {
		return nil, err
	}
	if a.Group[labelCause] != "" {
		return nil, w.refuseDecision(a)
	}
	answer.AnswerID = a.AlertID + "-" + strconv.FormatInt(answer.Time.UnixMilli(), 36)
	a.Answer = &answer
	if !w.claim(id) {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "somebody's answer to alert %s is being carried out", alert).RetryAfter(time.Second)
	}
	defer w.release(id)
	about := w.waiting(id) // once the answer is stored, other workers carry it out, too
	crash.Point("before_answer")
	if err := w.putAlert(ctx, id, *a, rev, fleet.AlertEvent{Event: "answered", By: answer.By, Count: about, Message: answer.Verb}); err != nil {
		return nil, notKept(err)
	}
	crash.Point("after_answer")
	soon, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	done, err := w.carryOut(soon, id)
	if done != nil {
		done.ID, done.Tasks = a.AlertID, max(done.Tasks, about)
	}
	if _, refused := errors.AsType[*subjects.Error](err); err != nil && !refused {
		err = nil // the answer is kept: the rest follows
	}
	return done, err
}

// notKept is what a human is told whose answer to an alert was not stored, or
// perhaps was.
func notKept(err error) error {
	if errors.Is(err, bus.ErrConflict) {
		return err
	}
	e := bus.AsError(err)
	if e.Code != subjects.CodeUnavailable {
		return err
	}
	return subjects.Errorf(e.Code, "the store does not answer now, and nobody knows yet whether your answer is kept: %w", err).
		WithRemedy("give the same answer again: it counts once").RetryAfter(time.Second)
}

// isAnswer reports whether an alert's answer is the one that comes now: by its
// request id or, with byContent, by what it says.
func isAnswer(was, now *fleet.AlertAnswer, byContent bool) bool {
	if was == nil || was.By != now.By || was.Verb != now.Verb || was.AgentID != now.AgentID || was.Text != now.Text || !isSameJSON(was.Result, now.Result) {
		return false
	}
	return byContent || now.RequestID != "" && was.RequestID == now.RequestID
}

func isSameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}

// archived is an alert after which another one of its group has come.
func (w *Worker) archived(ctx context.Context, id string) (*fleet.Alert, error) {
	e, err := w.kv.Get(ctx, archiveKey+id)
	if err != nil {
		return nil, err
	}
	a, err := fleet.DecodeReply[fleet.Alert](e.Value)
	return &a, err
}

// waiting counts the tasks of a group.
func (w *Worker) waiting(id string) (n int) {
	w.with(func(v *view) { n = len(v.groups[id].tasks) })
	return n
}

// left counts the tasks that the answer of a group's alert is still about.
func (w *Worker) left(id string) (n int) {
	w.with(func(v *view) {
		for _, t := range v.groups[id].tasks {
			if v.groups[id].asked(&t.Task) {
				n++
			}
		}
	})
	return n
}

// open refuses an answer to an alert that needs none any more.
func open(a *fleet.Alert, id string) error {
	const late = "; your answer came too late and changes nothing"
	switch {
	case a.AlertID != id:
		return subjects.Errorf(subjects.CodeLateResult, "alert %s is over, %s has come since%s", id, a.AlertID, late).
			WithRemedy("parley escalation ls shows what waits")
	case plant.Bug("link_twice"):
		return nil
	case a.Answer != nil:
		return subjects.Errorf(subjects.CodeLateResult, "%s has answered alert %s already, with %q%s", a.Answer.By, id, a.Answer.Verb, late).
			WithRemedy("parley escalation show " + id + " tells how it goes on")
	case a.State == fleet.AlertResolved:
		return subjects.Errorf(subjects.CodeLateResult, "alert %s is over: none of its tasks waits any more%s", id, late).
			WithRemedy("parley escalation ls shows what waits")
	}
	return nil
}

// find looks for an alert or a waiting task of that name.
func (w *Worker) find(id string) (groupID string, task *fleet.AlertTask) {
	w.with(func(v *view) {
		if g := v.byTask[subjects.TaskID(id)]; g != nil {
			t := g.tasks[subjects.TaskID(id)].Task
			task = &t
			return
		}
		for gid, g := range v.groups {
			if g.alert.AlertID == id || g.alert.Number > 0 && older(gid, g.alert.Number, id) {
				groupID = gid
			}
		}
	})
	return groupID, task
}

// older reports whether id is that of an earlier alert of the group.
func older(group string, number uint64, id string) bool {
	n, ok := cutNumber(group, id)
	return ok && n < number
}

func cutNumber(group, id string) (uint64, bool) {
	if len(id) <= len(group)+1 || id[:len(group)] != group || id[len(group)] != '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(id[len(group)+1:], 10, 64)
	return n, err == nil
}

func (w *Worker) readAlert(ctx context.Context, id string) (uint64, *fleet.Alert, error) {
	e, err := w.kv.Get(ctx, alertKey+id)
	if errors.Is(err, bus.ErrNotFound) {
		return 0, nil, notFound(id)
	}
	if err != nil {
		return 0, nil, err
	}
	a := new(fleet.Alert)
	if err := json.Unmarshal(e.Value, a); err != nil {
		return 0, nil, fmt.Errorf("decode alert of group %s: %w", id, err)
	}
	return e.Revision, a, nil
}

func notFound(id string) error {
	return subjects.Errorf(subjects.CodeNotFound, "there is no alert, and no waiting task, %q", id).
		At("/id").WithRemedy("parley escalation ls shows what waits")
}

// decideUnknown answers for what this worker does not know: a task may have
// gone on, and its router says so; or have begun to wait just now.
func (w *Worker) decideUnknown(ctx context.Context, req *fleet.EscalationAnswer, a fleet.AlertAnswer) (*fleet.EscalationAnswered, error) {
	done, err := w.decideOne(ctx, fleet.AlertTask{TaskID: subjects.TaskID(req.ID)}, req, a)
	if subjects.CodeOf(err) == subjects.CodeNotFound && a.Verb != fleet.VerbReassign {
		return nil, notFound(req.ID)
	}
	return done, err
}

// decideOne answers a single task. A router knows the answer by its id if it
// comes again, however far the task has gone on by then.
func (w *Worker) decideOne(ctx context.Context, t fleet.AlertTask, req *fleet.EscalationAnswer, a fleet.AlertAnswer) (*fleet.EscalationAnswered, error) {
	a.AnswerID = answerID(req, &a)
	t.Seq = cmp.Or(req.Seq, t.Seq)
	duplicate, err := w.resume(ctx, t, a)
	if err != nil {
		return nil, err
	}
	if !duplicate {
		w.event(ctx, fleet.AlertEvent{Event: "answered", TaskID: t.TaskID, By: a.By, Message: a.Verb})
	}
	return &fleet.EscalationAnswered{ID: string(t.TaskID), Verb: a.Verb, By: a.By, Tasks: 1, Applied: 1, Duplicate: duplicate}, nil
}

// answerID is the id of an answer to a task: the same in every repeat of a call
// that has a request id, or says which record it answers.
func answerID(req *fleet.EscalationAnswer, a *fleet.AlertAnswer) string {
	switch {
	case req.RequestID != "":
		return req.RequestID
	case req.Seq != 0:
		sum := sha256.Sum256(fleet.MustEncode([]any{req.Seq, a.Verb, a.AgentID, a.Text, a.Result}))
		return "seq-" + hex.EncodeToString(sum[:16])
	}
	return "one-" + strconv.FormatInt(a.Time.UnixNano(), 36)
}

// resume asks the routers to go on with a task, and reports whether they had
// taken that answer before.
func (w *Worker) resume(ctx context.Context, t fleet.AlertTask, a fleet.AlertAnswer) (duplicate bool, _ error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req := fleet.TaskResume{
		TaskID: t.TaskID, Seq: t.Seq, Verb: a.Verb, AgentID: a.AgentID, Text: a.Text,
		Result: a.Result, By: a.By, AnswerID: a.AnswerID,
	}
	m, err := w.bus.RequestUntil(ctx, subjects.API(Self, "task", "resume"), fleet.MustEncode(req), nil, 5*time.Second, func(m bus.Msg) bool {
		_, err := fleet.DecodeReply[fleet.TaskView](m.Data)
		return subjects.CodeOf(err) == subjects.CodeUnavailable
	})
	if err != nil {
		return false, err
	}
	v, err := fleet.DecodeReply[fleet.TaskView](m.Data)
	return v.Duplicate, err
}

// apply carries the answer of a group's alert out; errLater when something of
// it is left to be done.
func (w *Worker) apply(ctx context.Context, id string) error {
	if !w.claim(id) {
		return errLater // a human's call does it
	}
	defer w.release(id)
	_, err := w.carryOut(ctx, id)
	if _, told := errors.AsType[*subjects.Error](err); told {
		return nil // it was refused, and the alert has no answer any more
	}
	return err
}

// claim has nobody else here carry out the answer of a group's alert.
func (w *Worker) claim(id string) (ok bool) {
	w.with(func(v *view) {
		ok = !v.groups[id].busy
		v.groups[id].busy = true
	})
	return ok
}

func (w *Worker) release(id string) {
	w.with(func(v *view) { v.groups[id].busy = false; v.groups[id].dirty = true })
	w.stir()
}

// carryOut does what the alert's answer says with every task that it is about.
// An answer that no task can take is taken back, and is the error.
func (w *Worker) carryOut(ctx context.Context, id string) (*fleet.EscalationAnswered, error) {
	var tasks []fleet.AlertTask
	var answer fleet.AlertAnswer
	w.with(func(v *view) {
		g := v.groups[id]
		if g.alert.Answer == nil {
			return
		}
		answer = *g.alert.Answer
		for _, t := range g.tasks {
			if g.asked(&t.Task) {
				tasks = append(tasks, t.Task)
			}
		}
	})
	slices.SortFunc(tasks, func(a, b fleet.AlertTask) int { return cmp.Compare(a.TaskID, b.TaskID) })
	done := &fleet.EscalationAnswered{Verb: answer.Verb, By: answer.By, Tasks: len(tasks)}
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		refused error
		left    int
		slots   = make(chan struct{}, applying)
	)
	begin := time.Now()
	for i, t := range tasks {
		slots <- struct{}{}
		if time.Since(begin) > applyFor {
			<-slots
			mu.Lock()
			left += len(tasks) - i
			mu.Unlock()
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			_, err := w.resume(ctx, t, answer)
			over := err == nil
			switch code := subjects.CodeOf(err); code {
			case subjects.CodeLateResult:
				over = true
			case subjects.CodeNotFound:
				over = answer.Verb != fleet.VerbReassign
			}
			if over {
				over = w.waitOver(ctx, t.TaskID, t.Seq+1) == nil
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done.Applied++
			}
			if err != nil && len(done.Problems) < maxProblems {
				done.Problems = append(done.Problems, string(t.TaskID)+": "+err.Error())
			}
			if over {
				return
			}
			if _, told := errors.AsType[*subjects.Error](err); told && subjects.CodeOf(err) != subjects.CodeUnavailable && subjects.CodeOf(err) != subjects.CodeInternal {
				refused = err
			} else {
				left++
			}
		})
	}
	wg.Wait()
	if left > 0 {
		return done, cmp.Or(ctx.Err(), errLater)
	}
	if refused != nil {
		if err := w.takeBack(ctx, id, answer); err != nil {
			return done, err
		}
		if done.Applied == 0 {
			return nil, refused
		}
	}
	return done, nil
}

// takeBack makes an alert one that waits for another answer.
func (w *Worker) takeBack(ctx context.Context, id string, answer fleet.AlertAnswer) error {
	rev, a, err := w.readAlert(ctx, id)
	if err != nil || a.Answer == nil || a.Answer.AnswerID != answer.AnswerID {
		return err
	}
	a.Answer = nil
	err = w.putAlert(ctx, id, *a, rev, fleet.AlertEvent{Event: "answer_refused", By: answer.By, Message: answer.Verb})
	if errors.Is(err, bus.ErrConflict) {
		return nil
	}
	return err
}

// acknowledge notes that somebody sees to an alert.
func (w *Worker) acknowledge(ctx context.Context, by, id string) (*fleet.Alert, error) {
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	gid, task := w.find(id)
	if task != nil {
		w.with(func(v *view) {
			if g := v.byTask[task.TaskID]; g != nil {
				gid, id = g.id, g.alert.AlertID
			}
		})
	}
	if gid == "" {
		return nil, notFound(id)
	}
	for {
		rev, a, err := w.readAlert(ctx, gid)
		if err != nil {
			return nil, err
		}
		if err := open(a, id); err != nil {
			return nil, err
		}
		if a.State == fleet.AlertAcknowledged && a.AckBy != by {
			return nil, subjects.Errorf(subjects.CodeLateResult, "%s sees to alert %s already, until %s", a.AckBy, id, a.AckUntil.Format(time.RFC3339)).
				WithRemedy("you can answer it all the same")
		}
		until := w.now().Add(w.cfg.Chain.AckTimeout)
		a.State, a.AckBy, a.AckUntil = fleet.AlertAcknowledged, by, &until
		if plant.Bug("told_after") {
			return a, nil
		}
		err = w.putAlert(ctx, gid, *a, rev, fleet.AlertEvent{Event: "acknowledged", By: by})
		if errors.Is(err, bus.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a, nil
	}
}
