package runs

import (
	"context"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

// end is how a task has ended: what a record keeps, and the whole result.
type end struct {
	status run.Status
	result *fleet.Result

	unknown bool // the fleet knows no such task
}

// endOf reads the end of a task from its last record.
func endOf(record []byte) (*end, error) {
	ev, err := fleet.DecodeEvent(record)
	if err != nil {
		return nil, err
	}
	res, err := fleet.DecodeReply[fleet.Result](ev.Data.Result)
	if err != nil {
		return nil, err
	}
	return ending(&fleet.TaskView{
		State: ev.State, Attempt: ev.Attempt, TokensSpent: ev.Facts.TokensSpent, Reason: ev.Reason, Created: ev.Facts.Created, Updated: ev.Time, Result: &res,
	}), nil
}

// ending is how a task has ended that has.
func ending(v *fleet.TaskView) *end {
	res := v.Result
	if res == nil {
		res = &fleet.Result{}
	}
	e := &end{result: res, status: run.Status{
		State: run.Failed, AgentID: res.AgentID, Attempts: v.Attempt, Tokens: v.TokensSpent, Reason: v.Reason,
	}}
	if !v.Created.IsZero() {
		e.status.Begun = new(v.Created)
	}
	if !v.Updated.IsZero() {
		e.status.Ended = new(v.Updated)
	}
	switch v.State {
	case fleet.StateDone, fleet.StatePartial:
		e.status.State, e.status.Reason = run.Done, nil
	case fleet.StateCanceled:
		e.status.State = run.Canceled
	default:
		if res.Error != nil {
			e.status.Reason = &fleet.Reason{Code: res.Error.Code, Message: res.Error.Message}
		}
	}
	e.status.Reason = run.Short(e.status.Reason)
	return e
}

// refused is the end of a task that never began.
func refused(why error) *end {
	e := subjects.AsError(why)
	return ending(&fleet.TaskView{State: fleet.StateError, Result: &fleet.Result{
		Status: fleet.StatusError, State: fleet.StateError, Error: &fleet.ResultError{Code: e.Code, Message: e.Error()},
	}})
}

// dispatch hands a task to the fleet; not nil: it has ended already, or was
// refused for good. It may be called concurrently.
func (d *driver) dispatch(ctx context.Context, from subjects.AgentID, task *fleet.Dispatch) (*end, error) {
	got, err := call[fleet.Dispatched](ctx, d.Worker, from, "task", "dispatch", task)
	d.doubts.note(task.Task.TaskID, err)
	switch code := subjects.CodeOf(err); {
	case err == nil && !got.Duplicate:
		return nil, nil //nolint:nilnil // it goes on
	case err == nil, code == subjects.CodeIdempotencyConflict: // it was there
		return d.get(ctx, from, task.Task.TaskID)
	case again(code):
		return nil, err
	}
	return refused(err), nil
}

// doubtful is how long a dispatch whose end is not known may be stored yet:
// longer than a router tries to.
const doubtful = 30 * time.Second

// doubts are the dispatches whose end is not known: until when each may be
// stored yet. The zero value is ready.
type doubts struct {
	mu    sync.Mutex
	until map[subjects.TaskID]time.Time
}

// note notes what the last dispatch of a task came to.
func (d *doubts) note(task subjects.TaskID, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch code := subjects.CodeOf(err); {
	case err == nil:
		delete(d.until, task)
	case again(code) && code != subjects.CodeRateLimited:
		if d.until == nil {
			d.until = map[subjects.TaskID]time.Time{}
		}
		d.until[task] = time.Now().Add(doubtful)
	}
}

// of reports whether a task that nobody knows may be known later.
func (d *doubts) of(task subjects.TaskID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.until[task])
}

// get asks how far a task is that was dispatched; nil: it has not ended.
func (w *Worker) get(ctx context.Context, from subjects.AgentID, task subjects.TaskID) (*end, error) {
	v, err := call[fleet.TaskView](ctx, w, from, "task", "get", fleet.TaskRef{TaskID: task})
	switch {
	case subjects.CodeOf(err) == subjects.CodeNotFound:
		// Its end was a day ago, and nobody looked: it is lost to the run.
		e := refused(subjects.Errorf(subjects.CodeNotFound, "the task is not kept any more"))
		e.unknown = true
		return e, nil
	case err != nil:
		return nil, err
	case !v.State.Terminal():
		return nil, nil //nolint:nilnil // it goes on
	}
	return ending(&v), nil
}

// cancelTask has a task canceled. It repeats that for as long as the task may be
// on its way to the fleet: until then, or longer where this driver has sent it.
func (d *driver) cancelTask(ctx context.Context, from subjects.AgentID, task subjects.TaskID, why *fleet.Reason, until time.Time) error {
	for {
		_, err := call[fleet.TaskView](ctx, d.Worker, from, "task", "cancel", fleet.TaskCancel{TaskID: task, Reason: why.Message})
		switch code := subjects.CodeOf(err); {
		case err != nil && again(code):
			return err
		case code != subjects.CodeNotFound || !time.Now().Before(until) && !d.doubts.of(task):
			return nil // it has ended, or was never dispatched
		}
		timer := time.NewTimer(againAfter)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// again reports whether a refusal may be another one later.
func again(code subjects.Code) bool {
	return code == subjects.CodeUnavailable || code == subjects.CodeInternal || code == subjects.CodeRateLimited
}

// maxHeaders is more than the headers of a request take.
const maxHeaders = 4 << 10

// call asks the fleet's API in the name of whoever started a run.
func call[T any](ctx context.Context, w *Worker, from subjects.AgentID, noun, verb string, req any) (T, error) {
	var zero T
	data, err := fleet.Encode(req)
	if err != nil {
		return zero, err
	}
	// The connection would refuse it, too, and that looks as if it might pass.
	if most := min(fleet.MaxMessage, w.cfg.Bus.MaxPayload()-maxHeaders); int64(len(data)) > most {
		return zero, subjects.Errorf(subjects.CodePayloadTooLarge, "%s %s: %d bytes (as JSON); at most %d are allowed", noun, verb, len(data), most)
	}
	ctx, cancel := context.WithTimeout(ctx, callTry)
	defer cancel()
	m, err := w.cfg.Bus.Request(ctx, subjects.API(from, noun, verb), data, nil)
	if err != nil {
		return zero, subjects.Errorf(subjects.CodeUnavailable, "%s %s: %w", noun, verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}
