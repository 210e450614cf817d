package router

import (
	"hash/fnv"
	"time"

	"parley/subjects"
)

// Routers say that they live every routerBeat; one that missed missedBeats is
// gone, and what it owned belongs to the others.
const (
	routerBeat  = time.Second
	missedBeats = 3
	// stagger is how much later a router fires what another one owns: doubles
	// are harmless, but cost a write.
	stagger = 2 * time.Second
)

// ring knows which routers live and which of them owns a key (rendezvous
// hashing: the highest score wins, and only a lost router's keys move).
type ring struct {
	self subjects.InstanceID
	seen map[subjects.InstanceID]time.Time // the others
}

func newRing(self subjects.InstanceID) *ring {
	return &ring{self: self, seen: make(map[subjects.InstanceID]time.Time)}
}

// heard notes a sign of life and reports whether the ring changed.
func (r *ring) heard(id subjects.InstanceID, now time.Time) bool {
	if id == r.self {
		return false
	}
	_, known := r.seen[id]
	r.seen[id] = now
	return !known
}

// left notes that a router goes and reports whether the ring changed.
func (r *ring) left(id subjects.InstanceID) bool {
	_, known := r.seen[id]
	delete(r.seen, id)
	return known
}

// expire forgets the routers that fell silent and reports whether any did.
func (r *ring) expire(now time.Time) bool {
	changed := false
	for id, at := range r.seen {
		if now.Sub(at) > missedBeats*routerBeat {
			delete(r.seen, id)
			changed = true
		}
	}
	return changed
}

// owns reports whether key is this router's.
func (r *ring) owns(key uint64) bool {
	mine := score(r.self, key)
	for id := range r.seen {
		if s := score(id, key); s > mine || s == mine && id > r.self {
			return false
		}
	}
	return true
}

func score(id subjects.InstanceID, key uint64) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	// Mix, so that close keys and close ids do not give close scores
	// (the finalizer of SplitMix64).
	z := h.Sum64() ^ key
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// keyOf hashes a name to a key of the ring.
func keyOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}
