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
	"parley/workers"
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
		if len(reply.Blocks)+len(reply.Foreign) > 0 || r.WaitSeconds == 0 {
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
	reply := &audit.ReadReply{Blocks: []json.RawMessage{}, Places: []audit.Place{}, Seq: r.AfterSeq}
	limit, size := cmp.Or(r.Limit, audit.MaxLimit), 0
	for {
		msgs, more, err := w.bus.History(ctx, subjects.StreamAudit, subjects.Audit, reply.Seq+1, limit)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			b, bad := audit.Decode(m.Data)
			if bad == nil && !r.Since.IsZero() && b.Day < audit.Day(r.Since) {
				reply.Seq = m.Seq
				continue
			}
			if bad == nil {
				size += len(m.Data)
			}
			if n := len(reply.Blocks); n+len(reply.Foreign) == limit || n > 0 && size > maxReply {
				reply.More = true
				return reply, nil
			}
			reply.Seq = m.Seq
			if bad != nil {
				reply.Foreign = append(reply.Foreign, audit.Foreign{Seq: m.Seq, Time: m.Time, Bytes: len(m.Data), Reason: workers.Clip(bad.Error())})
				continue
			}
			reply.Blocks = append(reply.Blocks, m.Data)
			reply.Places = append(reply.Places, audit.Place{Seq: m.Seq, Time: m.Time})
		}
		if !more {
			return reply, nil
		}
	}
}
