package workers

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Messages leave much garbage behind while little stays in memory: collecting
// less often saves a tenth of the CPU. A soft limit keeps a fleet with very many
// waiting tasks from taking several times what it needs. It leaves room by what
// a collection costs, which is what is live and has pointers: the index of
// waiting tasks has none, and is not to be paid for several times.
const (
	gcPercent = 400
	leastHeap = 256 << 20 // bytes; below it the percentage alone decides
)

// TuneMemory sets the pace of this process's garbage collector until ctx ends.
// It looks at the heap when a collection has ended: later, garbage would count
// as what a collection costs, and give room for more of it.
func TuneMemory(ctx context.Context) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(leastHeap))
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}}
	collected := make(chan struct{}, 1)
	for {
		runtime.AddCleanup(new(canary), func(c chan<- struct{}) { c <- struct{}{} }, collected)
		select {
		case <-ctx.Done():
			return
		case <-collected:
			metrics.Read(heap)
			debug.SetMemoryLimit(heapLimit(heap[0].Value.Uint64(), heap[1].Value.Uint64()))
		}
	}
}

// canary is what the next collection takes; it is large enough to be allocated
// by itself.
type canary [64]byte

// heapLimit is the soft limit for a heap of which live bytes are in use and
// scanned are looked through by each collection.
func heapLimit(live, scanned uint64) int64 {
	return int64(min(max(live+live/8+2*scanned, leastHeap), math.MaxInt64))
}
