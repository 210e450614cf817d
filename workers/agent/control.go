package agent

import (
	"log/slog"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// onControl does what a router says, and answers.
func (w *Worker) onControl(m bus.Msg) {
	c, err := fleet.DecodeControl(m.Data)
	if err != nil {
		w.log.Warn("refuse a control message", slog.Any("error", err))
		w.respond(m, &fleet.ControlReply{Error: subjects.AsError(err)})
		return
	}
	log := w.log.With(slog.String("action", c.Action), slog.String("task_id", string(c.TaskID)))
	switch c.Action {
	case fleet.ActionCancel:
		cause := ErrCanceled
		if c.Reason != nil && c.Reason.Code != subjects.CodeCanceled {
			cause = ErrSuperseded
		}
		log.Info("told to drop a task", slog.String("reason", cause.Error()), slog.Bool("held", w.hand.recall(c, cause, time.Now())))
	case fleet.ActionDrain:
		log.Info("told to drain")
		w.hand.drain(true)
	case fleet.ActionResume:
		log.Info("told to resume")
		w.hand.drain(false)
	case fleet.ActionInput:
		if !w.hand.input(c) {
			w.respond(m, &fleet.ControlReply{
				Error: subjects.Errorf(subjects.CodeNotFound, "no question %q of task %q is open here", c.QuestionID, c.TaskID),
			})
			return
		}
	}
	w.respond(m, &fleet.ControlReply{OK: true})
}
