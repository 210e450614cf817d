package bus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
)

// Last returns the last message of subject as the stream's leader has it. Two
// leaders say that there is none and do not know it: one that has yet to learn
// what this Bus has heard of the stream already, see hear, and one whose index
// has a message of subject that its disk does not give. That is ErrNoResponders,
// worth a repeat, and not ErrNotFound.
func (b *Bus) Last(ctx context.Context, stream, subject string) (Msg, error) {
	m, err := b.leaderGet(ctx, stream, getRequest{LastFor: subject})
	if !errors.Is(err, ErrNotFound) {
		return m, err
	}
	heard := b.heardOf(stream).Load()
	lastSeq, indexed, serr := b.indexOf(ctx, stream, subject)
	switch {
	case serr != nil:
		return Msg{}, notYet(serr)
	case lastSeq < heard:
		return Msg{}, fmt.Errorf("get from %s: %w: its leader knows of %d, %d was heard", stream, ErrNoResponders, lastSeq, heard)
	case indexed == 0:
		return m, err
	}
	// It may have come between the two questions.
	if m, err = b.leaderGet(ctx, stream, getRequest{LastFor: subject}); errors.Is(err, ErrNotFound) {
		return Msg{}, fmt.Errorf("get from %s: %w: its leader has %d of %s, and cannot read the last", stream, ErrNoResponders, indexed, subject)
	}
	return m, err
}

// indexOf asks the leader of a stream for its last sequence, and for how many
// messages of subject its index has. It answers from memory, without a look at
// its disk.
func (b *Bus) indexOf(ctx context.Context, stream, subject string) (lastSeq, count uint64, err error) {
	var resp struct {
		jetstream.StreamInfo
		Error *jetstream.APIError `json:"error"`
	}
	req := map[string]string{"subjects_filter": subject}
	if err := b.apiCall(ctx, "STREAM.INFO."+stream, req, &resp, &resp.Error); err != nil {
		return 0, 0, fmt.Errorf("index of %s: %w", stream, err)
	}
	for _, n := range resp.State.Subjects {
		count += n
	}
	return resp.State.LastSeq, count, nil
}

// hear notes that the message seq of a stream has been heard.
func (b *Bus) hear(stream string, seq uint64) {
	h := b.heardOf(stream)
	for was := h.Load(); was < seq && !h.CompareAndSwap(was, seq); was = h.Load() {
	}
}

// heardOf is the highest sequence of a stream that tails have heard, 0 for
// none.
func (b *Bus) heardOf(stream string) *atomic.Uint64 {
	if h, ok := b.heard.Load(stream); ok {
		return h.(*atomic.Uint64) //nolint:errcheck,forcetypeassert // nothing else is stored
	}
	h, _ := b.heard.LoadOrStore(stream, new(atomic.Uint64))
	return h.(*atomic.Uint64) //nolint:errcheck,forcetypeassert // as above
}
