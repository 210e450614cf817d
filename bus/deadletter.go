package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// Headers of a dead letter. The origin's own headers are kept beside them,
// except NATS's control headers.
const (
	headerDeadSubject    = "Fleet-Dead-Subject"
	headerDeadStream     = "Fleet-Dead-Stream"
	headerDeadSeq        = "Fleet-Dead-Seq"
	headerDeadReason     = "Fleet-Dead-Reason"
	headerDeadDeliveries = "Fleet-Dead-Deliveries"
	headerDeadMsgID      = "Fleet-Dead-Msg-Id" // the origin's Nats-Msg-Id
	headerDeadPrefix     = "Fleet-Dead-"

	maxReason = 1024 // bytes of a reason, in one line
)

// DeadLetter is a message that nobody could handle.
type DeadLetter struct {
	Seq        uint64    // in the dead-letter stream
	Time       time.Time // when it was buried, UTC
	Subject    string    // origin
	Stream     string    // origin, "" for a core message
	OriginSeq  uint64    // in Stream
	Reason     string
	Deliveries uint64
	Header     Header // the origin's
	Data       []byte
}

// BuryDeadLetter stores m with the reason in the dead-letter stream. Repeats
// for the same stored message within two minutes are stored once.
func (b *Bus) BuryDeadLetter(ctx context.Context, m Msg, reason string) error {
	h := Header{}
	for name, values := range m.Header {
		if !strings.HasPrefix(name, "Nats-") && !strings.HasPrefix(name, headerDeadPrefix) {
			h[name] = values
		}
	}
	if id := m.Header.Get("Nats-Msg-Id"); id != "" {
		h.Set(headerDeadMsgID, id)
	}
	h.Set(headerDeadSubject, m.Subject)
	h.Set(headerDeadReason, reasonLine(reason))
	msgID, origin := "", "core"
	if m.Stream != "" {
		origin = m.Stream
		h.Set(headerDeadStream, m.Stream)
		h.Set(headerDeadSeq, strconv.FormatUint(m.Seq, 10))
		h.Set(headerDeadDeliveries, strconv.FormatUint(m.Delivered, 10))
		msgID = fmt.Sprintf("%s/%d", m.Stream, m.Seq)
	}
	if _, err := b.Store(ctx, deadLetterPrefix+origin+"."+m.Subject, m.Data, msgID, h); err != nil {
		return fmt.Errorf("bury dead letter: %w", err)
	}
	return nil
}

// DeadLetters returns the oldest dead letters, at most limit.
func (b *Bus) DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error) {
	msgs, _, err := b.History(ctx, subjects.StreamDLQ, deadLetterPrefix+">", 1, limit)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters := make([]DeadLetter, len(msgs))
	for i, m := range msgs {
		letters[i] = deadLetter(m)
	}
	return letters, nil
}

// DeadLetterBySeq returns one dead letter, or ErrNotFound.
func (b *Bus) DeadLetterBySeq(ctx context.Context, seq uint64) (DeadLetter, error) {
	m, err := b.Get(ctx, subjects.StreamDLQ, seq)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("dead letter %d: %w", seq, err)
	}
	return deadLetter(m), nil
}

// ReplayDeadLetter publishes the message to its origin subject again, then
// drops the dead letter. A crash between the two replays it once more under
// the same message id.
func (b *Bus) ReplayDeadLetter(ctx context.Context, seq uint64) error {
	d, err := b.DeadLetterBySeq(ctx, seq)
	if err != nil {
		return err
	}
	if d.Stream == "" {
		err = b.Publish(d.Subject, d.Data, d.Header)
		if err == nil {
			err = b.Ping(ctx)
		}
	} else {
		_, err = b.Store(ctx, d.Subject, d.Data, fmt.Sprintf("%s/%d", subjects.StreamDLQ, seq), d.Header)
	}
	if err != nil {
		return fmt.Errorf("replay dead letter %d: %w", seq, err)
	}
	if err := b.DropDeadLetter(ctx, seq); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// DropDeadLetter deletes one dead letter; ErrNotFound when it is not there.
func (b *Bus) DropDeadLetter(ctx context.Context, seq uint64) error {
	if err := b.deleteMsg(ctx, subjects.StreamDLQ, seq); err != nil {
		return fmt.Errorf("drop dead letter %d: %w", seq, err)
	}
	return nil
}

func deadLetter(m Msg) DeadLetter {
	d := DeadLetter{
		Seq: m.Seq, Time: m.Time, Data: m.Data, Header: Header{},
		Subject: m.Header.Get(headerDeadSubject),
		Stream:  m.Header.Get(headerDeadStream),
		Reason:  m.Header.Get(headerDeadReason),
	}
	// Both were written by BuryDeadLetter; of a forged letter they stay 0.
	d.OriginSeq, _ = strconv.ParseUint(m.Header.Get(headerDeadSeq), 10, 64)
	d.Deliveries, _ = strconv.ParseUint(m.Header.Get(headerDeadDeliveries), 10, 64)
	for name, values := range m.Header {
		if !strings.HasPrefix(name, headerDeadPrefix) && !strings.HasPrefix(name, "Nats-") {
			d.Header[name] = values
		}
	}
	return d
}

// reasonLine makes a text fit for a header: one line, bounded.
func reasonLine(s string) string {
	if len(s) > maxReason {
		s = s[:maxReason]
	}
	s = strings.ToValidUTF8(s, "")
	return strings.Join(strings.Fields(s), " ")
}
