package mesh_test

import (
	"runtime"
	"strconv"
	"sync"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	wire "parley/subjects/mesh"
	"parley/workers/mesh"
)

// BenchmarkDeliver is one worker's pace: messages to 10 000 agents that live,
// from the acknowledgement of JetStream until each is processed. heap/agent is
// what an agent with its one message costs the worker.
func BenchmarkDeliver(b *testing.B) {
	const agents = 10_000
	s := bustest.New(b)
	c := s.Bus(b)
	done := func(m bus.Msg) { _ = m.Respond(fleet.MustEncode(&wire.Delivery{OK: true, Done: true}), nil) }
	if _, err := c.Subscribe(subjects.InboxPattern, "", done); err != nil {
		b.Fatal(err)
	}
	many(b, agents, func(i int) error {
		id := agentID(i)
		a := fleet.Announce{Worker: fleet.Worker{AgentID: id, Epoch: 1, MaxMessages: 4}, HeartbeatSeconds: new(0.0), TTLSeconds: 3600}
		_, err := c.Store(b.Context(), subjects.Announce(id, "main"), fleet.MustEncode(&a), "", nil)
		return err
	})
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := mesh.New(mesh.Config{Bus: s.Connect(b), Limits: mesh.Limits{AgentPerMinute: 1 << 30, PairPerMinute: 1 << 30}})
	if err != nil {
		b.Fatal(err)
	}
	bustest.Serve(b, w)
	processed := make(chan struct{}, 1<<20)
	if _, err := c.Subscribe(subjects.MeshAckPattern, "", func(m bus.Msg) {
		if a, err := wire.DecodeAck(m.Data); err == nil && a.State == wire.Processed {
			processed <- struct{}{}
		}
	}); err != nil {
		b.Fatal(err)
	}
	sent := 0
	for b.Loop() {
		many(b, agents, func(i int) error {
			m := wire.Message{MessageID: wire.MessageID(strconv.Itoa(sent + i)), Text: "hello", Reply: wire.No}
			_, err := c.Store(b.Context(), subjects.Mesh(agentID(i), "ann"), fleet.MustEncode(&m), "", nil)
			return err
		})
		for range agents {
			<-processed
		}
		sent += agents
	}
	b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "messages/s")
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(agents), "heap-B/agent")
}

func agentID(i int) subjects.AgentID { return subjects.AgentID("agent" + strconv.Itoa(i)) }

// many calls f for 0 to n-1, 64 at a time.
func many(b *testing.B, n int, f func(i int) error) {
	b.Helper()
	var wg sync.WaitGroup
	for k := range 64 {
		wg.Go(func() {
			for i := k; i < n; i += 64 {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
