package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Connect(t)
	ctx := t.Context()

	if _, err := b.Request(ctx, "nobody", nil, nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Request(nobody) = %v, want ErrNoResponders", err)
	}

	sub, err := b.Subscribe("echo", "", func(m bus.Msg) {
		if err := m.Respond(m.Data, bus.Header{"x-Case": {m.Header.Get("x-Case")}}); err != nil {
			t.Errorf("Respond: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Request(ctx, "echo", []byte("hi"), bus.Header{"x-Case": {"kept"}})
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Data) != "hi" || got.Header.Get("x-Case") != "kept" {
		t.Errorf("Request = %q %v, want hi and the header", got.Data, got.Header)
	}
	if err := sub.Drain(); err != nil {
		t.Errorf("Drain: %v", err)
	}

	mute, err := b.Subscribe("mute", "", func(bus.Msg) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Unsubscribe() }()
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = b.Request(short, "mute", nil, nil)
	if !errors.Is(err, bus.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Request(mute) = %v, want ErrTimeout and DeadlineExceeded", err)
	}
}

func TestRequestUntil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRequestUntil)
}

func testRequestUntil(t *testing.T) {
	t.Helper()
	b := bustest.NewFake(t).Connect(t)
	tries := 0
	_, err := b.Subscribe("flaky", "", func(m bus.Msg) {
		tries++
		switch tries {
		case 1: // silence
		case 2:
			_ = m.Respond([]byte("again"), nil)
		default:
			_ = m.Respond([]byte("done"), nil)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.RequestUntil(t.Context(), "flaky", nil, nil, 50*time.Millisecond,
		func(m bus.Msg) bool { return string(m.Data) == "again" })
	if err != nil || string(got.Data) != "done" {
		t.Errorf("RequestUntil = %q, %v, want done", got.Data, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // most of it between two tries
	defer cancel()
	_, err = b.RequestUntil(ctx, "nobody", nil, nil, time.Second, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("RequestUntil(nobody) = %v, want DeadlineExceeded and ErrNoResponders", err)
	}
}

// TestPage: a page has as much as fits, one message at least, and all pages
// together have all.
func TestPage(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	const subject = "fleet.task.a"
	for i := range 20 {
		if _, err := b.Store(t.Context(), subject, bytes.Repeat([]byte{byte('a' + i)}, 10_000), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	for size, pages := range map[int]int{1: 20, 45_000: 4, 1 << 20: 1} {
		n, all := 0, ""
		for from, more := uint64(1), true; more; n++ {
			var msgs []bus.Msg
			var err error
			if msgs, more, err = b.Page(t.Context(), "FLEET_TASKS", subject, from, 100, size); err != nil || len(msgs) == 0 {
				t.Fatalf("Page from %d = %d messages, %v", from, len(msgs), err)
			}
			for _, m := range msgs {
				all, from = all+string(m.Data[:1]), m.Seq+1
			}
		}
		if all != "abcdefghijklmnopqrst" || n != pages {
			t.Errorf("of %d bytes: %s in %d pages, want all in %d", size, all, n, pages)
		}
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx := t.Context()
	w, stop := b.Records("FLEET_TASKS", bus.CommitDirect)
	defer stop()
	var want []uint64
	prev := uint64(0)
	for i := range 5 {
		for _, task := range []string{"other", "a"} {
			expected := uint64(0)
			if task == "a" {
				expected = prev
			} else {
				task = fmt.Sprint("other", i)
			}
			seq, err := w.Write(ctx, bus.Record{Subject: "fleet.task." + task, Expected: expected, WriteID: fmt.Sprint(task, i), Data: []byte{byte('0' + i)}})
			if err != nil {
				t.Fatal(err)
			}
			if task == "a" {
				prev = seq
				want = append(want, seq)
			}
		}
	}
	for _, tt := range []struct {
		from  uint64
		limit int
		want  []uint64
		more  bool
	}{
		{0, 100, want, false},
		{0, 5, want, false},
		{0, 4, want[:4], true},
		{want[1] + 1, 2, want[2:4], true},
		{want[4] + 1, 2, nil, false},
	} {
		msgs, more, err := b.History(ctx, "FLEET_TASKS", "fleet.task.a", tt.from, tt.limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, m := range msgs {
			got = append(got, m.Seq)
			if m.Time.Location() != time.UTC || m.Subject != "fleet.task.a" || m.Stream != "FLEET_TASKS" {
				t.Errorf("History message = %+v", m)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || more != tt.more {
			t.Errorf("History(%d, %d) more %t (-want +got):\n%s", tt.from, tt.limit, more, diff)
		}
	}
	if _, err := b.Last(ctx, "FLEET_TASKS", "fleet.task.none"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last(none) = %v, want ErrNotFound", err)
	}
	if _, err := b.LastDirect(ctx, "FLEET_TASKS", "fleet.task.none"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("LastDirect(none) = %v, want ErrNotFound", err)
	}
	if m, err := b.LastDirect(ctx, "FLEET_TASKS", "fleet.task.a"); err != nil || m.Seq != want[4] {
		t.Errorf("LastDirect = %d, %v, want %d", m.Seq, err, want[4])
	}
	if _, err := b.Get(ctx, "FLEET_TASKS", 999); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Get(999) = %v, want ErrNoResponders", err)
	}
	if _, err := b.StreamState(ctx, "NONE"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("StreamState(NONE) = %v, want ErrNotFound", err)
	}
	if err := b.Purge(ctx, "FLEET_TASKS", "fleet.task.a"); err != nil {
		t.Errorf("Purge = %v", err)
	}
	state, err := b.StreamState(ctx, "FLEET_TASKS")
	if err != nil || state.Msgs != 5 || state.LastSeq != 10 || state.Subjects != 5 || state.Replicas != 1 {
		t.Errorf("StreamState = %+v, %v", state, err)
	}
}
