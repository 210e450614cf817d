package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

const (
	handTry   = 2 * time.Second        // an instance answers within it
	busyFor   = 500 * time.Millisecond // an instance that is busy is left alone for it
	deafFor   = 10 * time.Second       // one that does not listen
	storeTime = 10 * time.Second       // a record is written within it, or by the next look
)

// take carries out one step.
func (w *Worker) take(s step) {
	ctx, cancel := context.WithTimeout(w.work, storeTime+handTry)
	defer cancel()
	var err error
	if s.to == nil {
		err = w.end(ctx, s)
	} else {
		err = w.hand(ctx, s)
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, bus.ErrConflict):
		w.log.Debug("another worker was first", s.attrs(err)...)
	default:
		w.log.Warn("message is looked at again", s.attrs(err)...)
	}
	w.with(func(c *core, now time.Time) { c.failed(s, now) })
}

func (s step) attrs(err error) []any {
	return []any{
		slog.String("from", string(s.from)), slog.String("to", string(s.entry.to)),
		slog.String("message_id", string(s.id)), slog.Any("error", err),
	}
}

// snapshot is the record of a message as this worker knows it.
func (w *Worker) snapshot(e *entry) (a *mesh.Ack, rev uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a = &mesh.Ack{
		Header:    fleet.Header{Type: mesh.TypeAck, ProtocolVersion: fleet.Version},
		MessageID: e.id, From: e.from, To: e.to, ThreadID: e.thread, State: e.state,
		Attempt: e.attempt, InstanceID: e.instance, Epoch: e.epoch,
	}
	if e.answer != nil {
		a.ReplyID = e.answer.id
	}
	return a, e.rev
}

// write stores the next record of a message after rev.
func (w *Worker) write(ctx context.Context, a *mesh.Ack, rev uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	a.Time = w.now()
	crash.Point("before_mesh_record")
	next, err := w.records.Write(ctx, bus.Record{
		Subject: subjects.MeshState(a.From, string(a.MessageID)), Expected: rev, WriteID: uuid.NewString(),
		Data: fleet.MustEncode(a), Header: bus.Header{subjects.HeaderWriter: {string(w.cfg.ID)}},
	})
	if err == nil {
		crash.Point("after_mesh_record")
		w.heard(a, next)
	}
	return next, err
}

// end writes down that a message has come to an end.
func (w *Worker) end(ctx context.Context, s step) error {
	a, rev := w.snapshot(s.entry)
	if rev != s.decided {
		return bus.ErrConflict
	}
	a.State, a.Reason = s.state, s.reason
	if _, err := w.write(ctx, a, rev); err != nil {
		return err
	}
	w.log.Info("message ended", slog.String("from", string(s.from)), slog.String("to", string(s.entry.to)),
		slog.String("message_id", string(s.id)), slog.String("state", string(s.state)))
	if s.reason != nil && s.reason.Code == subjects.CodeHopLimit {
		w.tellOrigin(s.entry, a)
	}
	return nil
}

// tellOrigin tells the one who began a thread that a loop in it was cut. That is
// not kept: the place of the record under his name is that of a message of his
// own, which may have the same id.
func (w *Worker) tellOrigin(e *entry, a *mesh.Ack) {
	w.mu.Lock()
	origin := e.from
	if t := w.core.threads[e.thread]; len(t) > 0 {
		origin = t[0].from
	}
	w.mu.Unlock()
	if origin == e.from {
		return
	}
	if err := w.cfg.Bus.Publish(subjects.MeshAck(origin, string(a.MessageID)), fleet.MustEncode(a), nil); err != nil {
		w.log.Warn("the sender of a thread is not told", slog.String("thread_id", string(e.thread)), slog.String("message_id", string(a.MessageID)), slog.Any("error", err))
	}
}

// hand gives a message to an instance: writes down that it will, asks, and
// writes down that it has.
func (w *Worker) hand(ctx context.Context, s step) error {
	a, rev := w.snapshot(s.entry)
	if rev != s.decided {
		return bus.ErrConflict
	}
	// Each try is written down, also one with the same instance: of two workers
	// that believe the inbox to be theirs, one asks.
	a.State, a.Attempt, a.InstanceID, a.Epoch, a.Reason = mesh.Delivering, a.Attempt+1, s.to.id, s.of, nil
	rev, err := w.write(ctx, a, rev)
	if err != nil {
		return err
	}
	if plant.Sometimes("letter_lost", 20) {
		a.State = mesh.Processed
		_, err = w.write(ctx, a, rev)
		return err
	}
	data, err := w.letter(ctx, s.entry, a.Attempt)
	if err != nil {
		return err
	}
	w.log.Debug("message goes to an instance", slog.String("message_id", string(s.id)),
		slog.String("instance_id", string(s.to.id)), slog.Int("attempt", a.Attempt), slog.Uint64("revision", rev))
	try, cancel := context.WithTimeout(ctx, handTry)
	defer cancel()
	reply, err := w.cfg.Bus.Request(try, subjects.Inbox(s.entry.to, s.to.id), data, nil)
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		w.refused(s, rev, deafFor)
		return nil
	case err != nil:
		// It may have it. The same one is asked again.
		w.with(func(_ *core, now time.Time) { s.to.after = now.Add(busyFor) })
		return err
	}
	crash.Point("after_mesh_hand")
	var d mesh.Delivery
	if err := json.Unmarshal(reply.Data, &d); err != nil || !d.OK {
		w.refused(s, rev, busyFor)
		return nil //nolint:nilerr // whatever is not ok is a refusal
	}
	a.State = mesh.Delivered
	if d.Done {
		a.State = mesh.Processed
	}
	if _, err = w.write(ctx, a, rev); errors.Is(err, bus.ErrConflict) {
		return nil // the instance is done with it already
	}
	return err
}

// refused notes that an instance does not take the message that was given to it
// by the record rev. Another worker may have asked it again since.
func (w *Worker) refused(s step, rev uint64, leave time.Duration) {
	w.log.Debug("message was not taken", s.attrs(nil)...)
	w.with(func(_ *core, now time.Time) {
		s.to.after = now.Add(leave)
		if s.rev == rev {
			s.sure = true
		}
	})
}

// letter is a message as an instance gets it.
func (w *Worker) letter(ctx context.Context, e *entry, attempt int) ([]byte, error) {
	m, err := w.read(ctx, e)
	if err != nil {
		return nil, err
	}
	m.Attempt = attempt
	return fleet.Encode(m)
}

// read reads a message from the stream: complete, in one form, and cleaned.
func (w *Worker) read(ctx context.Context, e *entry) (*mesh.Message, error) {
	stored, err := w.cfg.Bus.Get(ctx, subjects.StreamMesh, e.seq)
	if err != nil {
		return nil, err
	}
	m, err := mesh.DecodeMessage(stored.Data)
	if err != nil { // it was refused for that
		m = &mesh.Message{
			Header: fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version},
			Action: mesh.Info, Reply: mesh.No, Text: string(stored.Data),
		}
	}
	m.MessageID, m.From, m.To, m.Agent = e.id, e.from, e.to, ""
	m.ThreadID, m.Hops, m.Time = e.thread, e.hops, new(e.at)
	m.Text, m.Message = m.Body(), ""
	return m, m.Cleaned()
}
