package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
)

const (
	lookEvery = 500 * time.Millisecond // for a block that somebody waits for
	maxReply  = 2 << 20                // bytes of a reply, about
)

func (w *Worker) service(run context.Context) bus.Service {
	return bus.Service{
		Name: "audit", Version: w.cfg.Version, Queue: "audit", Description: "Keeps the audit",
		Metadata: map[string]string{"kind": "audit"},
		Endpoints: []bus.Endpoint{{
			Name: "audit_read", Subject: subjects.APIPattern("audit", "read"),
			Handle: func(ctx context.Context, m bus.Msg) ([]byte, error) { return w.read(ctx, run, m) },
		}},
	}
}

// read answers audit.read: at once, or when there is a block.
func (w *Worker) read(ctx, run context.Context, m bus.Msg) ([]byte, error) {
	vars, ok := subjects.Tokens(subjects.APIPattern("audit", "read"), m.Subject)
	if !ok || !slices.Contains(w.cfg.Operators, subjects.AgentID(vars[0])) {
		return nil, subjects.Errorf(subjects.CodeForbidden, "only operators read the audit")
	}
	r, err := audit.DecodeRead(m.Data)
	if err != nil {
		return nil, err
	}
	over := time.NewTimer(time.Duration(r.WaitSeconds * float64(time.Second)))
	defer over.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		reply, err := w.page(ctx, r)
		if err != nil {
			return nil, err
		}
		if len(reply.Blocks) > 0 || r.WaitSeconds == 0 {
			return fleet.Encode(reply)
		}
		select {
		case <-look.C:
			continue
		case <-over.C:
		case <-run.Done():
		case <-ctx.Done():
		}
		return fleet.Encode(reply)
	}
}

// page reads blocks from the stream.
func (w *Worker) page(ctx context.Context, r *audit.Read) (*audit.ReadReply, error) {
	reply := &audit.ReadReply{Blocks: []json.RawMessage{}, Seq: r.AfterSeq}
	limit, size := cmp.Or(r.Limit, audit.MaxLimit), 0
	for {
		msgs, more, err := w.bus.History(ctx, subjects.StreamAudit, subjects.Audit, reply.Seq+1, limit)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if !r.Since.IsZero() {
				if b, err := audit.Decode(m.Data); err == nil && b.Day < audit.Day(r.Since) {
					reply.Seq = m.Seq
					continue
				}
			}
			if size += len(m.Data); len(reply.Blocks) == limit || len(reply.Blocks) > 0 && size > maxReply {
				reply.More = true
				return reply, nil
			}
			reply.Blocks = append(reply.Blocks, m.Data)
			reply.Seq = m.Seq
		}
		if !more {
			return reply, nil
		}
	}
}
