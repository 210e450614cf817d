package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/bus/bustest"
)

func TestRecords(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped, bus.CommitAuto} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			b := bustest.New(t, bustest.SyncAlways).Bus(t)
			testRecords(t, b, mode)
		})
	}
}

func testRecords(t *testing.T, b *bus.Bus, mode bus.CommitMode) {
	ctx := t.Context()
	heard := make(chan bus.Msg, 10)
	if _, err := b.Subscribe("fleet.event.*", "", func(m bus.Msg) { heard <- m }); err != nil {
		t.Fatal(err)
	}
	w, stop := b.Records("FLEET_TASKS", mode)
	first := bus.Record{Subject: "fleet.task.a", WriteID: "w1", Data: []byte("one"), TTL: 59500 * time.Millisecond, Header: bus.Header{"Fleet-Kind": {"queued"}}}
	seq, err := w.Write(ctx, first)
	if err != nil {
		t.Fatalf("Write = %v", err)
	}
	event := <-heard
	if event.Subject != "fleet.event.a" || string(event.Data) != "one" || event.Header.Get("Fleet-Kind") != "queued" {
		t.Errorf("event = %s %q %v, want the record", event.Subject, event.Data, event.Header)
	}
	if again, err := w.Write(ctx, first); err != nil || again != seq {
		t.Errorf("Write with the same id = %d, %v, want %d: it is the same write", again, err, seq)
	}
	if _, err := w.Write(ctx, bus.Record{Subject: "fleet.task.a", WriteID: "w2"}); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Write behind = %v, want ErrConflict", err)
	}
	seq2, err := w.Write(ctx, bus.Record{Subject: "fleet.task.a", Expected: seq, WriteID: "w3", Data: []byte("two")})
	if err != nil || seq2 <= seq {
		t.Errorf("Write after %d = %d, %v", seq, seq2, err)
	}
	if again, err := w.Write(ctx, first); err != nil || again != seq {
		t.Errorf("first Write again, overtaken = %d, %v, want %d", again, err, seq)
	}
	last, err := b.Last(ctx, "FLEET_TASKS", "fleet.task.a")
	if err != nil || last.Seq != seq2 || string(last.Data) != "two" {
		t.Errorf("Last = %d %q, %v, want %d two", last.Seq, last.Data, err, seq2)
	}
	got, err := b.Get(ctx, "FLEET_TASKS", seq)
	if err != nil || got.Header.Get("Nats-TTL") != "60s" {
		t.Errorf("Get = %v, %v, want a TTL of a minute", got.Header, err)
	}
	stop()
	if _, err := w.Write(ctx, bus.Record{Subject: "fleet.task.b", WriteID: "w4"}); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Write after stop = %v, want ErrClosed", err)
	}
}

// Of many writers on the same subjects exactly one wins each sequence, whatever
// the mode; what a winner is told is what is stored, and each record is heard.
func TestRecordsRace(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			b := bustest.New(t, bustest.SyncAlways).Bus(t)
			raceRecords(t, b, mode, 100, 5)
		})
	}
}

// A write that meets its own earlier try, stored or still in process, is that
// write and no conflict.
func TestSameRecord(t *testing.T) {
	t.Parallel()
	b := bustest.New(t, bustest.SyncAlways).Bus(t)
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		sameRecord(t, b, mode)
	}
}

func sameRecord(t *testing.T, b *bus.Bus, mode bus.CommitMode) {
	t.Helper()
	w, stop := b.Records("FLEET_TASKS", mode)
	defer stop()
	for round := range 10 {
		r := bus.Record{Subject: fmt.Sprint("fleet.task.same", mode, "-", round), WriteID: "mine"}
		var wg sync.WaitGroup
		var first atomic.Uint64
		for range 20 {
			wg.Go(func() {
				seq, err := w.Write(t.Context(), r)
				if err != nil {
					t.Errorf("Write = %v", err)
				} else if !first.CompareAndSwap(0, seq) && first.Load() != seq {
					t.Errorf("Write = %d and %d", first.Load(), seq)
				}
			})
		}
		wg.Wait()
	}
}

func raceRecords(t *testing.T, b *bus.Bus, mode bus.CommitMode, tasks, writers int) {
	t.Helper()
	ctx := t.Context()
	var heard atomic.Int64
	if _, err := b.Subscribe("fleet.event.*", "", func(bus.Msg) { heard.Add(1) }); err != nil {
		t.Fatal(err)
	}
	w, stop := b.Records("FLEET_TASKS", mode)
	defer stop()
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		won       = map[uint64]string{}
		conflicts int
	)
	for task := range tasks {
		for writer := range writers {
			wg.Go(func() {
				id := fmt.Sprint(task, "-", writer)
				seq, err := w.Write(ctx, bus.Record{Subject: fmt.Sprint("fleet.task.", task), WriteID: id, Data: []byte(id)})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, bus.ErrConflict):
					conflicts++
				case err != nil:
					t.Errorf("Write: %v", err)
				case won[seq] != "":
					t.Errorf("sequence %d was won by %s and %s", seq, won[seq], id)
				default:
					won[seq] = id
				}
			})
		}
	}
	wg.Wait()
	if len(won) != tasks || conflicts != tasks*(writers-1) {
		t.Errorf("%d won, %d conflicts, want %d and %d", len(won), conflicts, tasks, tasks*(writers-1))
	}
	for seq, id := range won {
		m, err := b.Get(ctx, "FLEET_TASKS", seq)
		if err != nil || string(m.Data) != id || m.Header.Get("Fleet-Write-Id") != id {
			t.Errorf("Get(%d) = %q, %v, want %q", seq, m.Data, err, id)
		}
	}
	bustest.Eventually(t, "every record is heard", func() bool { return heard.Load() == int64(tasks) })
}

// One record that the server refuses does not harm those beside it.
func TestGroupedRefusal(t *testing.T) {
	t.Parallel()
	b := bustest.New(t, bustest.SyncAlways).Bus(t)
	w, stop := b.Records("FLEET_TASKS", bus.CommitGrouped)
	defer stop()
	var wg sync.WaitGroup
	var refused atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			r := bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i)}
			if i%50 == 0 {
				r.Header = bus.Header{"Nats-TTL": {"soon"}}
			}
			_, err := w.Write(t.Context(), r)
			switch {
			case i%50 == 0 && err != nil:
				refused.Add(1)
			case err != nil:
				t.Errorf("Write(%d) = %v", i, err)
			}
		})
	}
	wg.Wait()
	if refused.Load() != 4 {
		t.Errorf("%d were refused, want 4", refused.Load())
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			b := bustest.New(t, bustest.SyncAlways).Connect(t)
			if err := b.Provision(t.Context(), bus.Provisioning{MaxBytes: 64 << 10}); err != nil {
				t.Fatal(err)
			}
			w, stop := b.Records("FLEET_TASKS", mode)
			defer stop()
			var wg sync.WaitGroup
			var stored, full atomic.Int64
			for i := range 200 {
				wg.Go(func() {
					_, err := w.Write(t.Context(), bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i), Data: make([]byte, 1024)})
					switch {
					case err == nil:
						stored.Add(1)
					case errors.Is(err, bus.ErrFull):
						full.Add(1)
					default:
						t.Errorf("Write = %v, want ErrFull", err)
					}
				})
			}
			wg.Wait()
			state, err := b.StreamState(t.Context(), "FLEET_TASKS")
			if err != nil || state.Msgs != uint64(stored.Load()) || stored.Load() < 40 || full.Load() < 100 {
				t.Errorf("%d stored, %d full, stream has %d, %v", stored.Load(), full.Load(), state.Msgs, err)
			}
		})
	}
}

// In a batch as by itself: a record's TTL ends it.
func TestRecordTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t, bustest.SyncAlways).Bus(t)
		w, stop := b.Records("FLEET_TASKS", bus.CommitGrouped)
		defer stop()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				r := bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i), TTL: time.Duration(1+i%2) * time.Hour}
				if _, err := w.Write(t.Context(), r); err != nil {
					t.Errorf("Write = %v", err)
				}
			})
		}
		wg.Wait()
		for _, step := range []struct {
			after time.Duration
			want  uint64
		}{{50 * time.Minute, 100}, {20 * time.Minute, 50}, {time.Hour, 0}} {
			<-time.After(step.after)
			state, err := b.StreamState(t.Context(), "FLEET_TASKS")
			if err != nil || state.Msgs != step.want {
				t.Errorf("%d records after %v more, %v, want %d", state.Msgs, step.after, err, step.want)
			}
		}
	})
}

// lines hands out connections to an in-process server and disturbs what comes
// from it.
type lines struct {
	server nats.InProcessConnProvider
	cutAt  atomic.Pointer[string]        // the next answer with this text cuts the line
	held   atomic.Pointer[chan struct{}] // answers wait until it is closed
	cuts   atomic.Int64
}

// disturbed gives a connection to a server, and what disturbs it.
func disturbed(t *testing.T, s *bustest.Server) (*bus.Bus, *lines) {
	t.Helper()
	l := &lines{server: s.NATS(0)}
	c := s.Config()
	c.URL, c.InProcess = "", l
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b, l
}

type line struct {
	net.Conn
	lines *lines
	came  chan []byte // what the server sent; a server that cannot write hangs up
	rest  []byte
}

func (l *lines) InProcessConn() (net.Conn, error) {
	conn, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	c := &line{Conn: conn, lines: l, came: make(chan []byte, 10_000)}
	go func() {
		defer close(c.came)
		for {
			p := make([]byte, 64<<10)
			n, err := conn.Read(p)
			if err != nil {
				return
			}
			c.came <- p[:n]
		}
	}()
	return c, nil
}

func (c *line) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		c.rest = <-c.came
	}
	if held := c.lines.held.Load(); held != nil {
		<-*held
	}
	if at := c.lines.cutAt.Load(); at != nil && bytes.Contains(c.rest, []byte(*at)) {
		c.lines.cutAt.Store(nil)
		c.lines.cuts.Add(1)
		_ = c.Close()
		c.rest = nil
	}
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// The acknowledgement is lost with the connection: the writer reads back and
// finds its own record. Nothing is stored twice.
func TestLostAcknowledgement(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		for _, n := range []int{1, 100} {
			t.Run(fmt.Sprint("mode ", mode, " records ", n), func(t *testing.T) {
				t.Parallel()
				lostAcknowledgement(t, mode, n)
			})
		}
	}
}

func lostAcknowledgement(t *testing.T, mode bus.CommitMode, n int) {
	t.Helper()
	s := bustest.New(t, bustest.SyncAlways)
	plain := s.Bus(t)
	b, l := disturbed(t, s)
	w, stop := b.Records("FLEET_TASKS", mode)
	defer stop()
	l.cutAt.Store(new(`{"stream":"FLEET_TASKS"`))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i), Data: []byte("once")}
			seq, werr := w.Write(t.Context(), r)
			if werr != nil {
				t.Errorf("Write = %v", werr)
				return
			}
			m, gerr := plain.Get(t.Context(), "FLEET_TASKS", seq)
			if gerr != nil || m.Subject != r.Subject || m.Header.Get("Fleet-Write-Id") != r.WriteID {
				t.Errorf("Get(%d) = %s, %v, want %s", seq, m.Subject, gerr, r.Subject)
			}
		})
	}
	wg.Wait()
	state, err := plain.StreamState(t.Context(), "FLEET_TASKS")
	if err != nil || state.LastSeq != uint64(n) {
		t.Errorf("the stream is at %d, %v, want %d", state.LastSeq, err, n)
	}
	if l.cuts.Load() != 1 {
		t.Errorf("%d cuts, want 1: the test did not test", l.cuts.Load())
	}
}

// Answers that come after every time-out: repeats do not store twice.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { lateAcknowledgement(t, mode, 60) })
		})
	}
}

func lateAcknowledgement(t *testing.T, mode bus.CommitMode, n int) {
	t.Helper()
	s := bustest.NewFake(t, bustest.SyncAlways)
	plain := s.Bus(t)
	b, l := disturbed(t, s)
	w, stop := b.Records("FLEET_TASKS", mode)
	defer stop()
	held := make(chan struct{})
	l.held.Store(&held)
	time.AfterFunc(37*time.Second, func() { l.held.Store(nil); close(held) })
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := bus.Record{Subject: fmt.Sprint("fleet.task.", i), WriteID: strconv.Itoa(i), Data: []byte("once")}
			if _, err := w.Write(t.Context(), r); err != nil {
				t.Errorf("Write = %v", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := w.Write(ctx, bus.Record{Subject: "fleet.task.hasty", WriteID: "hasty"})
	if !errors.Is(err, bus.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Write with 3 s = %v, want ErrTimeout and DeadlineExceeded", err)
	}
	wg.Wait()
	for i := range n {
		msgs, _, err := plain.History(t.Context(), "FLEET_TASKS", fmt.Sprint("fleet.task.", i), 1, 10)
		if err != nil || len(msgs) != 1 {
			t.Errorf("History(%d) has %d records, %v, want 1", i, len(msgs), err)
		}
	}
}
