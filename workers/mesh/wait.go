package mesh

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// wait answers once enough of the messages have their answer, or can have none
// any more.
func (w *Worker) wait(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	q, err := fleet.DecodeRequest[mesh.Wait](data)
	if err != nil {
		return nil, err
	}
	need := q.Need
	if need == 0 {
		need = len(q.MessageIDs)
	}
	names := make([]string, len(q.MessageIDs))
	for i, id := range q.MessageIDs {
		names[i] = messageBell(key{from, id})
	}
	rung, stop := w.bells.wait(names...)
	defer stop()
	limit := time.Duration(q.TimeoutSeconds * float64(time.Second))
	if limit == 0 {
		limit = defaultWait
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	for {
		answers, replies, done := w.answers(from, q.MessageIDs, need)
		if !done {
			select {
			case _, more := <-rung:
				if more {
					continue
				}
			case <-over.C:
			case <-ctx.Done():
			}
		}
		return w.fetch(ctx, &mesh.Answers{Answers: answers, Done: done}, replies)
	}
}

// answers says how far messages have come: done, when need of them have an
// answer or none of the others will get one.
func (w *Worker) answers(from subjects.AgentID, ids []mesh.MessageID, need int) (list []mesh.Answer, replies []*entry, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	have, open := 0, 0
	for _, id := range ids {
		e := w.core.entries[key{from, id}]
		if e == nil {
			list, replies = append(list, mesh.Answer{MessageID: id, State: mesh.Accepted}), append(replies, nil)
			open++
			continue
		}
		a := mesh.Answer{MessageID: id, To: e.to, State: e.state, Reason: e.reason}
		if a.State == "" {
			a.State = mesh.Accepted
		}
		switch {
		case e.answer != nil:
			have++
		case !e.ended(), e.state == mesh.Answered: // the answer itself is on its way here
			open++
		}
		list, replies = append(list, a), append(replies, e.answer)
	}
	return list, replies, have >= need || open == 0
}

// fetch adds the answers' texts, and takes those that wait to be fetched.
func (w *Worker) fetch(ctx context.Context, r *mesh.Answers, replies []*entry) (*mesh.Answers, error) {
	for i, e := range replies {
		if e == nil {
			continue
		}
		m, err := w.read(ctx, e)
		if err != nil {
			return nil, notStored(err)
		}
		r.Answers[i].Reply, r.Answers[i].State, r.Answers[i].Reason = m, mesh.Answered, nil
		if !e.fetched {
			continue
		}
		if _, err := w.takeOut(ctx, e); err != nil {
			w.log.Warn("a fetched answer is not written down", slog.String("message_id", string(e.id)), slog.Any("error", err))
		}
	}
	return r, nil
}

// done writes down what an instance made of a message.
func (w *Worker) done(ctx context.Context, from subjects.AgentID, data []byte) (any, error) {
	d, err := fleet.DecodeRequest[mesh.Done](data)
	if err != nil {
		return nil, err
	}
	for {
		m, err := w.cfg.Bus.Last(ctx, subjects.StreamMeshState, subjects.MeshState(d.From, string(d.MessageID)))
		if errors.Is(err, bus.ErrNotFound) {
			return nil, unknown(d.MessageID)
		}
		if err != nil {
			return nil, notStored(err)
		}
		a, err := mesh.DecodeAck(m.Data)
		if err != nil {
			return nil, err
		}
		if a.To != from || a.From != d.From {
			return nil, unknown(d.MessageID)
		}
		was := a.State
		if settled, err := settle(a, &d); settled || err != nil {
			w.log.Debug("report changes nothing", slog.String("message_id", string(d.MessageID)), slog.String("instance_id", string(d.InstanceID)),
				slog.Int("attempt", d.Attempt), slog.String("state", string(was)), slog.Any("error", err))
			return a, err
		}
		w.log.Debug("instance reports", slog.String("message_id", string(d.MessageID)), slog.String("instance_id", string(d.InstanceID)),
			slog.Int("attempt", d.Attempt), slog.Bool("released", d.Released))
		if _, err = w.write(ctx, a, m.Seq); !errors.Is(err, bus.ErrConflict) {
			if err != nil {
				return nil, notStored(err)
			}
			return a, nil
		}
	}
}

// settle makes a what d says. settled means that nothing is to be written: it
// was said before.
func settle(a *mesh.Ack, d *mesh.Done) (settled bool, err error) {
	// The instance may have been asked again since, and not have heard of it.
	mine := a.InstanceID == d.InstanceID && d.Attempt <= a.Attempt
	switch {
	case mine && a.State.Left():
		return true, nil
	case !mine || a.State != mesh.Delivering && a.State != mesh.Delivered:
		return false, subjects.Errorf(subjects.CodeLateResult, "the message is %s, at attempt %d, with %s", a.State, a.Attempt, a.InstanceID)
	case d.Released:
		a.State, a.Reason = mesh.Accepted, &fleet.Reason{Code: subjects.CodeAgentLost, Message: "the instance gave it back"}
		a.InstanceID, a.Epoch = "", 0
		return false, nil
	case d.Error != nil:
		a.State = mesh.Failed
	case d.ReplyID != "":
		a.State = mesh.Answered
	default:
		a.State = mesh.Processed
	}
	a.Reason, a.ReplyID, a.TokensSpent = d.Error, d.ReplyID, d.TokensSpent
	return false, nil
}
