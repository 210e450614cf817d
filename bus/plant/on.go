//go:build planted

package plant

import (
	"os"
	"sync"
	"sync/atomic"

	"parley/bus/plant/skew"
)

var (
	planted = os.Getenv("PARLEY_PLANT")
	asked   atomic.Uint64
	leaked  sync.Map
)

func init() { skew.Follow(os.Getenv("PARLEY_CLOCK")) }

// Bug reports whether the bug called name is planted.
func Bug(name string) bool { return name == planted }

// Sometimes is Bug for every nth that asks: a bug that shows each time is found
// by any test.
func Sometimes(name string, nth uint64) bool { return name == planted && asked.Add(1)%nth == 0 }

// Linger starts a goroutine for good, if the bug called name is planted.
func Linger(name string) {
	if name == planted {
		go func() { select {} }()
	}
}

// Leak opens a file for good, if the bug called name is planted.
func Leak(name string) {
	if name != planted {
		return
	}
	f, err := os.Open(os.DevNull)
	if err == nil {
		leaked.Store(f, true)
	}
}
