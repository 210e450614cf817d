package agent_test

import (
	"strconv"
	"sync"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// BenchmarkEcho is one task from offer to answered result, 256 at once.
func BenchmarkEcho(b *testing.B) {
	s := bustest.New(b)
	routers, own := s.Bus(b), s.Connect(b)
	const parallel = 256
	free := make(chan struct{}, parallel)
	ok := fleet.MustEncode(fleet.ResultReply{OK: true})
	if _, err := routers.Subscribe(subjects.ResultPattern, "", func(m bus.Msg) {
		if err := m.Respond(ok, nil); err != nil {
			b.Error(err)
		}
		free <- struct{}{}
	}); err != nil {
		b.Fatal(err)
	}
	ready := make(chan struct{}, 1000)
	if _, err := routers.Subscribe(subjects.HeartbeatPattern, "", func(bus.Msg) { ready <- struct{}{} }); err != nil {
		b.Fatal(err)
	}
	if err := routers.Ping(b.Context()); err != nil {
		b.Fatal(err)
	}
	w, err := agent.New(agent.Config{ID: "bob", Bus: own, Handler: agent.Echo{}, MaxParallel: 2 * parallel})
	if err != nil {
		b.Fatal(err)
	}
	bustest.Run(b, w.Run)
	<-ready
	for range parallel {
		free <- struct{}{}
	}
	subject := subjects.Offer("bob", w.Instance())
	b.ReportAllocs()
	n := 0
	var asking sync.WaitGroup
	for b.Loop() {
		<-free
		n++
		d := fleet.MustEncode(dispatch(subjects.TaskID("t"+strconv.Itoa(n)), "say this"))
		asking.Go(func() {
			if _, err := routers.Request(b.Context(), subject, d, nil); err != nil {
				b.Error(err)
			}
		})
	}
	asking.Wait()
	for range parallel {
		<-free
	}
}
