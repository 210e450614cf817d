package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

func TestKV(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx := t.Context()
	if _, err := b.KV(ctx, "NONE"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("KV(NONE) = %v, want ErrNotFound", err)
	}
	k, err := b.KV(ctx, "FLEET_AGENTS")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Get(ctx, "bob"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get(bob) = %v, want ErrNotFound", err)
	}
	rev, err := k.Create(ctx, "bob", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Create(ctx, "bob", []byte("2"), 0); !errors.Is(err, bus.ErrExists) {
		t.Errorf("Create(bob) again = %v, want ErrExists", err)
	}
	if _, err := k.Update(ctx, "bob", []byte("3"), rev+1); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Update(bob) with a wrong revision = %v, want ErrConflict", err)
	}
	rev2, err := k.Update(ctx, "bob", []byte("4"), rev)
	if err != nil || rev2 <= rev {
		t.Errorf("Update(bob) = %d, %v", rev2, err)
	}
	got, err := k.Get(ctx, "bob")
	if err != nil || string(got.Value) != "4" || got.Revision != rev2 || got.Key != "bob" || got.Deleted {
		t.Errorf("Get(bob) = %+v, %v", got, err)
	}
	if err := k.Delete(ctx, "bob"); err != nil {
		t.Errorf("Delete = %v", err)
	}
	if _, err := k.Get(ctx, "bob"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get(bob) after Delete = %v, want ErrNotFound", err)
	}
	if _, err := k.Create(ctx, "bob", []byte("5"), 0); err != nil {
		t.Errorf("Create(bob) after Delete = %v", err)
	}
	if _, err := k.Put(ctx, "ann", nil); err != nil {
		t.Errorf("Put = %v", err)
	}
	if err := k.Delete(ctx, "gone"); err != nil {
		t.Errorf("Delete = %v", err)
	}
	keys, err := k.Keys(ctx)
	if diff := cmp.Diff([]string{"bob", "ann"}, keys); err != nil || diff != "" {
		t.Errorf("Keys %v (-want +got):\n%s", err, diff)
	}
	for _, key := range []string{"", ".a", "a.", "a..b", "a b", "a*", ">"} {
		if _, err := k.Put(ctx, key, nil); err == nil {
			t.Errorf("Put(%q) = nil, want an error", key)
		}
	}
}

func TestKVKeysOfEmptyBucket(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k, err := b.KV(t.Context(), "FLEET_IDEM")
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := k.Keys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("Keys = %v, %v, want none", keys, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Keys(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Keys with an ended context = %v, want Canceled", err)
	}
}

// Of many creators of a key one wins.
func TestKVCreateRace(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	k, err := b.KV(t.Context(), "FLEET_IDEM")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var won atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			_, err := k.Create(t.Context(), "bob.1", fmt.Append(nil, i), time.Hour)
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, bus.ErrExists):
				t.Errorf("Create = %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d won, want 1", won.Load())
	}
}

// A key with a TTL ends by itself; who watches hears it, and it can be created
// again.
func TestKVWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		k, err := b.KV(ctx, "FLEET_AGENTS")
		if err != nil {
			t.Fatal(err)
		}
		put := func(key string, ttl time.Duration) {
			t.Helper()
			if _, err := k.Create(ctx, key, []byte("v"), ttl); err != nil {
				t.Fatal(err)
			}
		}
		put("old", 0)
		put("cool", time.Hour)
		heard := make(chan string, 100)
		done := make(chan error, 1)
		go func() {
			done <- k.Watch(ctx, func(e bus.Entry) { heard <- fmt.Sprint(e.Key, " ", string(e.Value), " ", e.Deleted) })
		}()
		expect := func(want ...string) {
			t.Helper()
			for _, w := range want {
				if got := <-heard; got != w {
					t.Errorf("heard %q, want %q", got, w)
				}
			}
		}
		expect("old v false", "cool v false", "  false")
		put("new", 0)
		expect("new v false")
		start := time.Now()
		expect("cool  true")
		if after := time.Since(start); after < 59*time.Minute || after > 61*time.Minute {
			t.Errorf("cool ended after %v, want 1h", after)
		}
		if _, err := k.Get(ctx, "cool"); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("Get(cool) = %v, want ErrNotFound", err)
		}
		put("cool", time.Hour)
		expect("cool v false")
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch = %v", err)
		}
	})
}

func TestObjects(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx := t.Context()
	if _, err := b.Objects(ctx, "NONE"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Objects(NONE) = %v, want ErrNotFound", err)
	}
	o, err := b.Objects(ctx, "FLEET_INDEX")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Get(ctx, "index"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get(none) = %v, want ErrNotFound", err)
	}
	for _, size := range []int{0, 10, 3_000_000, 20} {
		want := slices.Repeat([]byte("0123456789"), size/10)
		if err := o.Put(ctx, "index", bytes.NewReader(want)); err != nil {
			t.Fatal(err)
		}
		r, err := o.Get(ctx, "index")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("Get gave %d bytes, %v, want %d", len(got), err, len(want))
		}
		if err := r.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	}
	failing := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), errReader{})
	if err := o.Put(ctx, "index", failing); err == nil {
		t.Error("Put of a failing reader = nil, want its error")
	}
	if names, err := o.Names(ctx); err != nil || !slices.Equal(names, []string{"index"}) {
		t.Errorf("Names = %v, %v, want index", names, err)
	}
	defer func() {
		for range 2 {
			if err := o.Delete(ctx, "index"); err != nil {
				t.Errorf("Delete = %v", err)
			}
		}
		if names, err := o.Names(ctx); err != nil || len(names) != 0 {
			t.Errorf("Names after Delete = %v, %v, want none", names, err)
		}
	}()
	if r, err := o.Get(ctx, "index"); err != nil {
		t.Errorf("Get after a failed Put = %v, want what was there", err)
	} else {
		_ = r.Close()
	}
}

// What somebody who was killed has left of an object fills the bucket up for
// nobody for ever.
func TestAnObjectAlone(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx := t.Context()
	if err := b.Provision(ctx, bus.Provisioning{BucketMaxBytes: 2 << 20}); err != nil {
		t.Fatal(err)
	}
	o, err := b.Objects(ctx, "FLEET_INDEX")
	if err != nil {
		t.Fatal(err)
	}
	stray := func() {
		t.Helper()
		if _, err := b.Store(ctx, "$O.FLEET_INDEX.C.stray", make([]byte, 900<<10), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	put := func() error { return o.PutOnly(ctx, "index", bytes.NewReader(make([]byte, 500<<10))) }
	for n := range 3 {
		if n > 0 { // the first comes into an empty bucket
			stray()
		}
		if err := put(); err != nil {
			t.Fatalf("beside one stray piece: %v", err)
		}
		r, err := o.Get(ctx, "index")
		if err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(r); err != nil || len(data) != 500<<10 {
			t.Errorf("%d bytes are read again, %v", len(data), err)
		}
		_ = r.Close()
	}
	stray()
	if err := b.Purge(ctx, "OBJ_FLEET_INDEX", "$O.FLEET_INDEX.M.>"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Store(ctx, "$O.FLEET_INDEX.C.other", make([]byte, 500<<10), "", nil); err != nil {
		t.Fatal(err)
	}
	if err := put(); !errors.Is(err, bus.ErrFull) {
		t.Fatalf("into a full bucket: %v, want ErrFull", err)
	}
	if err := put(); err != nil {
		t.Errorf("after that: %v", err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestKVEntries(t *testing.T) {
	t.Parallel()
	k, err := bustest.New(t).Bus(t).KV(t.Context(), subjects.BucketPush)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a.1", "a.2", "b.1", "a.3"} {
		if _, err := k.Create(t.Context(), key, []byte(key), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Delete(t.Context(), "a.2"); err != nil {
		t.Fatal(err)
	}
	e, err := k.Get(t.Context(), "a.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.UpdateFor(t.Context(), "a.1", []byte("new"), e.Revision, time.Hour); err != nil {
		t.Fatal(err)
	}
	got, err := k.Entries(t.Context(), "a.*")
	if err != nil || len(got) != 2 || got[0].Key != "a.3" || got[1].Key != "a.1" || string(got[1].Value) != "new" {
		t.Errorf("Entries = %v, %v", got, err)
	}
	if got, err := k.Entries(t.Context(), "c.*"); err != nil || len(got) != 0 {
		t.Errorf("Entries of nothing = %v, %v", got, err)
	}
}

// TestMarksOfDeletions: what DeleteRevision leaves is there for a day, for those
// who watch and were away, and takes no room for good.
func TestMarksOfDeletions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		for _, name := range []string{subjects.BucketAlerts, subjects.BucketSchedules, subjects.BucketAgents} {
			k, err := b.KV(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			messages := func() uint64 {
				t.Helper()
				s, serr := b.StreamState(t.Context(), "KV_"+name)
				if serr != nil {
					t.Fatal(serr)
				}
				return s.Msgs
			}
			before := messages()
			rev, err := k.Create(t.Context(), "x", []byte("1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := k.DeleteRevision(t.Context(), "x", rev); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Hour)
			if n := messages(); n != before+1 {
				t.Errorf("%s: %d messages after 20 h, want %d and the mark", name, n, before)
			}
			time.Sleep(5 * time.Hour)
			if n := messages(); n != before {
				t.Errorf("%s: %d messages after 25 h, want %d", name, n, before)
			}
			if _, err := k.Create(t.Context(), "x", []byte("2"), 0); err != nil {
				t.Errorf("%s: create it again: %v", name, err)
			}
		}
	})
}
