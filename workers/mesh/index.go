package mesh

import (
	"slices"
	"strconv"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

// key names a message.
type key struct {
	from subjects.AgentID
	id   mesh.MessageID
}

// entry is what the index knows of one message.
type entry struct {
	key
	to     subjects.AgentID
	thread mesh.ThreadID
	ref    mesh.MessageID
	seq    uint64 // in the stream of messages
	at     time.Time
	hops   int

	expires  time.Time
	answerBy time.Time // with reply
	reply    bool      // an answer is expected
	collect  bool      // its answer is fetched
	fetched  bool      // it is such an answer: not handed over
	refusal  *fleet.Reason

	rev      uint64 // of its record, 0: none
	state    mesh.State
	attempt  int
	instance subjects.InstanceID
	epoch    int64
	changed  time.Time // of the record
	reason   *fleet.Reason
	answer   *entry

	busy bool // something is being done about it here
	sure bool // the instance is known not to have it
	// quiet is until when nothing is tried: its last record could not be written.
	quiet time.Time
	// toward is the instance that it is being given to.
	toward subjects.InstanceID
}

// held reports whether an instance has it, or may have it.
func (e *entry) held() bool { return e.state == mesh.Delivering || e.state == mesh.Delivered }

func (e *entry) ended() bool { return e.state.Ended(e.reply) }

// pair is what one sender has sent to one receiver and is not dealt with, the
// oldest first.
type pair []*entry

// box is the inbox of an agent.
type box struct {
	pairs map[subjects.AgentID]pair
	order []subjects.AgentID // the senders, in turn
	// aside are the messages that are not handed over, but have an end to be
	// written down.
	aside []*entry
}

// meter is the rates of one sender.
type meter struct {
	all bucket
	to  map[subjects.AgentID]*bucket
}

// index is everything that is known of the messages that are kept. It is pure:
// it reads no clock and does no I/O.
type index struct {
	limits  Limits
	entries map[key]*entry
	log     []*entry // by sequence
	threads map[mesh.ThreadID][]*entry
	boxes   map[subjects.AgentID]*box
	due     map[subjects.AgentID]bool // inboxes to be looked at
	meters  map[subjects.AgentID]*meter
	orphans map[key]orphan // records whose message has not been read yet
	purged  uint64         // records up to this revision are of no use any more
}

type orphan struct {
	ack *mesh.Ack
	rev uint64
}

func newIndex(l Limits) *index {
	return &index{
		limits: l, entries: map[key]*entry{}, threads: map[mesh.ThreadID][]*entry{},
		boxes: map[subjects.AgentID]*box{}, due: map[subjects.AgentID]bool{}, meters: map[subjects.AgentID]*meter{}, orphans: map[key]orphan{},
	}
}

// stored is a message as the stream has it; msg is nil, and err says why, when
// it cannot be read.
type stored struct {
	from, to subjects.AgentID
	seq      uint64
	size     int
	at       time.Time
	msg      *mesh.Message
	err      error
}

// arrived takes in a message. It returns nil for a repeated one.
func (x *index) arrived(s stored) *entry {
	m, at := s.msg, s.at
	e := &entry{key: key{s.from, "m" + mesh.MessageID(strconv.FormatUint(s.seq, 10))}, to: s.to, seq: s.seq, at: at}
	if m == nil {
		m = &mesh.Message{Reply: mesh.No}
		bad := subjects.AsError(s.err)
		e.refusal = &fleet.Reason{Code: bad.Code, Message: bad.Error()}
	}
	if m.MessageID != "" {
		e.id = m.MessageID
	}
	if x.entries[e.key] != nil {
		return nil
	}
	e.ref, e.thread, e.reply, e.collect, e.hops = m.Ref, m.ThreadID, m.Reply != mesh.No, m.Collect, m.Hops
	e.expires, e.answerBy = at.Add(m.TTL()), at.Add(m.ReplyTimeout())
	asked := x.find(e)
	if e.thread == "" && asked != nil {
		e.thread = asked.thread
	}
	if e.thread == "" {
		e.thread = mesh.ThreadID(e.id)
	}
	if cause := x.cause(e, asked); cause != nil {
		e.hops = max(e.hops, cause.hops+1)
	}
	if e.refusal == nil {
		e.refusal = x.judge(e, m, s.size)
	}
	x.entries[e.key] = e
	x.log = append(x.log, e)
	x.threads[e.thread] = append(x.threads[e.thread], e)
	if asked != nil && asked.from == e.to && asked.to == e.from && e.refusal == nil {
		e.fetched = asked.collect
		if asked.answer == nil {
			asked.answer = e
		}
	}
	if o, ok := x.orphans[e.key]; ok {
		delete(x.orphans, e.key)
		x.apply(e, o.ack, o.rev)
	}
	if !e.state.Left() {
		x.enqueue(e)
	}
	return e
}

// lookBack is how many of the latest messages of a thread are looked through for
// what led to another one.
const lookBack = 1000

func (x *index) lately(id mesh.ThreadID) []*entry {
	t := x.threads[id]
	return t[max(0, len(t)-lookBack):]
}

// find is the message that e answers, nil when it is not known.
func (x *index) find(e *entry) *entry {
	if e.ref == "" {
		return nil
	}
	for _, from := range []subjects.AgentID{e.to, e.from} {
		if asked := x.entries[key{from, e.ref}]; asked != nil {
			return asked
		}
	}
	for _, other := range x.lately(e.thread) {
		if other.id == e.ref {
			return other
		}
	}
	return nil
}

// cause is the message that led to e: the one it answers, or the last one of
// its thread that its sender got.
func (x *index) cause(e, asked *entry) *entry {
	if asked != nil {
		return asked
	}
	for _, other := range slices.Backward(x.lately(e.thread)) {
		if other.to == e.from {
			return other
		}
	}
	return nil
}

// judge says why e is not to be delivered, nil if it is.
func (x *index) judge(e *entry, m *mesh.Message, size int) *fleet.Reason {
	l := &x.limits
	switch {
	case m.From != "" && m.From != e.from:
		return because(subjects.CodeForbidden, "it says that it is from "+string(m.From))
	case m.Receiver() != "" && m.Receiver() != e.to:
		return because(subjects.CodeInvalidMessage, "it was sent to "+string(e.to)+" and says that it is to "+string(m.Receiver()))
	case size > l.MaxBytes:
		return because(subjects.CodePayloadTooLarge, strconv.Itoa(size)+" bytes; at most "+strconv.Itoa(l.MaxBytes)+" are allowed between agents")
	case e.hops > l.MaxHops:
		return because(subjects.CodeHopLimit, strconv.Itoa(e.hops)+" messages led to this one; at most "+strconv.Itoa(l.MaxHops)+" may")
	}
	all, to := x.meter(e.from, e.to)
	if to.wait(l.PairPerMinute, e.at) > 0 {
		return because(subjects.CodeRateLimited, "more than "+strconv.Itoa(l.PairPerMinute)+" messages a minute to "+string(e.to))
	}
	if all.wait(l.AgentPerMinute, e.at) > 0 {
		return because(subjects.CodeRateLimited, "more than "+strconv.Itoa(l.AgentPerMinute)+" messages a minute")
	}
	to.take(l.PairPerMinute, e.at)
	all.take(l.AgentPerMinute, e.at)
	return nil
}

// limited is how long from must wait until it may send to to. It makes no meter:
// only a message that is kept takes one away again.
func (x *index) limited(from, to subjects.AgentID, now time.Time) time.Duration {
	m := x.meters[from]
	if m == nil {
		return 0
	}
	wait := m.all.wait(x.limits.AgentPerMinute, now)
	if pair := m.to[to]; pair != nil {
		wait = max(wait, pair.wait(x.limits.PairPerMinute, now))
	}
	return wait
}

func (x *index) meter(from, to subjects.AgentID) (all, pair *bucket) {
	m := x.meters[from]
	if m == nil {
		m = &meter{to: map[subjects.AgentID]*bucket{}}
		x.meters[from] = m
	}
	if m.to[to] == nil {
		m.to[to] = new(bucket)
	}
	return &m.all, m.to[to]
}

func because(code subjects.Code, message string) *fleet.Reason {
	return &fleet.Reason{Code: code, Message: message}
}

func (x *index) enqueue(e *entry) {
	b := x.box(e.to)
	if e.refusal != nil {
		b.aside, x.due[e.to] = append(b.aside, e), true
		return
	}
	if e.fetched {
		return // it waits to be fetched, or for its end
	}
	if b.pairs[e.from] == nil {
		b.order = append(b.order, e.from)
	}
	b.pairs[e.from] = append(b.pairs[e.from], e)
	x.due[e.to] = true
}

func (x *index) box(a subjects.AgentID) *box {
	b := x.boxes[a]
	if b == nil {
		b = &box{pairs: map[subjects.AgentID]pair{}}
		x.boxes[a] = b
	}
	return b
}

// recorded takes in a record; it returns the message's entry, nil when that
// is not known, or knows more.
func (x *index) recorded(ack *mesh.Ack, rev uint64) *entry {
	k := key{ack.From, ack.MessageID}
	e := x.entries[k]
	if e == nil {
		x.orphans[k] = orphan{ack, rev}
		return nil
	}
	if rev <= e.rev {
		return nil
	}
	x.apply(e, ack, rev)
	if e.state.Left() {
		x.dequeue(e)
	}
	x.due[e.to] = true
	return e
}

func (x *index) apply(e *entry, ack *mesh.Ack, rev uint64) {
	e.rev, e.state, e.attempt, e.changed = rev, ack.State, ack.Attempt, ack.Time
	e.instance, e.epoch, e.sure, e.quiet = ack.InstanceID, ack.Epoch, false, time.Time{}
	e.reason = ack.Reason
	if ack.ReplyID != "" && e.answer == nil {
		e.answer = x.entries[key{e.to, ack.ReplyID}]
	}
}

// dequeue takes a message that has left the mesh out of its inbox.
func (x *index) dequeue(e *entry) {
	b := x.box(e.to)
	x.due[e.to] = true
	if e.refusal != nil {
		b.aside = without(b.aside, e)
		return
	}
	p := without(b.pairs[e.from], e)
	if len(p) > 0 {
		b.pairs[e.from] = p
		return
	}
	delete(b.pairs, e.from)
	for i, from := range b.order {
		if from == e.from {
			b.order = append(b.order[:i:i], b.order[i+1:]...)
			break
		}
	}
}

// without takes e out of a list, in place: mostly it is the first.
func without(list []*entry, e *entry) []*entry {
	i := slices.Index(list, e)
	switch i {
	case -1:
		return list
	case 0:
		list[0] = nil
		return list[1:]
	}
	return slices.Delete(list, i, i+1)
}

// forget drops the messages at the beginning of the log that ended before
// then. What is left begins at first; records below rev are of no use.
func (x *index) forget(then time.Time) (first, rev uint64, dropped int) {
	for len(x.log) > 0 {
		e := x.log[0]
		if !e.ended() || e.busy || !e.changed.Before(then) {
			break
		}
		x.log[0] = nil
		x.log = x.log[1:]
		x.drop(e)
		dropped++
		first = e.seq + 1
		x.purged = max(x.purged, e.rev)
	}
	for k, o := range x.orphans {
		if o.ack.Time.Before(then) {
			delete(x.orphans, k)
		}
	}
	rev = x.purged + 1
	for _, e := range x.log {
		if e.rev > 0 {
			rev = min(rev, e.rev)
		}
	}
	return first, rev, dropped
}

func (x *index) drop(e *entry) {
	delete(x.entries, e.key)
	t := without(x.threads[e.thread], e)
	if x.threads[e.thread] = t; len(t) == 0 {
		delete(x.threads, e.thread)
	}
	if b := x.boxes[e.to]; b != nil && len(b.pairs) == 0 && len(b.aside) == 0 {
		delete(x.boxes, e.to)
	}
	if m := x.meters[e.from]; m != nil {
		if b := m.to[e.to]; b != nil && !b.at.After(e.at) {
			delete(m.to, e.to) // unused since: full again
		}
		if len(m.to) == 0 {
			delete(x.meters, e.from)
		}
	}
	e.answer = nil
}
