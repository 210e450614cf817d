//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tryLock takes the file's lock, which ends with the process. It is errHeld where
// another process has it; any other error says that there are no locks here.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errHeld
		case err != nil:
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		default:
			return nil
		}
	}
}
