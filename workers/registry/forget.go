package registry

import (
	"context"
	"errors"
	"slices"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// forget answers agent.forget: it stores that the agent is gone for good, for
// routers and registries, and says so to the audit.
func (w *Worker) forget(ctx context.Context, m bus.Msg) ([]byte, error) {
	q, err := fleet.DecodeRequest[fleet.AgentForget](m.Data)
	if err != nil {
		return nil, err
	}
	vars, ok := subjects.Tokens(subjects.APIPattern("agent", "forget"), m.Subject)
	if !ok {
		return nil, subjects.Errorf(subjects.CodeInvalidID, "the subject %q names no caller", m.Subject)
	}
	from := subjects.AgentID(vars[0])
	if !slices.Contains(w.cfg.Operators, from) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "%s may not have an agent forgotten", from).
			WithRemedy("an operator may")
	}
	now := w.now()
	w.mu.Lock()
	views := w.view.list(q.AgentID, true, key{}, now)
	w.mu.Unlock()
	for i := range views {
		if v := &views[i]; v.Live {
			return nil, subjects.Errorf(subjects.CodeForbidden, "%s/%s is live", v.Announce.Worker.AgentID, v.Announce.Worker.InstanceID).
				At("/agent_id").WithRemedy("stop it first, or drain it: parley agent drain " + string(q.AgentID))
		}
	}
	r := fleet.AgentRetired{By: from, Reason: q.Reason, At: now}
	if err := w.storeRetired(ctx, q.AgentID, &r); err != nil {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "that %s is gone is not stored: %w", q.AgentID, err)
	}
	w.mu.Lock()
	w.view.retire(q.AgentID, &r)
	w.mu.Unlock()
	return fleet.Encode(&fleet.AgentForgotten{AgentID: q.AgentID, Instances: len(views)})
}

// storeRetired stores r with its line of the audit.
func (w *Worker) storeRetired(ctx context.Context, agent subjects.AgentID, r *fleet.AgentRetired) error {
	key := fleet.RetiredKey(agent)
	kv := w.agents.Telling(workers.Line("", r.By, handshake.EventAgentForget, struct {
		AgentID subjects.AgentID `json:"agent_id"`
		Message string           `json:"message,omitempty"`
	}{agent, workers.Clip(r.Reason)}))
	for {
		was, err := w.agents.Get(ctx, key)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			_, err = kv.Create(ctx, key, fleet.MustEncode(r), 0)
		case err == nil:
			_, err = kv.Update(ctx, key, fleet.MustEncode(r), was.Revision)
		}
		if !errors.Is(err, bus.ErrConflict) && !errors.Is(err, bus.ErrExists) {
			crash.Point("after_retire")
			return err
		}
	}
}
