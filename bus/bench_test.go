package bus_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
)

// BenchmarkRecords writes 512 B records on subjects of their own, 256 in flight.
func BenchmarkRecords(b *testing.B) {
	for _, server := range []struct {
		name    string
		options []bustest.Option
	}{{"lazy", nil}, {"sync", []bustest.Option{bustest.SyncAlways}}} {
		for _, mode := range []struct {
			name string
			mode bus.CommitMode
		}{{"direct", bus.CommitDirect}, {"grouped", bus.CommitGrouped}} {
			for _, inFlight := range []int{1, 8, 64, 256, 1024} {
				b.Run(fmt.Sprintf("%s/%s/%d", server.name, mode.name, inFlight), func(b *testing.B) {
					benchRecords(b, bustest.New(b, server.options...), mode.mode, inFlight)
				})
			}
		}
	}
}

func benchRecords(b *testing.B, s *bustest.Server, mode bus.CommitMode, inFlight int) {
	b.Helper()
	w, stop := s.Bus(b).Records("FLEET_TASKS", mode)
	defer stop()
	data := make([]byte, 512)
	var n atomic.Uint64
	b.SetParallelism((inFlight + 1) / 2) // times GOMAXPROCS 2
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := strconv.FormatUint(n.Add(1), 10)
			if _, err := w.Write(b.Context(), bus.Record{Subject: "fleet.task." + id, WriteID: id, Data: data}); err != nil {
				b.Errorf("Write: %v", err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}

// BenchmarkTail reads what is stored: client and server on the same cores.
func BenchmarkTail(b *testing.B) {
	bs := bustest.New(b).Bus(b)
	w, stop := bs.Records("FLEET_TASKS", bus.CommitDirect)
	defer stop()
	const stored = 50_000
	data := make([]byte, 512)
	var n atomic.Uint64
	var writers sync.WaitGroup
	for range 256 {
		writers.Go(func() {
			for id := n.Add(1); id <= stored; id = n.Add(1) {
				name := strconv.FormatUint(id, 10)
				if _, err := w.Write(b.Context(), bus.Record{Subject: "fleet.task." + name, WriteID: name, Data: data}); err != nil {
					b.Errorf("Write: %v", err)
				}
			}
		})
	}
	writers.Wait()
	read := 0
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		err := bs.Tail(ctx, bus.Tail{
			Stream: "FLEET_TASKS", Handle: func(bus.Msg) { read++ }, CaughtUp: func(uint64) { cancel() },
		})
		if err != nil {
			b.Errorf("Tail: %v", err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(read), "ns/msg")
}
