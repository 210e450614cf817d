package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
)

func TestTail(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := func(subject string) uint64 {
		t.Helper()
		seq, err := b.Store(ctx, "fleet.task."+subject, []byte(subject), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	store("a")
	store("b")
	store("a")
	got := make(chan string, 100)
	done := make(chan error, 1)
	go func() {
		done <- b.Tail(ctx, bus.Tail{
			Stream: "FLEET_TASKS", LastPerSubject: true,
			Handle:   func(m bus.Msg) { got <- fmt.Sprint(m.Seq, string(m.Data)) },
			CaughtUp: func(last uint64) { got <- fmt.Sprint("caught up ", last) },
		})
	}()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if g := <-got; g != w {
				t.Errorf("got %q, want %q", g, w)
			}
		}
	}
	expect("2b", "3a", "caught up 3")
	store("c")
	expect("4c")
	s.Restart(t, 0)
	store("d")
	expect("5d")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Tail = %v", err)
	}
}

func TestTailEmpty(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := b.Tail(ctx, bus.Tail{
		Stream: "FLEET_TASKS", Handle: func(bus.Msg) { t.Error("a message") },
		CaughtUp: func(last uint64) {
			if last != 0 {
				t.Errorf("last = %d, want 0", last)
			}
			cancel()
		},
	})
	if err != nil {
		t.Errorf("Tail = %v", err)
	}
	err = b.Tail(t.Context(), bus.Tail{Stream: "NONE", Handle: func(bus.Msg) {}})
	if !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Tail(NONE) = %v, want ErrNotFound", err)
	}
}

// After a break the tail goes on where it was: nothing twice, nothing left out,
// and what was there is not read again.
func TestTailResumes(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, stop := b.Records("FLEET_TASKS", bus.CommitDirect)
	defer stop()
	const tasks, later = 2000, 200
	write := func(from, to int) {
		t.Helper()
		var wg sync.WaitGroup
		for i := from; i < to; i++ {
			wg.Go(func() {
				if _, err := w.Write(ctx, bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i)}); err != nil {
					t.Errorf("Write = %v", err)
				}
			})
		}
		wg.Wait()
	}
	write(0, tasks)
	var last, count uint64
	caughtUp, all := make(chan uint64, 10), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- b.Tail(ctx, bus.Tail{
			Stream: "FLEET_TASKS", Subjects: []string{"fleet.task.*"}, LastPerSubject: true, HeadersOnly: true,
			Handle: func(m bus.Msg) {
				if m.Seq != last+1 {
					t.Errorf("sequence %d after %d", m.Seq, last)
				}
				last = m.Seq
				if count++; count == tasks+3*later {
					close(all)
				}
			},
			CaughtUp: func(seq uint64) { caughtUp <- seq },
		})
	}()
	if seq := <-caughtUp; seq != tasks {
		t.Errorf("caught up at %d, want %d", seq, tasks)
	}
	for i := range 3 {
		s.Restart(t, 0)
		write(tasks+i*later, tasks+(i+1)*later)
	}
	<-all
	cancel()
	if err := <-done; err != nil || len(caughtUp) != 0 {
		t.Errorf("Tail = %v, caught up %d times more", err, len(caughtUp))
	}
}

// Caught up comes although the end of what was stored is gone.
func TestTailCaughtUpOverGaps(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for _, subject := range []string{"a", "b", "b"} {
		if _, err := b.Store(t.Context(), "fleet.task."+subject, nil, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Purge(t.Context(), "FLEET_TASKS", "fleet.task.b"); err != nil {
		t.Fatal(err)
	}
	for _, subjects := range [][]string{nil, {"fleet.task.a"}, {"fleet.task.b"}, {"fleet.task.a", "fleet.task.b"}} {
		ctx, cancel := context.WithCancel(t.Context())
		var got []uint64
		err := b.Tail(ctx, bus.Tail{
			Stream: "FLEET_TASKS", Subjects: subjects,
			Handle: func(m bus.Msg) { got = append(got, m.Seq) },
			CaughtUp: func(last uint64) {
				if last != 3 {
					t.Errorf("%v: caught up at %d, want 3", subjects, last)
				}
				cancel()
			},
		})
		if err != nil {
			t.Errorf("Tail(%v) = %v", subjects, err)
		}
		if want := len(subjects) != 1 || subjects[0] != "fleet.task.b"; (len(got) == 1) != want {
			t.Errorf("Tail(%v) gave %v", subjects, got)
		}
	}
}

// A stream that was deleted and made anew is not what was read.
func TestTailReplacedStream(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for range 3 {
		if _, err := b.Store(t.Context(), "fleet.task.a", nil, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	caughtUp := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- b.Tail(t.Context(), bus.Tail{
			Stream: "FLEET_TASKS", Handle: func(bus.Msg) {}, CaughtUp: func(uint64) { close(caughtUp) },
		})
	}()
	<-caughtUp
	if _, err := b.Request(t.Context(), "$JS.API.STREAM.DELETE.FLEET_TASKS", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Provision(t.Context(), bus.Provisioning{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Tail = %v, want ErrNotFound", err)
	}
}

// A replica that is behind has nothing pending: what the leader has counts.
func TestTailAsksTheLeaderForTheEnd(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for _, subject := range []string{"a", "a", "b"} {
		if _, err := b.Store(t.Context(), "fleet.task."+subject, nil, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		subjects []string
		last     uint64
		copies   int
		want     bool
	}{
		{nil, 3, 3, true},
		{nil, 2, 3, false},
		{nil, 0, 3, false},
		{nil, 0, 1, true}, // of one copy there is no other
		{[]string{"fleet.task.a"}, 2, 3, true},
		{[]string{"fleet.task.a"}, 1, 3, false},
		{[]string{"fleet.task.a", "fleet.task.b"}, 2, 3, false},
		{[]string{"fleet.task.none"}, 0, 3, true},
	} {
		if got := bus.TailCatchesUp(b, bus.Tail{Stream: "FLEET_TASKS", Subjects: tt.subjects}, tt.last, 3, tt.copies); got != tt.want {
			t.Errorf("%v, read to %d of 3, %d copies: caught up is %v, want %v", tt.subjects, tt.last, tt.copies, got, tt.want)
		}
	}
	if err := b.PurgeUpTo(t.Context(), "FLEET_TASKS", "fleet.task.a", 1); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Last(t.Context(), "FLEET_TASKS", "fleet.task.a"); err != nil || m.Seq != 2 {
		t.Errorf("after a purge up to 1 the last one is %d, %v, want 2", m.Seq, err)
	}
}
