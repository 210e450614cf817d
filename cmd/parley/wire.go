package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
	"parley/workers/audit"
	"parley/workers/callout"
	"parley/workers/escalation"
	"parley/workers/mcp"
	"parley/workers/mesh"
	"parley/workers/registry"
	"parley/workers/router"
	"parley/workers/runs"
	"parley/workers/schedules"
	"parley/workers/sessions"
)

// workerNames lists the workers that a process can run, in the order in which
// they start; they stop in the reverse order.
func workerNames() []string {
	return []string{"callout", "registry", "sessions", "audit", "router", "mesh", "runs", "schedules", "webhooks", "escalation", "telemetry", "a2e", "gateway"}
}

// worker makes the worker called name; its pages, if it has any, go to h, and
// its figures to m.
func (a *app) worker(name string, b *bus.Bus, log *slog.Logger, h *health, m *metrics) (workers.Worker, error) {
	switch name {
	case "router":
		c := a.conf
		cfg := router.Config{
			Bus: b, Sessions: sessionContext{b}, MaxQueued: c.MaxQueued, KeepEnded: c.KeepEnded, Log: log, Version: semver(),
			Operators: a.operators(), HumanContact: len(a.contacts()) > 0,
			Policy: router.Policy{
				MaxRetries: &c.MaxRetries, MaxLosses: c.MaxLosses, OnBlocked: c.OnBlocked, Escalate: c.Escalate,
				AlertRepeat: time.Duration(c.AlertRepeat), GiveUpAfter: time.Duration(c.GiveUpAfter),
			},
		}
		w, err := router.New(cfg)
		if err != nil {
			return workers.Worker{}, err
		}
		m.add(func(f *fleet.Figures) { f.AddTasks(new(w.Figures())) })
		return wired(w, nil)
	case "escalation":
		w, err := a.newEscalation(b, log, h.address())
		if err != nil {
			return workers.Worker{}, err
		}
		h.serve(escalation.LinkPath, w.Handler())
		return wired(w, nil)
	case "sessions":
		return wired(sessions.New(sessions.Config{
			Bus: b, Operators: a.operators(), MaxOutput: int64(a.conf.MaxOutput), Version: semver(), Log: log,
		}))
	case "audit":
		return wired(audit.New(audit.Config{Bus: b, Operators: a.operators(), Version: semver(), Log: log}))
	case "callout":
		c := a.conf
		return wired(callout.New(callout.Config{
			Bus: b, Identities: a.identities, Operators: a.operators(), Issuer: c.CalloutIssuer, XKey: c.CalloutXKey,
			Account: c.CalloutAccount, TTL: time.Duration(c.CalloutTTL), Version: semver(), Log: log,
		}))
	case "registry":
		return wired(registry.New(registry.Config{Bus: b, Operators: a.operators(), Version: semver(), Log: log}))
	case "mesh":
		return wired(mesh.New(mesh.Config{
			Bus: b, Operators: a.operators(), Version: semver(), Log: log,
			Limits: mesh.Limits{MaxHops: a.conf.MeshHops, PairPerMinute: a.conf.MeshPairRate, AgentPerMinute: a.conf.MeshAgentRate},
		}))
	case "runs":
		return wired(runs.New(runs.Config{Bus: b, Operators: a.operators(), OutputDir: a.conf.RunOutput, Version: semver(), Log: log}))
	case "schedules":
		return wired(schedules.New(schedules.Config{Bus: b, Operators: a.operators(), Version: semver(), Log: log}))
	case "webhooks":
		w, err := a.newWebhooks(b, log)
		if err != nil {
			return workers.Worker{}, err
		}
		m.add(func(f *fleet.Figures) { f.AddWebhooks(new(w.Figures())) })
		return wired(w, nil)
	case "telemetry":
		return a.telemetry(b, log, h)
	case "a2e":
		return a.a2e(b, log, h)
	case "gateway":
		return a.gateway(b, log, h)
	}
	return workers.Worker{}, fmt.Errorf("there is no worker %q", name)
}

// wired is a worker as a process runs it.
func wired[W interface {
	Name() string
	Run(ctx context.Context) error
	Ready() error
}](w W, err error,
) (workers.Worker, error) {
	if err != nil {
		return workers.Worker{}, err
	}
	return workers.Worker{Name: w.Name(), Run: w.Run, Ready: w.Ready}, nil
}

// sessionContext asks whichever sessions worker there is, in this process or in
// another, for what goes with an offer.
type sessionContext struct{ bus *bus.Bus }

// Context gives a session's context and token.
func (s sessionContext) Context(ctx context.Context, id subjects.SessionID, from subjects.AgentID, after uint64) (router.SessionContext, error) {
	req := fleet.MustEncode(handshake.OfferContext{SessionID: id, From: from, AfterSeq: after})
	m, err := s.bus.Request(ctx, subjects.API(handshake.Router, "session", "offer"), req, nil)
	if err != nil {
		return router.SessionContext{}, err
	}
	r, err := fleet.DecodeReply[handshake.OfferContextReply](m.Data)
	if err != nil {
		return router.SessionContext{}, err
	}
	return router.SessionContext{Context: r.Context, Token: r.Token}, nil
}

// fleet runs the settings' workers on b, and the health pages beside them,
// until ctx ends or one of them fails; beside them runs what else is given. room is what the broker can reserve for
// streams, where that is known. ready is called once all of them serve.
func (a *app) fleet(ctx context.Context, b *bus.Bus, room int64, log *slog.Logger, ready func(health string), beside ...workers.Worker) error {
	err := b.Provision(ctx, bus.Provisioning{
		Mode: a.conf.Provision, Replicas: a.conf.Replicas, MaxBytes: int64(a.conf.MaxStore), Room: room,
		AuditMaxAge: time.Duration(a.conf.AuditKeep),
	})
	if err != nil {
		return a.notProvisioned(err, room)
	}
	a.safety = &safety{look: a.lookAround(b), log: log.With(slog.String("component", "safety"))}
	a.safety.again(ctx)
	canaryLog := log.With(slog.String("component", "canary"))
	tried := newCanary(clockTeller(b, canaryLog), b.Commits, canaryLog)
	tried.sing(ctx) // who begins knows what time it is
	h, err := a.listenHealth(a.conf.HTTP, healthChecks{connected: b.Connected, stopping: ctx.Done(), store: tried.Ready, unsafe: a.safety.Unsafe})
	if err != nil {
		return err
	}
	defer h.close()
	a.identities, err = callout.Open(ctx, b, callout.Terms{
		SealKey: a.conf.SealKey, Signed: a.conf.RequireSignatures, Strict: a.conf.RequireIdentity,
	}, log)
	if err != nil {
		return failed("%w", err)
	}
	if err = a.firstOperator(ctx); err != nil {
		return err
	}
	h.serve(levelPath, levelPage(&a.level, log))
	m := new(metrics)
	all, err := a.workers(b, log, h, m)
	if err != nil {
		return err
	}
	if a.conf.MCP {
		page, err := a.mcpPage(ctx, b, a.conf.HTTP, mcpAnonymous, log)
		if err != nil {
			return err
		}
		h.serve(mcp.Path, page)
	}
	watched := all
	if h != nil {
		h.checks.workers = all
		all = append([]workers.Worker{{Name: "http", Run: h.Run}}, all...) // http stops last
	}
	for _, w := range watched {
		tried.watch(bus.Written(w.Name)...)
	}
	all = append([]workers.Worker{{Name: "identities", Run: a.identities.Run}, {Name: "canary", Run: tried.Run}, {Name: "safety", Run: a.safety.Run}}, all...)
	if a.conf.MetricsLog {
		all = append(all, workers.Worker{Name: "metrics", Run: func(ctx context.Context) error {
			return m.log(ctx, log, time.Duration(a.conf.MetricsInterval))
		}})
	}
	all = append(append(beside, all...), workers.Worker{Name: "memory", Run: func(ctx context.Context) error {
		if a.getenv("GOGC") == "" && a.getenv("GOMEMLIMIT") == "" {
			workers.TuneMemory(ctx)
		}
		<-ctx.Done()
		return nil
	}}, workers.Worker{Name: "start", Run: func(ctx context.Context) error {
		if allReady(ctx, watched) {
			ready(h.address())
		}
		<-ctx.Done()
		return nil
	}})
	stopNotice := context.AfterFunc(ctx, func() {
		log.Info("stopping: finishing what is in hand; a second signal ends at once", slog.String("grace", a.conf.Grace.String()))
	})
	defer stopNotice()
	return stopped(workers.Run(ctx, time.Duration(a.conf.Grace), all...))
}

// mcpAnonymous is who calls the MCP server of a fleet that asks nobody.
const mcpAnonymous subjects.AgentID = "mcp"

// notProvisioned says what to do where the streams cannot be had.
func (a *app) notProvisioned(err error, room int64) error {
	p := &problem{what: "the fleet's streams are not as they must be", where: err.Error(), exit: exitFailed, err: err}
	switch {
	case !errors.Is(err, bus.ErrFull):
		return p.next("see what the line above names; parley help env  tells about PARLEY_PROVISION")
	case room == 0:
		p.what = "the fleet's streams do not fit on the servers' disks"
		return p.next("free space there, raise the servers' max_file_store, or have smaller task records: --max-store 512MiB, say (PARLEY_MAX_STORE)")
	}
	p.what = fmt.Sprintf("the fleet's streams do not fit on the disk: the broker can reserve %s in %s", roughSize(room), a.conf.Data)
	if a.conf.MaxStore == 0 {
		return p.next(fmt.Sprintf("free space (the broker takes three quarters of it at most, and needs %s), or choose another disk: parley up --data DIR",
			roughSize(bus.MinRoom)))
	}
	return p.next(fmt.Sprintf("--max-store is %s (PARLEY_MAX_STORE): leave it out, and the streams take what is there; or free space, or choose another disk: parley up --data DIR",
		&a.conf.MaxStore))
}

// roughSize is a number of bytes for a person.
func roughSize(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// workers makes the settings' workers, in the order of starting, whatever the
// settings' is.
func (a *app) workers(b *bus.Bus, log *slog.Logger, h *health, m *metrics) (all []workers.Worker, err error) {
	for _, name := range workerNames() {
		if !has(a.conf.Workers, name) {
			continue
		}
		w, err := a.worker(name, b, log, h, m)
		if err != nil {
			if _, ok := errors.AsType[*problem](err); ok {
				return nil, err
			}
			return nil, failed("make the worker %s: %w", name, err)
		}
		all = append(all, w)
	}
	return all, nil
}

// allReady waits until every worker serves; false when ctx ended first.
func allReady(ctx context.Context, all []workers.Worker) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, w := range all {
		for w.Ready != nil && w.Ready() != nil {
			select {
			case <-ctx.Done():
				return false
			case <-tick.C:
			}
		}
	}
	return true
}

// stopped says what the end of the workers means.
func stopped(err error) error {
	if err == nil {
		return nil
	}
	p := &problem{what: "a worker failed", where: err.Error(), exit: exitFailed, err: err}
	if errors.Is(err, workers.ErrStillRunning) {
		p.what = "not everything was finished within the grace time"
		return p.next("nothing is lost: what was in hand goes on elsewhere, or when the worker is back")
	}
	return p
}

func has(list []string, s string) bool {
	for _, item := range list {
		if strings.EqualFold(item, s) {
			return true
		}
	}
	return false
}
