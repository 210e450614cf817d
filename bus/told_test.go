package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// toldIn is every line that is told in a stream.
func toldIn(t *testing.T, b *bus.Bus, stream string) (lines []string) {
	t.Helper()
	msgs, more, err := b.History(t.Context(), stream, subjects.ToldPattern(stream), 1, 1000)
	if err != nil || more {
		t.Fatalf("History = more %v, %v", more, err)
	}
	for _, m := range msgs {
		lines = append(lines, strings.TrimSpace(string(m.Data)))
	}
	return lines
}

// TestTold: a change and what is told of it are stored together or not at all,
// by records and by buckets alike.
func TestTold(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := bustest.New(t, bustest.SyncAlways).Bus(t)
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped, bus.CommitAuto} {
		name := fmt.Sprint("r", mode)
		w, stop := b.Records(subjects.StreamRuns, mode)
		r := bus.Record{Subject: "fleet.run." + name, WriteID: name, Data: []byte("one"), Told: []byte(name)}
		seq, err := w.Write(ctx, r)
		if err != nil {
			t.Fatalf("Write = %v", err)
		}
		if m, err := b.Get(ctx, subjects.StreamRuns, seq); err != nil || m.Subject != r.Subject {
			t.Errorf("%d is %s, %v, want %s", seq, m.Subject, err, r.Subject)
		}
		if again, err := w.Write(ctx, r); err != nil || again != seq {
			t.Errorf("the same write again = %d, %v, want %d", again, err, seq)
		}
		if _, err := w.Write(ctx, bus.Record{Subject: r.Subject, WriteID: name + "x", Told: []byte("behind")}); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("a write behind = %v, want ErrConflict", err)
		}
		stop()
		if _, err := w.Write(ctx, bus.Record{Subject: "fleet.run.late", WriteID: name + "y", Told: []byte("late")}); !errors.Is(err, bus.ErrClosed) {
			t.Errorf("Write after stop = %v, want ErrClosed", err)
		}
	}
	if diff := cmp.Diff([]string{"r1", "r2", "r0"}, toldIn(t, b, subjects.StreamRuns)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}

	kv, err := b.KV(ctx, subjects.BucketSchedules)
	if err != nil {
		t.Fatal(err)
	}
	rev, err := kv.Telling([]byte("created")).Create(ctx, "a.b", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Telling([]byte("twice")).Create(ctx, "a.b", []byte("1"), 0); !errors.Is(err, bus.ErrExists) {
		t.Errorf("Create again = %v, want ErrExists", err)
	}
	if _, err := kv.Telling([]byte("behind")).Update(ctx, "a.b", []byte("2"), rev+1000); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Update behind = %v, want ErrConflict", err)
	}
	if rev, err = kv.Update(ctx, "a.b", []byte("2"), rev); err != nil {
		t.Errorf("Update = %v", err)
	}
	if err := kv.Telling([]byte("deleted")).DeleteRevision(ctx, "a.b", rev); err != nil {
		t.Errorf("DeleteRevision = %v", err)
	}
	if diff := cmp.Diff([]string{"created", "deleted"}, toldIn(t, b, "KV_"+subjects.BucketSchedules)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if keys, err := kv.Keys(ctx); err != nil || len(keys) != 0 {
		t.Errorf("Keys = %v, %v, want none: lines are no keys", keys, err)
	}
}

// TestToldRace: of writers that race, those who win are told of, each once.
func TestToldRace(t *testing.T) {
	t.Parallel()
	b := bustest.New(t, bustest.SyncAlways).Bus(t)
	kv, err := b.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	var won atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				var rev uint64
				if e, err := kv.Get(t.Context(), "k"); err == nil {
					rev = e.Revision
				}
				_, err := kv.Telling(fmt.Appendf(nil, "%d/%d", i, j)).Update(t.Context(), "k", []byte("v"), rev)
				switch {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, bus.ErrConflict):
					t.Errorf("Update = %v", err)
				}
			}
		})
	}
	wg.Wait()
	lines := toldIn(t, b, "KV_"+subjects.BucketAlerts)
	seen := map[string]bool{}
	for _, l := range lines {
		seen[l] = true
	}
	if int64(len(lines)) != won.Load() || len(seen) != len(lines) || won.Load() < 10 {
		t.Errorf("%d lines, %d of them different, of %d changes", len(lines), len(seen), won.Load())
	}
}

// TestToldLostAcknowledgement: what is stored though its acknowledgement is
// lost is told of once.
func TestToldLostAcknowledgement(t *testing.T) {
	t.Parallel()
	s := bustest.New(t, bustest.SyncAlways)
	plain := s.Bus(t)
	b, l := disturbed(t, s)
	w, stop := b.Records(subjects.StreamRuns, bus.CommitDirect)
	defer stop()
	l.cutAt.Store(new(`{"stream":"FLEET_RUNS"`))
	seq, err := w.Write(t.Context(), bus.Record{Subject: "fleet.run.a", WriteID: "w1", Data: []byte("once"), Told: []byte("once")})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := plain.Last(t.Context(), subjects.StreamRuns, "fleet.run.a"); err != nil || m.Seq != seq {
		t.Errorf("the record is at %d, %v, want %d", m.Seq, err, seq)
	}
	if diff := cmp.Diff([]string{"once"}, toldIn(t, plain, subjects.StreamRuns)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if l.cuts.Load() != 1 {
		t.Errorf("%d cuts, want 1: the test did not test", l.cuts.Load())
	}
}

// TestToldAgain: a write with its lines that the server takes no batch for now
// is tried again, as any other write is.
func TestToldAgain(t *testing.T) {
	t.Parallel()
	b := bustest.New(t, bustest.OneBatch(time.Second)).Bus(t)
	kv, err := b.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	begun := bus.Header{"Nats-Batch-Id": {"another's"}, "Nats-Batch-Sequence": {"1"}}
	if _, err := b.Request(t.Context(), "$KV."+subjects.BucketAlerts+".other", []byte("v"), begun); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Telling([]byte("created")).Create(t.Context(), "k", []byte("v"), 0); err != nil {
		t.Errorf("Create = %v beside another batch", err)
	}
	if diff := cmp.Diff([]string{"created"}, toldIn(t, b, "KV_"+subjects.BucketAlerts)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
