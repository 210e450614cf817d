package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// series is what one variant measured over the rounds.
type series struct {
	name string
	spec spec

	rate, cpu, writes, msgs, prefill spread
}

// takeTurns measures all variants, one after the other, round after round.
func takeTurns(ctx context.Context, p *page, rounds int, all []*series) error {
	for round := range rounds {
		for _, s := range all {
			r, err := run(ctx, s.spec)
			if err != nil {
				return err
			}
			s.rate = append(s.rate, r.perSecond())
			s.cpu = append(s.cpu, r.cpuPerTask())
			s.writes = append(s.writes, r.Writes)
			s.msgs = append(s.msgs, r.MsgsIn)
			s.prefill = append(s.prefill, r.Prefill)
			p.say("%s %s, round %d: %.0f tasks/s, %.0f µs CPU per task", s.spec.Profile, s.name, round+1, r.perSecond(), r.cpuPerTask())
			p.record("run", map[string]any{
				"variant": s.name, "profile": s.spec.Profile, "round": round + 1, "tasks_per_second": r.perSecond(),
				"cpu_us_per_task": r.cpuPerTask(), "writes_per_task": r.Writes,
				"msgs_per_task": r.MsgsIn, "bytes_per_task": r.BytesIn, "rss": r.RSS, "outcomes_read_again": r.Checked,
			})
		}
	}
	return nil
}

// throughput is first dispatch to last outcome, floor and fleet in turns.
func throughput(ctx context.Context, o options, p *page) error {
	p.section("Throughput: first dispatch → last outcome, tasks/s, median [least–most]")
	var rows [][]string
	for profile := range strings.SplitSeq(o.profiles, ",") {
		floor := &series{name: "lean floor", spec: o.spec(roleLean, profile)}
		fleet := &series{name: "Parley", spec: o.spec(roleFleet, profile)}
		fleet.spec.CPU, fleet.spec.Allocs, fleet.spec.Mutex = o.cpu, o.allocs, o.mutex
		tuned := &series{name: "lean floor, Parley's pace of collection", spec: o.spec(roleLean, profile)}
		tuned.spec.Tuned = true
		all := []*series{floor, fleet, tuned}
		groups := &series{name: "lean floor, in groups", spec: o.spec(roleLean, profile)}
		groups.spec.Commit = "grouped"
		if profile == r1Sync {
			all = append(all, groups)
		}
		if profile == r1Sync && o.commit == "auto" {
			direct := &series{name: "Parley, commit direct", spec: o.spec(roleFleet, profile)}
			direct.spec.Commit = "direct"
			all = append(all, direct)
		}
		if err := takeTurns(ctx, p, o.rounds, all); err != nil {
			return err
		}
		for _, s := range all {
			ratio := s.rate.median() / floor.rate.median()
			rows = append(rows, []string{
				profile + " " + s.name, s.rate.String(), percent(ratio), thousands(s.cpu.median()),
				percent(s.cpu.median() / floor.cpu.median()), fmt.Sprintf("%.2f", s.writes.median()), fmt.Sprintf("%.1f", s.msgs.median()),
			})
		}
		ratio := fleet.rate.median() / floor.rate.median()
		switch rate := fleet.rate.median(); profile {
		case r1Lazy:
			p.target(profile+": throughput of the floor's", percent(ratio), "≥ 70 %", ratio >= .7)
		case r1Sync:
			inGroups := rate / groups.rate.median()
			p.target(profile+": throughput of the floor's in groups", percent(inGroups), "≥ 70 %", inGroups >= .7)
		case r3Sync:
			p.target(profile+": tasks/s", thousands(rate), "≥ 5 000", rate >= 5000)
		}
		p.target(profile+": durable writes per task", fmt.Sprintf("%.2f", fleet.writes.median()), "≤ 3", fleet.writes.median() <= 3.01)
		p.record("throughput", map[string]any{
			"profile": profile, "floor": floor.rate.median(), "parley": fleet.rate.median(), "ratio": ratio, "cpu_ratio": fleet.cpu.median() / floor.cpu.median(),
		})
	}
	p.table([]string{"", "tasks/s", "of floor", "CPU µs/task", "of floor", "writes/task", "msgs/task"}, rows)
	return nil
}

// latency is the call of dispatch to the arrival of the offer at the agent.
func latency(ctx context.Context, o options, p *page) error {
	const rate = 100
	seconds := 20
	if o.quick {
		seconds = 5
	}
	p.section(fmt.Sprintf("Latency: dispatch sent → offer at the agent, %d/s for %d s, ms", rate, seconds))
	var rows [][]string
	for profile := range strings.SplitSeq(o.profiles, ",") {
		for _, role := range []string{roleLean, roleFleet} {
			s := o.spec(role, profile)
			s.Rate, s.Tasks = rate, rate*seconds
			r, err := run(ctx, s)
			if err != nil {
				return err
			}
			name := "lean floor"
			if role == roleFleet {
				name = "Parley"
				p.target(profile+": offer p50", ms(r.P50)+" ms", "≤ 1 ms", r.P50 <= 1)
				p.target(profile+": offer p99", ms(r.P99)+" ms", "≤ 2 ms", r.P99 <= 2)
			}
			p.say("%s %s: p50 %s, p99 %s ms", profile, name, ms(r.P50), ms(r.P99))
			rows = append(rows, []string{profile + " " + name, ms(r.P50), ms(r.P99), ms(r.Max)})
			p.record("latency", map[string]any{"profile": profile, "variant": name, "p50_ms": r.P50, "p99_ms": r.P99, "max_ms": r.Max})
		}
	}
	p.table([]string{"", "p50", "p99", "most"}, rows)
	return nil
}

// writes counts what reaches the disk per task.
func writes(ctx context.Context, o options, p *page) error {
	p.section("Durable writes and fsyncs per task")
	_, err := exec.LookPath("strace")
	traced := err == nil
	var rows [][]string
	for profile := range strings.SplitSeq(o.profiles, ",") {
		for _, role := range []string{roleLean, roleFleet} {
			s := o.spec(role, profile)
			s.Tasks = min(s.Tasks, 10_000)
			r, err := countSyncs(ctx, s, traced)
			if err != nil {
				return err
			}
			name, syncs := "lean floor", "not measured"
			if role == roleFleet {
				name = "Parley"
			}
			if traced {
				syncs = fmt.Sprintf("%.3f", r.Fsyncs)
			}
			p.say("%s %s: %.2f writes, %s fsyncs per task", profile, name, r.Writes, syncs)
			rows = append(rows, []string{profile + " " + name, fmt.Sprintf("%.2f", r.Writes), syncs})
			p.record("writes", map[string]any{"profile": profile, "variant": name, "writes_per_task": r.Writes, "fsyncs_per_task": r.Fsyncs})
		}
	}
	p.table([]string{"", "durable writes", "fsyncs"}, rows)
	if !traced {
		p.note("fsyncs are not measured: there is no strace on this machine.")
	}
	return nil
}

// countSyncs runs s under strace. It slows each fsync down a little, so that
// groups are a bit larger than without it.
func countSyncs(ctx context.Context, s spec, traced bool) (result, error) {
	if !traced {
		s.Markers = false
		r, err := run(ctx, s)
		r.Fsyncs = -1
		return r, err
	}
	f, err := os.CreateTemp("", "parley-strace-")
	if err != nil {
		return result{}, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	s.Markers = true
	r, err := run(ctx, s, "strace", "-f", "--seccomp-bpf", "-qq", "-e", "signal=none",
		"-e", "trace=fsync,fdatasync,openat", "-o", f.Name())
	if err != nil {
		return result{}, err
	}
	n, counting := 0, false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.Contains(line, `"/parley-bench-begin"`):
			counting = true
		case strings.Contains(line, `"/parley-bench-end"`):
			counting = false
		case counting && isSync(line):
			n++
		}
	}
	r.Fsyncs = float64(n) / float64(r.Tasks)
	return r, lines.Err()
}

// isSync reports whether a line of strace is a call that waits for the disk: a
// sync, or the opening of a file every write to which is one.
func isSync(line string) bool {
	_, call, _ := strings.Cut(strings.TrimSpace(line), " ")
	call = strings.TrimLeft(call, " ")
	return strings.HasPrefix(call, "fsync(") || strings.HasPrefix(call, "fdatasync(") ||
		strings.HasPrefix(call, "openat(") && strings.Contains(call, "O_SYNC")
}

// waiting compares a fleet with and without many tasks that nobody can do.
func waiting(ctx context.Context, o options, p *page) error {
	n := 100_000
	if o.quick {
		n = 10_000
	}
	p.section(fmt.Sprintf("%s tasks of classes that nobody can serve, on %s", thousands(float64(n)), r1Lazy))
	free := &series{name: "nothing waits", spec: o.spec(roleFleet, r1Lazy)}
	one := &series{name: "one class waits", spec: o.spec(roleFleet, r1Lazy)}
	one.spec.Waiting = n
	many := &series{name: "1 000 classes wait", spec: o.spec(roleFleet, r1Lazy)}
	many.spec.Waiting, many.spec.Classes = n, 1000
	return compare(ctx, o, p, .9, free, one, many)
}

// crowd is what many agents and tasks that wait cost the others. The agents have
// a process of their own: their stacks are not the router's to collect.
func crowd(ctx context.Context, o options, p *page) error {
	agents, tasks := 10_000, o.queued
	if o.quick {
		agents = 1_000
	}
	p.section(fmt.Sprintf("%s agents, and %s tasks that nobody can do, on %s", thousands(float64(agents)), thousands(float64(tasks)), r1Lazy))
	few := &series{name: "10 agents, nothing waits", spec: o.spec(roleFleet, r1Lazy)}
	few.spec.Agents, few.spec.Apart = 10, true
	many := &series{name: thousands(float64(agents)) + " agents, nothing waits", spec: o.spec(roleFleet, r1Lazy)}
	many.spec.Agents, many.spec.Apart = agents, true
	full := &series{name: thousands(float64(agents)) + " agents, " + thousands(float64(tasks)) + " tasks wait", spec: o.spec(roleFleet, r1Lazy)}
	full.spec.Agents, full.spec.Apart, full.spec.Waiting = agents, true, tasks
	return compare(ctx, o, p, .8, few, many, full)
}

// compare runs series in turns, and holds the others against the first: they
// are to reach least of its throughput.
func compare(ctx context.Context, o options, p *page, least float64, free *series, others ...*series) error {
	all := append([]*series{free}, others...)
	if err := takeTurns(ctx, p, o.rounds, all); err != nil {
		return err
	}
	var rows [][]string
	for _, s := range all {
		ratio := s.rate.median() / free.rate.median()
		rows = append(rows, []string{
			s.name, s.rate.String(), percent(ratio), thousands(s.cpu.median()), percent(s.cpu.median() / free.cpu.median()), thousands(s.prefill.median()),
		})
		p.record("beside", map[string]any{"variant": s.name, "tasks_per_second": s.rate.median(), "ratio": ratio, "cpu_us_per_task": s.cpu.median()})
		if s != free {
			p.target(s.name+": of the pace", percent(ratio), "≥ "+percent(least), ratio >= least)
		}
	}
	p.table([]string{"", "tasks/s", "of the first", "CPU µs/task", "of the first", "filled at /s"}, rows)
	return nil
}
