package skew

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Possible says that this machine can do it.
const Possible = true

// vdsoClockgettimeSym is where the runtime finds the function that tells it the
// time; it keeps the name for those who replace it.
//
//go:linkname vdsoClockgettimeSym runtime.vdsoClockgettimeSym
var vdsoClockgettimeSym uintptr

var (
	honest uintptr //nolint:unused // what was there; gettime uses it
	offset int64   // seconds; atomic
)

// gettime is clock_gettime with the offset.
func gettime() //nolint:unused // entry points to it

// entry is where gettime begins.
func entry() uintptr

// Follow makes the clock as wrong as the file says, in seconds, from now on and
// whenever the file changes. No path: it stays right.
func Follow(path string) {
	if path == "" || vdsoClockgettimeSym == 0 {
		return
	}
	honest = vdsoClockgettimeSym
	vdsoClockgettimeSym = entry()
	read := func() {
		data, err := os.ReadFile(path)
		if err != nil {
			return
		}
		if s, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
			atomic.StoreInt64(&offset, s)
		}
	}
	read()
	go func() { // ends with the process
		for range time.Tick(50 * time.Millisecond) {
			read()
		}
	}()
}

// Now is the right time, by the clock of the machine.
func Now() time.Time {
	var t syscall.Timespec
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 0, uintptr(unsafe.Pointer(&t)), 0); e != 0 { //nolint:gosec // as syscall wants it
		panic(e)
	}
	return time.Unix(t.Unix())
}
