package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick, json bool
	only        string
	profiles    string
	commit      string
	tasks       int
	rounds      int
	inFlight    int
	routers     int
	agents      int
	announced   int
	queued      int
	base        string
	cpu         string
	allocs      string
	mutex       string
	peers       string
	temporal    string
}

// parts of the page, in order; -only picks some.
var parts = []struct {
	name string
	run  func(context.Context, options, *page) error
}{
	{"throughput", throughput},
	{"writes", writes},
	{"latency", latency},
	{"runs", runsPart},
	{"storm", storm},
	{"match", match},
	{"a2a", a2aPart},
	{"waiting", waiting},
	{"crowd", crowd},
	{"memory", memory},
	{"peers", peers},
}

func bench(ctx context.Context, args []string, out, errs io.Writer) error {
	if len(args) == 2 && args[0] == "-child" {
		return beChild(ctx, args[1], os.Stdin, out)
	}
	o, err := parse(args, errs)
	if err != nil {
		return err
	}
	p := newPage(out, errs, o.json)
	p.machine(o)
	for _, part := range parts {
		if o.peers == "" && part.name == "peers" || o.only != "" && !slices.Contains(strings.Split(o.only, ","), part.name) {
			continue
		}
		if err := part.run(ctx, o, p); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	p.verdicts()
	return nil
}

func parse(args []string, errs io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errs)
	f.BoolVar(&o.quick, "quick", false, "a tenth of the work, one round: to see that it works")
	f.BoolVar(&o.json, "json", false, "JSON lines in place of the page")
	f.StringVar(&o.only, "only", "", "parts, comma separated: "+partNames())
	f.StringVar(&o.profiles, "profiles", strings.Join([]string{r1Lazy, r1Sync, r3Sync}, ","), "servers, comma separated")
	f.StringVar(&o.commit, "commit", "auto", "how routers write records: auto, direct, grouped")
	f.IntVar(&o.tasks, "tasks", 0, "tasks of a throughput run (20 000)")
	f.IntVar(&o.rounds, "rounds", 0, "times that floor and fleet take turns (3)")
	f.IntVar(&o.inFlight, "in-flight", 256, "dispatches not yet acknowledged, and tasks worked on, at most")
	f.IntVar(&o.routers, "routers", 1, "routers that share the work")
	f.IntVar(&o.agents, "agents", 1, "agents that share in-flight")
	f.IntVar(&o.announced, "announced", 0, "memory: agents announced (10 000)")
	f.IntVar(&o.queued, "queued", 0, "memory, crowd, peers: tasks queued (1 000 000)")
	f.StringVar(&o.peers, "peers", "", "program of test/peers; without it the part peers is left out")
	f.StringVar(&o.temporal, "temporal", "", "Temporal's command line; without it that peer is left out")
	f.StringVar(&o.base, "dir", "", "where temporary data goes (the system's place for it)")
	f.StringVar(&o.cpu, "cpuprofile", "", "write a CPU profile of the last throughput run of Parley")
	f.StringVar(&o.allocs, "allocprofile", "", "write an allocation profile of it")
	f.StringVar(&o.mutex, "mutexprofile", "", "write a lock contention profile of it")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	scale := func(n *int, full, quick int) {
		if *n == 0 && o.quick {
			*n = quick
		} else if *n == 0 {
			*n = full
		}
	}
	scale(&o.tasks, 20_000, 4_000)
	scale(&o.rounds, 3, 1)
	scale(&o.announced, 10_000, 1_000)
	scale(&o.queued, 1_000_000, 20_000)
	if _, ok := commits[o.commit]; !ok {
		return o, fmt.Errorf("-commit %s is not auto, direct or grouped", o.commit)
	}
	return o, nil
}

func partNames() string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}

// spec is the throughput run of role on profile.
func (o options) spec(role, profile string) spec {
	commit := o.commit
	if role == roleLean {
		commit = "direct"
	}
	return spec{
		Role: role, Profile: profile, Commit: commit, Tasks: o.tasks, InFlight: o.inFlight,
		Routers: o.routers, Agents: o.agents, Classes: 1, Base: o.base, Tuned: role != roleLean,
	}
}
