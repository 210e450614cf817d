package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
)

const (
	askTimeout  = 5 * time.Second  // for an answer of the fleet's API
	defaultWait = 4 * time.Second  // of dispatch
	waitAtOnce  = 20 * time.Second // of one request to a router
)

// call answers a call/req; its errors are told in the reply.
func (w *Worker) call(ctx context.Context, c caller, data []byte) *a2e.Reply {
	reply := &a2e.Reply{Header: a2e.Header{A2E: a2e.Version, Type: a2e.TypeReply, ID: newID(), TS: stamp(time.Now())}}
	r, err := a2e.DecodeCall(data)
	if err != nil {
		reply.ReqID = a2e.ReadHeader(data).ID
		reply.Error = subjects.AsError(err)
		return reply
	}
	reply.ReqID = r.ID
	if r.SessionID == "" {
		r.SessionID = c.session
	}
	s, err := w.load(ctx, c, r.SessionID)
	if err == nil {
		reply.Result, err = w.do(ctx, s, r)
	}
	if err != nil {
		if subjects.CodeOf(err) == subjects.CodeInternal {
			w.log.Error("answer a call", slog.String("call", string(r.Call)), slog.String("session_id", r.SessionID), slog.Any("error", err))
		}
		reply.Result, reply.Error = nil, subjects.AsError(err)
		return reply
	}
	reply.OK = true
	return reply
}

// do carries a call out.
func (w *Worker) do(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	if of := needs(r.Call); of != nil && !slices.ContainsFunc(s.Caps, func(c a2e.Capability) bool { return slices.Contains(of, c) }) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s needs one of the capabilities %v, and the handshake gave %v", r.Call, of, s.Caps).
			At("/call").WithRemedy("shake hands again, and ask for one of them")
	}
	switch r.Call {
	case a2e.Dispatch:
		return w.dispatch(ctx, s, r)
	case a2e.Run:
		return w.run(ctx, s, r)
	case a2e.Get:
		return w.get(ctx, s, r)
	case a2e.Cancel:
		return w.cancel(ctx, s, r)
	case a2e.Context:
		return w.context(ctx, s, r)
	case a2e.Append:
		return w.append(ctx, s, r)
	case a2e.Close:
		if err := w.close(ctx, s); err != nil {
			return nil, err
		}
		return fleet.MustEncode(handshake.Deleted{SessionID: s.SessionID, OK: true}), nil
	}
	return nil, subjects.Errorf(subjects.CodeInvalidMessage, "there is no call %q", r.Call).At("/call")
}

// inParams says that an error is about the params of the call.
func inParams(err error) error {
	e, ours := errors.AsType[*subjects.Error](err)
	if !ours || e.Pointer == "" {
		return err
	}
	e.Pointer = "/params" + e.Pointer
	for _, also := range e.Also {
		also.Pointer = "/params" + also.Pointer
	}
	return e
}

// dispatch hands a task out, and waits for its end.
func (w *Worker) dispatch(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	if r.Params == nil {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected a TASK_DISPATCH, got nothing").At("/params")
	}
	d, err := fleet.DecodeDispatch(r.Params)
	if err != nil {
		return nil, inParams(err)
	}
	if d.Task.SessionID != "" && d.Task.SessionID != s.SessionID {
		return nil, subjects.Errorf(subjects.CodeForbidden, "the task is of another session").
			At("/params/task/session_id").WithRemedy("leave session_id out: it is the session's own")
	}
	d.Task.SessionID = s.SessionID
	if d.Task.TaskID == "" {
		d.Task.TaskID = subjects.TaskID(uuid.Must(uuid.NewV7()).String())
	}
	b := work{TaskID: d.Task.TaskID}
	fresh, err := w.begin(ctx, s, b)
	if plant.Bug("limit_silent") && subjects.CodeOf(err) == subjects.CodeRateLimited {
		return fleet.MustEncode(fleet.TaskView{TaskID: b.TaskID, State: fleet.StateQueued}), nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := ask[fleet.Dispatched](ctx, w, s.AgentID, "task", "dispatch", fleet.MustEncode(d)); err != nil {
		if code := subjects.CodeOf(err); fresh && code != subjects.CodeUnavailable && code != subjects.CodeInternal {
			w.end(ctx, s, b) // refused: it is not under way
		}
		return nil, inParams(err)
	}
	return w.await(ctx, s, b, wait(r, defaultWait))
}

func wait(r *a2e.Call, absent time.Duration) time.Duration {
	if r.WaitSeconds == nil {
		return absent
	}
	return time.Duration(*r.WaitSeconds * float64(time.Second))
}

// await is the task once it has ended, or as it is when the time is over.
func (w *Worker) await(ctx context.Context, s *session, b work, most time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.work, func() { cancel(errStopping) })()
	until := time.Now().Add(most)
	for {
		left := max(time.Until(until), 0)
		verb, req, timeout := "get", fleet.MustEncode(fleet.TaskRef{TaskID: b.TaskID}), askTimeout
		if left > 0 {
			once := min(left, waitAtOnce)
			verb, timeout = "wait", once+askTimeout
			req = fleet.MustEncode(fleet.TaskWait{TaskID: b.TaskID, TimeoutSeconds: max(once.Seconds(), 0.05)})
		}
		raw, err := w.request(ctx, s.AgentID, "task", verb, req, timeout)
		if err != nil {
			if context.Cause(ctx) != nil {
				return nil, unavailable(context.Cause(ctx))
			}
			return nil, err
		}
		v, err := fleet.DecodeReply[fleet.TaskView](raw)
		if err != nil {
			return nil, err
		}
		if v.State.Terminal() {
			w.end(ctx, s, b)
			return raw, nil
		}
		if left == 0 || !time.Now().Before(until) {
			return raw, nil
		}
	}
}

// run starts a run.
func (w *Worker) run(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	d, err := run.Read(r.Params)
	if err != nil {
		return nil, inParams(err)
	}
	if d.TaskID == "" {
		d.TaskID = subjects.RunID("run-" + newID())
	}
	b := work{RunID: d.TaskID}
	fresh, err := w.begin(ctx, s, b)
	if err != nil {
		return nil, err
	}
	raw, err := w.request(ctx, s.AgentID, "run", "start", fleet.MustEncode(d), askTimeout)
	if code := subjects.CodeOf(err); err != nil && fresh && code != subjects.CodeUnavailable && code != subjects.CodeInternal {
		w.end(ctx, s, b)
	}
	return raw, inParams(err)
}

// get reads how a task or a run goes; of a task, waiting for its end if asked to.
func (w *Worker) get(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	q, err := fleet.DecodeRequest[a2e.Work](r.Params)
	if err != nil {
		return nil, inParams(err)
	}
	b := work{TaskID: q.TaskID, RunID: q.RunID}
	if q.RunID == "" {
		return w.await(ctx, s, b, wait(r, 0))
	}
	return w.aboutRun(ctx, s, b, "get", run.Ref{RunID: q.RunID})
}

// cancel ends a task or a run.
func (w *Worker) cancel(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	q, err := fleet.DecodeRequest[a2e.Work](r.Params)
	if err != nil {
		return nil, inParams(err)
	}
	b := work{TaskID: q.TaskID, RunID: q.RunID}
	if q.RunID != "" {
		return w.aboutRun(ctx, s, b, "cancel", run.Ref{RunID: q.RunID, Reason: q.Reason})
	}
	raw, err := w.request(ctx, s.AgentID, "task", "cancel", fleet.MustEncode(fleet.TaskCancel{TaskID: q.TaskID, Reason: q.Reason}), askTimeout)
	if err == nil {
		w.end(ctx, s, b)
	}
	return raw, err
}

func (w *Worker) aboutRun(ctx context.Context, s *session, b work, verb string, ref run.Ref) (json.RawMessage, error) {
	raw, err := w.request(ctx, s.AgentID, "run", verb, fleet.MustEncode(ref), askTimeout)
	if err != nil {
		return nil, err
	}
	if rec, derr := fleet.DecodeReply[run.Record](raw); derr == nil && rec.State.Ended() {
		w.end(ctx, s, b)
	}
	return raw, nil
}

// context reads the context of the session.
func (w *Worker) context(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	q := handshake.Read{}
	if err := sessionParams(r.Params, &q); err != nil {
		return nil, err
	}
	q.SessionID, q.Token = s.SessionID, ""
	timeout := askTimeout + time.Duration(min(max(q.WaitSeconds, 0), handshake.MaxWait)*float64(time.Second))
	raw, err := w.request(ctx, s.AgentID, "session", "context", fleet.MustEncode(q), timeout)
	return raw, inParams(err)
}

// append adds to it.
func (w *Worker) append(ctx context.Context, s *session, r *a2e.Call) (json.RawMessage, error) {
	q := handshake.Append{}
	if err := sessionParams(r.Params, &q); err != nil {
		return nil, err
	}
	q.SessionID, q.Token = s.SessionID, ""
	raw, err := w.request(ctx, s.AgentID, "session", "append", fleet.MustEncode(q), askTimeout)
	return raw, inParams(err)
}

// sessionParams reads params whose session_id is the session's own; the
// sessions worker checks the rest.
func sessionParams[T any](params json.RawMessage, q *T) error {
	v, err := fleet.DecodeRequest[T](params)
	if err != nil {
		return inParams(err)
	}
	*q = v
	return nil
}

// ask asks noun.verb as somebody, and decodes the answer.
func ask[T any](ctx context.Context, w *Worker, as subjects.AgentID, noun, verb string, req []byte) (v T, err error) {
	raw, err := w.request(ctx, as, noun, verb, req, askTimeout)
	if err != nil {
		return v, err
	}
	return fleet.DecodeReply[T](raw)
}

// request asks noun.verb as somebody; a refusal is the error. The request must
// be safe to repeat.
func (w *Worker) request(ctx context.Context, as subjects.AgentID, noun, verb string, req []byte, most time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	subject := subjects.API(as, noun, verb)
	m, err := w.bus.Request(ctx, subject, req, nil)
	if errors.Is(err, bus.ErrNoResponders) { // a worker may just be replaced
		soon, stop := context.WithTimeout(ctx, patience)
		defer stop()
		m, err = w.bus.RequestUntil(soon, subject, req, nil, 0, nil)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	if _, err := fleet.DecodeReply[fleet.Unknown](m.Data); err != nil {
		return nil, err
	}
	return m.Data, nil
}

// patience is how long a call waits for a worker where there is none.
const patience = time.Second

// unavailable is an error that a repeat may mend.
func unavailable(err error) error {
	e := subjects.Errorf(subjects.CodeUnavailable, "the fleet does not answer now: %w", err).
		WithRemedy("repeat the call; a task that was dispatched goes on, and get finds it").RetryAfter(time.Second)
	e.Message = "the fleet does not answer now"
	if errors.Is(err, errStopping) {
		e.Message = errStopping.Error()
	}
	return e
}
