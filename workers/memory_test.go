package workers

import (
	"math"
	"sync"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestMemoryLimitFollowsWhatIsLive(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live, scanned, beside int64
		want                  int64
	}{
		{0, 0, 0, leastHeap},
		{100 << 20, 10 << 20, 20 << 20, leastHeap},
		{1000 << 20, 0, 0, 1125 << 20},
		{1000 << 20, 100 << 20, 0, 1200 << 20},
		{200 << 20, 50 << 20, 150 << 20, 450 << 20},
	} {
		if got := memoryLimit(tt.live, tt.scanned, tt.beside); got != tt.want {
			t.Errorf("memoryLimit(%d, %d, %d) = %d, want %d", tt.live, tt.scanned, tt.beside, got, tt.want)
		}
	}
}

func TestMostMemory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit uint64
		err   error
		want  int64
	}{
		{1000 << 20, nil, 900 << 20},
		{0, nil, math.MaxInt64},
		{math.MaxUint64, nil, math.MaxInt64}, // "max"
		{1000 << 20, memlimit.ErrNoCgroup, math.MaxInt64},
	} {
		if got := mostMemory(func() (uint64, error) { return tt.limit, tt.err }); got != tt.want {
			t.Errorf("mostMemory of %d, %v = %d, want %d", tt.limit, tt.err, got, tt.want)
		}
	}
}

// TestStacksAreCounted: what goroutines hold leaves the heap as much room as it
// had without them.
func TestStacksAreCounted(t *testing.T) {
	const goroutines, depth = 64, 1 << 10 // of a KiB each
	_, _, before := measure()
	var deep, over sync.WaitGroup
	release := make(chan struct{})
	for range goroutines {
		deep.Add(1)
		over.Go(func() { descend(depth, func() { deep.Done(); <-release }) })
	}
	deep.Wait()
	_, _, beside := measure()
	close(release)
	over.Wait()
	if grown := beside - before; grown < goroutines*depth<<10 {
		t.Errorf("%d bytes more beside the heap, for %d of stacks", grown, goroutines*depth<<10)
	}
}

// descend calls bottom with n KiB of stack in use.
func descend(n int, bottom func()) byte {
	var frame [1 << 10]byte
	if n == 0 {
		bottom()
		return 0
	}
	frame[n%len(frame)] = descend(n-1, bottom)
	return frame[0]
}
