package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

const (
	// positionKey is where it is kept up to which task record all outcomes have
	// been appended.
	positionKey   = "sessions"
	positionEvery = 2 * time.Second
	positionTry   = time.Second
	appendPause   = 10 * time.Second // between two tries, at most
	// patience is how often a result is tried that fails although the store
	// answers: it must not keep those of all sessions waiting for ever.
	patience = 5
	// awaitOutcomes bounds how long an offer waits for the results of those that
	// ended before; routers wait twice as long.
	awaitOutcomes = time.Second
)

// followOutcomes appends the result of every task that was dispatched with a
// session. What is read again is appended once: the task is its key.
func (w *Worker) followOutcomes(ctx context.Context) error {
	after, err := w.bus.Position(ctx, positionKey, subjects.StreamTasks)
	if err != nil {
		return err
	}
	w.outcomes.reached(after)
	written := time.Now()
	return w.bus.Tail(ctx, bus.Tail{
		Stream: subjects.StreamTasks, StartSeq: after + 1, HeadersOnly: true,
		Handle: func(m bus.Msg) {
			if m.Header.Get(subjects.HeaderKind) == fleet.KindOutcome && m.Header.Get(subjects.HeaderSession) != "" {
				w.keepTrying(ctx, m)
			}
			if ctx.Err() == nil {
				w.outcomes.reached(m.Seq)
			}
			if time.Since(written) >= positionEvery && ctx.Err() == nil {
				w.keepPosition(ctx, m.Seq)
				written = time.Now()
			}
		},
	})
}

// progress is up to which sequence of the stream of task records outcomes have
// been appended.
type progress struct {
	mu    sync.Mutex
	seq   uint64        // guarded by mu
	moved chan struct{} // closed at the next one; nil while nobody waits; guarded by mu
}

func (p *progress) reached(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq = seq
	if p.moved != nil {
		close(p.moved)
		p.moved = nil
	}
}

// await waits until what came before seq is appended, for awaitOutcomes at most.
func (p *progress) await(ctx context.Context, seq uint64) {
	ctx, cancel := context.WithTimeout(ctx, awaitOutcomes)
	defer cancel()
	for {
		p.mu.Lock()
		if p.seq+1 >= seq {
			p.mu.Unlock()
			return
		}
		if p.moved == nil {
			p.moved = make(chan struct{})
		}
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// keepPosition does so if it can: results do not wait for it.
func (w *Worker) keepPosition(ctx context.Context, seq uint64) {
	ctx, cancel := context.WithTimeout(ctx, positionTry)
	defer cancel()
	if err := w.bus.KeepPosition(ctx, positionKey, seq); err != nil {
		w.log.Debug("position not kept", slog.Any("error", err))
		return
	}
	crash.Point("after_position")
}

// keepTrying appends an outcome until it is there, or cannot be. It waits for the
// store, and for room in it, as long as it takes; whatever else may pass has a
// few tries.
func (w *Worker) keepTrying(ctx context.Context, m bus.Msg) {
	log := w.log.With(slog.String("subject", m.Subject))
	if vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject); ok {
		log = log.With(slog.String("task_id", vars[0]))
	}
	pace := backoff.WithContext(backoff.NewExponentialBackOff(backoff.WithMaxElapsedTime(0), backoff.WithMaxInterval(appendPause)), ctx)
	failed := 0
	err := backoff.Retry(func() error {
		err := w.appendOutcome(ctx, m)
		if err == nil {
			return nil
		}
		if !ofTheStore(err) {
			failed++
		}
		if !mayPass(subjects.CodeOf(err)) || failed == patience {
			return backoff.Permanent(err)
		}
		log.Warn("append a task's result, trying again", slog.Any("error", err))
		return err
	}, pace)
	switch {
	case err == nil || ctx.Err() != nil:
	case subjects.CodeOf(err) == subjects.CodeNotFound:
		log.Debug("the session of a result is gone, or not its dispatcher's")
	default:
		log.Error("a task's result is not in its session; task get has it", slog.Any("error", err))
	}
}

// mayPass reports whether a refusal may be none later: once the store answers
// again, or has room again.
func mayPass(code subjects.Code) bool {
	return code == subjects.CodeUnavailable || code == subjects.CodeInternal || code == subjects.CodeRateLimited
}

// ofTheStore reports whether err says that the store is away, or full.
func ofTheStore(err error) bool {
	for _, is := range []error{bus.ErrNoResponders, bus.ErrTimeout, bus.ErrClosed, context.DeadlineExceeded} {
		if errors.Is(err, is) {
			return true
		}
	}
	return subjects.CodeOf(err) == subjects.CodeRateLimited
}

// appendOutcome appends the result of the task whose outcome m is.
func (w *Worker) appendOutcome(ctx context.Context, m bus.Msg) error {
	full, err := w.bus.Get(ctx, subjects.StreamTasks, m.Seq)
	if errors.Is(err, bus.ErrNotFound) {
		w.missed(m)
		return nil
	}
	if err != nil {
		return unavailable(err)
	}
	ev, err := fleet.DecodeEvent(full.Data)
	if err == nil && subjects.Task(ev.TaskID) != full.Subject {
		err = subjects.Misplaced("task")
	}
	if err != nil {
		w.bus.Skip(full, err)
		return nil
	}
	id := ev.Facts.SessionID
	if _, err := w.own(ctx, ev.Facts.From, id); err != nil {
		return err
	}
	rec := handshake.Record{SessionID: id, Time: w.now(), Entry: outcomeEntry(ev), Key: "outcome:" + string(ev.TaskID)}
	done, err := w.add(ctx, rec, nil, true)
	if err == nil && done.Duplicate {
		was, rerr := w.read(ctx, id, done.Version-1, 1)
		if rerr != nil || len(was.Records) == 0 || was.Records[0].Entry.ExecutionTime.Equal(ev.Time) {
			return rerr
		}
		// It is that of a task whose records have gone, and whose id was used again.
		rec.Key += "/" + strconv.FormatUint(m.Seq, 10)
		_, err = w.add(ctx, rec, nil, true)
	}
	// Otherwise it would keep the results of all sessions waiting; task get has it.
	switch {
	case errors.Is(err, errNoRoom):
		rec.Entry.Output = nil
	case errors.Is(err, errTooMuch):
		rec.Entry.Output, rec.Entry.Findings = nil, nil
	default:
		return err
	}
	rec.Entry.Omitted = true
	_, err = w.add(ctx, rec, nil, true)
	return err
}

// missed says that a session may lack a result, unless another worker was faster:
// the record of the outcome m is gone. Of a task that ended a day ago it says
// nothing: so did its session.
func (w *Worker) missed(m bus.Msg) {
	age := w.now().Sub(m.Time)
	vars, ok := subjects.Tokens(subjects.TaskPattern, m.Subject)
	if !ok || age >= fleet.KeepEnded {
		return
	}
	w.log.Warn("a session may lack a task's result, whose records were purged before they were read: more tasks have ended than are kept",
		slog.String("task_id", vars[0]), slog.String("session_id", m.Header.Get(subjects.HeaderSession)), slog.Duration("age", age))
}

// outcomeEntry tells a task's end as an entry.
func outcomeEntry(ev *fleet.Event) handshake.Entry {
	e := handshake.Entry{
		AgentID: ev.AgentID, ExecutionTime: ev.Time, Status: statusOf(ev.State), TaskID: ev.TaskID,
	}
	if e.AgentID == "" {
		e.AgentID = ev.Facts.From // nobody held it
		if n := len(ev.Facts.Attempts); n > 0 {
			e.AgentID = ev.Facts.Attempts[n-1].AgentID
		}
	}
	r, err := fleet.DecodeResult(ev.Data.Result)
	if err != nil {
		return e
	}
	e.Output = r.Output
	findings := map[string]json.RawMessage{}
	add := func(name string, there bool, v any) {
		if there {
			findings[name] = fleet.MustEncode(v)
		}
	}
	add("artifacts", len(r.Artifacts) > 0, r.Artifacts)
	add("next_steps", len(r.NextSteps) > 0, r.NextSteps)
	add("remaining", len(r.Remaining) > 0, r.Remaining)
	add("parts", len(r.Parts) > 0, r.Parts)
	add("error", r.Error != nil, r.Error)
	add("blocked_reason", r.BlockedReason != nil, r.BlockedReason)
	if len(findings) > 0 {
		e.Findings = fleet.MustEncode(findings)
	}
	return e
}

// statusOf is a task's state in the words of the session protocol.
func statusOf(s fleet.State) string {
	switch s {
	case fleet.StateDone:
		return "completed"
	case fleet.StateError:
		return "failed"
	default:
		return string(s)
	}
}
