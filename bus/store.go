package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"parley/bus/crash"
)

// storeTry bounds one try of a JetStream write.
const storeTry = 5 * time.Second

// ack is what a stream answers to a write.
type ack struct {
	Stream    string              `json:"stream"`
	Seq       uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Batch     string              `json:"batch"`
	Count     int                 `json:"count"`
	Error     *jetstream.APIError `json:"error"`
}

// Store publishes into the stream that takes subject and returns the sequence
// once it is acknowledged. It repeats with the same msgID (header Nats-Msg-Id,
// "" for none) on no responders and on an ambiguous time-out until ctx ends;
// within the stream's duplicate window a repeat is stored once. A duplicate's
// acknowledgement is success. Without a msgID a repeat after a time-out may be
// stored twice. Errors: ErrFull, ErrDenied, ErrNoResponders or ErrTimeout with
// ctx's error.
func (b *Bus) Store(ctx context.Context, subject string, data []byte, msgID string, h Header) (uint64, error) {
	header := nats.Header(maps.Clone(h))
	if msgID != "" {
		if header == nil {
			header = nats.Header{}
		}
		header[jetstream.MsgIDHeader] = []string{msgID}
	}
	bo := newBackoff(50*time.Millisecond, 2*time.Second)
	for {
		a, err := b.publishStored(ctx, &nats.Msg{Subject: subject, Header: header, Data: data})
		if err == nil {
			return a.Seq, nil
		}
		err = fmt.Errorf("store %s: %w", subject, err)
		if !mayRepeat(err) {
			return 0, err
		}
		if werr := wait(ctx, bo); werr != nil {
			return 0, fmt.Errorf("%w (last: %w)", werr, err)
		}
	}
}

// mayRepeat reports whether a later try may succeed.
func mayRepeat(err error) bool {
	return errors.Is(err, ErrNoResponders) || errors.Is(err, ErrTimeout)
}

// publishStored is one try: publish, await the acknowledgement.
func (b *Bus) publishStored(ctx context.Context, m *nats.Msg) (ack, error) {
	tctx, cancel := b.tryContext(ctx)
	defer cancel()
	reply, err := b.request(tctx, m)
	if err != nil {
		return ack{}, asAmbiguous(err)
	}
	if crash.Lost(m.Subject, m.Header) {
		return ack{}, ErrTimeout
	}
	return parseAck(reply.Data)
}

func parseAck(data []byte) (ack, error) {
	if a, ok := parsePlainAck(data); ok {
		return a, nil
	}
	var a ack
	switch err := json.Unmarshal(data, &a); {
	case err != nil:
		return ack{}, fmt.Errorf("%w: unreadable acknowledgement: %w", ErrTimeout, err)
	case a.Error != nil:
		return ack{}, apiError(a.Error)
	case a.Stream == "":
		return ack{}, fmt.Errorf("%w: the answer is not a stream's acknowledgement", errRefused)
	}
	return a, nil
}

// parsePlainAck reads the usual acknowledgement, {"stream":"S","seq":N}, which
// is all that the hot path sees; anything else is for the JSON decoder.
func parsePlainAck(data []byte) (ack, bool) {
	const head, middle = `{"stream":"`, `","seq":`
	s := string(data)
	if len(s) < len(head) || s[:len(head)] != head {
		return ack{}, false
	}
	s = s[len(head):]
	i := 0
	for i < len(s) && s[i] != '"' && s[i] != '\\' {
		i++
	}
	if len(s) < i+len(middle) || s[i:i+len(middle)] != middle {
		return ack{}, false
	}
	a := ack{Stream: s[:i]}
	s = s[i+len(middle):]
	for len(s) > 0 && s[0] == ' ' {
		s = s[1:]
	}
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		a.Seq = a.Seq*10 + uint64(s[n]-'0')
		n++
	}
	return a, n > 0 && s[n:] == "}"
}
