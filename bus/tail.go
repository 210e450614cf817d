package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The server says every tailHeartbeat that it lives; two checks without a word
// restart the consumer.
const (
	tailHeartbeat = time.Second
	tailCheck     = 3 * time.Second
)

// inTime is d, and 100 times that where time is fake: days of it pass in a test.
func (b *Bus) inTime(d time.Duration) time.Duration {
	if b.cfg.FakeTime {
		return 100 * d
	}
	return d
}

// Tail reads a stream in order, each message once.
type Tail struct {
	Stream   string
	Subjects []string // filters, none = all
	StartSeq uint64   // the first sequence to read, 0 = the first there is
	// LastPerSubject gives, of what is stored, the last message of each subject
	// only; what comes later is given in full. It needs StartSeq 0. After a
	// break in the middle of it, the rest is given in full.
	LastPerSubject bool
	HeadersOnly    bool
	// Handle is called for each message, never concurrently with itself or
	// CaughtUp. While it runs, the server waits. A message at which it panics is
	// skipped, see Bus.Skip.
	Handle func(Msg)
	// Refused is called instead for what the guard does not admit; nil: it is
	// passed over. What it cannot judge just now is read again, and all else
	// waits behind it.
	Refused func(Msg, error)
	// CaughtUp is called once, when everything that was stored before Tail
	// began has been handled, at once for an empty stream. lastSeq is the
	// stream's last sequence at the beginning, or the last one handled when
	// that is later.
	CaughtUp func(lastSeq uint64)
}

// Tail runs t until ctx ends and then returns nil. It resumes after the last
// message handled, whatever breaks. Errors: ErrNotFound when the stream does
// not exist at the beginning, or was replaced by one that is behind what was
// read already; ErrClosed.
func (b *Bus) Tail(ctx context.Context, t Tail) error {
	if t.Handle == nil || t.Stream == "" || (t.LastPerSubject && t.StartSeq > 0) {
		return errors.New("tail: needs Stream and Handle, and StartSeq 0 with LastPerSubject")
	}
	r := &tailRun{b: b, Tail: t}
	bo := newBackoff(100*time.Millisecond, 2*time.Second)
	for {
		began := time.Now()
		err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrClosed), errors.Is(err, errTailEnds):
			return fmt.Errorf("tail %s: %w", t.Stream, err)
		}
		b.log.Warn("tail restarts", slog.String("stream", t.Stream), slog.Uint64("after_seq", r.last), slog.Any("error", err))
		if time.Since(began) > tailCheck {
			bo.Reset()
		}
		if wait(ctx, bo) != nil {
			return nil
		}
	}
}

var (
	errTailEnds  = errors.New("ended")
	errTailBroke = errors.New("consumer broke")
)

// tailRun is the state of one Tail over all its consumers.
type tailRun struct {
	Tail
	b *Bus

	// Owned by once, and by the subscription's goroutine while it runs; mu
	// orders the two.
	mu       sync.Mutex
	began    bool      // the first consumer was made
	target   uint64    // the stream's last sequence at the beginning
	last     uint64    // last sequence handled
	created  time.Time // the stream, as it was seen last
	behind   time.Time // since when its leader has less than was read; zero: it has not
	copies   int       // of the stream
	caughtUp bool
}

// tailConsumer is one consumer of a tailRun.
type tailConsumer struct {
	r       *tailRun
	next    uint64        // consumer sequence awaited; the subscription's goroutine owns it
	dead    bool          // a gap was seen; the subscription's goroutine owns it
	heard   atomic.Uint64 // counts whatever came, for the heartbeat check
	problem chan error    // capacity 1
}

// leaderLag is how long the leader of a stream may know less than was read: one
// that is new applies what others have applied already, and one that was
// replaced learns of it. After that the rest is lost.
const leaderLag = 30 * time.Second

// patient reports whether a leader that is behind may still catch up.
func (r *tailRun) patient() bool {
	if r.behind.IsZero() {
		r.behind = time.Now()
	}
	return time.Since(r.behind) < leaderLag
}

// once makes one consumer and runs it until ctx ends or it breaks.
func (r *tailRun) once(ctx context.Context) error {
	reconnected := r.b.reconnected()
	state, err := r.b.StreamState(ctx, r.Stream)
	switch {
	case errors.Is(err, ErrNotFound) && !r.began:
		return fmt.Errorf("%w: %w", errTailEnds, err)
	case err != nil:
		return err
	case state.LastSeq < r.last && state.Created.Equal(r.created) && r.patient():
		return fmt.Errorf("%w: the leader is at sequence %d, behind %d which was read", ErrNoResponders, state.LastSeq, r.last)
	case state.LastSeq < r.last:
		r.b.heard.Delete(r.Stream)
		return fmt.Errorf("%w: %w: the stream is at sequence %d, behind %d which was read",
			errTailEnds, ErrNotFound, state.LastSeq, r.last)
	}
	if !r.began {
		r.began, r.target = true, state.LastSeq
	}
	r.created, r.behind, r.copies = state.Created, time.Time{}, state.Replicas
	c := &tailConsumer{r: r, next: 1, problem: make(chan error, 1)}
	inbox := r.b.nc.NewInbox()
	sub, err := r.b.subscribe(inbox, "", c.receive)
	if err != nil {
		return err
	}
	// Whatever comes, the goroutine that calls Handle has ended when once returns.
	defer func() {
		_ = sub.Unsubscribe()
		<-sub.done
	}()
	if err := sub.sub.SetPendingLimits(-1, -1); err != nil { // flow control bounds it
		return mapError(err)
	}
	name, pending, err := r.create(ctx, inbox)
	if err != nil {
		return err
	}
	defer r.drop(name)
	if pending == 0 {
		r.mu.Lock()
		r.nowCaughtUp()
		r.mu.Unlock()
	}
	return c.watch(ctx, reconnected, r.b.inTime(tailCheck))
}

// create makes the ephemeral push consumer and returns its name and how much
// is stored for it.
func (r *tailRun) create(ctx context.Context, inbox string) (name string, pending uint64, err error) {
	cfg := jetstream.ConsumerConfig{
		Name:              "tail-" + rand.Text(),
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MaxDeliver:        1,
		HeadersOnly:       r.HeadersOnly,
		FilterSubjects:    r.Subjects,
		DeliverSubject:    inbox,
		FlowControl:       true,
		IdleHeartbeat:     r.b.inTime(tailHeartbeat),
		InactiveThreshold: 30 * time.Second,
		MemoryStorage:     true,
		Replicas:          1,
	}
	if len(r.Subjects) == 1 {
		cfg.FilterSubject, cfg.FilterSubjects = r.Subjects[0], nil
	}
	switch start := max(r.last+1, r.StartSeq); {
	case start > 1:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, start
	case r.LastPerSubject:
		cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
		if len(r.Subjects) == 0 {
			cfg.FilterSubject = ">"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readTry)
	defer cancel()
	consumer, err := r.b.js.CreatePushConsumer(ctx, r.Stream, cfg)
	if err != nil {
		return "", 0, fmt.Errorf("create consumer: %w", mapError(err))
	}
	info := consumer.CachedInfo()
	return info.Name, info.NumPending + info.Delivered.Consumer, nil
}

// drop deletes the consumer; the server would by itself, later.
func (r *tailRun) drop(name string) {
	if !r.b.Connected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.b.js.DeleteConsumer(ctx, r.Stream, name); err != nil {
		r.b.log.Debug("tail consumer not deleted", slog.String("consumer", name), slog.Any("error", mapError(err)))
	}
}

// watch waits for the end of ctx, or of the consumer.
func (c *tailConsumer) watch(ctx context.Context, reconnected <-chan struct{}, every time.Duration) error {
	check := time.NewTicker(every)
	defer check.Stop()
	heard := c.heard.Load()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-c.problem:
			return err
		case <-reconnected:
			return fmt.Errorf("%w: reconnected", errTailBroke)
		case <-check.C:
			if c.r.b.nc.IsClosed() {
				return ErrClosed
			}
			now := c.heard.Load()
			if now == heard && c.r.b.Connected() {
				return fmt.Errorf("%w: no heartbeat", errTailBroke)
			}
			heard = now
		}
	}
}

// receive runs on the subscription's goroutine.
func (c *tailConsumer) receive(m *nats.Msg) {
	if c.dead {
		return
	}
	c.heard.Add(1)
	if len(m.Data) == 0 && len(m.Header) > 0 && Header(m.Header).Get("Status") == "100" {
		c.control(m)
		return
	}
	d, err := parseDelivery(m.Reply)
	switch {
	case err != nil:
		c.fail(err)
		return
	case d.consumer != c.next:
		c.fail(fmt.Errorf("%w: message %d came instead of %d", errTailBroke, d.consumer, c.next))
		return
	}
	c.next++
	r := c.r
	r.b.hear(r.Stream, d.stream)
	r.mu.Lock()
	defer r.mu.Unlock()
	msg := Msg{
		Subject: m.Subject, Header: Header(m.Header), Data: m.Data, Stream: r.Stream,
		Seq: d.stream, Time: unixNano(d.time), Delivered: d.delivered, Pending: d.pending, nc: r.b.nc,
	}
	switch err := r.b.admitStored(msg); {
	case err == nil:
		r.b.handle(msg, r.Handle)
	case unjudged(err):
		c.fail(fmt.Errorf("message %d cannot be judged now: %w", msg.Seq, err))
		return
	case r.Refused != nil:
		r.Refused(msg, err)
	}
	r.last = d.stream
	if d.pending == 0 || d.stream >= r.target {
		r.nowCaughtUp()
	}
}

// control handles heartbeats and flow control.
func (c *tailConsumer) control(m *nats.Msg) {
	h := Header(m.Header)
	reply := m.Reply
	if stalled := h.Get("Nats-Consumer-Stalled"); stalled != "" {
		reply = stalled
	}
	if reply != "" { // flow control: everything before it is handled
		if err := c.r.b.nc.Publish(reply, nil); err != nil {
			c.fail(mapError(err))
		}
		return
	}
	last := h.Get("Nats-Last-Consumer")
	if last == "" {
		return
	}
	if last != strconv.FormatUint(c.next-1, 10) {
		c.fail(fmt.Errorf("%w: the server is at message %s, not %d", errTailBroke, last, c.next-1))
		return
	}
	// Idle, and nothing is on its way: what was stored is read, even when the
	// end of it was deleted meanwhile.
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.nowCaughtUp()
}

func (c *tailConsumer) fail(err error) {
	c.dead = true
	select {
	case c.problem <- err:
	default:
	}
}

// nowCaughtUp needs the lock.
func (r *tailRun) nowCaughtUp() {
	if r.caughtUp || !r.readAll() {
		return
	}
	r.caughtUp = true
	if r.CaughtUp != nil {
		r.CaughtUp(max(r.target, r.last))
	}
}

// readAll reports whether nothing is left of what was stored when the tail began.
// The replica that it reads from may be behind, and says then that nothing is
// pending: the stream's leader knows.
func (r *tailRun) readAll() bool {
	if r.last >= r.target || r.copies < 2 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), tailHeartbeat)
	defer cancel()
	filters := r.Subjects
	if len(filters) == 0 {
		filters = []string{">"}
	}
	for _, f := range filters {
		m, err := r.b.nextFor(ctx, r.Stream, f, max(r.last+1, r.StartSeq))
		switch {
		case err == nil && m.Seq <= r.target:
			return false
		case err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDenied):
			return false // it is asked again with the next heartbeat
		}
	}
	return true
}
