package agent

import (
	"context"
	"fmt"
	"log/slog"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Where a result's tokens come from.
const (
	tokensReported = "reported" // the agent says so
	tokensMeasured = "measured" // counted by what ran it
)

// failuresAtOnce is how many failed results are handed in at a time.
const failuresAtOnce = 8

// handIn sends a task's result until it is answered, and takes the task out of
// the hand. If life ends first, the result stays in the spool.
func (w *Worker) handIn(life context.Context, h *held, r fleet.Result) {
	ctx, drop := context.WithCancelCause(life)
	defer drop(nil)
	defer w.hand.forget(h)
	w.settle(h, &r)
	w.hand.finish(h, &r, drop)
	var files []string
	inTurn := r.Status == fleet.StatusDone || r.Status == fleet.StatusPartial
	turn := func() error {
		if inTurn {
			return nil
		}
		select {
		case w.failures <- struct{}{}:
			inTurn = true
			context.AfterFunc(ctx, func() { <-w.failures })
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := w.request(ctx, h, subjects.Result(w.cfg.ID, h.id), func(attempt int) ([]byte, error) {
		if w.spool == nil { // it need not be encoded before
			if err := turn(); err != nil {
				return nil, err
			}
		}
		data, file := w.pack(r, attempt)
		if file != "" {
			files = append(files, file)
		}
		return data, turn()
	})
	task := slog.String("task_id", string(h.id))
	switch {
	case err == nil:
		w.log.Debug("result was taken", task)
	case life.Err() != nil:
		w.log.Warn("result was not answered before the end", task, slog.Any("error", err), slog.Bool("spooled", len(files) > 0))
		return
	default:
		w.log.Info("result did not count", task, slog.String("status", string(r.Status)), slog.Any("error", err))
	}
	for _, f := range files {
		w.spool.remove(f, w.log)
	}
}

// settle fills what the harness knows better than the handler.
func (w *Worker) settle(h *held, r *fleet.Result) {
	r.Header = header(fleet.TypeResult)
	r.TaskID, r.AgentID, r.InstanceID, r.Epoch = h.id, w.cfg.ID, w.cfg.Instance, w.epoch
	r.State = ""
	r.TokensSpent += h.lent.Load()
	if r.NextSteps == nil {
		r.NextSteps = []string{}
	}
	if r.TokensSource == "" && r.TokensSpent != 0 {
		r.TokensSource = tokensReported
	}
}

// pack encodes r for an attempt and puts it into the spool. A result that no
// router would take becomes one that says so.
func (w *Worker) pack(r fleet.Result, attempt int) (data []byte, file string) {
	r.Attempt = attempt
	data, err := fleet.EncodeResult(&r)
	if err != nil {
		e := subjects.AsError(err)
		f := &Fail{Code: subjects.CodeResultInvalid, Retryable: true, Message: "the result cannot be handed in: " + e.Error()}
		if e.Code == subjects.CodePayloadTooLarge {
			f.Code, f.Retryable = e.Code, false
			f.Message = fmt.Sprintf("the result has %d bytes, at most %d fit: hand large output in as artifacts, or by link", len(data), fleet.MaxMessage)
		}
		r = failed(fleet.Result{
			Header: r.Header, TaskID: r.TaskID, AgentID: r.AgentID, InstanceID: r.InstanceID, Epoch: r.Epoch,
			Attempt: attempt, TokensSpent: max(r.TokensSpent, 0), TokensSource: r.TokensSource, NextSteps: []string{},
		}, f.Code, f)
		data = fleet.MustEncode(&r)
	}
	if w.spool == nil {
		return data, ""
	}
	file = spoolName(&r)
	if err := w.spool.put(file, data); err != nil {
		w.log.Error("spool a result", slog.String("task_id", string(r.TaskID)), slog.Any("error", err))
	}
	return data, file
}
