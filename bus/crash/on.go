//go:build crashpoints

package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
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

// lose says which writes have their acknowledgement lost, see Lost.
var (
	lose    = os.Getenv("PARLEY_LOSE_ACKS")
	every   = parseEvery(lose)
	written atomic.Int64
	lost    sync.Map // writes that lost theirs
)

func parseEvery(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

// Lost reports whether the acknowledgement of a write to subject, which is
// done, is to be lost: its writer is told that it timed out. PARLEY_LOSE_ACKS is
// N for each Nth, or first for the first try of every write. It says so on
// standard error, with the kind of the record.
func Lost(subject string, header map[string][]string) bool {
	switch {
	case lose == "first":
		key := fmt.Sprint(subject, header["Fleet-Write-Id"], header["Nats-Msg-Id"])
		if _, again := lost.LoadOrStore(key, true); again {
			return false
		}
	case every == 0 || written.Add(1)%every != 0:
		return false
	}
	fmt.Fprintf(os.Stderr, "lost acknowledgement of %s %s\n", subject, strings.Join(header["Fleet-Kind"], ""))
	return true
}
