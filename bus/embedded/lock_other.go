//go:build !unix

package embedded

import "os"

// tryLock does nothing here: the server's own files are the only guard.
func tryLock(*os.File) error { return nil }
