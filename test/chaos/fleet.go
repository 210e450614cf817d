//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/test/rig"
)

// fleet is everything that runs beside the servers.
type fleet struct {
	w       *world
	c       *cluster
	hook    string // where people are called
	workers []*process
	casts   []*process // processes of agents
	pools   []*process // of those to which something happens all the time, see poolCasts
	pages   map[string]string
	before  map[string]int // goroutines before there was anything to do, by worker
	links   []string       // addresses of the gateways
	agents  []rig.Actor
}

// fleetConfig is how the workers are started.
type fleetConfig struct {
	parley, self string // programs
	hook         string // where people are called
	plant        string // of a planted bug
	lose         string // PARLEY_LOSE_ACKS
}

const (
	castsInAll    = 4
	agentsPerCast = 6
	slotsPerAgent = 4
)

// How people are called.
const (
	groupInterval = 3 * time.Second // between calls because an alert has grown
	callNext      = 2 * time.Second // the next contact, unless somebody answers
	alertRepeat   = 4 * time.Second // all of them again
	ackTimeout    = 15 * time.Second
)

// crews are the worker processes: name, place, and what works in it. Telemetry,
// so that each has a page of metrics.
var crews = []struct{ name, place, workers string }{
	{"router-1", zoneA, "router,telemetry"},
	{"router-2", zoneB, "router,telemetry"},
	{"router-3", zoneA, "router,telemetry"},
	{"desk-1", zoneA, "registry,sessions,audit,mesh,telemetry"},
	{"desk-2", zoneB, "registry,sessions,audit,mesh,telemetry"},
	{"door-1", zoneA, "runs,schedules,webhooks,escalation,gateway,a2e,telemetry"},
	{"door-2", zoneB, "runs,schedules,webhooks,escalation,gateway,a2e,telemetry"},
}

func newFleet(w *world, c *cluster, fc fleetConfig) (*fleet, error) {
	f := &fleet{w: w, c: c, hook: fc.hook, pages: map[string]string{}, before: map[string]int{}}
	if err := f.writeHooks(0); err != nil {
		return nil, err
	}
	for i, crew := range crews {
		port := 7411 + i
		if !w.nets {
			var err error
			if port, err = freePort(); err != nil {
				return nil, err
			}
		}
		page := w.ip(crew.place) + ":" + strconv.Itoa(port)
		f.pages[crew.name] = "http://" + page
		if i >= 5 {
			f.links = append(f.links, "http://"+page)
		}
		f.workers = append(f.workers, &process{
			name: crew.name, place: crew.place, dir: w.dir,
			args: []string{
				fc.parley, "serve", "--workers", crew.workers, "--server", c.urls(i), "--http", page, "--replicas", "3",
				"--max-store", "6GiB", "--keep-ended", "10000000", "--log-format", "json", "--log-level", "info", "--timeout", "30s", "--sync", "always",
			},
			env: []string{
				"PARLEY_ALERT_CONTACTS=" + strings.Join(contacts, ","), "PARLEY_GROUP_WAIT=100ms", "PARLEY_GROUP_INTERVAL=" + groupInterval.String(),
				"PARLEY_ALERT_NEXT=" + callNext.String(), "PARLEY_ALERT_REPEAT=" + alertRepeat.String(), "PARLEY_ACK_TIMEOUT=" + ackTimeout.String(),
				"PARLEY_CHANGE_LOG=off", "PARLEY_WEBHOOKS_FILE=" + hooksFile(w.dir), "PARLEY_WEBHOOK_ALLOW=" + w.here(),
				"PARLEY_WEBHOOK_BASE=200ms", "PARLEY_WEBHOOK_TIMEOUT=2s", "PARLEY_A2A_OPEN=true", "PARLEY_MESH_PAIR_RATE=100000",
				"PARLEY_MESH_AGENT_RATE=1000000", "PARLEY_GRACE=5s", "PARLEY_PLANT=" + fc.plant, "PARLEY_LOSE_ACKS=" + fc.lose,
			},
		})
	}
	for i := range castsInAll {
		if err := f.cast(i, fc.self); err != nil {
			return nil, err
		}
	}
	return f, f.writePools(fc.self)
}

// cast makes a process of agents.
func (f *fleet) cast(i int, self string) error {
	name := fmt.Sprintf("cast-%d", i)
	c := rig.Cast{URL: f.c.urls(i), Fsync: true, Heartbeat: 500 * time.Millisecond, Try: 2 * time.Second}
	for k := range agentsPerCast {
		a := rig.Actor{ID: fmt.Sprintf("agent-%d-%d", i, k), MaxParallel: slotsPerAgent, Labels: map[string]string{"kind": []string{"even", "odd"}[k%2]}}
		if k%2 == 0 { // comes back as the same instance, and keeps its results
			a.Instance, a.Spool = "main", filepath.Join(f.w.dir, "spool", a.ID)
		}
		if k < 2 { // the two that alone may have certain tasks
			a.Labels["duo"] = strconv.Itoa(i)
		}
		c.Agents = append(c.Agents, a)
	}
	f.agents = append(f.agents, c.Agents...)
	p, err := f.agentProcess(name, self, c)
	f.casts = append(f.casts, p)
	return err
}

// agentProcess is a process of agents.
func (f *fleet) agentProcess(name, self string, c rig.Cast) (*process, error) {
	c.Journal = filepath.Join(f.w.dir, name+".journal")
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(f.w.dir, name+".json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	return &process{name: name, place: zoneOut, dir: f.w.dir, args: []string{self}, env: []string{rig.AgentsEnv + "=" + path}}, nil
}

// all are the processes beside the servers.
func (f *fleet) all() []*process { return slices.Concat(f.workers, f.casts, f.pools) }

// start starts everybody, and waits until all workers serve.
func (f *fleet) start(ctx context.Context) error {
	for _, p := range f.all() {
		if err := p.start(f.w); err != nil {
			return err
		}
	}
	if err := f.awaitReady(ctx, 2*time.Minute); err != nil {
		return err
	}
	for name, page := range f.pages {
		n, err := goroutines(ctx, page)
		if err != nil {
			return err
		}
		f.before[name] = n
	}
	return nil
}

// awaitReady waits until every worker says that it serves.
func (f *fleet) awaitReady(ctx context.Context, within time.Duration) error {
	ctx, cancel := f.w.machine.patient(ctx, within)
	defer cancel()
	for name, page := range f.pages {
		for {
			err := well(ctx, page+"/readyz")
			if err == nil {
				break
			}
			if pause(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("%s does not serve within %s: %w", name, within, err)
			}
		}
	}
	return nil
}
