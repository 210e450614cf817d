package router

import (
	"bufio"
	"bytes"
	"testing"
	"time"

	"parley/bus"
	"parley/subjects/fleet"
)

// FuzzCheckpoint: a checkpoint that is not one is an error, never the end of the
// router, however long it says that its texts are.
func FuzzCheckpoint(f *testing.F) {
	whole := func(sections func(*encoder)) []byte {
		var b bytes.Buffer
		out := &encoder{w: bufio.NewWriter(&b)}
		out.text(checkpointMagic)
		out.num(1)
		out.num(2)
		sections(out)
		out.section(secEnd)
		_ = out.w.Flush()
		return b.Bytes()
	}
	f.Add(whole(func(*encoder) {}))
	f.Add(whole(func(o *encoder) {
		o.section(secClass)
		o.num(1)
		o.text("{}")
		o.section(secQueued)
		o.text("t")
		o.text("boss")
		o.text("")
		for range 8 {
			o.num(1)
		}
	}))
	f.Add(whole(func(o *encoder) {
		o.section(secBusy)
		o.num(1)
		o.num(1)
		o.text(`{"task_id":"t","kind":"working","state":"working"}`)
	}))
	f.Add([]byte(checkpointMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := newCore("r", 10, 10, 10)
		in := &decoder{r: bufio.NewReader(bytes.NewReader(data))}
		if _, tail := c.readIndex(in, time.Unix(1_800_000_000, 0)); tail != 0 && in.err != nil {
			t.Fatalf("a checkpoint up to %d with the error %v", tail, in.err)
		}
	})
}

// FuzzStored: whatever is in the streams and buckets that a router reads, it
// takes it in or refuses it.
func FuzzStored(f *testing.F) {
	f.Add([]byte(`{"task_id":"t","seq":1,"kind":"queued","state":"queued","facts":{"from":"boss"}}`), "session.s.t.1")
	f.Add([]byte(`{"task_id":"t","seq":2,"kind":"working","state":"working","attempt":-1,"facts":{"not_before":"9999-12-31T23:59:59Z"}}`), "")
	f.Add([]byte("17"), "run.r.t.1")
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		l := &ledger{spent: map[string]spending{}, own: map[uint64]struct{}{}}
		if err := l.take(bus.Entry{Key: key, Value: data, Revision: 1, Time: time.Unix(1_800_000_000, 0)}); err != nil && len(l.spent) > 0 {
			t.Fatalf("%q is %v and was charged: %v", data, l.spent, err)
		}
		ev, err := fleet.DecodeEvent(data)
		if err != nil {
			return
		}
		c := newCore("r", 10, 10, 10)
		c.apply(ev, 1, time.Unix(1_800_000_000, 0))
		c.apply(ev, 2, time.Unix(1_800_000_001, 0))
		c.tick(time.Unix(1_900_000_000, 0))
	})
}
