package router

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"parley/bus"
	"parley/bus/crash"
	"parley/subjects"
	"parley/subjects/fleet"
)

// A checkpoint is the index as it was when the records up to a stream sequence
// had been applied; reading the stream from there on makes it whole. It is a
// cache: a router that finds none, or one that it cannot read, reads the whole
// stream. It need not be taken at one instant, since applying a record twice
// changes nothing.
//
// Layout: the magic, the stream's incarnation and sequence, then sections that
// begin with a byte: C a class, Q a queued task, B a busy one with its record,
// R one that ended lately, Z the end. Numbers are varints, texts length first.
const (
	checkpointName  = "router-index"
	checkpointMagic = "parley-index-2\n"
)

// restoreTimeout is how long reading a checkpoint may take before the whole
// stream is read instead.
const restoreTimeout = time.Minute

const (
	secClass  = 'C'
	secQueued = 'Q'
	secBusy   = 'B'
	secRecent = 'R'
	secEnd    = 'Z'
)

// restShare is how much longer a checkpoint rests than it works: what it sends
// would otherwise have dispatches wait.
const restShare = 4

// checkpoint writes the index; leisurely unless the router stops.
func (w *Worker) checkpoint(ctx context.Context, leisurely bool) error {
	st, err := w.bus.StreamState(ctx, subjects.StreamTasks)
	if err != nil {
		return err
	}
	r, pipe := io.Pipe()
	done := make(chan struct{})
	go func() { // ends with the pipe
		defer close(done)
		out := &encoder{w: bufio.NewWriterSize(pipe, 1<<16)}
		began := time.Now()
		w.writeIndex(out, st.Created, func() {
			if !leisurely {
				return
			}
			rest := time.NewTimer(restShare * time.Since(began))
			defer rest.Stop()
			select {
			case <-rest.C:
			case <-ctx.Done():
			}
			began = time.Now()
		})
		failed := errors.Join(out.err, out.w.Flush())
		crash.Point("amid_checkpoint") // its data is on the way, and nothing says that it is there
		_ = pipe.CloseWithError(failed)
	}()
	err = w.index.PutOnly(ctx, checkpointName, r)
	_ = r.CloseWithError(err)
	<-done
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	crash.Point("after_checkpoint")
	return nil
}

// writeIndex scans the index part by part and writes between the looks, so that
// the router goes on routing meanwhile, however slowly out is read. It calls
// rest after each part.
func (w *Worker) writeIndex(out *encoder, stream time.Time, rest func()) {
	out.text(checkpointMagic)
	out.num(uint64(stream.UnixNano()))
	w.mu.Lock()
	out.num(w.appliedLocked())
	ended := w.core.recent.newest()
	w.mu.Unlock()
	for _, t := range slices.Backward(ended) {
		out.section(secRecent)
		out.text(string(t.ID))
		out.text(string(t.From))
		out.text(string(t.Agent))
		out.num(t.Seq)
		out.num(uint64(codeOfState(t.State)))
		out.num(uint64(t.Ended.UnixNano()))
	}
	known := make(map[uint32]string) // class numbers written, by what they meant
	part := make([]saved, 0, savePart)
	for next, more := slot(1), true; more; {
		w.mu.Lock()
		part, next, more = w.core.save(part[:0], next, known)
		w.mu.Unlock()
		for i := range part {
			part[i].write(out)
		}
		rest()
	}
	out.section(secEnd)
}

// savePart is how many slots are looked at under the router's lock at a time.
const savePart = 512

// saved is what a checkpoint keeps of an entry, or of a class before the first
// entry of it. What ev and need point to is never changed.
type saved struct {
	ev      *fleet.Event // of a busy task
	need    *Need        // of a class
	id      subjects.TaskID
	from    subjects.AgentID
	session subjects.SessionID
	class   uint32
	entry   entry
}

// save appends what a checkpoint keeps of the slots from next on, savePart of
// them, and returns the slot to go on from.
func (c *core) save(part []saved, next slot, known map[uint32]string) (_ []saved, _ slot, more bool) {
	end := min(next+savePart, c.x.top+1)
	for s := next; s < end; s++ {
		e := c.x.at(s)
		if e.id.kind == 0 {
			continue
		}
		if e.state != codeOfState(fleet.StateQueued) {
			if h := c.hot[s]; h != nil {
				part = append(part, saved{ev: h.ev, entry: *e})
			}
			continue
		}
		cl := c.byNum[e.class]
		if key, ok := known[e.class]; !ok || key != cl.Key() { // the key of tasks that ask for nothing is empty
			known[e.class] = cl.Key()
			need := cl.need
			part = append(part, saved{need: &need, class: e.class})
		}
		kept := *e
		if kept.flags&inQueue != 0 {
			kept.due = kept.deadline // it may be offered at once
		}
		part = append(part, saved{id: c.x.id(s), from: c.x.from(e), session: c.sessions[s], entry: kept})
	}
	return part, end, end <= c.x.top
}

func (v *saved) write(out *encoder) {
	e := &v.entry
	switch {
	case v.ev != nil:
		out.section(secBusy)
		out.num(e.lastSeq)
		out.num(e.firstSeq)
		out.text(string(fleet.MustEncode(v.ev)))
	case v.need != nil:
		out.section(secClass)
		out.num(uint64(v.class))
		out.text(string(fleet.MustEncode(v.need)))
	default:
		out.section(secQueued)
		out.text(string(v.id))
		out.text(string(v.from))
		out.text(string(v.session))
		for _, n := range [...]uint64{
			uint64(e.class), e.lastSeq, e.firstSeq, uint64(e.created), uint64(e.deadline), uint64(e.due),
			uint64(e.attempt), uint64(e.priority), uint64(e.flags & (wider | silent)),
		} {
			out.num(n)
		}
	}
}

// restore reads the checkpoint and returns the sequence up to which it holds.
func (w *Worker) restore(ctx context.Context) uint64 {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	r, err := w.index.Get(ctx, checkpointName)
	if errors.Is(err, bus.ErrNotFound) {
		return 0
	}
	if err != nil {
		w.log.Warn("open the checkpoint", slog.Any("error", err))
		return 0
	}
	defer func() { _ = r.Close() }()
	fresh := newCore(w.cfg.ID, w.core.maxQueued, w.core.maxHot, rememberEnded)
	in := &decoder{r: bufio.NewReaderSize(r, 1<<16)}
	stream, tail := fresh.readIndex(in, w.now().UTC())
	st, err := w.bus.StreamState(ctx, subjects.StreamTasks)
	switch {
	case in.err != nil:
		w.log.Warn("read the checkpoint; reading the whole stream instead", slog.Any("error", in.err))
		return 0
	case err != nil:
		w.log.Warn("look at the task stream; reading the whole of it", slog.Any("error", err))
		return 0
	case tail > st.LastSeq || stream != st.Created.UnixNano():
		w.log.Warn("the checkpoint is of another stream; reading the whole stream", slog.Uint64("checkpoint_seq", tail), slog.Uint64("stream_seq", st.LastSeq))
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Announces may have come in meanwhile: keep what the core knows of them.
	fresh.fleet, fresh.ring, fresh.denied, fresh.warmAt, fresh.lossRows = w.core.fleet, w.core.ring, w.core.denied, w.core.warmAt, w.core.lossRows
	fresh.effects, fresh.waiters = nil, w.core.waiters
	fresh.recompile()
	w.core, w.tail = fresh, tail
	crash.Point("after_restore")
	return tail
}

func (c *core) readIndex(in *decoder, now time.Time) (stream int64, tail uint64) {
	if magic := in.text(); magic != checkpointMagic {
		in.fail(errors.New("not a checkpoint of this version"))
		return 0, 0
	}
	stream, tail = int64(in.num()), in.num()
	classes := make(map[uint64]Need)
	for in.err == nil {
		switch sec := in.section(); sec {
		case secRecent:
			t := endedTask{ID: subjects.TaskID(in.text()), From: subjects.AgentID(in.text()), Agent: subjects.AgentID(in.text()), Seq: in.num()}
			if state := in.num(); state < uint64(len(states)) {
				t.State = states[state]
			}
			t.Ended = time.Unix(0, int64(in.num())).UTC()
			if in.err == nil {
				c.recent.add(t)
			}
		case secClass:
			num := in.num()
			n, err := fleet.DecodeRequest[Need]([]byte(in.text()))
			in.fail(err)
			classes[num] = n
		case secBusy:
			lastSeq, firstSeq := in.num(), in.num()
			ev, err := fleet.DecodeEvent([]byte(in.text()))
			in.fail(err)
			if in.err == nil {
				ev.Facts.DispatchSeq = firstSeq
				c.apply(ev, lastSeq, now)
			}
		case secQueued:
			c.readQueued(in, classes, now)
		case secEnd:
			return stream, tail
		default:
			in.fail(fmt.Errorf("unknown section %q", sec))
		}
	}
	return 0, 0
}

func (c *core) readQueued(in *decoder, classes map[uint64]Need, now time.Time) {
	id, from, session := subjects.TaskID(in.text()), subjects.AgentID(in.text()), subjects.SessionID(in.text())
	var n [9]uint64
	for i := range n {
		n[i] = in.num()
	}
	need, ok := classes[n[0]]
	if in.err == nil && (!ok || n[7] >= uint64(len(levels)) || !subjects.ValidToken(string(id)) || c.x.find(id) != 0) {
		in.fail(errors.New("a queued task without its class"))
	}
	if in.err != nil {
		return
	}
	s, e := c.x.add(id)
	e.from = c.x.intern(from)
	e.lastSeq, e.firstSeq = n[1], n[2]
	e.created, e.deadline, e.due = int64(n[3]), int64(n[4]), int64(n[5])
	e.attempt, e.priority = uint16(n[6]), uint8(n[7])
	e.flags = flags(n[8]) & (wider | silent)
	e.state = codeOfState(fleet.StateQueued)
	c.counts[e.state]++
	if session != "" {
		c.sessions[s] = session
	}
	cl := c.classOf(need)
	e.class = cl.num
	cl.tasks++
	c.timers.push(timer{e.due, s})
	if e.due == e.deadline || e.due <= now.UnixNano() {
		c.enqueue(s, e, now)
		c.armLifted(s, e, now)
	}
}

// encoder writes until the first error.
type encoder struct {
	w   *bufio.Writer
	buf [binary.MaxVarintLen64]byte
	err error
}

func (o *encoder) write(b []byte) {
	if o.err == nil {
		_, o.err = o.w.Write(b)
	}
}

func (o *encoder) section(b byte) { o.write([]byte{b}) }
func (o *encoder) num(n uint64)   { o.write(o.buf[:binary.PutUvarint(o.buf[:], n)]) }

func (o *encoder) text(s string) {
	o.num(uint64(len(s)))
	if o.err == nil {
		_, o.err = o.w.WriteString(s)
	}
}

// maxText bounds what is believed of a length: no server takes a record of more.
const maxText = 64 << 20

// decoder reads until the first error.
type decoder struct {
	r   *bufio.Reader
	err error
}

func (i *decoder) fail(err error) {
	if i.err == nil {
		i.err = err
	}
}

func (i *decoder) section() byte {
	b, err := i.r.ReadByte()
	i.fail(err)
	return b
}

func (i *decoder) num() uint64 {
	if i.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(i.r)
	i.fail(err)
	return n
}

func (i *decoder) text() string {
	n := i.num()
	if n > maxText {
		i.fail(errors.New("a text is too long"))
	}
	if i.err != nil {
		return ""
	}
	b := make([]byte, n)
	_, err := io.ReadFull(i.r, b)
	i.fail(err)
	return string(b)
}
