//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// message is one message of a stream, as it is kept for the checker.
type message struct {
	Seq     uint64              `json:"seq"`
	Subject string              `json:"subject"`
	Time    time.Time           `json:"time"`
	Header  map[string][]string `json:"header,omitempty"`
	Data    []byte              `json:"data"`
}

// dumped are the streams that are kept: what the checker reads, and, with
// FLEET_MESH and FLEET_DLQ, what a person may ask for who looks into a finding.
var dumped = []string{
	"FLEET_TASKS", "FLEET_CONTEXT", "FLEET_RUNS", "FLEET_MESH", "FLEET_MESH_STATE", "FLEET_ESCALATIONS", "FLEET_WEBHOOKS", "FLEET_AUDIT", "FLEET_DLQ",
	"KV_FLEET_SCHEDULES", "KV_FLEET_SESSIONS", "KV_FLEET_ALERTS", "KV_FLEET_LEDGER",
}

// eachMessage reads a stream from a sequence on up to its last message, which
// it returns. A read ends at the known last sequence, never at an empty batch.
func (c *cluster) eachMessage(ctx context.Context, stream string, from uint64, f func(m *message) error) (uint64, error) {
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	last, tries := s.CachedInfo().State.LastSeq, 0
	for next := max(from, 1); next <= last; {
		seen, err := c.readOn(ctx, s, next, last, f)
		switch {
		case seen >= next:
			next, tries = seen+1, 0
		case errors.Is(err, errCaller):
			return 0, err
		case tries < 50: // a leader that is new, a consumer that nobody serves yet
			tries++
			if perr := pause(ctx, 200*time.Millisecond); perr != nil {
				return 0, errors.Join(perr, err)
			}
		default:
			return 0, fmt.Errorf("%s: nothing is read from %d to %d: %w", stream, next, last, err)
		}
	}
	return last, nil
}

// errCaller marks the error of who is told of messages.
var errCaller = errors.New("message")

// readOn reads from next to last with one consumer, as far as that gets.
func (c *cluster) readOn(ctx context.Context, s jetstream.Stream, next, last uint64, f func(*message) error) (seen uint64, err error) {
	con, err := s.CreateConsumer(ctx, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return 0, err
	}
	pending := con.CachedInfo().NumPending
	if pending == 0 {
		return last, nil // what is there from next on was purged
	}
	seen = next - 1
	for seen < last {
		batch, err := con.Fetch(int(min(pending, 1000)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return seen, err
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return seen, err
			}
			seen, pending = meta.Sequence.Stream, meta.NumPending
			if err := f(&message{Seq: seen, Subject: m.Subject(), Time: meta.Timestamp, Header: m.Headers(), Data: m.Data()}); err != nil {
				return 0, fmt.Errorf("%w %d of %s: %w", errCaller, seen, m.Subject(), err)
			}
		}
		if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return seen, err
		}
		if pending == 0 {
			return last, nil
		}
	}
	return seen, nil
}

// dump keeps a stream in a file for the checker.
func (c *cluster) dump(ctx context.Context, stream string) (n int, err error) {
	f, err := os.Create(dumpPath(c.w.dir, stream))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	_, err = c.eachMessage(ctx, stream, 1, func(m *message) error {
		n++
		return enc.Encode(m)
	})
	return n, errors.Join(err, w.Flush())
}

func dumpPath(dir, stream string) string { return filepath.Join(dir, "stream-"+stream+".jsonl") }

// eachDumped reads what dump kept, message by message.
func eachDumped(dir, stream string, do func(m *message)) error {
	f, err := os.Open(dumpPath(dir, stream))
	if err != nil {
		return err
	}
	defer f.Close()
	for d := json.NewDecoder(bufio.NewReader(f)); d.More(); {
		var m message
		if err := d.Decode(&m); err != nil {
			return fmt.Errorf("%s: %w", stream, err)
		}
		do(&m)
	}
	return nil
}

// sums makes each server lead a stream in turn, reads it from there, and gives
// the hash of what it holds: replicas that differ show.
func (c *cluster) sums(ctx context.Context, stream string) (map[string]string, error) {
	all := map[string]string{}
	for _, n := range nodeNames {
		if err := c.lead(ctx, stream, n); err != nil {
			return nil, err
		}
		h, count := sha256.New(), 0
		_, err := c.eachMessage(ctx, stream, 1, func(m *message) error {
			count++
			fmt.Fprintf(h, "%d %s %d %d\n", m.Seq, m.Subject, m.Time.UnixNano(), len(m.Data))
			h.Write(m.Data)
			for _, k := range slices.Sorted(maps.Keys(m.Header)) {
				fmt.Fprintf(h, "%s=%q", k, m.Header[k])
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s, led by %s: %w", stream, n, err)
		}
		all[n] = fmt.Sprintf("%d messages, %s", count, hex.EncodeToString(h.Sum(nil))[:16])
	}
	return all, nil
}
