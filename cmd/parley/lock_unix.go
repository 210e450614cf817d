//go:build unix

package main

import (
	"os"
	"syscall"
)

// tryLock takes the file's lock, which ends with the process.
func tryLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
