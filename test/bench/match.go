package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

// match times the choice of an agent in fleets of three sizes, half of whose
// slots are taken, while tasks begin and end.
func match(_ context.Context, o options, p *page) error {
	p.section("Matching: one choice, µs")
	n := 20_000
	if o.quick {
		n = 2_000
	}
	var rows [][]string
	for _, size := range []int{10, 1_000, 10_000} {
		took, found := choose(size, n)
		slices.Sort(took)
		var sum time.Duration
		for _, d := range took {
			sum += d
		}
		us := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e3) }
		mean, p99 := sum/time.Duration(len(took)), took[len(took)*99/100]
		rows = append(rows, []string{thousands(float64(size)) + " agents", us(mean), us(took[len(took)/2]), us(p99), percent(found)})
		p.record("match", map[string]any{"agents": size, "mean_us": float64(mean) / 1e3, "p99_us": float64(p99) / 1e3, "found": found})
		if size == 10_000 {
			p.target("matching, 10 000 agents, mean", us(mean)+" µs", "≤ 50 µs", mean <= 50*time.Microsecond)
		}
	}
	p.table([]string{"", "mean", "p50", "p99", "found one"}, rows)
	return nil
}

// choose fills a fleet of size agents by half and then times n choices; found
// is how many of all choices had an agent to choose.
func choose(size, n int) (took []time.Duration, found float64) {
	f := router.NewFleet()
	now := time.Now().UTC()
	tiers, servers := []string{"haiku", "sonnet", "opus"}, []string{"git", "jira", "slack", "db"}
	for i := range size {
		f.Announce(&fleet.Announce{
			Header:       fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version},
			Worker:       fleet.Worker{AgentID: subjects.AgentID(fmt.Sprintf("a%d", i)), ModelTier: tiers[i%3], MaxParallel: 2, Labels: map[string]string{"site": strconv.Itoa(i % 5)}},
			Capabilities: fleet.Capabilities{Tools: []string{"terminal"}, MCPServers: []string{servers[i%4], servers[(i+1)%4]}},
			MCPHealth:    fleet.MCPHealth{servers[i%4]: fleet.HealthOK, servers[(i+1)%4]: fleet.HealthOK},
		}, now, now)
	}
	var classes []*router.Class
	for i := range 12 {
		need := router.Need{Requirements: fleet.Requirements{RequiredMCP: servers[i%4 : i%4+1], ModelTier: tiers[i%3]}}
		if i%2 == 0 {
			need.Requirements.Labels = map[string]string{"site": strconv.Itoa(i % 5)}
		}
		classes = append(classes, f.Compile(need))
	}
	type running struct {
		in *router.Instance
		id subjects.TaskID
	}
	var busy []running
	took = make([]time.Duration, 0, n)
	for i := range size + n {
		now = now.Add(time.Microsecond)
		id := subjects.TaskID(fmt.Sprintf("t%d", i))
		start := time.Now()
		in, ok := f.Choose(classes[i%len(classes)], router.Want{Task: id}, now)
		if i >= size {
			took = append(took, time.Since(start))
		}
		if ok {
			found++
			f.Hold(in.Agent, in.ID, id, 1)
			busy = append(busy, running{in, id})
		}
		if len(busy) > size {
			first := busy[0]
			busy = busy[1:]
			f.Release(first.in.Agent, first.in.ID, first.id, now)
		}
	}
	return took, found / float64(size+n)
}
