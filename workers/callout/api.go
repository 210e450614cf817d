package callout

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/identity"
)

func (w *Worker) service() bus.Service {
	s := bus.Service{
		Name: "callout", Version: w.cfg.Version, Queue: "callout", Description: "Keeps identities, and says who may connect",
		Metadata: map[string]string{"kind": "callout"},
	}
	add := func(verb string, handle func(ctx context.Context, by subjects.AgentID, data []byte) (any, error)) {
		pattern := subjects.APIPattern("identity", verb)
		s.Endpoints = append(s.Endpoints, bus.Endpoint{
			Name: "identity_" + verb, Subject: pattern,
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) {
				vars, ok := subjects.Tokens(pattern, m.Subject)
				if !ok || !slices.Contains(w.cfg.Operators, subjects.AgentID(vars[0])) {
					return nil, subjects.Errorf(subjects.CodeForbidden, "only operators see and change identities")
				}
				reply, err := handle(ctx, subjects.AgentID(vars[0]), m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(reply)
			},
		})
	}
	add("add", w.add)
	add("list", w.list)
	add("get", w.get)
	add("rotate", w.rotate)
	add("revoke", w.revoke)
	return s
}

func (w *Worker) add(ctx context.Context, by subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[identity.Add](data)
	if err != nil {
		return nil, err
	}
	now := w.cfg.Bus.Now()
	k, sealed := w.ids.key(q.AgentID, q.Secret, now)
	verb := "add"
	if q.Update {
		verb = "update"
	}
	r, err := w.ids.change(ctx, q.AgentID, by, verb, func(r *identity.Record, exists bool) error {
		switch {
		case exists && !q.Update:
			return subjects.Errorf(subjects.CodeIdempotencyConflict, "there is an identity %s already", q.AgentID).At("/agent_id").
				WithRemedy("change what it may with --update, or its key with parley identity rotate")
		case !exists && q.Update:
			return noIdentity(q.AgentID)
		case !exists:
			r.AgentID, r.Created = q.AgentID, now
			r.Add(sealed, 0)
		}
		r.Role, r.AgentType, r.Signatures, r.By = q.Role, q.AgentType, q.Signatures, by
		r.AllowedHosts, r.Capabilities, r.MCPServers, r.MaxTier = q.AllowedHosts, q.Capabilities, q.MCPServers, q.MaxTier
		return nil
	})
	if err != nil {
		return nil, err
	}
	if q.Update {
		return &identity.Issued{Identity: r.View()}, nil
	}
	return issued(r, k), nil
}

// issued shows a key, this once.
func issued(r *identity.Record, k identity.Key) *identity.Issued {
	return &identity.Issued{Identity: r.View(), Key: k.Word()}
}

func noIdentity(id subjects.AgentID) error {
	return subjects.Errorf(subjects.CodeNotFound, "there is no identity %s", id).At("/agent_id").
		WithRemedy("parley identity ls shows all of them")
}

func (w *Worker) list(ctx context.Context, _ subjects.AgentID, data []byte) (any, error) {
	if _, err := fleet.DecodeRequest[identity.List](data); err != nil {
		return nil, err
	}
	entries, err := w.ids.kv.Entries(ctx, recordKey+"*")
	if err != nil {
		return nil, unavailable(err)
	}
	reply := &identity.ListReply{Identities: []identity.View{}}
	for _, e := range entries {
		r, err := fleet.DecodeStored[identity.Record](e.Value)
		if err != nil {
			return nil, err
		}
		reply.Identities = append(reply.Identities, r.View())
	}
	slices.SortFunc(reply.Identities, func(a, b identity.View) int { return cmp.Compare(a.AgentID, b.AgentID) })
	return reply, nil
}

func (w *Worker) get(ctx context.Context, _ subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[identity.Ref](data)
	if err != nil {
		return nil, err
	}
	e, err := w.ids.kv.Get(ctx, recordKey+string(q.AgentID))
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil, noIdentity(q.AgentID)
	case err != nil:
		return nil, unavailable(err)
	}
	r, err := fleet.DecodeStored[identity.Record](e.Value)
	if err != nil {
		return nil, err
	}
	view := r.View()
	return &view, nil
}

func (w *Worker) rotate(ctx context.Context, by subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[identity.Rotate](data)
	if err != nil {
		return nil, err
	}
	k, sealed := w.ids.key(q.AgentID, q.Secret, w.cfg.Bus.Now())
	r, err := w.ids.change(ctx, q.AgentID, by, "rotate", func(r *identity.Record, exists bool) error {
		if !exists {
			return noIdentity(q.AgentID)
		}
		r.Add(sealed, time.Duration(q.OverlapSeconds*float64(time.Second))) // none of those of a revoked one
		r.Revoked, r.By = nil, by
		return nil
	})
	if err != nil {
		return nil, err
	}
	return issued(r, k), nil
}

func (w *Worker) revoke(ctx context.Context, by subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[identity.Revoke](data)
	if err != nil {
		return nil, err
	}
	now := w.cfg.Bus.Now()
	r, err := w.ids.change(ctx, q.AgentID, by, "revoke", func(r *identity.Record, exists bool) error {
		if !exists {
			return noIdentity(q.AgentID)
		}
		if r.Revoked == nil {
			r.Revoked = &identity.Revoked{At: now, By: by, Reason: q.Reason}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	view := r.View()
	return &view, nil
}
