package callout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/identity"
	"parley/workers"
)

// Keys of the bucket: records, and that an agent has used the form v1.
const (
	recordKey = "id."
	seenKey   = "v1."
)

// Identities is what one process knows of all identities. Open is required.
type Identities struct {
	// Fixed after Open.
	bus    *bus.Bus
	kv     *bus.KV
	nonces *bus.KV
	seal   *seal
	log    *slog.Logger
	notes  *workers.Notes
	terms  Terms
	looks  *looks // into the store, for what streams have

	mu    sync.RWMutex // guards all below
	known map[subjects.AgentID]known
	seen  map[subjects.AgentID]bool // has used v1

	once used
}

// Terms are what every process judges by.
type Terms struct {
	SealKey string // seals secrets, 32 bytes or more; "": one that is made and kept in the fleet
	Signed  bool   // messages must be signed
	Strict  bool   // who has no identity may not announce
}

// known is a record with its keys opened.
type known struct {
	record   identity.Record
	keys     map[string]identity.Key
	revision uint64
}

// Open reads all identities. Run keeps them up to date.
func Open(ctx context.Context, b *bus.Bus, t Terms, log *slog.Logger) (*Identities, error) {
	log = log.With(slog.String("component", "identities"))
	i := &Identities{
		bus: b, log: log, notes: workers.NewNotes(b, log), terms: t,
		looks: newLooks(),
		known: map[subjects.AgentID]known{}, seen: map[subjects.AgentID]bool{},
	}
	var err error
	if i.kv, err = b.KV(ctx, subjects.BucketIdentities); err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	if i.nonces, err = b.KV(ctx, subjects.BucketNonces); err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	if i.seal, err = newSeal(ctx, b, t.SealKey); err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	entries, err := i.kv.Entries(ctx, "*.*")
	if err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	for _, e := range entries {
		i.take(e)
	}
	b.SetGuard(i.guard())
	if t.Signed {
		b.SetSigner(Signer("", i.seal.workers, b.Now))
	}
	return i, nil
}

// Run hears of every change until ctx ends.
func (i *Identities) Run(ctx context.Context) error { return i.kv.Watch(ctx, i.take) }

// take takes in an entry of the bucket.
func (i *Identities) take(e bus.Entry) {
	if id, ok := strings.CutPrefix(e.Key, seenKey); ok {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.seen[subjects.AgentID(id)] = !e.Deleted
	}
	name, ok := strings.CutPrefix(e.Key, recordKey)
	if !ok {
		return
	}
	id := subjects.AgentID(name)
	k, err := i.open(id, e)
	if err != nil {
		// Whoever it is, is not known: no key of theirs counts.
		i.kv.Skip(e, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch old := i.known[id]; {
	case e.Revision < old.revision: // a decision has read ahead
	case e.Deleted:
		delete(i.known, id)
	default:
		i.known[id] = k
	}
}

// open decodes a record and opens its keys; those that cannot be opened are
// left out, and the error says so.
func (i *Identities) open(id subjects.AgentID, e bus.Entry) (known, error) {
	k := known{revision: e.Revision, keys: map[string]identity.Key{}}
	if e.Deleted {
		return k, nil
	}
	r, err := fleet.DecodeStored[identity.Record](e.Value)
	if err != nil {
		return k, fmt.Errorf("decode: %w", err)
	}
	if r.AgentID != id {
		return k, errors.New("it is not of whom it is kept for")
	}
	k.record = *r
	for n := range r.Keys {
		key, kerr := i.seal.open(id, &r.Keys[n])
		if kerr != nil {
			err = errors.Join(err, fmt.Errorf("key %s: %w", r.Keys[n].ID, kerr))
			continue
		}
		k.keys[key.ID] = key
	}
	return k, err
}

// of is what is known here of an agent.
func (i *Identities) of(id subjects.AgentID) (k known, seen, ok bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	k, ok = i.known[id]
	return k, i.seen[id], ok
}

// now is what the store says of an agent, which nothing can be ahead of.
func (i *Identities) now(ctx context.Context, id subjects.AgentID) (k known, ok bool, err error) {
	e, err := i.kv.Get(ctx, recordKey+string(id))
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return known{}, false, nil
	case err != nil:
		return known{}, false, unavailable(err)
	}
	i.take(e)
	k, err = i.open(id, e)
	if err != nil && len(k.keys) == 0 {
		return known{}, false, nil // told by take
	}
	return k, true, nil
}

// judged are the terms by which a proof is judged.
func (k known) judged(at time.Time, seen bool) identity.Terms {
	t := identity.Terms{At: at, SeenV1: seen, Plain: k.record.Signatures == identity.V0}
	for _, active := range k.record.Active(at) {
		if key, ok := k.keys[active.ID]; ok {
			t.Keys = append(t.Keys, key)
		}
	}
	return t
}

// sawV1 notes that an agent has used v1, for all processes, before anything
// comes of it.
func (i *Identities) sawV1(ctx context.Context, id subjects.AgentID) error {
	if _, seen, _ := i.of(id); seen {
		return nil
	}
	if _, err := i.kv.Create(ctx, seenKey+string(id), []byte("{}"), 0); err != nil && !errors.Is(err, bus.ErrExists) {
		return unavailable(err)
	}
	crash.Point("after_v1")
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen[id] = true
	return nil
}

// hasSeenV1 asks the store.
func (i *Identities) hasSeenV1(ctx context.Context, id subjects.AgentID) (bool, error) {
	_, err := i.kv.Get(ctx, seenKey+string(id))
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return false, unavailable(err)
	}
	return err == nil, nil
}

// unavailable says that the store does not answer now.
func unavailable(err error) error {
	e := subjects.Errorf(subjects.CodeUnavailable, "the store of identities does not answer now").
		WithRemedy("repeat the request").RetryAfter(time.Second)
	e.Err = err
	return e
}
