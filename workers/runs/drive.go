package runs

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// TaskID is the task of a node's generation: always the same one, so that
// whoever dispatches it again dispatches nothing new.
func TaskID(r subjects.RunID, n run.NodeID, generation int) subjects.TaskID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", r, n, generation))
	return subjects.TaskID("run-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])))
}

// drive carries a run on until it ends, or is another worker's.
func (w *Worker) drive(ctx context.Context, id subjects.RunID, l *live) {
	log := w.log.With(slog.String("run_id", string(id)))
	told := map[subjects.TaskID]bool{} // dispatched by this driver
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	all := true // ask about every task, whatever was heard
	for {
		w.mu.Lock()
		rec, rev := l.rec, l.rev
		w.mu.Unlock()
		if rec.State.Ended() {
			return
		}
		ended, err := w.look(ctx, l, rec, told, all)
		var wrote bool
		if err == nil {
			wrote, err = w.step(ctx, rec, rev, ended)
		}
		if ctx.Err() != nil {
			return
		}
		again := time.Until(rec.Deadline)
		switch {
		case err != nil && !errors.Is(err, bus.ErrConflict):
			log.Warn("run is looked at again", slog.Any("error", err))
			fallthrough
		case err != nil:
			again, all = againAfter, true
		case wrote:
			all = false
			continue
		default:
			all = false
		}
		timer := time.NewTimer(max(again, time.Millisecond))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.kick:
		case <-poll.C:
			all = true
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step stores what follows from a record and from what has ended.
func (w *Worker) step(ctx context.Context, rec *run.Record, rev uint64, ended []Outcome) (wrote bool, err error) {
	now := time.Now().UTC()
	p := Next(rec, ended, func(n run.NodeID, generation int) subjects.TaskID { return TaskID(rec.RunID, n, generation) }, now)
	if rec.Cancel != "" {
		p = Cancel(rec, rec.Cancel, now)
	}
	if p.Record == nil {
		return false, nil
	}
	for _, n := range p.Cancel { // before it is written that they are
		if err := w.cancelTask(ctx, rec, rec.Nodes[n].TaskID, p.Record.Reason); err != nil {
			return false, err
		}
	}
	if p.Record.State.Ended() {
		if err := w.writeOutput(ctx, p.Record); err != nil {
			return false, err
		}
	}
	if err := w.write(ctx, p.Record, rev); err != nil {
		return false, err
	}
	if p.Record.State.Ended() {
		w.log.Info("run ended", slog.String("run_id", string(rec.RunID)), slog.String("state", string(p.Record.State)), slog.Int64("tokens_spent", p.Record.Tokens))
	}
	return true, nil
}

// write stores a record after rev.
func (w *Worker) write(ctx context.Context, r *run.Record, rev uint64) error {
	rec := bus.Record{
		Subject: subjects.Run(r.RunID), Expected: rev, WriteID: uuid.NewString(), Data: fleet.MustEncode(r),
		Header: bus.Header{subjects.HeaderWriter: {string(w.cfg.ID)}, subjects.HeaderKind: {string(r.State)}},
	}
	if r.State.Ended() {
		rec.TTL = keepEnded
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callTry)
	defer cancel()
	next, err := w.records.Write(ctx, rec)
	if err == nil {
		w.heard(r, next)
	}
	return err
}

// look dispatches what the record says is dispatched, and finds what has ended:
// of all tasks, or of those of which that was heard.
func (w *Worker) look(ctx context.Context, l *live, rec *run.Record, told map[subjects.TaskID]bool, all bool) (ended []Outcome, err error) {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	slots := make(chan struct{}, callsAtOnce)
	for i := range rec.Definition.Agents {
		d := &rec.Definition.Agents[i]
		n := rec.Nodes[d.Name()]
		if n.State != run.Dispatched {
			continue
		}
		w.mu.Lock()
		heard := l.ended[n.TaskID]
		w.mu.Unlock()
		first := !told[n.TaskID]
		if !first && !heard && !all {
			continue
		}
		told[n.TaskID] = true
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			o, err := w.ask(ctx, rec, d, n.TaskID, first)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				if first {
					delete(told, n.TaskID)
				}
			} else if o != nil {
				ended = append(ended, *o)
			}
		})
	}
	wg.Wait()
	return ended, errors.Join(errs...)
}

// ask dispatches a node's task, if that is yet to be done, and asks how far it
// is; nil: it has not ended.
func (w *Worker) ask(ctx context.Context, rec *run.Record, d *run.Node, task subjects.TaskID, first bool) (*Outcome, error) {
	if first {
		dispatch, err := w.dispatchOf(ctx, rec, d, task)
		if err != nil {
			return nil, err
		}
		_, err = call[fleet.Dispatched](ctx, w, rec.From, "task", "dispatch", dispatch)
		switch code := subjects.CodeOf(err); {
		case err == nil, code == subjects.CodeIdempotencyConflict: // it is there
		case again(code):
			return nil, err
		default:
			e := subjects.AsError(err)
			return w.outcome(ctx, rec, d, task, &fleet.Result{
				Status: fleet.StatusError, State: fleet.StateError, Error: &fleet.ResultError{Code: e.Code, Message: e.Error()},
			}, &fleet.TaskView{State: fleet.StateError})
		}
	}
	v, err := call[fleet.TaskView](ctx, w, rec.From, "task", "get", fleet.TaskRef{TaskID: task})
	switch {
	case subjects.CodeOf(err) == subjects.CodeNotFound && !first:
		// Its end was a day ago, and nobody looked: it is lost to the run.
		return w.outcome(ctx, rec, d, task, &fleet.Result{
			Status: fleet.StatusError, Error: &fleet.ResultError{Code: subjects.CodeNotFound, Message: "the task is not kept any more"},
		}, &fleet.TaskView{State: fleet.StateError})
	case err != nil:
		return nil, err
	case !v.State.Terminal():
		return nil, nil //nolint:nilnil // it goes on
	case v.Result == nil:
		v.Result = &fleet.Result{}
	}
	return w.outcome(ctx, rec, d, task, v.Result, &v)
}

// outcome stores a task's result and says what it means for its node.
func (w *Worker) outcome(ctx context.Context, rec *run.Record, d *run.Node, task subjects.TaskID, res *fleet.Result, v *fleet.TaskView) (*Outcome, error) {
	err := w.storeResult(ctx, rec.RunID, task, res)
	if err != nil {
		return nil, err
	}
	o := &Outcome{Node: d.Name(), TaskID: task, Status: run.Status{
		State: run.Failed, AgentID: res.AgentID, Attempts: v.Attempt, Tokens: v.TokensSpent, Reason: v.Reason,
	}}
	if !v.Updated.IsZero() {
		o.Status.Ended = new(v.Updated)
	}
	switch v.State {
	case fleet.StateDone, fleet.StatePartial:
		o.Status.State, o.Status.Reason = run.Done, nil
	case fleet.StateCanceled:
		o.Status.State = run.Canceled
	default:
		if res.Error != nil {
			o.Status.Reason = &fleet.Reason{Code: res.Error.Code, Message: res.Error.Message}
		}
	}
	return o, nil
}

func (w *Worker) storeResult(ctx context.Context, r subjects.RunID, task subjects.TaskID, res *fleet.Result) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTry)
	defer cancel()
	_, err := w.records.Write(ctx, bus.Record{
		Subject: subjects.RunResult(r, task), WriteID: uuid.NewString(), Data: fleet.MustEncode(res), TTL: keepResults,
	})
	if errors.Is(err, bus.ErrConflict) {
		return nil // stored before
	}
	return err
}

// result is what a task has come to; nil when it has not.
func (w *Worker) result(ctx context.Context, r subjects.RunID, task subjects.TaskID) (*fleet.Result, error) {
	if task == "" {
		return nil, nil //nolint:nilnil // never begun
	}
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, subjects.RunResult(r, task))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // it has none
	}
	if err != nil {
		return nil, err
	}
	var res fleet.Result
	return &res, json.Unmarshal(m.Data, &res)
}

func (w *Worker) cancelTask(ctx context.Context, rec *run.Record, task subjects.TaskID, why *fleet.Reason) error {
	_, err := call[fleet.TaskView](ctx, w, rec.From, "task", "cancel", fleet.TaskCancel{TaskID: task, Reason: why.Message})
	if code := subjects.CodeOf(err); err != nil && again(code) {
		return err
	}
	return nil // it has ended, or was never dispatched
}

// again reports whether a refusal may be another one later.
func again(code subjects.Code) bool {
	return code == subjects.CodeUnavailable || code == subjects.CodeInternal || code == subjects.CodeRateLimited
}

// call asks the fleet's API in the name of whoever started a run.
func call[T any](ctx context.Context, w *Worker, from subjects.AgentID, noun, verb string, req any) (T, error) {
	var zero T
	data, err := fleet.Encode(req)
	if err != nil {
		return zero, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTry)
	defer cancel()
	m, err := w.cfg.Bus.Request(ctx, subjects.API(from, noun, verb), data, nil)
	if err != nil {
		return zero, subjects.Errorf(subjects.CodeUnavailable, "%s %s: %w", noun, verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}
