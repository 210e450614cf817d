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

// A task is widened step by step while its candidates are away: to its untried
// alternatives, then to anybody; and no further.
func TestWidenStepByStep(t *testing.T) {
	t.Parallel()
	e := working(testRecord(t, "x", `,"max_retries":1,"alternatives":["b"]`, now0), holder{"a", "1", 1}, now0)
	e, action := failed(e, failure{code: subjects.CodeAgentError, retryable: true}, settings{}, now0)
	if e.Kind != fleet.KindRetry || !slices.Equal(need(e).Only, []subjects.AgentID{"a"}) {
		t.Fatalf("a failure worth another try is answered by %T", action)
	}
	for _, want := range [][]subjects.AgentID{{"a", "b"}, nil} {
		n := widenCandidates(e, settings{}, now0)
		if n == nil || n.Kind != fleet.KindWidened || !slices.Equal(need(n).Only, want) {
			t.Fatalf("its candidates are away, and the record is %+v", n)
		}
		e = n
	}
	if n := widenCandidates(e, settings{}, now0); n != nil {
		t.Errorf("once more, and it is %s", n.Kind)
	}
	e, _ = failed(working(e, holder{"c", "1", 1}, now0), failure{code: subjects.CodeAgentLost}, settings{}, now0)
	if e.Kind != fleet.KindLost || e.Facts.Widened != 0 || !slices.Equal(need(e).Only, []subjects.AgentID{"a"}) {
		t.Errorf("after the next attempt it is %s, for %v", e.Kind, need(e).Only)
	}
}

// What its agent handed back as it stopped, before it was gone, is as if it had
// not been. What is pinned without alternatives goes on waiting, and so does what a
// human gave to an agent.
func TestWidenAPinnedTask(t *testing.T) {
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
	n := widenCandidates(e, settings{}, now0)
	if n == nil || n.Kind != fleet.KindWidened || !slices.Equal(need(n).Only, []subjects.AgentID{"a", "b"}) {
		t.Fatalf("its agent is gone, and the record is %+v", n)
	}
	if more := widenCandidates(n, settings{}, now0); more != nil {
		t.Errorf("once more, and it is %s", more.Kind)
	}
	if n := widenCandidates(testRecord(t, "y", `,"agent":"a","alternatives":["b"]`, now0), settings{}, now0); n == nil || n.Facts.Widened != 1 {
		t.Errorf("before its first attempt, with its pin away, it is %+v", n)
	}
	if n := widenCandidates(testRecord(t, "z", `,"agent":"a"`, now0), settings{}, now0); n != nil {
		t.Errorf("what waits for its pin alone is %s", n.Kind)
	}
	asked := resumed(e, &fleet.HumanAnswer{Verb: fleet.VerbReassign, AgentID: "a"}, nil, now0)
	if n := widenCandidates(asked, settings{}, now0); n != nil {
		t.Errorf("what a human gave to an agent is %s", n.Kind)
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
func TestWidenedUntilItIsStored(t *testing.T) {
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
		if v, err := w.reread(t.Context(), "t"); err != nil || v.ev.Kind != fleet.KindWidened {
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
	e := working(testRecord(t, "t", `,"agent":"a"`, w.now()), holder{"a", "main", 1}, w.now())
	e, _ = failed(e, failure{code: subjects.CodeAgentLost}, settings{}, w.now())
	w.with(func(c *core, now time.Time) {
		c.apply(e, 1, now)
		c.settled = true
		c.take()
	})
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	if w.widenTask(cut, orphaned{"t"}); !w.state(func() bool { return w.core.settled }) {
		t.Error("it is read, though it waits for its pin")
	}
}
