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

// every and which say which writes have their acknowledgement lost, see Lost.
var (
	every, which = parseLost(os.Getenv("PARLEY_LOSE_ACKS"))
	written      atomic.Int64
)

// parseLost reads N, each Nth, or N+M, each Mth of N.
func parseLost(s string) (every, which int64) {
	a, b, _ := strings.Cut(s, "+")
	every, err := strconv.ParseInt(a, 10, 64)
	if err != nil || every <= 0 {
		return 0, 0
	}
	which, err = strconv.ParseInt(b, 10, 64)
	if err != nil {
		return every, 0
	}
	return every, which
}

// Lost reports whether the acknowledgement of a write to subject, which is
// done, is to be lost: its writer is told that it timed out. It says so on
// standard error, with the kind of the record.
func Lost(subject string, header map[string][]string) bool {
	if every == 0 || written.Add(1)%every != which {
		return false
	}
	fmt.Fprintf(os.Stderr, "lost acknowledgement of %s %s\n", subject, strings.Join(header["Fleet-Kind"], ""))
	return true
}
