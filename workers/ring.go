package workers

import (
	"hash/fnv"
	"time"

	"parley/subjects"
)

// Workers of one kind that share work say that they live every RingBeat; one
// that missed three is gone, and what it owned belongs to the others.
const (
	RingBeat   = time.Second
	ringMissed = 3
)

// Ring knows which workers of one kind live, and which of them owns a key
// (rendezvous hashing: the highest score wins, and only a lost worker's keys
// move). It is not safe for concurrent use.
type Ring struct {
	self subjects.InstanceID
	seen map[subjects.InstanceID]time.Time // the others
}

// NewRing makes the ring of the worker self.
func NewRing(self subjects.InstanceID) *Ring {
	return &Ring{self: self, seen: make(map[subjects.InstanceID]time.Time)}
}

// Heard notes a sign of life and reports whether the ring changed.
func (r *Ring) Heard(id subjects.InstanceID, now time.Time) bool {
	if id == r.self {
		return false
	}
	_, known := r.seen[id]
	r.seen[id] = now
	return !known
}

// Left notes that a worker goes and reports whether the ring changed.
func (r *Ring) Left(id subjects.InstanceID) bool {
	_, known := r.seen[id]
	delete(r.seen, id)
	return known
}

// Expire forgets the workers that fell silent and reports whether any did.
func (r *Ring) Expire(now time.Time) bool {
	changed := false
	for id, at := range r.seen {
		if now.Sub(at) > ringMissed*RingBeat {
			delete(r.seen, id)
			changed = true
		}
	}
	return changed
}

// Shift moves what was noted of time, since the clock was set by so much.
func (r *Ring) Shift(by time.Duration) {
	for id, at := range r.seen {
		r.seen[id] = at.Add(by)
	}
}

// Owns reports whether the key of that name is this worker's.
func (r *Ring) Owns(name string) bool { return r.OwnsHash(hash(name)) }

// OwnsHash is Owns for who has a hash of the name at hand, the same in every
// worker.
func (r *Ring) OwnsHash(key uint64) bool {
	mine := score(r.self, key)
	for id := range r.seen {
		if s := score(id, key); s > mine || s == mine && id > r.self {
			return false
		}
	}
	return true
}

func score(id subjects.InstanceID, key uint64) uint64 {
	// Mix, so that close keys and close ids do not give close scores (the
	// finalizer of SplitMix64).
	z := hash(string(id)) ^ key
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}
