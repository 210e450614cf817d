//go:build crashpoints

package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// at is NAME or NAME:N, the Nth time that the point is passed.
var (
	at, nth = parse(os.Getenv("PARLEY_CRASH_AT"))
	passed  atomic.Int64
)

func parse(s string) (string, int64) {
	name, count, ok := strings.Cut(s, ":")
	if !ok {
		return name, 1
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		return name, 1
	}
	return name, n
}

// Point ends the process by SIGKILL if PARLEY_CRASH_AT names it.
func Point(name string) {
	if name == at && passed.Add(1) == nth {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}

// every and only say which writes have their acknowledgement lost, see Lost.
var (
	every, only = parseLost(os.Getenv("PARLEY_LOSE_ACKS"))
	written     atomic.Int64
)

// parseLost reads N, each Nth, or =N, the Nth alone.
func parseLost(s string) (every, only int64) {
	count, isOnly := strings.CutPrefix(s, "=")
	n, err := strconv.ParseInt(count, 10, 64)
	switch {
	case err != nil || n <= 0:
		return 0, 0
	case isOnly:
		return 0, n
	}
	return n, 0
}

// Lost reports whether the acknowledgement of a write to subject, which is
// done, is to be lost: its writer is told that it timed out. It says so on
// standard error.
func Lost(subject string) bool {
	n := written.Add(1)
	if n != only && (every == 0 || n%every != 0) {
		return false
	}
	fmt.Fprintf(os.Stderr, "lost acknowledgement %d of %s\n", n, subject)
	return true
}
