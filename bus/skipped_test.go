package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// lockedLog is a log that several goroutines write.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// What cannot be read is counted once per stored message, logged once per
// place, and told by every service of the process.
func TestSkip(t *testing.T) {
	t.Parallel()
	log := &lockedLog{}
	s := bustest.New(t)
	s.Bus(t)
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.URL(), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	bad := errors.New("no block " + strings.Repeat("x", 1000))
	for range 2 { // two workers read it
		for seq := range uint64(3) {
			b.Skip(bus.Msg{Stream: subjects.StreamAudit, Subject: subjects.Audit, Seq: seq + 1}, bad)
		}
	}
	for i := range 4 {
		b.Skip(bus.Msg{Subject: subjects.Heartbeat(subjects.AgentID(fmt.Sprint("a", i)), "x")}, bad)
	}
	for range 2 {
		stop, err := b.Serve(t.Context(), bus.Service{Name: "audit", Version: "1.0.0"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	services, err := b.Services(t.Context())
	if err != nil || len(services) != 2 || services[0].Process != services[1].Process || services[0].Process == "" {
		t.Fatalf("services %+v, %v: want two of one process", services, err)
	}
	list := services[0].Skipped
	if len(list) != 2 || list[0].Place != subjects.StreamAudit || list[0].Count != 3 || list[0].Seq != 1 || list[0].Subject != subjects.Audit ||
		!strings.HasPrefix(list[0].Reason, "no block") || len(list[0].Reason) > 200 || list[0].Last.IsZero() {
		t.Errorf("told %+v", list)
	}
	if list[1].Place != "fleet.heartbeat" || list[1].Count != 4 {
		t.Errorf("told %+v, want 4 of fleet.heartbeat", list[1])
	}
	if n := log.count("message skipped"); n != 2 {
		t.Errorf("logged %d times, want once for each place", n)
	}
	for i := range 1000 { // subjects of strangers do not fill the memory
		b.Skip(bus.Msg{Subject: fmt.Sprintf("fleet.x%d.y", i)}, bad)
	}
	if n := len(b.Skipped()); n > 200 {
		t.Errorf("%d places are remembered", n)
	}
}

// A handler that panics at one message does not end the process, and gets the
// next one.
func TestSkipAtPanic(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	var read, heard atomic.Int64
	bustest.Run(t, func(ctx context.Context) error {
		return b.Tail(ctx, bus.Tail{Stream: subjects.StreamLog, Handle: func(m bus.Msg) {
			if read.Add(1) == 1 {
				panic("junk")
			}
		}})
	})
	sub, err := b.Subscribe(subjects.HeartbeatPattern, "", func(bus.Msg) {
		if heard.Add(1) == 1 {
			panic("junk")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	for range 2 {
		if _, err := b.Store(t.Context(), subjects.Log("", "a"), nil, "", nil); err != nil {
			t.Fatal(err)
		}
		if err := b.Publish(subjects.Heartbeat("a", "b"), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	bustest.Eventually(t, "both to go on", func() bool { return read.Load() == 2 && heard.Load() == 2 })
	if list := b.Skipped(); len(list) != 2 || list[0].Count != 1 || list[1].Count != 1 {
		t.Errorf("skipped %+v, want one in each place", list)
	}
}
