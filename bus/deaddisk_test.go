package bus_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// TestReadOfADeadDisk: what a server has and cannot read is not taken for what it
// does not have.
func TestReadOfADeadDisk(t *testing.T) {
	t.Parallel()
	srv := bustest.New(t)
	b := srv.Bus(t)
	kv, err := b.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Create(t.Context(), "k", []byte("v"), 0); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 1<<20)
	for i := range 10 { // so that it is in a file that nothing is written to any more
		if _, err := kv.Put(t.Context(), "large"+strconv.Itoa(i), large); err != nil {
			t.Fatal(err)
		}
	}
	srv.Restart(t, 0) // what was written is in no cache any more
	broken := 0
	err = filepath.WalkDir(srv.NATS(0).StoreDir(), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(path, "KV_"+subjects.BucketAlerts) || filepath.Base(path) != "1.blk" {
			return err
		}
		broken++
		return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) // each read of it fails
	})
	if err != nil || broken != 1 {
		t.Fatalf("%d files broken, %v; want the first of the bucket", broken, err)
	}
	b = srv.Connect(t)
	if kv, err = b.KV(t.Context(), subjects.BucketAlerts); err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(t.Context(), "k"); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("a key that cannot be read = %q, %v; want ErrNoResponders", e.Value, err)
	}
	if _, err := kv.Get(t.Context(), "other"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("a key that is not there = %v, want ErrNotFound", err)
	}
}
