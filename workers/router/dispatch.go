package router

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// idemTTL is how long an idempotency key is remembered.
const idemTTL = 24 * time.Hour

// apiDispatch is the first door: it answers with the task id once the task is
// stored, or with everything that is wrong.
func (w *Worker) apiDispatch(ctx context.Context, from subjects.AgentID, m bus.Msg) (any, error) {
	d, err := decodeDispatch(m)
	if err != nil {
		return nil, err
	}
	n, duplicate, err := w.dispatch(ctx, from, d, m.Data, "", w.admit())
	if err != nil {
		return nil, err
	}
	return fleet.Dispatched{TaskID: n.TaskID, State: n.State, Deadline: n.Facts.Deadline, Duplicate: duplicate}, nil
}

// decodeDispatch reads the dispatch that m is. Where its caller's trace is in
// the header alone, it is no part of what makes a repeat the same.
func decodeDispatch(m bus.Msg) (*fleet.Dispatch, error) {
	d, err := fleet.DecodeDispatch(m.Data)
	if err != nil {
		return nil, err
	}
	if t := m.Header.Get(subjects.HeaderTraceparent); d.Traceparent == "" && fleet.ValidTraceparent(t) {
		d.Traceparent = t // what is none is passed over, as W3C has it
	}
	return d, nil
}

// admit refuses new tasks while too many wait, or the disk is nearly full: the
// rest of it is for the records of tasks that were accepted.
func (w *Worker) admit() error {
	w.mu.Lock()
	waiting := w.core.counts[codeOfState(fleet.StateQueued)]
	w.mu.Unlock()
	if waiting >= w.cfg.MaxQueued {
		return subjects.Errorf(subjects.CodeRateLimited, "%d tasks wait, which is as many as this fleet takes", waiting).
			WithRemedy("repeat later; more agents, or fewer dispatches, shorten the queue").RetryAfter(time.Second)
	}
	if w.full.Load() {
		return subjects.Errorf(subjects.CodeRateLimited, "the task store is more than 80 %% full").
			WithRemedy(moreRoom).
			RetryAfter(10 * time.Second)
	}
	return nil
}

// dispatch makes a valid dispatch a task: record 1. A dispatch that is the same
// as an earlier one is that task (duplicate). id is what the task is called if
// the dispatch does not say; full is why there is no room for a new one, if so.
func (w *Worker) dispatch(ctx context.Context, from subjects.AgentID, d *fleet.Dispatch, raw []byte, id subjects.TaskID, full error) (n *fleet.Event, duplicate bool, err error) {
	crash.Point("after_decode")
	plant.Leak("leak")
	if plant.Bug("sender_forged") && d.From != "" {
		from = d.From
	}
	if d.From != "" && d.From != from {
		return nil, false, subjects.Errorf(subjects.CodeForbidden, "from is %s, the subject says %s", d.From, from).
			At("/from").WithRemedy("leave from out: the subject alone says who writes")
	}
	sum := sha256.Sum256(raw)
	hash := hex.EncodeToString(sum[:])
	now := w.now()
	_, late := d.DeadlineAt(now)
	if refusal := cmp.Or(late, full); refusal != nil {
		// An earlier copy may have been accepted: in time, and with room.
		switch n, err = w.earlier(ctx, from, d, id, hash); {
		case err == nil:
			return n, true, nil
		case subjects.CodeOf(err) == subjects.CodeUnavailable:
			return nil, false, err
		}
		return nil, false, refusal
	}
	id, key, err := w.name(ctx, from, d, id, hash)
	if err != nil {
		return nil, false, err
	}
	d.Task.TaskID = id
	n, duplicate, err = w.begin(ctx, from, d, hash, now)
	switch subjects.CodeOf(err) {
	case subjects.CodePayloadTooLarge, subjects.CodeIdempotencyConflict: // it is never stored
		w.giveBack(ctx, key)
	}
	return n, duplicate, err
}

// begin stores record 1 of the task that d, which has its id, becomes.
func (w *Worker) begin(ctx context.Context, from subjects.AgentID, d *fleet.Dispatch, hash string, now time.Time) (n *fleet.Event, duplicate bool, err error) {
	d.From, d.Attempt, d.Epoch, d.OfferID, d.Tried, d.Messages, d.Human, d.Context, d.SessionToken = "", 0, 0, "", nil, nil, nil, nil, ""
	if n, err = queued(d, from, nil, hash, w.set, now); err != nil {
		return nil, false, err
	}
	d.Deadline = &n.Facts.Deadline
	d.Header = fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}
	if n.Data.Dispatch, err = fleet.Encode(d); err != nil {
		return nil, false, err
	}
	if plant.Sometimes("dispatch_lost", 50) {
		return n, false, nil
	}
	err = w.store(ctx, &view{}, n)
	if errors.Is(err, bus.ErrConflict) {
		n, err = w.sameTask(ctx, d.Task.TaskID, from, hash)
		return n, err == nil, err
	}
	if err != nil {
		return nil, false, unavailable(err)
	}
	return n, false, nil
}

// name is the id of the task that d becomes: what d says, or id, or a new one,
// unless its idempotency key has one already; and that key, if d is the first to
// use it.
func (w *Worker) name(ctx context.Context, from subjects.AgentID, d *fleet.Dispatch, id subjects.TaskID, hash string) (subjects.TaskID, ownKey, error) {
	said := d.Task.TaskID
	id = cmp.Or(said, id)
	if id == "" {
		v7, err := uuid.NewV7()
		if err != nil {
			return "", ownKey{}, fmt.Errorf("make a task id: %w", err)
		}
		id = subjects.TaskID(v7.String())
	}
	if d.Task.IdempotencyKey == "" {
		return id, ownKey{}, nil
	}
	claimed, key, err := w.claimKey(ctx, keyName(from, d.Task.IdempotencyKey), id, hash)
	if err == nil && said != "" && claimed != said {
		err = subjects.Errorf(subjects.CodeIdempotencyConflict, "the idempotency key belongs to task %s", claimed).
			At("/task/idempotency_key").WithRemedy("leave task_id out, or use a new key")
	}
	return claimed, key, err
}

// sameTask tells a repeated dispatch from another one under the same id.
func (w *Worker) sameTask(ctx context.Context, id subjects.TaskID, from subjects.AgentID, hash string) (*fleet.Event, error) {
	v, err := w.reread(ctx, id)
	if err != nil {
		return nil, err
	}
	if v.ev.Facts.From != from || v.ev.Facts.PayloadHash != hash {
		return nil, subjects.Errorf(subjects.CodeIdempotencyConflict, "task %s exists already, with another payload or sender", id).
			At("/task/task_id").WithRemedy("choose another task_id, or leave it out")
	}
	return v.ev, nil
}

// earlier is the task that an earlier copy of d became.
func (w *Worker) earlier(ctx context.Context, from subjects.AgentID, d *fleet.Dispatch, id subjects.TaskID, hash string) (*fleet.Event, error) {
	id = cmp.Or(d.Task.TaskID, id)
	if key := d.Task.IdempotencyKey; key != "" && d.Task.TaskID == "" {
		was, err := w.keyed(ctx, keyName(from, key))
		switch {
		case err == nil:
			id = was.TaskID
		case !errors.Is(err, bus.ErrNotFound):
			return nil, err
		}
	}
	if id == "" {
		return nil, errNoTask
	}
	return w.sameTask(ctx, id, from, hash)
}

// claimed is the value of an idempotency key.
type claimed struct {
	TaskID      subjects.TaskID `json:"task_id"`
	PayloadHash string          `json:"payload_hash"`
}

// ownKey is an idempotency key as its first user has stored it; zero: none.
type ownKey struct {
	name     string
	revision uint64
}

// keyName is what an agent's idempotency key is stored under.
func keyName(from subjects.AgentID, key string) string {
	sum := sha256.Sum256([]byte(key))
	return string(from) + "." + hex.EncodeToString(sum[:])
}

// claimKey gives the task id that belongs to an idempotency key, which is id if
// the key is new. It is stored before the task, so that a repeat after any
// crash finds it.
func (w *Worker) claimKey(ctx context.Context, name string, id subjects.TaskID, hash string) (subjects.TaskID, ownKey, error) {
	revision, err := w.idem.Create(ctx, name, fleet.MustEncode(claimed{id, hash}), idemTTL)
	if err == nil {
		crash.Point("after_key")
		return id, ownKey{name, revision}, nil
	}
	if plant.Bug("key_ignored") {
		return id, ownKey{}, nil
	}
	if !errors.Is(err, bus.ErrExists) {
		return "", ownKey{}, unavailable(err)
	}
	was, err := w.keyed(ctx, name)
	if err != nil {
		return "", ownKey{}, unavailable(err)
	}
	if was.PayloadHash != hash {
		return "", ownKey{}, subjects.Errorf(subjects.CodeIdempotencyConflict, "the idempotency key was used for another payload, task %s", was.TaskID).
			At("/task/idempotency_key").WithRemedy("use a new key for a new task; a key is remembered for 24 h")
	}
	return was.TaskID, ownKey{}, nil
}

// keyed is what an idempotency key was used for; bus.ErrNotFound for nothing.
func (w *Worker) keyed(ctx context.Context, name string) (claimed, error) {
	e, err := w.idem.Get(ctx, name)
	if errors.Is(err, bus.ErrNotFound) {
		return claimed{}, err
	}
	if err != nil {
		return claimed{}, unavailable(err)
	}
	return fleet.DecodeRequest[claimed](e.Value)
}

// giveBack frees a key whose task was refused: the dispatch that is mended may
// have it. Where that fails, the key is free in time.
func (w *Worker) giveBack(ctx context.Context, key ownKey) {
	if key == (ownKey{}) {
		return
	}
	if err := w.idem.DeleteRevision(ctx, key.name, key.revision); err != nil && !errors.Is(err, bus.ErrConflict) {
		w.log.Warn("give an idempotency key back", slog.Any("error", err))
	}
	crash.Point("after_key_back")
}

const (
	// inboxDurable is the consumer by which routers share the raw door.
	inboxDurable = "routers"
	// keepInbox is for how long the raw door keeps what has become a record: for
	// longer than its servers take from one snapshot to the next (ADR 22).
	keepInbox = 10 * time.Minute
)

func (w *Worker) inbox() bus.Consumer {
	return bus.Consumer{
		Stream: subjects.StreamInbox, Durable: inboxDurable,
		Concurrency: 64, AckWait: 30 * time.Second, MaxAckPending: 4096, DeadLetter: true,
	}
}

// onInbox is the raw door: what JetStream acknowledged there has one outcome,
// even if that is invalid_message.
func (w *Worker) onInbox(ctx context.Context, m bus.Msg) error {
	vars, ok := subjects.Tokens(subjects.DispatchPattern, m.Subject)
	if !ok {
		return bus.Never(subjects.Errorf(subjects.CodeInvalidID, "subject %s does not follow %s", m.Subject, subjects.DispatchPattern))
	}
	from := subjects.AgentID(vars[0])
	for w.admit() != nil {
		select {
		case <-ctx.Done():
			return bus.Later(ctx.Err(), time.Second)
		case <-time.After(tickEvery):
		}
	}
	id := inboxID(m)
	if plant.Sometimes("inbox_lost", 20) {
		return nil
	}
	d, err := decodeDispatch(m)
	if err == nil {
		_, _, err = w.dispatch(ctx, from, d, m.Data, id, nil)
	}
	if err == nil {
		crash.Point("before_inbox_ack")
		return nil
	}
	switch code := subjects.CodeOf(err); code {
	case subjects.CodeUnavailable, subjects.CodeRateLimited, subjects.CodeInternal:
		return bus.Later(err, time.Second)
	case subjects.CodeDeadlineExceeded:
		return w.tooLate(ctx, id, d.Task.TaskID, from, err)
	default:
		return w.refuse(ctx, id, from, err)
	}
}

// tooLate refuses a dispatch that was good and has waited too long: under the
// name that its sender knows, if that is not another task's.
func (w *Worker) tooLate(ctx context.Context, id, said subjects.TaskID, from subjects.AgentID, why error) error {
	if said == "" {
		return w.refuse(ctx, id, from, why)
	}
	for ctx.Err() == nil {
		v, err := w.reread(ctx, said)
		switch {
		case errors.Is(err, errNoTask):
			err = w.store(ctx, &view{}, refused(said, from, subjects.AsError(why), w.now()))
			if errors.Is(err, bus.ErrConflict) {
				continue // somebody was faster: who?
			}
			if err != nil {
				return bus.Later(err, time.Second)
			}
			return bus.Never(why)
		case err != nil:
			return bus.Later(err, time.Second)
		case v.ev.Seq == 1 && v.ev.State.Terminal() && v.ev.Facts.From == from:
			return bus.Never(why) // it was refused before
		}
		return w.refuse(ctx, id, from, why)
	}
	return bus.Later(ctx.Err(), time.Second)
}

// refuse stores the outcome of a dispatch that cannot be done as it stands, and
// has the message buried where an operator finds it.
func (w *Worker) refuse(ctx context.Context, id subjects.TaskID, from subjects.AgentID, why error) error {
	n := refused(id, from, subjects.AsError(why), w.now())
	if err := w.store(ctx, &view{}, n); err != nil && !errors.Is(err, bus.ErrConflict) {
		return bus.Later(err, time.Second)
	}
	return bus.Never(why)
}

// inboxID derives a task id from where the message is stored, so that a
// redelivery is the same task: a UUIDv7 of its store time and a hash of its
// stream and sequence.
func inboxID(m bus.Msg) subjects.TaskID {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(m.Stream), m.Seq))
	var u uuid.UUID
	copy(u[6:], sum[:])
	ms := uint64(m.Time.UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return subjects.TaskID(u.String())
}
