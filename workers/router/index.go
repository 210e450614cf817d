package router

import (
	"encoding/hex"
	"hash/maphash"
	"iter"

	"parley/subjects"
	"parley/subjects/fleet"
)

// slot names an entry of the index; 0 is none.
type slot uint32

// entry is what a router keeps in memory of every live task, whatever their
// number: no pointers, so that a million queued tasks cost the garbage
// collector nothing. The rest is read from the stream when it is needed.
type entry struct {
	id       packedID
	from     uint32 // interned
	class    uint32 // number of its class; 0 while it has none
	lastSeq  uint64 // stream sequence of its latest record: what the next write expects
	firstSeq uint64 // stream sequence of record 1, which has the dispatch
	created  int64  // ns
	deadline int64  // ns
	due      int64  // ns; when its next timer is due
	prev     slot   // neighbours in its queue
	next     slot
	attempt  uint16
	state    stateCode
	priority uint8
	flags    flags
}

type flags uint8

const (
	inQueue  flags = 1 << iota // waits in its class's queue
	offering                   // an offer of it is under way here
	waits                      // asked already what becomes of it, as nobody could ever do it
	acting                     // the end of an attempt or of the task is being recorded here
	silent                     // nobody is to be told that it waits
	wider                      // others may have it, too, while its candidates are absent
)

// packedID is a task id in 17 bytes: a lower-case UUID as its bytes, any other
// as an index into the long ids.
type packedID struct {
	b    [16]byte
	kind uint8 // 0 free, 1 UUID, 2 long
}

// stateCode is fleet.State in a byte.
type stateCode uint8

var states = [...]fleet.State{
	"", fleet.StateQueued, fleet.StateWorking, fleet.StateInputRequired, fleet.StateDone,
	fleet.StatePartial, fleet.StateError, fleet.StateBlocked, fleet.StateCanceled, fleet.StateExpired,
}

func codeOfState(s fleet.State) stateCode {
	for i, t := range states {
		if s == t {
			return stateCode(i)
		}
	}
	return 0
}

func (c stateCode) state() fleet.State { return states[c] }

const chunkSize = 4096

// index finds the entry of a live task. It is a value without clock or lock;
// its owner guards it.
type index struct {
	seed   maphash.Seed
	chunks []*[chunkSize]entry
	free   []slot
	top    slot // highest slot ever used
	live   int

	byHash  map[uint64]slot
	clashes map[subjects.TaskID]slot // ids whose hash another id has
	long    map[slot]subjects.TaskID // ids that are not UUIDs

	names  []string // interned senders; 0 is ""
	nameOf map[string]uint32
}

func newIndex() *index {
	return &index{
		seed:    maphash.MakeSeed(),
		byHash:  make(map[uint64]slot),
		clashes: make(map[subjects.TaskID]slot),
		long:    make(map[slot]subjects.TaskID),
		names:   []string{""},
		nameOf:  map[string]uint32{"": 0},
	}
}

func (x *index) at(s slot) *entry { return &x.chunks[(s-1)/chunkSize][(s-1)%chunkSize] }

// find returns the slot of id, or 0.
func (x *index) find(id subjects.TaskID) slot {
	if s, ok := x.byHash[maphash.String(x.seed, string(id))]; ok && x.has(s, id) {
		return s
	}
	if len(x.clashes) > 0 {
		return x.clashes[id]
	}
	return 0
}

// add makes an entry for id, which must not have one.
func (x *index) add(id subjects.TaskID) (slot, *entry) {
	var s slot
	if n := len(x.free); n > 0 {
		s, x.free = x.free[n-1], x.free[:n-1]
	} else {
		if int(x.top) == len(x.chunks)*chunkSize {
			x.chunks = append(x.chunks, new([chunkSize]entry))
		}
		x.top++
		s = x.top
	}
	e := x.at(s)
	*e = entry{}
	if b, ok := packUUID(string(id)); ok {
		e.id = packedID{b: b, kind: 1}
	} else {
		e.id.kind = 2
		x.long[s] = id
	}
	h := maphash.String(x.seed, string(id))
	if _, taken := x.byHash[h]; taken {
		x.clashes[id] = s
	} else {
		x.byHash[h] = s
	}
	x.live++
	return s, e
}

// remove frees the slot.
func (x *index) remove(s slot) {
	id := x.id(s)
	if h := maphash.String(x.seed, string(id)); x.byHash[h] == s {
		delete(x.byHash, h)
	} else {
		delete(x.clashes, id)
	}
	delete(x.long, s)
	*x.at(s) = entry{}
	x.free = append(x.free, s)
	x.live--
}

// id unpacks the task id of a used slot.
func (x *index) id(s slot) subjects.TaskID {
	e := x.at(s)
	if e.id.kind == 2 {
		return x.long[s]
	}
	return subjects.TaskID(unpackUUID(e.id.b))
}

func (x *index) has(s slot, id subjects.TaskID) bool {
	e := x.at(s)
	if e.id.kind == 2 {
		return x.long[s] == id
	}
	b, ok := packUUID(string(id))
	return ok && b == e.id.b
}

// hasPart reports whether the task id of a used slot begins or ends with part.
func (x *index) hasPart(s slot, part string) bool {
	if part == "" {
		return true
	}
	e := x.at(s)
	if e.id.kind == 2 {
		return hasPart(string(x.long[s]), part)
	}
	return hasPart(unpackUUID(e.id.b), part)
}

func (x *index) intern(from subjects.AgentID) uint32 {
	if n, ok := x.nameOf[string(from)]; ok {
		return n
	}
	n := uint32(len(x.names))
	x.names = append(x.names, string(from))
	x.nameOf[string(from)] = n
	return n
}

func (x *index) from(e *entry) subjects.AgentID { return subjects.AgentID(x.names[e.from]) }

// all yields every used slot.
func (x *index) all() iter.Seq2[slot, *entry] {
	return func(yield func(slot, *entry) bool) {
		for s := slot(1); s <= x.top; s++ {
			if e := x.at(s); e.id.kind != 0 && !yield(s, e) {
				return
			}
		}
	}
}

// packUUID packs the canonical lower-case text of a UUID.
func packUUID(s string) (b [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return b, false
	}
	i := 0
	for p := 0; p < 36; {
		if s[p] == '-' {
			p++
			continue
		}
		hi, ok1 := unhex(s[p])
		lo, ok2 := unhex(s[p+1])
		if !ok1 || !ok2 {
			return b, false
		}
		b[i] = hi<<4 | lo
		i++
		p += 2
	}
	return b, true
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

func unpackUUID(b [16]byte) string {
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:36], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}
