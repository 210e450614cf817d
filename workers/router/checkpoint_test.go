package router

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

// testCore is a core that has caught up and settled.
func testCore() *core {
	c := newCore("r1", 1_000_000, 100, 100)
	c.caughtUp, c.settled = true, true
	return c
}

func testRecord(tb testing.TB, id, more string, now time.Time) *fleet.Event {
	tb.Helper()
	d, err := fleet.DecodeDispatch(fmt.Appendf(nil, `{"task":{"task_id":%q%s},"brief":"x"}`, id, more))
	if err != nil {
		tb.Fatal(err)
	}
	ev, err := queued(d, "boss", fleet.MustEncode(d), "hash", settings{}, now)
	if err != nil {
		tb.Fatal(err)
	}
	return ev
}

// remembered is what must survive a checkpoint of one task.
type remembered struct {
	From              subjects.AgentID
	State             fleet.State
	Priority          uint8
	LastSeq, FirstSeq uint64
	Due               int64
	Class             string
	Session           subjects.SessionID
	Waits             bool
	Holder            holder
}

func (c *core) remembers() map[subjects.TaskID]remembered {
	out := make(map[subjects.TaskID]remembered)
	for s, e := range c.x.all() {
		r := remembered{
			From: c.x.from(e), State: e.state.state(), Priority: e.priority, LastSeq: e.lastSeq, FirstSeq: e.firstSeq,
			Due: e.due, Session: c.sessions[s], Waits: e.flags&inQueue != 0,
		}
		if e.class != 0 {
			r.Class = c.byNum[e.class].Key()
		}
		if h := c.hot[s]; h != nil && held(h.ev) {
			r.Holder, r.Class = holderOf(h.ev), ""
		}
		out[c.x.id(s)] = r
	}
	return out
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestACheckpointIsTheIndex(t *testing.T) {
	t.Parallel()
	c := testCore()
	seq := uint64(0)
	put := func(ev *fleet.Event) {
		seq++
		if ev.Seq > 1 {
			ev.Facts.DispatchSeq = 1
		}
		c.apply(ev, seq, now0)
	}
	for i := range savePart + 100 {
		more := fmt.Sprintf(`,"priority":%q,"agent":"a%d"`, levels[i%4], i%7)
		if i%5 == 0 {
			more += `,"session_id":"a2a-20251122T120000Z-7f3a9c21"`
		}
		put(testRecord(t, fmt.Sprintf("t-%d", i), more, now0.Add(time.Duration(i)*time.Second)))
	}
	put(testRecord(t, "for-anybody", "", now0))
	w := testRecord(t, "01a1fc6d-70c6-7d2b-b55b-d9c30cb0601f", "", now0)
	put(w)
	put(working(w, holder{"a1", "main", 7}, now0))
	e := testRecord(t, "ended", "", now0)
	put(e)
	put(canceled(e, "boss", "", now0))
	r := testRecord(t, "retry", "", now0)
	put(r)
	held := working(r, holder{"a2", "main", 8}, now0)
	put(held)
	again, _ := failed(held, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
	put(again)
	q := testRecord(t, "asks", "", now0)
	put(q)
	long := &fleet.Question{ID: "q", Text: strings.Repeat("x", fleet.MaxMessage-200)}
	put(asked(working(q, holder{"a3", "main", 9}, now0), long, now0))

	save := func(c *core) []byte {
		var buf bytes.Buffer
		worker := &Worker{core: c, tail: seq}
		out := &encoder{w: bufio.NewWriterSize(writerFunc(func(p []byte) (int, error) {
			if !worker.mu.TryLock() { // what reads this may be slow
				t.Fatal("the router stands still while a checkpoint is written")
			}
			worker.mu.Unlock()
			return buf.Write(p)
		}), 16)}
		parts := 0
		worker.writeIndex(out, now0, func() { parts++ })
		if want := (int(c.x.top) + savePart - 1) / savePart; parts != want {
			t.Errorf("rested %d times, want %d", parts, want)
		}
		if err := out.w.Flush(); err != nil || out.err != nil {
			t.Fatal(err, out.err)
		}
		return buf.Bytes()
	}
	data := save(c)
	load := func(data []byte) (*core, uint64, error) {
		got := testCore()
		in := &decoder{r: bufio.NewReader(bytes.NewReader(data))}
		stream, tail := got.readIndex(in, now0)
		if in.err == nil && stream != now0.UnixNano() {
			t.Errorf("stream = %d", stream)
		}
		return got, tail, in.err
	}
	got, tail, err := load(data)
	if err != nil || tail != seq {
		t.Fatalf("read up to %d, %v; want %d", tail, err, seq)
	}
	if diff := cmp.Diff(c.remembers(), got.remembers(), cmp.AllowUnexported(holder{})); diff != "" {
		t.Errorf("index differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(c.recent.newest(), got.recent.newest()); diff != "" {
		t.Errorf("ended tasks differ (-want +got):\n%s", diff)
	}
	if got.counts != c.counts {
		t.Errorf("counts = %v, want %v", got.counts, c.counts)
	}
	for _, key := range slices.Sorted(maps.Keys(c.classes)) {
		if got.classes[key] == nil || got.classes[key].queued != c.classes[key].queued {
			t.Errorf("class %s differs", key)
		}
	}
	for _, cut := range []int{0, 1, 10, len(data) / 2, len(data) - 1} {
		if _, _, err := load(data[:cut]); err == nil {
			t.Errorf("a checkpoint cut at %d of %d bytes was read", cut, len(data))
		}
	}
}

func TestRecordsApplyInAnyOrder(t *testing.T) {
	t.Parallel()
	ev := testRecord(t, "t", "", now0)
	held := working(ev, holder{"a", "main", 1}, now0)
	held.Facts.DispatchSeq = 10
	end := done(held, &fleet.Result{Status: fleet.StatusDone}, now0)
	records := []struct {
		ev  *fleet.Event
		seq uint64
	}{{ev, 10}, {held, 11}, {end, 12}}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0, 1}, {2, 0, 1, 2}, {0, 0, 1, 1, 2, 2}} {
		c := testCore()
		for _, i := range order {
			c.apply(records[i].ev, records[i].seq, now0)
		}
		if c.x.live != 0 || len(c.hot) != 0 || len(c.classes) != 0 || c.counts != [len(states)]int{} {
			t.Errorf("after %v: %d live, %d hot, %d classes, counts %v; want nothing left", order, c.x.live, len(c.hot), len(c.classes), c.counts)
		}
	}
}
