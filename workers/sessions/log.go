package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// sessionLog is what a worker remembers of one context: enough to append the
// next version, to know a repeat, and to give an offer its context. Whoever
// uses it holds its turn.
type sessionLog struct {
	id   subjects.SessionID
	turn chan struct{} // capacity 1: the one who reads or writes

	used time.Time // guarded by the worker's mu

	// Owned by who holds the turn.
	seq     uint64 // of the last version, 0 = none
	version uint64
	keys    map[string]uint64 // of appends, by key
	marks   []uint64          // stream sequences of the versions 1, 1+markEvery, …
	recent  handshake.ContextView
	weight  int // bytes of the recent entries
}

const (
	// recentBytes is how much of the newest entries is kept in memory.
	recentBytes = 256 << 10
	// offerBytes bounds the context that goes with an offer or a handshake.
	offerBytes = 64 << 10
	page       = 500 // versions that are read at once, of maxPage bytes
	markEvery  = 10
	// maxHeaders is more than the headers of a version ever take.
	maxHeaders = 1024
)

// logOf gives the log of a session.
func (w *Worker) logOf(id subjects.SessionID) *sessionLog {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.logs[id]
	if l == nil {
		l = &sessionLog{id: id, turn: make(chan struct{}, 1), keys: map[string]uint64{}}
		l.recent = *handshake.Fold(id, nil)
		w.logs[id] = l
	}
	l.used = time.Now()
	return l
}

// take waits for the turn.
func (l *sessionLog) take(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}

func (l *sessionLog) release() { <-l.turn }

// catchUp reads the versions that others have appended.
func (l *sessionLog) catchUp(ctx context.Context, b *bus.Bus) error {
	for {
		msgs, more, err := b.Page(ctx, subjects.StreamContext, subjects.Context(l.id), l.seq+1, page, maxPage)
		if err != nil {
			return unavailable(err)
		}
		for _, m := range msgs {
			r, err := decodeVersion(m, l.id, l.version+1)
			if err != nil {
				b.Skip(m, err)
				l.seq = m.Seq
				continue
			}
			l.add(r, m.Seq)
		}
		if !more {
			return nil
		}
	}
}

// decodeVersion reads m, which must be the version n of a session's context.
func decodeVersion(m bus.Msg, id subjects.SessionID, n uint64) (*handshake.Record, error) {
	r, err := handshake.DecodeRecord(m.Data)
	switch {
	case err != nil:
		return nil, err
	case r.SessionID != id:
		return nil, subjects.Misplaced("session")
	case r.Version != n:
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "it is version %d, and the next one is %d", r.Version, n)
	}
	return r, nil
}

// add takes in a version that is stored.
func (l *sessionLog) add(r *handshake.Record, seq uint64) {
	if (r.Version-1)%markEvery == 0 {
		l.marks = append(l.marks, seq)
	}
	l.seq, l.version = seq, r.Version
	if r.Key != "" {
		l.keys[r.Key] = r.Version
	}
	next := handshake.Fold(l.id, []handshake.Record{*r})
	c := &l.recent.Context
	c.Version = r.Version
	c.PreviousAgents = append(c.PreviousAgents, next.Context.PreviousAgents...)
	l.weight += entryWeight(&r.Entry)
	for l.weight > recentBytes && len(c.PreviousAgents) > 1 {
		l.weight -= entryWeight(&c.PreviousAgents[0])
		c.PreviousAgents = c.PreviousAgents[1:]
	}
	maps.Copy(c.SharedData, next.Context.SharedData)
	if c.Metadata == nil {
		c.Metadata = map[string]json.RawMessage{}
	}
	maps.Copy(c.Metadata, next.Context.Metadata)
	if next.Context.Constraints != nil {
		c.Constraints = next.Context.Constraints
	}
}

func entryWeight(e *handshake.Entry) int { return len(e.Output) + len(e.Findings) + 256 }

// bounded is the context as it goes with an offer, a ContextView in JSON: the
// newest is kept.
func (l *sessionLog) bounded() json.RawMessage {
	v := l.recent
	v.Context.PreviousAgents = slices.Clone(v.Context.PreviousAgents)
	metadata := maps.Clone(v.Context.Metadata)
	if metadata == nil {
		metadata = map[string]json.RawMessage{}
	}
	if list := v.Context.PreviousAgents; len(list) > 0 && list[0].Version > 1 {
		metadata["omitted_up_to_version"] = fleet.MustEncode(list[0].Version - 1)
	}
	v.Context.Metadata = nil
	if len(metadata) > 0 {
		v.Context.Metadata = metadata
	}
	data := fleet.MustEncode(&v)
	if len(data) <= offerBytes {
		return data
	}
	if !v.Bound(offerBytes) { // what is shared is too much by itself
		v.Context.SharedData = map[string]json.RawMessage{}
		v.Context.Metadata = map[string]json.RawMessage{"omitted_shared_data": []byte("true")}
	}
	return fleet.MustEncode(&v)
}

// repeated looks whether an append with a large output is there already, so that
// what it brings is not stored again.
func (w *Worker) repeated(ctx context.Context, r *handshake.Record) (version uint64, dup bool, err error) {
	if r.Key == "" || r.Entry.Stored == nil && len(r.Entry.Output) <= handshake.MaxInline {
		return 0, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	l := w.logOf(r.SessionID)
	if err := l.take(ctx); err != nil {
		return 0, false, err
	}
	defer l.release()
	if err := l.catchUp(ctx, w.bus); err != nil {
		return 0, false, err
	}
	version, dup = l.keys[r.Key]
	return version, dup, nil
}

// append writes r as the next version and returns it. A repeat of its key is
// the version that it has, and so says dup.
func (w *Worker) append(ctx context.Context, r *handshake.Record, after *uint64) (version uint64, dup bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, bus.StoreTime)
	defer cancel()
	l := w.logOf(r.SessionID)
	if err := l.take(ctx); err != nil {
		return 0, false, err
	}
	defer l.release()
	if l.seq == 0 {
		if err := l.catchUp(ctx, w.bus); err != nil {
			return 0, false, err
		}
	}
	if l.seq == 0 { // there are none yet, or they were dropped with their session, which is deleted first
		if _, err := w.lookUp(ctx, r.SessionID); err != nil {
			return 0, false, err
		}
	}
	for {
		if after != nil && *after != l.version {
			if err := l.catchUp(ctx, w.bus); err != nil {
				return 0, false, err
			}
		}
		if v, ok := l.keys[r.Key]; ok && r.Key != "" {
			return v, true, nil
		}
		if after != nil && *after != l.version {
			return 0, false, subjects.Errorf(subjects.CodeContextConflict, "the context is at version %d, not %d", l.version, *after).
				At("/after_version").WithRemedy("read the context from version " + strconv.FormatUint(*after, 10) + " on, and repeat")
		}
		r.Version = l.version + 1
		r.Entry.Version = 0
		if plant.Sometimes("append_lost", 50) {
			return r.Version, false, nil
		}
		crash.Point("before_context_append")
		data := fleet.MustEncode(r)
		if most := w.bus.MaxPayload() - maxHeaders; int64(len(data)) > most {
			e := subjects.Errorf(subjects.CodePayloadTooLarge, "the version would be %d bytes, this server takes %d", len(data), most).
				WithRemedy("append less at a time, or refer to it; an operator can raise the server's max_payload")
			e.Err = errTooMuch
			return 0, false, e
		}
		seq, err := w.records.Write(ctx, bus.Record{
			Subject: subjects.Context(r.SessionID), Expected: l.seq, WriteID: uuid.NewString(), Data: data,
			Header: bus.Header{subjects.HeaderTask: {string(r.Entry.TaskID)}},
		})
		switch {
		case err == nil:
			crash.Point("after_context_append")
			l.add(r, seq)
			return r.Version, false, nil
		case errors.Is(err, bus.ErrConflict): // another worker was faster, or the session is gone
			if err := w.behind(ctx, l); err != nil {
				return 0, false, err
			}
		case errors.Is(err, bus.ErrFull):
			return 0, false, subjects.Errorf(subjects.CodeRateLimited, "the store of contexts is full").
				RetryAfter(time.Minute).WithRemedy("have sessions that are done deleted, or an operator raise the limit of " + subjects.StreamContext)
		default:
			return 0, false, unavailable(err)
		}
	}
}

// behind catches up after a conflict. Nothing new means that the versions have
// been dropped with their session.
func (w *Worker) behind(ctx context.Context, l *sessionLog) error {
	before := l.seq
	if err := l.catchUp(ctx, w.bus); err != nil {
		return err
	}
	if l.seq > before {
		return nil
	}
	_, err := w.bus.Last(ctx, subjects.StreamContext, subjects.Context(l.id))
	switch {
	case errors.Is(err, bus.ErrNotFound) && before > 0:
		return noSession(l.id)
	case errors.Is(err, bus.ErrNotFound):
		_, err = w.lookUp(ctx, l.id)
		return err
	case err != nil:
		return unavailable(err)
	}
	return nil
}

// read gives a page of versions after one.
func (w *Worker) read(ctx context.Context, id subjects.SessionID, after uint64, limit int) (*handshake.ReadReply, error) {
	l := w.logOf(id)
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	err := l.catchUp(ctx, w.bus)
	version, from, next := l.version, uint64(0), uint64(1)
	if i := after / markEvery; i < uint64(len(l.marks)) {
		from, next = l.marks[i], i*markEvery+1
	}
	l.release()
	if err != nil {
		return nil, err
	}
	if version > 0 && plant.Sometimes("stale_read", 10) {
		version--
	}
	reply := &handshake.ReadReply{SessionID: id, Version: version, Records: []handshake.Record{}}
	if after >= version {
		return reply, nil
	}
	return reply, w.fill(ctx, reply, from, next, after, limit)
}

// maxPage bounds a reply, so that it passes as a message, and what is read for it
// at once.
const maxPage = 2 << 20

// fill reads the versions after one from the stream. The version next is at from
// or later.
func (w *Worker) fill(ctx context.Context, reply *handshake.ReadReply, from, next, after uint64, limit int) error {
	subject := subjects.Context(reply.SessionID)
	size := 0
	for {
		msgs, more, err := w.bus.Page(ctx, subjects.StreamContext, subject, from, min(limit+markEvery, page), maxPage)
		if err != nil {
			return unavailable(err)
		}
		for _, m := range msgs {
			from = m.Seq + 1
			r, err := decodeVersion(m, reply.SessionID, next)
			if err != nil {
				continue // catchUp has skipped it
			}
			if next++; r.Version <= after {
				continue
			}
			if size += len(m.Data); len(reply.Records) == limit || len(reply.Records) > 0 && size > maxPage {
				reply.More = true
				return nil
			}
			reply.Records = append(reply.Records, *r)
		}
		if !more {
			return nil
		}
	}
}

// unavailable says that the store does not answer now.
func unavailable(err error) error {
	if _, ours := errors.AsType[*subjects.Error](err); ours {
		return err
	}
	e := subjects.Errorf(subjects.CodeUnavailable, "the store of sessions does not answer now").
		WithRemedy("repeat the request").RetryAfter(time.Second)
	e.Err = err
	return e
}
