package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// binaries are the programs under test, each built once, when it is first
// asked for.
var binaries = struct {
	dir    string // set by TestMain
	parley built
	crash  built
	nats   built
	a2a    built
}{}

type built struct {
	once sync.Once
	path string
	out  []byte
	err  error
}

// parleyBinary is the path of parley as it ships.
func parleyBinary(tb testing.TB) string {
	if *parleyFlag != "" {
		return *parleyFlag
	}
	return binaries.parley.build(tb, "../..", "parley", "./cmd/parley")
}

// crashBinary is the path of parley with its crash points.
func crashBinary(tb testing.TB) string {
	return binaries.crash.build(tb, "../..", "parley-crashpoints", "-tags=crashpoints", "./cmd/parley")
}

// natsBinary is the path of the stock nats command line.
func natsBinary(tb testing.TB) string {
	tb.Helper()
	if path := os.Getenv("PARLEY_NATS_CLI"); path != "" {
		if _, err := os.Stat(path); err != nil {
			tb.Fatalf("PARLEY_NATS_CLI: %v", err)
		}
		return path
	}
	return binaries.nats.build(tb, "../natscli", "nats", "github.com/nats-io/natscli/nats")
}

// build runs go build in module with args, the package last.
func (b *built) build(tb testing.TB, module, name string, args ...string) string {
	tb.Helper()
	b.once.Do(func() {
		b.path = filepath.Join(binaries.dir, name)
		all := []string{"build", "-buildvcs=false", "-o", b.path}
		if *raceFlag && module == "../.." {
			all = append(all, "-race")
		}
		cmd := exec.Command("go", append(all, args...)...)
		cmd.Dir = module
		b.out, b.err = cmd.CombinedOutput()
	})
	if b.err != nil {
		tb.Fatalf("build %s: %v\n%s", name, b.err, bytes.TrimSpace(b.out))
	}
	return b.path
}
