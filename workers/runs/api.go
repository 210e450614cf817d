package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/run"
)

const maxListed = 200

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "runs", Version: w.cfg.Version, Queue: "runs",
		Description: "Carries out runs: tasks tied by dependencies", Metadata: map[string]string{"kind": "runs"},
	}
	for _, e := range []struct {
		verb, request, reply string
		handle               func(ctx context.Context, from subjects.AgentID, m bus.Msg) (any, error)
	}{
		{"start", "TASK_DEFINITION", "Started", w.start},
		{"get", "Ref", "RUN_RECORD", of(w.readRun)},
		{"list", "", "List", of(w.list)},
		{"output", "Ref", "Output", of(w.readOutput)},
		{"part", "PartRef", "Part", of(w.readPart)},
		{"cancel", "Ref", "RUN_RECORD", of(w.change("cancel", cancelRun))},
		{"pause", "Ref", "RUN_RECORD", of(w.change("pause", pauseRun))},
		{"resume", "Ref", "RUN_RECORD", of(w.change("resume", resumeRun))},
		{"retry", "Ref", "RUN_RECORD", of(w.change("retry", retryRun))},
	} {
		pattern := subjects.APIPattern("run", e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "run_" + e.verb, Subject: pattern,
			Metadata: map[string]string{"request": e.request, "reply": e.reply},
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok {
					return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject %q names no caller", m.Subject)
				}
				from, err := subjects.ParseAgentID(vars[0])
				if err != nil {
					return nil, err
				}
				v, err := e.handle(ctx, from, m)
				if err != nil {
					return nil, err
				}
				if raw, ok := v.([]byte); ok {
					return raw, nil
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// of is a call that needs no more of a request than its data.
func of(call func(context.Context, subjects.AgentID, []byte) (any, error)) func(context.Context, subjects.AgentID, bus.Msg) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, m bus.Msg) (any, error) {
		return call(ctx, from, m.Data)
	}
}

// start stores the first record of a run. Its trace is the caller's, if the
// request has one; a repeated request may have another.
func (w *Worker) start(ctx context.Context, from subjects.AgentID, m bus.Msg) (any, error) {
	d, err := run.Read(m.Data)
	if err == nil {
		err = w.checkLocation(d.OutputLocation)
	}
	if err != nil {
		return nil, err
	}
	if d.TaskID == "" {
		d.TaskID = subjects.RunID("run-" + strings.ToLower(rand.Text()[:16]))
	} else if err := w.clear(ctx, d.TaskID); err != nil {
		return nil, notStored(err)
	}
	if full := w.roomForMore(ctx); full != nil {
		if s, err := w.begun(ctx, from, d); err == nil {
			return s, nil // it needs none
		}
		return nil, full
	}
	now := w.now()
	r := &run.Record{
		Header: fleet.Header{Type: run.TypeRecord, ProtocolVersion: fleet.Version},
		RunID:  d.TaskID, From: from, State: run.Running, Created: now, Deadline: deadline(d, now),
		Definition: *d, Nodes: make(map[run.NodeID]run.Status, len(d.Agents)),
	}
	if t := m.Header.Get(subjects.HeaderTraceparent); fleet.ValidTraceparent(t) {
		r.Traceparent = t
	}
	for i := range d.Agents {
		r.Nodes[d.Agents[i].Name()] = run.Status{State: run.Waiting}
	}
	definition := fleet.MustEncode(&r.Definition)
	if r.DefinitionHash, err = w.storeDefinition(ctx, r.RunID, definition); err != nil {
		return nil, notStored(err)
	}
	err = w.write(ctx, r, 0, definition, told(r, from, "start", ""))
	if !errors.Is(err, bus.ErrConflict) {
		if err != nil {
			return nil, notStored(err)
		}
		return &run.Started{RunID: r.RunID, State: r.State}, nil
	}
	return w.begun(ctx, from, d)
}

// begun answers who starts d again.
func (w *Worker) begun(ctx context.Context, from subjects.AgentID, d *run.Definition) (any, error) {
	was, _, err := w.last(ctx, from, d.TaskID)
	if subjects.CodeOf(err) == subjects.CodeNotFound || err == nil && !same(&was.Definition, d) {
		return nil, subjects.Errorf(subjects.CodeIdempotencyConflict, "there is another run %q", d.TaskID).At("/task_id").
			WithRemedy("leave task_id out, or choose another one")
	}
	if err != nil {
		return nil, err
	}
	return &run.Started{RunID: was.RunID, State: was.State, Duplicate: true}, nil
}

// deadline is the end of the time of a run that begins now.
func deadline(d *run.Definition, now time.Time) time.Time {
	timeout := time.Duration(cmp.Or(d.Timeout, run.DefaultTimeout) * float64(time.Second))
	return now.Add(timeout).Truncate(time.Millisecond)
}

// roomForMore refuses new runs before the stream is full: the rest is for those
// that are under way.
func (w *Worker) roomForMore(ctx context.Context) error {
	const part = 0.8
	s, err := w.cfg.Bus.StreamState(ctx, subjects.StreamRuns)
	switch {
	case err != nil:
		return notStored(err)
	case s.MaxBytes > 0 && float64(s.Bytes) > part*float64(s.MaxBytes):
		return notStored(bus.ErrFull)
	}
	return nil
}

func same(a, b *run.Definition) bool {
	return string(fleet.MustEncode(a)) == string(fleet.MustEncode(b))
}

func notStored(err error) error {
	if errors.Is(err, bus.ErrFull) {
		return subjects.Errorf(subjects.CodeRateLimited, "there is no room for more runs: %w", err).RetryAfter(time.Minute)
	}
	return subjects.Errorf(subjects.CodeUnavailable, "the run is not stored: %w", err).RetryAfter(time.Second)
}

// last is the record of a run that who may see.
func (w *Worker) last(ctx context.Context, who subjects.AgentID, id subjects.RunID) (*run.Record, uint64, error) {
	m, err := w.cfg.Bus.Last(ctx, subjects.StreamRuns, subjects.Run(id))
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return nil, 0, notStored(err)
	}
	if err == nil {
		r, err := w.decodeRecord(ctx, m.Data)
		if err != nil {
			return nil, 0, err
		}
		if w.mayRead(who, r.From) {
			return r, m.Seq, nil
		}
	}
	return nil, 0, subjects.Errorf(subjects.CodeNotFound, "no run %q of yours is kept", id).At("/run_id").
		WithRemedy("parley run ls  lists them")
}

func (w *Worker) readRun(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[run.Ref](data)
	if err != nil {
		return nil, err
	}
	r, _, err := w.last(ctx, from, q.RunID)
	return r, err
}

func (w *Worker) list(_ context.Context, from subjects.AgentID, _ []byte) (any, error) {
	l := &run.List{Runs: []run.Summary{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.runs {
		if !w.mayRead(from, known.sum.From) || known.ended != nil && w.now().Sub(*known.ended) > keepEnded {
			continue
		}
		l.Runs = append(l.Runs, known.sum)
	}
	slices.SortFunc(l.Runs, func(a, b run.Summary) int { return b.Created.Compare(a.Created) })
	l.Runs = l.Runs[:min(len(l.Runs), maxListed)]
	return l, nil
}

// summary is a run in a list.
func summary(r *run.Record) run.Summary {
	s := run.Summary{
		RunID: r.RunID, From: r.From, State: r.State, Description: run.Short(&fleet.Reason{Message: r.Definition.Description}).Message,
		Created: r.Created, Nodes: len(r.Nodes), Tokens: r.Tokens,
	}
	for _, n := range r.Nodes {
		if n.State == run.Done {
			s.Done++
		}
	}
	return s
}

// endedRun is a run that has an output.
func (w *Worker) endedRun(ctx context.Context, from subjects.AgentID, id subjects.RunID) (*run.Record, error) {
	r, _, err := w.last(ctx, from, id)
	if err == nil && !r.State.Ended() {
		err = subjects.Errorf(subjects.CodeUnavailable, "the run is %s: it has no output yet", r.State).RetryAfter(time.Second)
	}
	return r, err
}

func (w *Worker) readOutput(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[run.Ref](data)
	if err != nil {
		return nil, err
	}
	r, err := w.endedRun(ctx, from, q.RunID)
	if err != nil {
		return nil, err
	}
	page, err := w.page(ctx, r, 0, maxDocument)
	if err == nil && page.size > maxDocument {
		err = subjects.Errorf(subjects.CodePayloadTooLarge, "the document has %d bytes, which no message holds", page.size).
			WithRemedy("parley run output reads it in parts (run part)")
	}
	return page.data, err
}

func (w *Worker) readPart(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[run.PartRef](data)
	if err != nil {
		return nil, err
	}
	r, err := w.endedRun(ctx, from, q.RunID)
	if err != nil {
		return nil, err
	}
	page, err := w.page(ctx, r, q.Offset, partSize)
	return &run.Part{RunID: r.RunID, Offset: q.Offset, Size: page.size, Data: page.data}, err
}

// change answers a call that changes a run; f returns nil when there is nothing
// to change.
func (w *Worker) change(verb string, f func(r *run.Record, why string, now time.Time) (*run.Record, error)) func(context.Context, subjects.AgentID, []byte) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
		q, err := fleet.DecodeRequest[run.Ref](data)
		if err != nil {
			return nil, err
		}
		for {
			r, rev, err := w.last(ctx, from, q.RunID)
			if err != nil {
				return nil, err
			}
			next, err := f(r, q.Reason, w.now())
			if next == nil || err != nil {
				return r, err
			}
			if err = w.write(ctx, next, rev, fleet.MustEncode(&next.Definition), told(next, from, verb, q.Reason)); err == nil {
				return next, nil
			} else if !errors.Is(err, bus.ErrConflict) {
				return nil, notStored(err)
			}
		}
	}
}

func cancelRun(r *run.Record, why string, _ time.Time) (*run.Record, error) {
	if r.State.Ended() || r.Cancel != "" {
		return nil, nil //nolint:nilnil // nothing to change
	}
	if r.Cancel = why; why == "" {
		r.Cancel = "canceled"
	}
	return r, nil
}

func pauseRun(r *run.Record, _ string, _ time.Time) (*run.Record, error) {
	if r.State != run.Running {
		return nil, nil //nolint:nilnil // nothing to change
	}
	r.State = run.Paused
	return r, nil
}

func resumeRun(r *run.Record, _ string, _ time.Time) (*run.Record, error) {
	if r.State != run.Paused {
		return nil, nil //nolint:nilnil // nothing to change
	}
	r.State = run.Running
	return r, nil
}

func retryRun(r *run.Record, _ string, now time.Time) (*run.Record, error) {
	// It builds on what was stored before, and so does its document later.
	kept := r.Created.Add(keepResults - keepEnded)
	until := deadline(&r.Definition, now)
	if kept.Before(until) {
		until = kept
	}
	next := Retry(r, until)
	switch {
	case next == nil && !r.State.Ended():
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "the run is %s still", r.State).WithRemedy("wait for its end, or cancel it")
	case next != nil && !now.Before(kept):
		return nil, subjects.Errorf(subjects.CodeDeadlineExceeded, "the run could be retried until %s: what it has come to is not kept for longer", kept.Format(time.RFC3339)).
			WithRemedy("start it anew: parley run rerun " + string(r.RunID))
	}
	return next, nil
}
