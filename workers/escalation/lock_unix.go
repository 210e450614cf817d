//go:build unix

package escalation

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock waits until no other process, or other opening of the same file in this
// one, holds f. A file system without locks is no reason to lose a line.
func lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS):
			return nil
		default:
			return err
		}
	}
}

func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
