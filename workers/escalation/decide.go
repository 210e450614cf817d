package escalation

import (
	"cmp"
	"context"
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
)

// decide takes in what a human decided about an alert, or about one task. With
// repeat the same answer once more is not a second one.
func (w *Worker) decide(ctx context.Context, by, verb string, req *fleet.EscalationAnswer, repeat bool) (*fleet.EscalationAnswered, error) {
	if err := req.Check(verb); err != nil {
		return nil, err
	}
	h := fleet.HumanAnswer{Verb: verb, By: by, Text: req.Text, Time: w.now()}
	if verb == fleet.VerbReassign {
		h.AgentID = req.AgentID
	}
	id, task := w.find(req.ID)
	switch {
	case task != nil:
		return w.decideOne(ctx, *task, fleet.AlertAnswer{HumanAnswer: h, Result: req.Result})
	case id == "":
		return w.decideUnknown(ctx, req, fleet.AlertAnswer{HumanAnswer: h, Result: req.Result})
	}
	for {
		done, err := w.decideGroup(ctx, id, verb, h, req, repeat)
		if !errors.Is(err, bus.ErrConflict) { // as when its contact is called at the same time
			return done, err
		}
	}
}

// decideGroup takes in the answer to a group's alert; ErrConflict when the alert
// has changed meanwhile.
func (w *Worker) decideGroup(ctx context.Context, id, verb string, h fleet.HumanAnswer, req *fleet.EscalationAnswer, repeat bool) (*fleet.EscalationAnswered, error) {
	rev, a, err := w.readAlert(ctx, id)
	if err != nil {
		return nil, err
	}
	if was := a.Answer; repeat && was != nil && a.AlertID == req.ID && was.By == h.By && was.Verb == verb && was.AgentID == h.AgentID && was.Text == h.Text {
		return &fleet.EscalationAnswered{ID: req.ID, Verb: verb, By: h.By, Tasks: w.left(id)}, nil
	}
	if err := open(a, req.ID); err != nil {
		return nil, err
	}
	if a.Group[labelCause] != "" {
		return nil, w.refuseDecision(a)
	}
	h.AnswerID = a.AlertID + "-" + strconv.FormatInt(h.Time.UnixMilli(), 36)
	a.Answer = &fleet.AlertAnswer{HumanAnswer: h, Result: req.Result}
	if !w.claim(id) {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "somebody's answer to alert %s is being carried out", req.ID).RetryAfter(time.Second)
	}
	defer w.release(id)
	about := w.waiting(id) // once the answer is stored, other workers carry it out, too
	crash.Point("before_answer")
	if err := w.putAlert(ctx, id, *a, rev, fleet.AlertEvent{Event: "answered", By: h.By, Count: about, Message: verb}); err != nil {
		return nil, err
	}
	crash.Point("after_answer")
	done, err := w.carryOut(ctx, id)
	if done != nil {
		done.ID, done.Tasks = a.AlertID, max(done.Tasks, about)
	}
	if errors.Is(err, errLater) && done.Applied > 0 {
		err = nil // the rest follows
	}
	return done, err
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
	done, err := w.decideOne(ctx, fleet.AlertTask{TaskID: subjects.TaskID(req.ID)}, a)
	if subjects.CodeOf(err) == subjects.CodeNotFound && a.Verb != fleet.VerbReassign {
		return nil, notFound(req.ID)
	}
	return done, err
}

// decideOne answers a single task.
func (w *Worker) decideOne(ctx context.Context, t fleet.AlertTask, a fleet.AlertAnswer) (*fleet.EscalationAnswered, error) {
	if a.AnswerID == "" {
		a.AnswerID = "one-" + strconv.FormatInt(a.Time.UnixNano(), 36)
	}
	if err := w.resume(ctx, t, a); err != nil {
		return nil, err
	}
	w.event(ctx, fleet.AlertEvent{Event: "answered", TaskID: t.TaskID, By: a.By, Message: a.Verb})
	return &fleet.EscalationAnswered{ID: string(t.TaskID), Verb: a.Verb, By: a.By, Tasks: 1, Applied: 1}, nil
}

// resume asks the routers to go on with a task.
func (w *Worker) resume(ctx context.Context, t fleet.AlertTask, a fleet.AlertAnswer) error {
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
		return err
	}
	_, err = fleet.DecodeReply[fleet.TaskView](m.Data)
	return err
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
			err := w.resume(ctx, t, answer)
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
