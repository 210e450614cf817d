package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"parley/bus/crash"
	"parley/subjects"
)

// Headers of an atomic batch (ADR-50).
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

const (
	// smallBatch is up to how many writes go by themselves, side by side. A
	// batch costs about six fsyncs and a staging file, measured 5 ms + 0.02 ms
	// per record where a write by itself costs 0.2 ms: as much as 28 of those,
	// and as 10 where an fsync takes 1 ms.
	smallBatch = 16
	// commitTry bounds one commit.
	commitTry = 10 * time.Second
	// commitRounds is how often a batch that conflicts is looked at and
	// committed again before its writes go by themselves.
	commitRounds = 3
)

// committer writes records in groups: whatever piled up during the last commit
// is the next atomic batch. There is no time window: a record that comes alone
// goes at once. One commit is under way at a time.
//
// An atomic batch is stored as a whole or not at all. A conflict refuses it
// without saying whose it is: one look at the last message of all its subjects
// finds the stale writes, the rest is committed again. A time-out is looked at
// in the same way before anything is sent again.
type committer struct {
	b      *Bus
	stream string

	mu      sync.Mutex
	queue   queue // guarded by mu
	stopped bool  // guarded by mu

	wake   chan struct{}   // capacity 1: the queue has something, or stopped
	done   chan struct{}   // closed when run has returned
	ctx    context.Context //nolint:containedctx // of run, ended by stop
	cancel context.CancelFunc
}

func newCommitter(b *Bus, stream string) *committer {
	c := &committer{b: b, stream: stream, wake: make(chan struct{}, 1), done: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.run() // stop ends and joins it
	return c
}

// Write implements RecordWriter.
func (c *committer) Write(ctx context.Context, r Record) (uint64, error) {
	if len(r.Told) > 0 { // a batch of its own
		c.mu.Lock()
		stopped := c.stopped
		c.mu.Unlock()
		if stopped {
			return 0, fmt.Errorf("write %s: %w", r.Subject, ErrClosed)
		}
		return c.b.writeRecord(ctx, c.stream, r)
	}
	w := &write{Record: r, ctx: ctx, result: make(chan outcome, 1)}
	if err := c.enqueue(w); err != nil {
		return 0, err
	}
	var o outcome
	select {
	case o = <-w.result:
	case <-ctx.Done():
		// It may be in the batch that is under way.
		err := fmt.Errorf("write %s after %d: %w: %w", r.Subject, r.Expected, ErrTimeout, context.Cause(ctx))
		return c.b.settle(ctx, c.stream, r, err)
	}
	switch o.verdict {
	case verdictStored:
		return o.seq, nil
	case verdictLook:
		seq, err := c.b.settle(ctx, c.stream, r, o.err)
		if err == nil || !mayRepeat(err) || ctx.Err() != nil {
			return seq, err
		}
		return c.b.writeRecord(ctx, c.stream, r)
	case verdictAlone:
		return c.b.writeRecord(ctx, c.stream, r)
	default:
		return 0, fmt.Errorf("write %s after %d: %w", r.Subject, r.Expected, o.err)
	}
}

func (c *committer) enqueue(w *write) error {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return fmt.Errorf("write %s: %w", w.Subject, ErrClosed)
	}
	c.queue = append(c.queue, w)
	c.mu.Unlock()
	c.signal()
	return nil
}

func (c *committer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// stop commits what is queued, for at most 5 s, and joins run.
func (c *committer) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.signal()
	timer := time.AfterFunc(closeTimeout, c.cancel)
	defer timer.Stop()
	<-c.done
	c.cancel()
}

func (c *committer) run() {
	defer close(c.done)
	for {
		batch, more := c.next()
		if len(batch) > 0 {
			c.commit(batch)
		}
		if !more {
			return
		}
	}
}

// next waits for the next batch; more is false at the end.
func (c *committer) next() (batch []*write, more bool) {
	for {
		c.mu.Lock()
		batch, gone := c.queue.take(maxBatch, maxBatchBytes)
		more = !c.stopped || len(c.queue) > 0
		c.mu.Unlock()
		for _, w := range gone {
			w.result <- outcome{verdict: verdictFailed, err: mapError(w.ctx.Err())}
		}
		if len(batch) > 0 || !more {
			return batch, more
		}
		<-c.wake
	}
}

// commit ends with exactly one outcome for each write of batch.
func (c *committer) commit(batch []*write) {
	bo := newBackoff(50*time.Millisecond, 2*time.Second)
	for conflicts := 0; len(batch) > 0; {
		if len(batch) <= smallBatch {
			c.sideBySide(batch)
			return
		}
		last, err := c.send(batch)
		switch {
		case err == nil:
			first := last - uint64(len(batch)) + 1
			for i, w := range batch {
				w.result <- outcome{seq: first + uint64(i)}
			}
			return
		case c.ctx.Err() != nil:
			c.fail(batch, fmt.Errorf("%w: %w", ErrClosed, err))
			return
		case errors.Is(err, ErrConflict):
			conflicts++
			batch, err = c.look(batch, err)
		case errors.Is(err, ErrTimeout):
			c.b.log.Warn("commit timed out, reading back", slog.String("stream", c.stream), slog.Int("records", len(batch)), slog.Any("error", err))
			batch, err = c.look(batch, err)
		case errors.Is(err, errIncomplete), !errors.Is(err, ErrNoResponders):
			// Refused as a whole for the sake of one: size, TTL, limits, room.
			c.alone(batch)
			return
		}
		if conflicts == commitRounds {
			c.alone(batch)
			return
		}
		if err != nil && wait(c.ctx, bo) != nil {
			c.fail(batch, fmt.Errorf("%w: %w", ErrClosed, err))
			return
		}
	}
}

// send publishes the batch and returns the sequence of its last message.
func (c *committer) send(batch []*write) (last uint64, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, commitTry)
	defer cancel()
	defer c.b.untilReconnect(cancel)()
	msgs := make([]*nats.Msg, len(batch))
	for i, w := range batch {
		msgs[i] = w.message(c.stream)
	}
	return c.b.publishBatch(ctx, msgs)
}

// publishBatch has messages stored as a whole or not at all, and returns the
// sequence of the last one.
func (b *Bus) publishBatch(ctx context.Context, msgs []*nats.Msg) (last uint64, err error) {
	id := rand.Text()
	for i, m := range msgs {
		m.Header[headerBatchID] = []string{id}
		m.Header[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
		if i < len(msgs)-1 {
			if err := b.nc.PublishMsg(m); err != nil {
				return 0, unsent(err)
			}
			continue
		}
		m.Header[headerBatchCommit] = []string{"1"}
		reply, err := b.request(ctx, m)
		if err != nil {
			return 0, asAmbiguous(err)
		}
		if crash.Lost(m.Subject, m.Header) {
			return 0, ErrTimeout
		}
		a, err := parseAck(reply.Data)
		if err != nil {
			return 0, err
		}
		if a.Batch != id || a.Count != len(msgs) {
			return 0, fmt.Errorf("%w: %d of %d records are acknowledged", ErrTimeout, a.Count, len(msgs))
		}
		last = a.Seq
	}
	return last, nil
}

// unsent is the error of a batch that broke off before its commit: the server
// drops what it has of it.
func unsent(err error) error {
	if err := mapError(err); !errors.Is(err, ErrTimeout) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoResponders, errors.New(err.Error()))
}

// asAmbiguous makes a canceled wait what it is for the write.
func asAmbiguous(err error) error {
	if errors.Is(err, context.Canceled) && !errors.Is(err, ErrTimeout) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}

// look reads the last message of every subject of the batch, settles what is
// decided, and returns what can be committed again. When the look itself fails
// the batch stays, with that error.
func (c *committer) look(batch []*write, cause error) ([]*write, error) {
	names := make([]string, len(batch))
	for i, w := range batch {
		names[i] = w.Subject
	}
	last, err := c.b.lastFor(c.ctx, c.stream, names)
	if err != nil {
		return batch, fmt.Errorf("%w (read back: %w)", cause, err)
	}
	s := sortOut(batch, last)
	for _, w := range s.stored {
		w.result <- outcome{seq: last[w.Subject].seq}
	}
	for _, w := range s.stale {
		w.result <- outcome{verdict: verdictLook, err: ErrConflict}
	}
	c.alone(s.unclear)
	return s.again, nil
}

// sideBySide sends each write by itself and waits for all of them, so that the
// next batch can pile up.
func (c *committer) sideBySide(batch []*write) {
	if len(batch) == 1 {
		c.single(batch[0])
		return
	}
	var wg sync.WaitGroup
	for _, w := range batch {
		wg.Go(func() { c.single(w) })
	}
	wg.Wait()
}

// single is one try of one write; what is not clear then is the writer's.
func (c *committer) single(w *write) {
	a, err := c.b.publishStored(c.ctx, w.message(c.stream))
	switch {
	case err == nil:
		w.result <- outcome{seq: a.Seq}
	case errors.Is(err, ErrConflict):
		w.result <- outcome{verdict: verdictLook, err: err}
	case errors.Is(err, ErrTimeout), errors.Is(err, ErrNoResponders):
		// Sending it again is safe: at most one write follows what it expects,
		// and the writer recognises its own.
		w.result <- outcome{verdict: verdictAlone}
	default:
		w.result <- outcome{verdict: verdictFailed, err: err}
	}
}

func (c *committer) alone(batch []*write) {
	for _, w := range batch {
		w.result <- outcome{verdict: verdictAlone}
	}
}

func (c *committer) fail(batch []*write, err error) {
	for _, w := range batch {
		w.result <- outcome{verdict: verdictFailed, err: err}
	}
}

// lastFor returns where each of the subjects is; one without a message is not
// in the map. It is read from any replica: on a replicated stream an old place
// may show, which the next commit's conflict corrects.
func (b *Bus) lastFor(ctx context.Context, stream string, names []string) (map[string]place, error) {
	ctx, cancel := context.WithTimeout(ctx, readTry)
	defer cancel()
	last := make(map[string]place, len(names))
	for len(names) > 0 {
		msgs, pending, err := b.directBatch(ctx, stream, getRequest{MultiLast: names})
		if err != nil {
			return nil, fmt.Errorf("last of %d subjects: %w", len(names), err)
		}
		for _, m := range msgs {
			last[m.Subject] = place{seq: m.Seq, writeID: m.Header.Get(subjects.HeaderWriteID)}
		}
		if pending == 0 || len(msgs) == 0 {
			break
		}
		// The answer was cut at the server's byte limit: ask for the rest.
		rest := names[:0:0]
		for _, s := range names {
			if _, ok := last[s]; !ok {
				rest = append(rest, s)
			}
		}
		names = rest
	}
	return last, nil
}

var _ RecordWriter = (*committer)(nil)
