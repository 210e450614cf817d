//go:build planted

package plant

import (
	"os"
	"sync/atomic"
)

var (
	planted = os.Getenv("PARLEY_PLANT")
	asked   atomic.Uint64
)

// Bug reports whether the bug called name is planted.
func Bug(name string) bool { return name == planted }

// Sometimes is Bug for every nth that asks: a bug that shows each time is found
// by any test.
func Sometimes(name string, nth uint64) bool { return name == planted && asked.Add(1)%nth == 0 }
