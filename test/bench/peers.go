package main

import (
	"context"
	"fmt"
)

// Roles and profiles of test/peers.
const (
	roleAsynq      = "asynq"
	roleRiver      = "river"
	roleRiverBatch = "river-batch"
	roleTemporal   = "temporal"

	always = "always" // Redis: appendfsync always; PostgreSQL: synchronous_commit on
	lazy   = "lazy"   // everysec; off
)

// temporalTasks is what Temporal is given of the work: its pace does not change
// with more of it, and all of it would take a quarter of an hour.
const temporalTasks = 1000

// contest is Parley and its peers with stores that sync alike.
type contest struct {
	name   string
	fleet  string // profile
	peers  string // profile
	beside map[string]float64
}

// peers has the same work done by other queues, in turn with Parley.
func peers(ctx context.Context, o options, p *page) error {
	for _, c := range []contest{
		{"synced before it is acknowledged", r1Sync, always, map[string]float64{roleAsynq: 3.5, roleRiver: 3, roleRiverBatch: 1.2}},
		{"synced later", r1Lazy, lazy, map[string]float64{roleAsynq: 1.4, roleRiver: 3, roleRiverBatch: 1.2}},
	} {
		p.section("Beside other queues, " + c.name + ": first dispatch → last result stored, tasks/s")
		if err := o.race(ctx, p, c, 0); err != nil {
			return err
		}
		if err := o.raceLatency(ctx, p, c); err != nil {
			return err
		}
	}
	p.section(fmt.Sprintf("The same with %s tasks queued that nobody does, synced later", thousands(float64(o.queued))))
	return o.race(ctx, p, contest{"waiting", r1Lazy, lazy, nil}, o.queued)
}

// entrants are the floor, Parley and the peers of c.
func (o options) entrants(c contest, waiting int) []*series {
	all := []*series{{name: "Parley", spec: o.spec(roleFleet, c.fleet)}}
	if waiting == 0 {
		all = append(all, &series{name: "lean floor", spec: o.spec(roleLean, c.fleet)})
	}
	for _, q := range []struct{ role, name string }{
		{roleAsynq, "asynq on Redis"}, {roleRiver, "River on PostgreSQL, one by one"}, {roleRiverBatch, "River on PostgreSQL, 500 at a time"},
	} {
		s := o.spec(q.role, c.peers)
		s.Program = o.peers
		all = append(all, &series{name: q.name, spec: s})
	}
	if o.temporal != "" && waiting == 0 {
		s := o.spec(roleTemporal, c.peers)
		s.Program, s.Store, s.Tasks = o.peers, o.temporal, min(s.Tasks, temporalTasks)
		all = append(all, &series{name: "Temporal's dev server on SQLite", spec: s})
	}
	for _, s := range all {
		s.spec.Waiting = waiting
	}
	return all
}

func (o options) race(ctx context.Context, p *page, c contest, waiting int) error {
	all := o.entrants(c, waiting)
	if err := takeTurns(ctx, p, o.rounds, all); err != nil {
		return err
	}
	parley := all[0].rate.median()
	var rows [][]string
	for _, s := range all {
		ratio := parley / s.rate.median()
		row := []string{s.name, s.rate.String(), fmt.Sprintf("%.2f×", ratio), thousands(s.cpu.median())}
		if waiting > 0 {
			row = append(row, s.prefill.String())
		}
		rows = append(rows, row)
		if want := c.beside[s.spec.Role]; want > 0 {
			p.target(c.name+": Parley beside "+s.name, fmt.Sprintf("%.2f×", ratio), fmt.Sprintf("≥ %.1f×", want), ratio >= want)
		}
	}
	head := []string{"", "tasks/s", "Parley does", "CPU µs/task"}
	if waiting > 0 {
		head = append(head, "queued/s before")
	}
	p.table(head, rows)
	return nil
}

// raceLatency is dispatch to the begin of the work, at a pace.
func (o options) raceLatency(ctx context.Context, p *page, c contest) error {
	const rate = 100
	seconds := 20
	if o.quick {
		seconds = 3
	}
	p.note("Dispatch sent → the worker begins, %d/s for %d s, ms:\n", rate, seconds)
	var rows [][]string
	for _, s := range o.entrants(c, 0) {
		if s.spec.Role == roleRiverBatch || s.spec.Role == roleTemporal { // the one is no other, the other cannot keep that pace
			continue
		}
		s.spec.Rate, s.spec.Tasks = rate, rate*seconds
		r, err := run(ctx, s.spec)
		if err != nil {
			return err
		}
		p.say("%s, %s: p50 %s, p99 %s ms", s.name, c.name, ms(r.P50), ms(r.P99))
		rows = append(rows, []string{s.name, ms(r.P50), ms(r.P99), ms(r.Max)})
		p.record("peer-latency", map[string]any{"variant": s.name, "profile": s.spec.Profile, "p50_ms": r.P50, "p99_ms": r.P99, "max_ms": r.Max})
	}
	p.table([]string{"", "p50", "p99", "most"}, rows)
	return nil
}
