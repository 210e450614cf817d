package main

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

// tuneMemory sets the pace of the garbage collector until ctx ends, unless the
// user has done so (GOGC, GOMEMLIMIT).
func tuneMemory(ctx context.Context, getenv func(string) string) {
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" {
		<-ctx.Done()
		return
	}
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
	return int64(min(max(2*live, leastHeap), math.MaxInt64))
}
