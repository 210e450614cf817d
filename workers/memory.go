package workers

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// Messages leave much garbage behind while little stays in memory: collecting
// less often saves a tenth of the CPU. A soft limit keeps a fleet with very many
// waiting tasks from taking several times what it needs. It leaves room by what
// a collection costs, which is what is live and has pointers: the index of
// waiting tasks has none, and is not to be paid for several times.
const (
	gcPercent = 400
	leastHeap = 256 << 20 // bytes; below it the percentage alone decides
	ofCgroup  = 0.9       // of what the process may have at all: the kernel's part is not Go's
)

// TuneMemory sets the pace of this process's garbage collector until ctx ends.
// It looks at the heap when a collection has ended: later, garbage would count
// as what a collection costs, and give room for more of it. Where the process is
// killed that takes more than a container gives it, it collects before that.
func TuneMemory(ctx context.Context) {
	most := mostMemory(memlimit.FromCgroup)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(min(leastHeap, most)))
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	collected := make(chan struct{}, 1)
	for {
		runtime.AddCleanup(new(canary), func(c chan<- struct{}) { c <- struct{}{} }, collected)
		select {
		case <-ctx.Done():
			return
		case <-collected:
			debug.SetMemoryLimit(min(memoryLimit(measure()), most))
		}
	}
}

// mostMemory is the soft limit in bytes of a process of which limit says what it
// may have, if it knows: an error, 0 or a number beyond all memory mean no limit.
func mostMemory(limit func() (uint64, error)) int64 {
	n, err := limit()
	if err != nil || n == 0 || n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(float64(n) * ofCgroup)
}

// measure returns what memoryLimit asks for.
func measure() (live, scanned, beside int64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/scan/total:bytes"},
		{Name: "/memory/classes/total:bytes"}, // without what follows it is what is beside
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(s)
	of := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	return of(0), of(1), of(2) - of(3) - of(4) - of(5)
}

// canary is what the next collection takes; it is large enough to be allocated
// by itself.
type canary [64]byte

// memoryLimit is the soft limit for a process of which live bytes of heap are in
// use, scanned bytes of heap and stacks are looked through by each collection,
// and the runtime holds beside bytes that no collection gives back: stacks, its
// own books, what is left in spans. They count in Go's limit, so without them a
// process of many goroutines would do nothing but collect.
func memoryLimit(live, scanned, beside int64) int64 {
	return max(beside+live+max(live/8, 2*scanned), leastHeap)
}
