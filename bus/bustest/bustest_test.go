package bustest_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/bus/bustest"
)

// The canary of ats.Register: without it this test hangs, because fake time
// stands still while the server's access-time ticker runs.
func TestFakeTimeMoves(t *testing.T) {
	t.Parallel()
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			b := bustest.NewFake(t).Bus(t)
			start := time.Now()
			<-time.After(24 * time.Hour)
			if passed := time.Since(start); passed != 24*time.Hour {
				t.Errorf("%v passed, want 24h", passed)
			}
			if err := b.Ping(t.Context()); err != nil || !b.Connected() {
				t.Errorf("Ping = %v, connected %t", err, b.Connected())
			}
		})
	}
}

// TestTimersStayInTheirBubble does everything that a bus can do in bubbles, and
// then has the NATS client take a timer from its pool outside of them: one that
// has left its bubble ends the process there. One processor has one pool; the
// race detector's pool forgets every fourth timer, hence several bubbles.
func TestTimersStayInTheirBubble(t *testing.T) { // not parallel: the pool is everybody's
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	outside, err := nats.Connect(bustest.New(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			s := bustest.NewFake(t, bustest.SyncAlways)
			useEverything(t, s.Bus(t))
			s.Connect(t) // and one that does nothing
		})
		if err := outside.FlushTimeout(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
}

func useEverything(t *testing.T, b *bus.Bus) {
	t.Helper()
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	stop, err := b.Serve(ctx, bus.Service{Name: "s", Version: "1.0.0", Endpoints: []bus.Endpoint{{
		Name: "e", Subject: "e", Handle: func(context.Context, bus.Msg) ([]byte, error) { return []byte("{}"), nil },
	}}})
	must("Serve", err)
	sub, err := b.Subscribe("fleet.event.*", "", func(bus.Msg) {})
	must("Subscribe", err)
	other, err := b.Subscribe("fleet.event.*", "q", func(bus.Msg) {})
	must("Subscribe", err)
	_, err = b.Request(ctx, "e", nil, nil)
	must("Request", err)
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		w, done := b.Records("FLEET_TASKS", mode)
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				id := fmt.Sprint(mode, "-", i)
				if _, err := w.Write(ctx, bus.Record{Subject: "fleet.task." + id, WriteID: id, Data: []byte("x")}); err != nil {
					t.Errorf("Write: %v", err)
				}
			})
		}
		wg.Wait()
		done()
	}
	kv, err := b.KV(ctx, "FLEET_AGENTS")
	must("KV", err)
	_, err = kv.Put(ctx, "k", []byte("v"))
	must("Put", err)
	_, err = kv.Keys(ctx)
	must("Keys", err)
	objects, err := b.Objects(ctx, "FLEET_INDEX")
	must("Objects", err)
	must("Put object", objects.Put(ctx, "o", strings.NewReader(strings.Repeat("x", 300_000))))
	o, err := objects.Get(ctx, "o")
	must("Get object", err)
	_, err = io.Copy(io.Discard, o)
	must("read object", err)
	must("close object", o.Close())
	_, _, err = b.History(ctx, "FLEET_TASKS", "fleet.task.*", 1, 10)
	must("History", err)
	read, end := context.WithCancel(ctx)
	must("Tail", b.Tail(read, bus.Tail{Stream: "FLEET_TASKS", Handle: func(bus.Msg) {}, CaughtUp: func(uint64) { end() }}))
	_, err = b.Store(ctx, "fleet.dispatch.me", []byte("x"), "", nil)
	must("Store", err)
	work, enough := context.WithCancel(ctx)
	must("Consume", b.Consume(work, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers"},
		func(context.Context, bus.Msg) error { enough(); return nil }))
	must("Drain", sub.Drain())
	must("Unsubscribe", other.Unsubscribe())
	stop()
}

func TestNew(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	heard := make(chan bus.Msg, 1)
	if _, err := s.Connect(t).Subscribe("fleet.event.a", "", func(m bus.Msg) { heard <- m }); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "a record is heard", func() bool {
		if _, err := b.Store(t.Context(), "fleet.task.a", []byte("x"), "", nil); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-heard:
			return string(m.Data) == "x"
		default:
			return false
		}
	})
}
