package e2e_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats.go"

	"parley/subjects"
	"parley/test/deploy"
)

const upgradeData = "testdata/upgrade"

// TestUpgrade opens the data that earlier builds have left, with all workers,
// sees that what they kept is there, and works on. 0.1.0-dev has tasks and their
// audit alone; what came later has one of everything (see keeper), as
//
//	go test ./test/e2e -run TestUpgrade -e2e.fixture NAME -e2e.parley PATH
//
// leaves it, by the build at PATH or, without it, by this one: do that with every
// release. 0.1.0-c6ba63e is by the build of that commit.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	if *fixtureFlag != "" {
		leaveData(t, filepath.Join(upgradeData, *fixtureFlag+".tar.gz"))
		return
	}
	fixtures, err := filepath.Glob(filepath.Join(upgradeData, "*.tar.gz"))
	if err != nil || len(fixtures) == 0 {
		t.Fatalf("no data of earlier builds in %s: %v", upgradeData, err)
	}
	for _, path := range fixtures {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			f := &testFleet{tb: t, dir: t.TempDir()}
			unpack(t, path, filepath.Join(f.dir, "jetstream"))
			younger(t, filepath.Join(f.dir, "jetstream", "jetstream"))
			k := f.keeper()
			everything := k.kept(filepath.Join(f.dir, "jetstream"))
			k.answers()
			f.env = k.workers(k.hook.URL)
			f.startBroker(strings.Join(everyWorker, ","), "-1")
			if everything {
				k.find()
				return
			}
			for _, id := range []string{"good", "second"} {
				k.shows("done", deploy.Operator, "task", "get", id, "-o", "json")
			}
			k.agent("claude")
			k.do(deploy.Operator, "task", "wait", "waiting")
			k.do(deploy.CI, "task", "send", "--wait", "afterwards")
			k.shows("nothing was changed", deploy.Operator, "audit", "verify")
		})
	}
}

// keeper is the keeper of a fleet of parley up.
func (f *testFleet) keeper() *keeper {
	return &keeper{
		siteUnderTest: siteUnderTest{tb: f.tb, dir: f.dir},
		as: func(user string) []string {
			env := []string{"PARLEY_SERVER=" + f.url, "PARLEY_TIMEOUT=30s"}
			if user == "" {
				return env
			}
			return append(env, "PARLEY_AS="+user)
		},
		raw: func() *nats.Conn {
			nc, err := nats.Connect(f.url)
			if err != nil {
				f.tb.Fatal(err)
			}
			return nc
		},
	}
}

// leaveData makes a fleet with one of everything, and keeps its data.
func leaveData(t *testing.T, path string) {
	t.Helper()
	f := &testFleet{tb: t, dir: t.TempDir()}
	k := f.keeper()
	f.env = k.workers(nobody)
	f.startBroker(strings.Join(everyWorker, ","), "-1")
	k.leave()
	f.broker.signal(syscall.SIGTERM)
	if !f.broker.ended(patience) {
		t.Fatal("the broker does not stop")
	}
	k.keep(filepath.Join(f.dir, "jetstream"))
	pack(t, filepath.Join(f.dir, "jetstream"), path)
}

// younger makes streams as young as they were when they were kept, so that what
// they hold has not expired: every time in them is as much later, but for those
// in what is sealed, the audit. What routers keep so as to start faster goes, since
// it has times, too; they make it anew.
func younger(t *testing.T, dir string) {
	t.Helper()
	blocks, err := filepath.Glob(filepath.Join(dir, "*", "streams", "*", "msgs", "*.blk"))
	if err != nil || len(blocks) == 0 {
		t.Fatalf("no streams in %s: %v", dir, err)
	}
	var newest int64
	data := map[string][]byte{}
	for _, path := range blocks {
		if data[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		eachStored(t, data[path], func(r []byte) { newest = max(newest, int64(binary.LittleEndian.Uint64(r[12:]))) })
	}
	by := time.Since(time.Unix(0, newest)).Truncate(time.Second)
	for path, block := range data {
		msgs := filepath.Dir(path)
		stream := filepath.Base(filepath.Dir(msgs))
		key := sha256.Sum256([]byte(stream + "-" + strings.TrimSuffix(filepath.Base(path), ".blk")))
		eachStored(t, block, func(r []byte) { later(t, r, key[:], by, stream != subjects.StreamAudit) })
		if err := os.WriteFile(path, block, 0o600); err != nil {
			t.Fatal(err)
		}
		derived, err := filepath.Glob(filepath.Join(msgs, "*.db")) // a server makes them of the blocks
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range derived {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if stream == "OBJ_"+subjects.ObjectsIndex {
			if err := os.RemoveAll(filepath.Dir(msgs)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What NATS servers make of a message in a block: its length, sequence, time and
// the length of its subject; the subject; the length of its headers, if there are
// any, and they; its data; and a checksum.
const storedHeader, storedSum = 4 + 8 + 8 + 2, 8

// eachStored visits the messages of a block.
func eachStored(t *testing.T, block []byte, visit func([]byte)) {
	t.Helper()
	for len(block) > 0 {
		n := 0
		if len(block) >= storedHeader {
			n = int(binary.LittleEndian.Uint32(block) &^ (1 << 31))
		}
		if n < storedHeader+storedSum || n > len(block) {
			t.Fatalf("a stream's block has %d bytes that are no message", len(block))
		}
		visit(block[:n])
		block = block[n:]
	}
}

var aTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`)

// later makes the time of a message later, and those in it.
func later(t *testing.T, r, key []byte, by time.Duration, within bool) {
	t.Helper()
	binary.LittleEndian.PutUint64(r[12:], binary.LittleEndian.Uint64(r[12:])+uint64(by))
	rest, sum := r[storedHeader:len(r)-storedSum], r[len(r)-storedSum:]
	subject := rest[:binary.LittleEndian.Uint16(r[20:])]
	rest = rest[len(subject):]
	if r[3]&(1<<7) != 0 { // it has headers
		rest = rest[4:]
	}
	for _, at := range aTime.FindAllIndex(rest, -1) {
		const seconds = "2006-01-02T15:04:05"
		text := rest[at[0]:][:len(seconds)]
		was, err := time.Parse(seconds, string(text))
		if err != nil || !within {
			continue
		}
		copy(text, was.Add(by).Format(seconds))
	}
	hash, err := highwayhash.New64(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{r[4:20], subject, rest} {
		_, _ = hash.Write(part) // never fails
	}
	hash.Sum(sum[:0])
}

// pack keeps the files below dir.
func pack(t *testing.T, dir, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	err = errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), z.Close(), f.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// unpack lays what pack kept out in dir.
func unpack(t *testing.T, path, dir string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !fs.ValidPath(strings.TrimSuffix(h.Name, "/")) {
			t.Fatalf("%s holds %q", path, h.Name)
		}
		to := filepath.Join(dir, h.Name)
		if h.FileInfo().IsDir() {
			if err := os.MkdirAll(to, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, data, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
