package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
)

// Record is one write by compare-and-set on the literal Subject.
type Record struct {
	Subject  string
	Expected uint64 // last sequence of Subject, 0 = none
	WriteID  string // unique per write
	Data     []byte
	Header   Header
	TTL      time.Duration // 0 = none; rounded up to whole seconds
	// Told are log lines of what is changed by this write, one JSON object a
	// line: they are stored with it in the same stream, or neither is. They need
	// a WriteID that is a token.
	Told []byte
}

// keepTold is how long log lines are kept beside what they tell of where nothing
// ages: as long as those of FLEET_LOG.
const keepTold = 7 * day

// RecordWriter writes records. Write blocks until the record is stored and
// returns its sequence; it may be called from any number of goroutines.
//
// ErrConflict says that another write came first; nothing was stored. ErrFull
// says that the stream refused. While the stream cannot be reached Write
// repeats until ctx ends; then the error wraps ctx's, and if it wraps
// ErrTimeout the record may have been stored, or still be.
type RecordWriter interface {
	Write(ctx context.Context, r Record) (seq uint64, err error)
}

// CommitMode says how Records writes.
type CommitMode int

const (
	// CommitAuto groups where it pays: on an unreplicated stream of a server
	// that syncs always (Config.SyncAlways).
	CommitAuto CommitMode = iota
	// CommitDirect sends each record by itself; concurrent writers pipeline.
	CommitDirect
	// CommitGrouped commits in atomic batches what piled up during the last
	// commit.
	CommitGrouped
)

// Records returns a writer for stream and the function that stops it: writes
// in hand are finished, for at most 5 s, later ones get ErrClosed.
func (b *Bus) Records(stream string, mode CommitMode) (RecordWriter, func()) {
	direct := &directWriter{b: b, stream: stream}
	switch {
	case mode == CommitDirect, mode == CommitAuto && !b.cfg.SyncAlways:
		return direct, direct.stop
	case mode == CommitGrouped:
		g := newCommitter(b, stream)
		return g, g.stop
	}
	a := &autoWriter{b: b, stream: stream, direct: direct}
	return a, a.stop
}

// autoWriter chooses at the first write that finds the stream.
type autoWriter struct {
	b      *Bus
	stream string
	direct *directWriter

	mu      sync.Mutex
	chosen  RecordWriter // guarded by mu
	grouped *committer   // guarded by mu
	stopped bool         // guarded by mu
}

func (a *autoWriter) Write(ctx context.Context, r Record) (uint64, error) {
	w, err := a.choose(ctx)
	if err != nil {
		return 0, err
	}
	return w.Write(ctx, r)
}

func (a *autoWriter) choose(ctx context.Context) (RecordWriter, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return nil, fmt.Errorf("write to %s: %w", a.stream, ErrClosed)
	}
	if a.chosen != nil {
		return a.chosen, nil
	}
	state, err := a.b.StreamState(ctx, a.stream)
	switch {
	case mayRepeat(err):
		return a.direct, nil // its own repeats wait for the stream; ask again next time
	case err != nil:
		return nil, err
	case state.Replicas > 1:
		a.chosen = a.direct
	default:
		a.grouped = newCommitter(a.b, a.stream)
		a.chosen = a.grouped
	}
	return a.chosen, nil
}

func (a *autoWriter) stop() {
	a.mu.Lock()
	a.stopped = true
	g := a.grouped
	a.mu.Unlock()
	a.direct.stop()
	if g != nil {
		g.stop()
	}
}

// directWriter sends each record as a publish of its own.
type directWriter struct {
	b      *Bus
	stream string

	mu      sync.Mutex
	stopped bool           // guarded by mu
	writes  sync.WaitGroup // Add only with mu held and not stopped
}

func (w *directWriter) Write(ctx context.Context, r Record) (uint64, error) {
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return 0, fmt.Errorf("write %s: %w", r.Subject, ErrClosed)
	}
	w.writes.Add(1)
	w.mu.Unlock()
	defer w.writes.Done()
	return w.b.writeRecord(ctx, w.stream, r)
}

// stop waits at most 5 s: the writes are their callers', and so is what ends
// those that go on against a server that is away.
func (w *directWriter) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	done := make(chan struct{})
	go func() { w.writes.Wait(); close(done) }() // ends with the last caller's Write
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// writeRecord tries until the record is stored, refused or ctx ends.
func (b *Bus) writeRecord(ctx context.Context, stream string, r Record) (uint64, error) {
	var away, process backoff.BackOff // made when one is needed
	for {
		stored, err := b.publishRecord(ctx, stream, r)
		if err == nil {
			return stored, nil
		}
		bo, first, most := &away, 50*time.Millisecond, 2*time.Second
		if errors.Is(err, errInProcess) {
			bo, first, most = &process, 2*time.Millisecond, 500*time.Millisecond
		}
		if *bo == nil {
			*bo = newBackoff(first, most)
		}
		seq, err := b.settle(ctx, stream, r, err)
		if err == nil || !mayRepeat(err) {
			return seq, err
		}
		if werr := wait(ctx, *bo); werr != nil {
			return 0, fmt.Errorf("%w (last: %w)", werr, err)
		}
	}
}

// publishRecord is one try: a record that has log lines goes as a batch that
// ends with it.
func (b *Bus) publishRecord(ctx context.Context, stream string, r Record) (uint64, error) {
	if len(r.Told) == 0 {
		a, err := b.publishStored(ctx, r.message(stream))
		return a.Seq, err
	}
	ctx, cancel := b.tryContext(ctx)
	defer cancel()
	told := &nats.Msg{Subject: subjects.Told(stream, r.WriteID), Data: r.Told, Header: nats.Header{jetstream.ExpectedStreamHeader: {stream}}}
	if !ages(stream) {
		told.Header.Set(jetstream.MsgTTLHeader, ttlSeconds(keepTold))
	}
	return b.publishBatch(ctx, []*nats.Msg{told, r.message(stream)})
}

// lastLook bounds the read-back of a write whose context has ended.
const lastLook = time.Second

// settle decides what became of a write that ended with cause. A conflict and
// an ambiguous time-out are read back from the leader: if the first message of
// the subject after Expected carries the write's own id, it was stored, and
// settle returns its sequence; if it carries another, that is ErrConflict. An
// error for which mayRepeat is true means: not stored as far as the leader
// knows. A repeat is safe then, because at most one write can follow Expected.
func (b *Bus) settle(ctx context.Context, stream string, r Record, cause error) (uint64, error) {
	what := fmt.Sprintf("write %s after %d", r.Subject, r.Expected)
	if !errors.Is(cause, ErrConflict) && !errors.Is(cause, ErrTimeout) {
		return 0, fmt.Errorf("%s: %w", what, cause)
	}
	// The caller's deadline may be what made it ambiguous; one short look more
	// is worth it.
	try := readTry
	if ctx.Err() != nil {
		ctx, try = context.WithoutCancel(ctx), lastLook
	}
	ctx, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	next, err := b.nextFor(ctx, stream, r.Subject, r.Expected+1)
	switch {
	case err == nil && next.Header.Get(subjects.HeaderWriteID) == r.WriteID && r.WriteID != "":
		return next.Seq, nil
	case err == nil:
		return 0, fmt.Errorf("%s: %w: %d is there", what, ErrConflict, next.Seq)
	case errors.Is(cause, errInProcess):
		// Nothing follows yet; what will may be one's own earlier try.
		return 0, fmt.Errorf("%s: %w: a write of the subject is in process", what, ErrTimeout)
	case errors.Is(cause, ErrConflict), errors.Is(err, ErrNotFound):
		return 0, fmt.Errorf("%s: %w", what, cause)
	default:
		return 0, fmt.Errorf("%s: %w (read back: %w)", what, cause, err)
	}
}

// message builds the wire form: the record's headers, its expectation, id and
// TTL.
func (r Record) message(stream string) *nats.Msg {
	h := make(nats.Header, len(r.Header)+6) // room for the batch headers
	maps.Copy(h, r.Header)
	h[jetstream.ExpectedStreamHeader] = []string{stream}
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(r.Expected, 10)}
	if r.WriteID != "" {
		h[subjects.HeaderWriteID] = []string{r.WriteID}
	}
	if r.TTL > 0 {
		h[jetstream.MsgTTLHeader] = []string{ttlSeconds(r.TTL)}
	}
	return &nats.Msg{Subject: r.Subject, Header: h, Data: r.Data}
}

// ttlSeconds rounds up to whole seconds, the unit of Nats-TTL.
func ttlSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10) + "s"
}
