//go:build !planted

package plant

// Bug is false in this build.
func Bug(string) bool { return false }

// Linger does nothing in this build.
func Linger(string) {}

// Leak does nothing in this build.
func Leak(string) {}

// Sometimes is false in this build.
func Sometimes(string, uint64) bool { return false }
