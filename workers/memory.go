package workers

import (
	"context"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Messages leave much garbage behind while little stays in memory: collecting
// less often saves a tenth of the CPU. A soft limit that follows the live heap
// keeps a fleet with very many waiting tasks from taking several times what it
// needs.
const (
	gcPercent = 400
	leastHeap = 256 << 20 // bytes; below it the percentage alone decides
	lookEvery = 5 * time.Second
)

// TuneMemory sets the pace of this process's garbage collector until ctx ends.
func TuneMemory(ctx context.Context) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(leastHeap))
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			metrics.Read(live)
			debug.SetMemoryLimit(heapLimit(live[0].Value.Uint64()))
		}
	}
}

// heapLimit is the soft limit for a heap of which live bytes are in use.
func heapLimit(live uint64) int64 {
	return int64(min(max(live+live/4, leastHeap), math.MaxInt64))
}
