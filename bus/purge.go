package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Purge deletes every message of subject; it is a success when there is none.
func (b *Bus) Purge(ctx context.Context, stream, subject string) error {
	return wrap("purge "+subject, b.purge(ctx, stream, purgeRequest{Filter: subject}))
}

// PurgeUpTo deletes the messages of subject whose sequence is at most seq.
func (b *Bus) PurgeUpTo(ctx context.Context, stream, subject string, seq uint64) error {
	return wrap("purge "+subject, b.purge(ctx, stream, purgeRequest{Filter: subject, Seq: seq + 1}))
}

// PurgeBefore deletes every message of stream whose sequence is less than seq.
func (b *Bus) PurgeBefore(ctx context.Context, stream string, seq uint64) error {
	return wrap("purge "+stream, b.purge(ctx, stream, purgeRequest{Seq: seq}))
}

// purgeRequest is the request of STREAM.PURGE: what is before Seq goes.
type purgeRequest struct {
	Filter string `json:"filter,omitempty"`
	Seq    uint64 `json:"seq,omitempty"`
}

func (b *Bus) purge(ctx context.Context, stream string, req purgeRequest) error {
	var resp struct {
		Error *jetstream.APIError `json:"error"`
	}
	return b.apiCall(ctx, "STREAM.PURGE."+stream, req, &resp, &resp.Error)
}

// DropDone deletes the messages of stream that its durable consumer has done
// with and that were stored before a time, but for the last of them (ADR 22).
// Where the stream holds a quarter of what it may, its older half is old enough.
func (b *Bus) DropDone(ctx context.Context, stream, durable string, before time.Time) error {
	var resp struct {
		jetstream.ConsumerInfo
		Error *jetstream.APIError `json:"error"`
	}
	if err := b.apiCall(ctx, "CONSUMER.INFO."+stream+"."+durable, nil, &resp, &resp.Error); err != nil {
		return fmt.Errorf("consumer %s of %s: %w", durable, stream, err)
	}
	s, err := b.StreamState(ctx, stream)
	if err != nil || s.Msgs == 0 {
		return err
	}
	last := s.LastSeq // of those that are old enough
	switch m, err := b.leaderGet(ctx, stream, getRequest{Since: &before}); {
	case err == nil:
		last = m.Seq - 1
	case !errors.Is(err, ErrNotFound):
		return err
	}
	if s.crowded() {
		last = max(last, s.FirstSeq+s.Msgs/2)
	}
	if last = min(last, resp.AckFloor.Stream); last <= s.FirstSeq {
		return nil
	}
	return b.PurgeBefore(ctx, stream, last)
}
