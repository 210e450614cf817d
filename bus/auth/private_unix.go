//go:build unix

package auth

import (
	"fmt"
	"os"
	"syscall"
)

// Private returns an error if others than its owner may read or write a file, or
// a directory, that holds secrets, but for what allowed says.
func Private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	want, most := "600", os.FileMode(0o700)
	if info.IsDir() {
		want = "700"
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		most = allowed(int(s.Uid), os.Getuid())
	}
	if mode := info.Mode().Perm(); mode&^most != 0 {
		return fmt.Errorf("%w: %s has mode %04o; chmod %s %s", ErrNotPrivate, path, mode, want, path)
	}
	return nil
}

// allowed is the widest mode of a file of secrets that owner has and uid reads. The
// group may read what root owns, for others than root: that is how containers are
// given secrets.
func allowed(owner, uid int) os.FileMode {
	if owner == 0 && uid != 0 {
		return 0o750
	}
	return 0o700
}
