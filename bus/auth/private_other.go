//go:build !unix

package auth

import "os"

// Private returns an error if the file is not there. Who may read it is not
// told by modes on this system.
func Private(path string) error {
	_, err := os.Stat(path)
	return err
}
