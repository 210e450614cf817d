package schedules

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/schedule"
)

// shown is how many of the next times a view tells.
const shown = 5

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "schedules", Version: w.cfg.Version, Queue: "schedules",
		Description: "Keeps schedules, and begins what they say", Metadata: map[string]string{"kind": "schedules"},
	}
	for _, e := range []struct {
		verb, request, reply string
		handle               func(ctx context.Context, from subjects.AgentID, data []byte) (any, error)
	}{
		{"create", "SCHEDULE", "View", w.create},
		{"get", "Ref", "View", w.get},
		{"list", "ListRequest", "List", w.list},
		{"pause", "Ref", "View", w.change("pause", func(r *schedule.Record, _ schedule.Clock, _ time.Time) *schedule.Record { return pause(r) })},
		{"resume", "Ref", "View", w.change("resume", resume)},
		{"run", "RunNow", "RunNowReply", w.run},
		{"remove", "Ref", "View", w.remove},
	} {
		pattern := subjects.APIPattern("schedule", e.verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "schedule_" + e.verb, Subject: pattern, Timeout: bus.StoreTime,
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
				v, err := e.handle(ctx, from, m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	return s
}

// create stores the first record of a schedule.
func (w *Worker) create(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	d, err := schedule.Decode(data)
	if err != nil {
		return nil, err
	}
	now := w.now().Truncate(time.Millisecond)
	r := &schedule.Record{
		Header: fleet.Header{Type: schedule.TypeRecord, ProtocolVersion: fleet.Version},
		From:   from, Definition: *d, Generation: now.UnixMilli(), Created: now, Reckoned: now, State: schedule.Active,
	}
	c, err := d.Clock(now)
	if err != nil {
		return nil, err
	}
	k := keyOf(from, d.Name)
	switch was, _, lerr := w.last(ctx, from, schedule.Ref{Name: d.Name}); {
	case lerr == nil:
		return repeated(was, d)
	case subjects.CodeOf(lerr) != subjects.CodeNotFound: // nobody knows whether it is a repeat
		return nil, lerr
	}
	if err = w.mayWake(ctx, from, d); err != nil {
		return nil, err
	}
	if r.Next = due(c, now); r.Next == nil {
		return nil, subjects.Errorf(subjects.CodeDeadlineExceeded, "the time %s has passed", d.At.UTC().Format(time.RFC3339)).At("/at").
			WithRemedy("send a later time")
	}
	if w.count(from) >= maxPerAgent {
		return nil, subjects.Errorf(subjects.CodeRateLimited, "%s has %d schedules already", from, maxPerAgent).RetryAfter(time.Minute).
			WithRemedy("remove some: parley schedule rm NAME")
	}
	rev, err := w.kv.Telling(told(r, from, "create")).Create(ctx, k, fleet.MustEncode(r), 0)
	switch {
	case errors.Is(err, bus.ErrExists):
		was, _, lerr := w.last(ctx, from, schedule.Ref{Name: d.Name})
		if lerr != nil {
			return nil, lerr
		}
		return repeated(was, d)
	case err != nil:
		return nil, notStored(err)
	}
	crash.Point("after_schedule_create")
	w.heard(k, r, rev)
	w.log.Info("schedule created", slog.String("schedule", string(d.Name)), slog.String("agent_id", string(from)))
	return view(r), nil
}

// repeated answers a schedule that is created again.
func repeated(was *schedule.Record, d *schedule.Definition) (any, error) {
	if string(fleet.MustEncode(&was.Definition)) != string(fleet.MustEncode(d)) {
		return nil, subjects.Errorf(subjects.CodeIdempotencyConflict, "there is another schedule %q", d.Name).At("/name").
			WithRemedy("choose another name, or remove that one first")
	}
	v := view(was)
	v.Duplicate = true
	return v, nil
}

func notStored(err error) error {
	if errors.Is(err, bus.ErrFull) {
		return subjects.Errorf(subjects.CodeRateLimited, "there is no room for more schedules: %w", err).RetryAfter(time.Minute)
	}
	return subjects.Errorf(subjects.CodeUnavailable, "the schedule is not stored: %w", err).RetryAfter(time.Second)
}

func (w *Worker) count(from subjects.AgentID) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.index {
		if l.rec != nil && l.rec.From == from {
			n++
		}
	}
	return n
}

// view shows a record with the times to come.
func view(r *schedule.Record) *schedule.View {
	v := &schedule.View{Record: *r}
	c, err := r.Definition.Clock(r.Created)
	if err != nil || r.State != schedule.Active {
		return v
	}
	for t := c.Next(r.Reckoned); !t.IsZero() && len(v.Upcoming) < shown; t = c.Next(t) {
		v.Upcoming = append(v.Upcoming, t)
	}
	return v
}

func (w *Worker) operator(who subjects.AgentID) bool { return slices.Contains(w.cfg.Operators, who) }

// last is the record of a schedule that who may see.
func (w *Worker) last(ctx context.Context, who subjects.AgentID, q schedule.Ref) (*schedule.Record, uint64, error) {
	from := cmp.Or(q.From, who)
	if from == who || w.operator(who) {
		e, err := w.kv.Get(ctx, keyOf(from, q.Name))
		if err == nil {
			r, derr := schedule.DecodeRecord(e.Value)
			return r, e.Revision, derr
		}
		if !errors.Is(err, bus.ErrNotFound) {
			return nil, 0, notStored(err)
		}
	}
	return nil, 0, subjects.Errorf(subjects.CodeNotFound, "no schedule %q of yours is kept", q.Name).At("/name").
		WithRemedy("parley schedule ls  lists them")
}

func (w *Worker) get(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[schedule.Ref](data)
	if err != nil {
		return nil, err
	}
	r, _, err := w.last(ctx, from, q)
	if err != nil {
		return nil, err
	}
	return view(r), nil
}

func (w *Worker) list(_ context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[schedule.ListRequest](data)
	if err != nil {
		return nil, err
	}
	if q.All && !w.operator(from) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s is no operator", from).At("/all").WithRemedy("list your own: leave it out")
	}
	l := &schedule.List{Schedules: []schedule.Record{}}
	w.mu.Lock()
	for _, known := range w.index {
		if r := known.rec; r != nil && (q.All || r.From == from) {
			short := *r // without what is to be done, which may be long
			short.Definition.Dispatch, short.Definition.Message, short.Definition.Run = kind(r.Definition.Dispatch), kind(r.Definition.Message), kind(r.Definition.Run)
			short.Waiting, short.Asked = nil, nil
			l.Schedules = append(l.Schedules, short)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(l.Schedules, func(a, b schedule.Record) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Definition.Name, b.Definition.Name))
	})
	return l, nil
}

// kind stands for what is to be done in a list.
func kind(work []byte) []byte {
	if len(work) == 0 {
		return nil
	}
	return []byte("{}")
}

// change answers a call that changes a schedule; f returns nil when there is
// nothing to change.
func (w *Worker) change(kind string, f func(r *schedule.Record, c schedule.Clock, now time.Time) *schedule.Record) func(context.Context, subjects.AgentID, []byte) (any, error) {
	return func(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
		q, err := fleet.DecodeRequest[schedule.Ref](data)
		if err != nil {
			return nil, err
		}
		r, err := w.update(ctx, from, q, kind, func(r *schedule.Record) (*schedule.Record, error) {
			c, cerr := r.Definition.Clock(r.Created)
			if cerr != nil {
				return nil, cerr
			}
			return f(r, c, w.now()), nil
		})
		if err != nil {
			return nil, err
		}
		return view(r), nil
	}
}

// update changes a record, however often another change comes first; kind says
// to the audit what is done to it.
func (w *Worker) update(ctx context.Context, from subjects.AgentID, q schedule.Ref, kind string, f func(*schedule.Record) (*schedule.Record, error)) (*schedule.Record, error) {
	for {
		r, rev, err := w.last(ctx, from, q)
		if err != nil {
			return nil, err
		}
		next, err := f(r)
		if next == nil || err != nil {
			return r, err
		}
		if err = w.write(ctx, keyOf(r.From, q.Name), next, rev, append(told(next, from, kind), toldOf(r, next)...)); err == nil {
			return next, nil
		} else if !errors.Is(err, bus.ErrConflict) {
			return nil, notStored(err)
		}
	}
}

// run has a schedule begin something now.
func (w *Worker) run(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[schedule.RunNow](data)
	if err != nil {
		return nil, err
	}
	id := ""
	_, err = w.update(ctx, from, q.Ref, "run", func(r *schedule.Record) (*schedule.Record, error) {
		id = r.ID("run " + q.RequestID)
		next, ok := runNow(r, id, w.now())
		if !ok {
			return nil, subjects.Errorf(subjects.CodeRateLimited, "%d of its times wait already", schedule.MaxWaiting).RetryAfter(time.Minute)
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	return &schedule.RunNowReply{ID: id}, nil
}

// remove forgets a schedule.
func (w *Worker) remove(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[schedule.Ref](data)
	if err != nil {
		return nil, err
	}
	for {
		r, rev, err := w.last(ctx, from, q)
		if err != nil {
			return nil, err
		}
		err = w.kv.Telling(told(r, from, "remove")).DeleteRevision(ctx, keyOf(r.From, q.Name), rev)
		switch {
		case errors.Is(err, bus.ErrConflict):
			continue
		case err != nil:
			return nil, notStored(err)
		}
		crash.Point("after_schedule_remove")
		w.log.Info("schedule removed", slog.String("schedule", string(q.Name)), slog.String("agent_id", string(r.From)))
		return &schedule.View{Record: *r}, nil
	}
}
