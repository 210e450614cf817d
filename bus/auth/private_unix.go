//go:build unix

package auth

import (
	"fmt"
	"os"
	"syscall"
)

// Private returns an error if others than its owner may read or write a file, or
// a directory, that holds secrets. The group may read what root owns: that is
// how containers are given secrets.
func Private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	allowed, want := os.FileMode(0o700), "600"
	if info.IsDir() {
		want = "700"
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 && os.Getuid() != 0 {
		allowed = 0o750
	}
	if mode := info.Mode().Perm(); mode&^allowed != 0 {
		return fmt.Errorf("%w: %s has mode %04o; chmod %s %s", ErrNotPrivate, path, mode, want, path)
	}
	return nil
}
