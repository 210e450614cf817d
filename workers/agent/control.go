package agent

import (
	"log/slog"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// RefusedError is what Run returns where the fleet does not accept the agent's
// announce: it is not known, and offered nothing.
type RefusedError struct{ Reason fleet.Reason }

// Error gives the reason.
func (e *RefusedError) Error() string {
	return "the fleet does not accept the announce: " + e.Reason.Message
}

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
	case fleet.ActionRefused:
		refused := &RefusedError{Reason: fleet.Reason{Code: subjects.CodeForbidden, Message: "the fleet does not say why"}}
		if c.Reason != nil {
			refused.Reason = *c.Reason
		}
		select {
		case w.refused <- refused:
		default: // told before
		}
	case fleet.ActionEpoch:
		if c.Epoch == w.epoch && c.Reason != nil {
			log.Warn("another process of this instance counts, this one is offered nothing", slog.Int64("epoch", w.epoch), slog.String("reason", c.Reason.Message))
		}
	case fleet.ActionInput:
		delivered, ok := w.hand.input(c)
		if !ok {
			w.respond(m, &fleet.ControlReply{
				Error: subjects.Errorf(subjects.CodeNotFound, "no question %q of task %q is open here", c.QuestionID, c.TaskID),
			})
			return
		}
		w.respond(m, &fleet.ControlReply{OK: true, Delivered: delivered})
		return
	}
	if m.Reply != "" {
		w.respond(m, &fleet.ControlReply{OK: true})
	}
}
