package bus_test

import (
	"testing"
	"testing/synctest"

	"parley/bus/bustest"
	"parley/subjects"
)

// TestPosition: it is what was kept last, 0 before that, where it is no number,
// and where the stream is another one by now, which ends before it.
func TestPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		is := func(want uint64) {
			t.Helper()
			if got, err := b.Position(t.Context(), "w", subjects.StreamTasks); err != nil || got != want {
				t.Errorf("Position = %d, %v, want %d", got, err, want)
			}
		}
		is(0)
		for range 3 {
			if _, err := b.Store(t.Context(), subjects.Task("t"), []byte("x"), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, seq := range []uint64{3, 2} {
			if err := b.KeepPosition(t.Context(), "w", seq); err != nil {
				t.Fatal(err)
			}
			is(seq)
		}
		if err := b.KeepPosition(t.Context(), "w", 4); err != nil {
			t.Fatal(err)
		}
		is(0)
		kv, err := b.KV(t.Context(), subjects.BucketScratch)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(t.Context(), "w", []byte("four")); err != nil {
			t.Fatal(err)
		}
		is(0)
	})
}

// TestOverwrittenStays: what is written all the time is not gone as soon as it is
// overwritten (ADR 22), and is in no bucket that holds what nobody can make anew.
func TestOverwrittenStays(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	const times = 100
	for i := range times {
		if err := b.Canary(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.KeepPosition(t.Context(), "w", uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := b.StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		want := uint64(0)
		if list[i].Name == "KV_"+subjects.BucketScratch {
			want = 2 * times
		}
		s, err := b.StreamState(t.Context(), list[i].Name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Msgs != want || s.LastSeq != want {
			t.Errorf("%s keeps %d of %d messages, want %d", list[i].Name, s.Msgs, s.LastSeq, want)
		}
	}
}
