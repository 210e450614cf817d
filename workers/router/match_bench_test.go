package router

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"parley/subjects/fleet"
)

// benchAnnounce is a typical announce, decoded as the router gets it.
func benchAnnounce(tb testing.TB, i int) *fleet.Announce {
	tb.Helper()
	data := fmt.Sprintf(`{"type":"SESSION_ANNOUNCE","protocol_version":"2.0",
"worker":{"agent_id":"agent-%05d","model":"claude-sonnet-4-20250514","model_tier":"sonnet","context_window":200000,
"instance_id":"%016x","epoch":%d,"max_parallel":4,"labels":{"host":"host-%05d","os":"linux"}},
"capabilities":{"tools":["browser","terminal","file","patch","search","review"],"mcp_servers":["context_mode","claude_mem","trek"]},
"mcp_health":{"context_mode":"ok","claude_mem":"ok","trek":"timeout"},
"session":{"context_id":"","active_tasks":0,"repo_state":{"branch":"main","clean":true},"session_fresh":true}}`, i, i, i, i)
	a, err := fleet.DecodeAnnounce([]byte(data))
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func benchFleet(tb testing.TB, n int) *Fleet {
	tb.Helper()
	f := NewFleet()
	for i := range n {
		// Idle since different times, in no order.
		f.Announce(benchAnnounce(tb, i), now0.Add(-time.Duration(i*7919%n)*time.Microsecond), now0)
	}
	return f
}

var benchNeed = Need{Requirements: fleet.Requirements{
	RequiredMCP: []string{"context_mode"}, RequiredCapabilities: []string{"terminal", "file"}, ModelTier: "haiku", CleanRepo: true,
	Labels: map[string]string{"os": "linux"},
}}

var benchSizes = []int{10, 1_000, 10_000}

func BenchmarkChoose(b *testing.B) {
	for _, n := range benchSizes {
		f := benchFleet(b, n)
		c := f.Compile(benchNeed)
		for _, state := range []string{"idle", "same", "loaded"} {
			switch state {
			case "same": // all idle for as long: ids decide
				for in := range f.All() {
					in.IdleSince = now0
					f.refresh(in)
				}
			case "loaded": // one of four slots taken
				for in := range f.All() {
					f.Hold(in.Agent, in.ID, "t", 1)
				}
			}
			b.Run(fmt.Sprintf("%s/agents=%d", state, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, ok := f.Choose(c, Want{Session: "s", Task: "x"}, now0); !ok {
						b.Fatal("nobody")
					}
				}
			})
		}
	}
}

// BenchmarkTask is all that one task asks of the fleet: compile, choose, offer,
// hold, finish, release.
func BenchmarkTask(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprintf("agents=%d", n), func(b *testing.B) {
			f := benchFleet(b, n)
			keep := f.Compile(benchNeed)
			now := now0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Microsecond)
				in, ok := f.Choose(f.Compile(benchNeed), Want{Task: "t"}, now)
				if !ok {
					b.Fatal("nobody")
				}
				f.Offer(in, 1)
				f.Hold(in.Agent, in.ID, "t", 1)
				f.Offer(in, -1)
				f.Finish(in.Agent, in.ID, "t", now)
				f.Release(in.Agent, in.ID, "t", now)
			}
			runtime.KeepAlive(keep)
		})
	}
}

func BenchmarkCapable(b *testing.B) {
	for _, n := range benchSizes {
		f := benchFleet(b, n)
		for name, tool := range map[string]string{"yes": "terminal", "no": "sql"} {
			c := f.Compile(Need{Requirements: fleet.Requirements{RequiredCapabilities: []string{tool}}})
			b.Run(fmt.Sprintf("%s/agents=%d", name, n), func(b *testing.B) {
				for b.Loop() {
					f.generation++ // nothing is remembered
					f.Capable(c)
				}
			})
		}
	}
}

func BenchmarkCanNow(b *testing.B) {
	f := benchFleet(b, 10_000)
	c, in := f.Compile(benchNeed), f.order[5000]
	for b.Loop() {
		if !f.CanNow(c, in, now0) {
			b.Fatal("cannot")
		}
	}
}

func BenchmarkBeat(b *testing.B) {
	f := benchFleet(b, 10_000)
	now, i := now0, 0
	hb := &fleet.Heartbeat{}
	b.ReportAllocs()
	for b.Loop() {
		in := f.order[i%len(f.order)]
		now = now.Add(time.Millisecond) // each is heard every 10 s
		f.Beat(in.Agent, in.ID, hb, now)
		i++
	}
}

func BenchmarkAnnounce(b *testing.B) {
	f := benchFleet(b, 10_000)
	as := []*fleet.Announce{benchAnnounce(b, 5000), benchAnnounce(b, 5000)}
	as[1].MCPHealth["trek"] = fleet.HealthOK
	now, i := now0, 1
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		if _, changed := f.Announce(as[i%2], now, now); !changed {
			b.Fatal("nothing new")
		}
		i++
	}
}

func BenchmarkExplain(b *testing.B) {
	f := benchFleet(b, 10_000)
	c := f.Compile(benchNeed)
	for b.Loop() {
		f.Explain(c, now0)
	}
}

// BenchmarkMemory reports what an announced agent costs: its announce as
// decoded, and what the fleet adds.
func BenchmarkMemory(b *testing.B) {
	const n = 10_000
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for b.Loop() {
		start := heap()
		as := make([]*fleet.Announce, n)
		for i := range as {
			as[i] = benchAnnounce(b, i)
		}
		decoded := heap()
		f := NewFleet()
		for i, a := range as {
			f.Announce(a, now0.Add(-time.Duration(i)), now0)
		}
		full := heap()
		b.ReportMetric((decoded-start)/n, "announce-B/agent")
		b.ReportMetric((full-decoded)/n, "fleet-B/agent")
		runtime.KeepAlive(as)
		runtime.KeepAlive(f)
	}
}
