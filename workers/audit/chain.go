package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"parley/bus"
	"parley/bus/crash"
	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
)

// item is a message of a source, as its lines.
type item struct {
	stream string
	seq    uint64
	lines  []string
}

// size is about how many bytes the lines have in a block, where they are escaped.
func (i *item) size() (n int) {
	for _, l := range i.lines {
		n += len(l) + strings.Count(l, `"`) + strings.Count(l, `\`) + 3
	}
	return n
}

// bounded is a line of the audit. What is said in one that is too long is
// replaced by its digest: a block must fit into a message.
func bounded(l *handshake.LogLine) string {
	text := audit.Line(l)
	if len(text) <= maxLine {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	short := *l
	short.EventType, short.Unknown = workers.Clip(l.EventType), nil
	short.Data = fleet.MustEncode(struct {
		Bytes  int    `json:"omitted_bytes"`
		Digest string `json:"sha256"`
	}{len(text), hex.EncodeToString(sum[:])})
	return audit.Line(&short)
}

// chain is the end of the audit as this worker knows it. One goroutine owns it.
type chain struct {
	b       *bus.Bus
	records bus.RecordWriter
	log     *slog.Logger

	head *audit.Block // the last block; nil: there is none
	seq  uint64       // of the last entry in the stream, which may be foreign
}

// position is how far a stream was read.
func (c *chain) position(stream string) uint64 {
	if c.head == nil {
		return 0
	}
	return c.head.Positions[stream]
}

// begin is after which message a stream is read: where the audit has got to. A
// stream that was replaced since is read from its beginning.
func (c *chain) begin(stream string, last uint64) uint64 {
	if c.head == nil {
		return 0
	}
	after := c.position(stream)
	if last < after {
		c.log.Error("a stream ends before what the audit has read of it: it was replaced, and is read anew",
			slog.String("stream", stream), slog.Uint64("last_seq", last), slog.Uint64("read_seq", after))
		delete(c.head.Positions, stream)
		return 0
	}
	return after
}

// put writes items behind the last block, without those that another worker
// has put there, and tries until ctx ends.
func (c *chain) put(ctx context.Context, items []item) error {
	pace := backoff.WithContext(backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxElapsedTime(0), backoff.WithMaxInterval(5*time.Second)), ctx)
	return backoff.Retry(func() error {
		err := c.try(ctx, items)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, bus.ErrConflict):
			c.log.Debug("another audit worker was faster")
		default:
			c.log.Warn("audit lines not written, trying again", slog.Any("error", err))
		}
		if lerr := c.load(ctx); lerr != nil {
			return lerr
		}
		return err
	}, pace)
}

func (c *chain) try(ctx context.Context, items []item) error {
	positions := audit.Positions{}
	if c.head != nil {
		maps.Copy(positions, c.head.Positions)
	}
	var lines []string
	for _, i := range items {
		if i.seq > positions[i.stream] {
			positions[i.stream] = i.seq
			if plant.Sometimes("line_lost", 200) {
				continue
			}
			lines = append(lines, i.lines...)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	b := audit.Seal(c.head, audit.Day(time.Now()), positions, lines)
	if plant.Sometimes("line_edited", 20) {
		b.Lines[0] += " "
	}
	crash.Point("before_audit_block")
	seq, err := c.records.Write(ctx, bus.Record{
		Subject: subjects.Audit, Expected: c.seq, WriteID: uuid.NewString(), Data: fleet.MustEncode(b),
	})
	if err != nil {
		return err
	}
	crash.Point("after_audit_block")
	c.head, c.seq = b, seq
	return nil
}
