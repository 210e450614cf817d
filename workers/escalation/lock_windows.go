//go:build windows

package escalation

import (
	"os"

	"golang.org/x/sys/windows"
)

// beyond is the one byte that is locked: far beyond the end of the file, as a
// lock of Windows also forbids to read and write what it covers.
func beyond() *windows.Overlapped { return &windows.Overlapped{OffsetHigh: 1 << 30} }

// lock waits until no other process, or other opening of the same file in this
// one, holds f.
func lock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, beyond())
}

func unlock(f *os.File) { _ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, beyond()) }
