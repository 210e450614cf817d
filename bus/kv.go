package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
)

// KV is a NATS key-value bucket; the stock tools (nats kv …) read and write it,
// too. Writes are compare-and-set records (see Record), so that a time-out is
// read back and not guessed at; reads come from the leader.
type KV struct {
	b      *Bus
	stream string // KV_<bucket>
	prefix string // $KV.<bucket>.
	told   []byte // see Telling
}

// Telling is k for one write of Create, Update, UpdateFor or DeleteRevision that
// stores log lines with it (see Record.Told).
func (k *KV) Telling(lines []byte) *KV {
	c := *k
	c.told = lines
	return &c
}

// Entry is one key's value. Revision is the bucket's sequence.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	Time     time.Time
	Deleted  bool // by Delete, or by the end of its TTL
}

// KV opens a bucket; ErrNotFound when it does not exist.
func (b *Bus) KV(ctx context.Context, bucket string) (*KV, error) {
	k := &KV{b: b, stream: "KV_" + bucket, prefix: "$KV." + bucket + "."}
	if _, err := b.StreamState(ctx, k.stream); err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bucket, err)
	}
	return k, nil
}

// Get returns the value of key; ErrNotFound when it has none.
func (k *KV) Get(ctx context.Context, key string) (Entry, error) {
	e, err := k.last(ctx, key)
	if err == nil && e.Deleted {
		err = fmt.Errorf("key %s: %w", key, ErrNotFound)
	}
	if err != nil {
		return Entry{}, err
	}
	return e, nil
}

// last returns the last entry of key, a deletion as well.
func (k *KV) last(ctx context.Context, key string) (Entry, error) {
	if err := validKey(key); err != nil {
		return Entry{}, err
	}
	m, err := k.b.Last(ctx, k.stream, k.prefix+key)
	if err != nil {
		return Entry{}, fmt.Errorf("key %s: %w", key, err)
	}
	return k.entry(m), nil
}

// Create writes a key that has no value and returns its revision; ErrExists
// when it has one. It is gone after ttl, 0 = never (or as the bucket says).
func (k *KV) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	rev, err := k.write(ctx, key, value, 0, ttl)
	if !errors.Is(err, ErrConflict) {
		return rev, err
	}
	// A deletion is a message, too: the key may be free nevertheless.
	e, lerr := k.last(ctx, key)
	switch {
	case errors.Is(lerr, ErrNotFound): // it expired just now
		e.Revision = 0
	case lerr != nil:
		return 0, lerr
	case !e.Deleted:
		return 0, fmt.Errorf("create key %s: %w", key, ErrExists)
	}
	rev, err = k.write(ctx, key, value, e.Revision, ttl)
	if errors.Is(err, ErrConflict) {
		return 0, fmt.Errorf("create key %s: %w", key, ErrExists)
	}
	return rev, err
}

// Update writes key if its last revision is rev; ErrConflict otherwise. A TTL
// given at Create ends with it.
func (k *KV) Update(ctx context.Context, key string, value []byte, rev uint64) (uint64, error) {
	return k.write(ctx, key, value, rev, 0)
}

// UpdateFor is Update with a time to live of its own.
func (k *KV) UpdateFor(ctx context.Context, key string, value []byte, rev uint64, ttl time.Duration) (uint64, error) {
	return k.write(ctx, key, value, rev, ttl)
}

// Entries returns the entries that have a value under the keys of pattern, in
// which * stands for one token, in the order of their last change.
func (k *KV) Entries(ctx context.Context, pattern string) ([]Entry, error) {
	var out []Entry
	place := make(map[string]int)
	for from := uint64(1); ; {
		msgs, more, err := k.b.History(ctx, k.stream, k.prefix+pattern, from, 256)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			from = m.Seq + 1
			e := k.entry(m)
			if i, twice := place[e.Key]; twice { // a replica lagged, the leader knew
				out[i] = e
				continue
			}
			place[e.Key] = len(out)
			out = append(out, e)
		}
		if !more {
			return slices.DeleteFunc(out, func(e Entry) bool { return e.Deleted }), nil
		}
	}
}

// Put writes key, whatever it held.
func (k *KV) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	if err := validKey(key); err != nil {
		return 0, err
	}
	return k.b.Store(ctx, k.prefix+key, value, "", nil)
}

// Delete removes key, whether it exists or not.
func (k *KV) Delete(ctx context.Context, key string) error {
	if err := validKey(key); err != nil {
		return err
	}
	_, err := k.b.Store(ctx, k.prefix+key, nil, "", Header{"KV-Operation": {"DEL"}})
	return err
}

// keepMark is how long it can be heard that a key was deleted.
const keepMark = day

// DeleteRevision removes key if its last revision is rev; ErrConflict otherwise.
// The mark that it leaves is gone after a day: a worker that was away for less
// hears of it, and a bucket of keys that come and go does not fill up. Unlike
// what Delete leaves, its mark is no end of a TTL when it is too old itself, so
// no second mark follows.
func (k *KV) DeleteRevision(ctx context.Context, key string, rev uint64) error {
	if err := validKey(key); err != nil {
		return err
	}
	mark := Record{
		Subject: k.prefix + key, Expected: rev, WriteID: uuid.NewString(), Header: Header{"KV-Operation": {"PURGE"}}, TTL: keepMark, Told: k.told,
	}
	if ages(k.stream) {
		mark.TTL = 0 // its age is bounded as all else is there
	}
	_, err := k.b.writeRecord(ctx, k.stream, mark)
	return err
}

func (k *KV) write(ctx context.Context, key string, value []byte, rev uint64, ttl time.Duration) (uint64, error) {
	if err := validKey(key); err != nil {
		return 0, err
	}
	return k.b.writeRecord(ctx, k.stream, Record{
		Subject: k.prefix + key, Expected: rev, WriteID: uuid.NewString(), Data: value, TTL: ttl, Told: k.told,
	})
}

// Keys returns the keys that have a value, in the order of their last change.
func (k *KV) Keys(ctx context.Context) ([]string, error) {
	var keys []string
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := errors.New("all keys read")
	err := k.tail(ctx, true, func(e Entry) {
		if e.Key == "" {
			cancel(done)
		} else if !e.Deleted && context.Cause(ctx) == nil {
			keys = append(keys, e.Key)
		}
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, done) {
		err = cmp.Or(mapError(cause), ErrClosed)
	}
	if err != nil {
		return nil, fmt.Errorf("keys of %s: %w", k.stream, err)
	}
	return keys, nil
}

// Watch calls fn with the current entries (deletions that are still kept
// included), then with one empty entry as a mark (Key ""), then with every
// change, in order, until ctx ends; then it returns nil. After a break it
// resumes where it was.
func (k *KV) Watch(ctx context.Context, fn func(Entry)) error { return k.tail(ctx, false, fn) }

func (k *KV) tail(ctx context.Context, headersOnly bool, fn func(Entry)) error {
	return k.b.Tail(ctx, Tail{
		Stream: k.stream, Subjects: []string{k.prefix + ">"}, LastPerSubject: true, HeadersOnly: headersOnly,
		Handle:   func(m Msg) { fn(k.entry(m)) },
		CaughtUp: func(uint64) { fn(Entry{}) },
	})
}

func (k *KV) entry(m Msg) Entry {
	op, marker := m.Header.Get("KV-Operation"), m.Header.Get(jetstream.MarkerReasonHeader)
	return Entry{
		Key: strings.TrimPrefix(m.Subject, k.prefix), Value: m.Data, Revision: m.Seq, Time: m.Time,
		Deleted: op == "DEL" || op == "PURGE" || marker != "",
	}
}

func validKey(key string) error {
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_=./", c) >= 0:
		default:
			return fmt.Errorf("key %q has a character outside A-Z a-z 0-9 - _ = . /", key)
		}
	}
	if key == "" || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("key %q is empty or has an empty token", key)
	}
	return nil
}
