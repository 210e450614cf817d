package router

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// A task that another router has given to anybody meanwhile is not given up for
// the agent that it was to be tried again by.
func TestForsakenOnce(t *testing.T) {
	t.Parallel()
	e := working(testRecord(t, "x", `,"max_retries":1`, now0), holder{"a", "1", 1}, now0)
	e, action := failed(e, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
	if e.Kind != fleet.KindRetry {
		t.Fatalf("a failure worth another try is answered by %T", action)
	}
	e, _ = forsaken(e, settings{}, now0)
	if e == nil || e.Kind != fleet.KindReroute || len(need(e).Only) > 0 {
		t.Fatalf("its agent is gone, and the record is %+v", e)
	}
	if n, action := forsaken(e, settings{}, now0); n != nil {
		t.Errorf("once more, and it is %s: %T", n.State, action)
	}
}

// What its agent handed back as it stopped, before it was gone, is as if it had
// not been: the task that it was to try again goes to its alternatives. One that
// waits until it can be done goes on waiting.
func TestForsakenAfterItWasHandedBack(t *testing.T) {
	t.Parallel()
	h := holder{"a", "1", 1}
	again := func(terms string) *fleet.Event {
		t.Helper()
		e := working(testRecord(t, "x", `,"agent":"a","max_retries":2`+terms, now0), h, now0)
		e, _ = failed(e, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
		return working(e, h, now0)
	}
	e, action := failed(again(`,"alternatives":["b"]`), failure{code: subjects.CodeAgentBusy}, settings{}, now0)
	if e.Kind != fleet.KindReturned {
		t.Fatalf("what is handed back is answered by %T", action)
	}
	n, _ := forsaken(e, settings{}, now0)
	if n == nil || n.Kind != fleet.KindReroute || !slices.Equal(need(n).Only, []subjects.AgentID{"b"}) {
		t.Fatalf("its agent is gone, and the record is %+v", n)
	}
	if more, then := forsaken(n, settings{}, now0); more != nil {
		t.Errorf("once more, and it is %s: %T", more.State, then)
	}
	e, action = failed(again(`,"on_blocked":"wait"`), failure{code: subjects.CodeMCPUnhealthy}, settings{}, now0)
	if e.Kind != fleet.KindReroute {
		t.Fatalf("what is blocked is answered by %T", action)
	}
	if n, action := forsaken(e, settings{}, now0); n != nil {
		t.Errorf("what waits for its agent is %s: %T", n.State, action)
	}
}

// outage is a writer that does not get one record stored.
type outage struct {
	bus.RecordWriter
	over atomic.Bool
}

func (o *outage) Write(ctx context.Context, r bus.Record) (uint64, error) {
	if o.over.Load() {
		return o.RecordWriter.Write(ctx, r)
	}
	defer o.over.Store(true)
	<-ctx.Done()
	return 0, fmt.Errorf("write: %w", bus.ErrTimeout)
}

// That a task goes to others is asked again where it could not be stored.
func TestForsakenUntilItIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		w, _ := serving(t, srv, "r1")
		for _, id := range []subjects.AgentID{"a", "b"} {
			a := announceOf(string(id))
			a.Header = fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version}
			if _, err := b.Store(t.Context(), subjects.Announce(id, "main"), fleet.MustEncode(a), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second) // the router has listened
		if _, err := b.Request(t.Context(), subjects.API("boss", "task", "dispatch"), []byte(`{"task":{"task_id":"t","agent":"a","alternatives":["b"]},"brief":"x"}`), nil); err != nil {
			t.Fatal(err)
		}
		cur, err := w.reread(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		begun := working(cur.ev, holder{"a", "main", 1}, w.now())
		anotherStores(t, b, cur, begun)
		if cur, err = w.reread(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		again, _ := failed(begun, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, w.now())
		anotherStores(t, b, cur, again)
		time.Sleep(15 * time.Second)
		records := &outage{}
		w.mu.Lock() // store takes it before it writes
		records.RecordWriter, w.records = w.records, records
		w.mu.Unlock()
		time.Sleep(30 * time.Second) // its lease ends
		if v, err := w.reread(t.Context(), "t"); err != nil || v.ev.Seq != again.Seq || !records.over.Load() {
			t.Fatalf("it is stored: %+v, %v", v.ev, err)
		}
		time.Sleep(askAgainAfter + 5*time.Second)
		if v, err := w.reread(t.Context(), "t"); err != nil || v.ev.Kind != fleet.KindReroute {
			t.Errorf("a while later it is %s, %v", v.ev.Kind, err)
		}
	})
}

// What stays where it is, whoever has left, is not read again to learn that.
func TestWhatStaysIsNotRead(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	srv.Bus(t)
	w, _ := serving(t, srv, "r1")
	e := working(testRecord(t, "t", `,"agent":"a","alternatives":["b"]`, w.now()), holder{"a", "main", 1}, w.now())
	e, _ = failed(e, failure{code: subjects.CodeAgentError}, settings{}, w.now())
	w.with(func(c *core, now time.Time) {
		c.apply(e, 1, now)
		c.settled = true
		c.take()
	})
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if w.forsake(cut, stranded{"t"}); !w.state(func() bool { return w.core.settled }) {
		t.Error("it is read, though it waits for its alternatives")
	}
}
