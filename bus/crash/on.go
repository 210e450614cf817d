//go:build crashpoints

package crash

import (
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
