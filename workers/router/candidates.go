package router

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"parley/bus/plant"
	"parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
)

// This file carries out what is decided about tasks whose candidates could never do
// them, or are absent.

// candidates are who may do the task from here on.
func candidates(e *fleet.Event) escalation.Candidates {
	c := escalation.CandidatesOf(e.Facts.Policy, e.Facts.Attempts, e.Facts.Widened, e.Facts.Human)
	for _, a := range e.Facts.Attempts {
		switch lost := escalation.ClassOf(a.Code) == escalation.ClassLoss; {
		case lost && plant.Bug("loss_excludes"):
			c.Exclude = append(c.Exclude, escalation.Exclusion{Agent: a.AgentID})
		case lost && plant.Bug("epoch_banned"):
			c.Exclude = append(c.Exclude, escalation.Exclusion{Agent: a.AgentID, Instance: a.InstanceID})
		}
	}
	return c
}

// giveUp ends a task that nobody could ever do, as its policy says.
func (w *Worker) giveUp(ctx context.Context, h unschedulable) {
	_, err := w.change(ctx, h.task, func(v *view) (*fleet.Event, error) {
		if v.ev.State != fleet.StateQueued {
			return nil, nil
		}
		if err := w.hearAnnounces(ctx, v.ev.Time); err != nil {
			return nil, err
		}
		w.mu.Lock()
		why, still := w.core.isUnschedulable(v.ev)
		w.mu.Unlock()
		if !still {
			return nil, nil
		}
		n, _ := judgeNobody(v.ev, why, w.terms(v.ev), w.now())
		return n, nil
	})
	if err != nil {
		w.log.Warn("record that nobody can do a task", slog.String("task_id", string(h.task)), slog.Any("error", err))
		w.with(func(c *core, now time.Time) { c.askAgain(h.task, now) })
	}
}

// hearTimeout is how long announces are waited for at a time.
const hearTimeout = 2 * time.Second

// hearAnnounces waits until every announce that was stored before since has been
// taken in: who announced before the dispatch is never overlooked. Where they are
// late, it is asked again later.
func (w *Worker) hearAnnounces(ctx context.Context, since time.Time) error {
	if w.heardAt.Load() > since.UnixNano() {
		return nil
	}
	now := w.now().UnixNano()
	ctx, cancel := context.WithTimeout(ctx, hearTimeout)
	defer cancel()
	st, err := w.bus.StreamState(ctx, subjects.StreamAnnounce)
	if err != nil {
		return unavailable(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for w.announced.Load() < st.LastSeq {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return unavailable(ctx.Err())
		}
	}
	w.heardAt.Store(now)
	return nil
}

// widenTask lets others have a task, too, while its candidates are away, limited or
// left out. As for lose, nobody is away for a router that does not reach the
// records.
func (w *Worker) widenTask(ctx context.Context, s orphaned) {
	decide := func(v *view) (*fleet.Event, error) {
		now := w.now()
		w.mu.Lock()
		absent := w.core.areAbsent(w.core.fleet.Compile(need(v.ev)), now)
		w.mu.Unlock()
		if v.ev.State != fleet.StateQueued || !absent || !candidates(v.ev).Wider {
			return nil, nil
		}
		return widenCandidates(v.ev, w.terms(v.ev), now), nil
	}
	if v, err := w.latest(ctx, s.task); err == nil {
		if n, _ := decide(v); n == nil {
			return
		}
	}
	if !w.hears(ctx, s.task) {
		return
	}
	_, err := w.change(ctx, s.task, decide)
	if err != nil && !errors.Is(err, errNoTask) {
		w.log.Warn("orphaned task not given to others", slog.String("task_id", string(s.task)), slog.Any("error", err))
		w.with(func(c *core, now time.Time) { c.askAgain(s.task, now) })
	}
}
