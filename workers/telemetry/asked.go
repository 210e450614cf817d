package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"parley/bus"
	"parley/subjects/fleet"
)

const (
	askFor = 5 * time.Second // a page waits no longer for answers
	fresh  = time.Second     // answers are used again for that long
)

// asked is what a page asks of the fleet.
type asked struct {
	// Fixed from the beginning.
	bus     *bus.Bus
	version string
	unsafe  func() map[string]bool
	log     *slog.Logger

	mu  sync.Mutex // guards what follows; held while asking, so that it is done once
	at  time.Time
	got []prometheus.Metric
}

// Describe implements prometheus.Collector.
func (a *asked) Describe(to chan<- *prometheus.Desc) {
	for _, m := range Metrics() {
		if m.Fleet {
			to <- m.desc()
		}
	}
}

// Collect implements prometheus.Collector.
func (a *asked) Collect(to chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) > fresh {
		a.got = a.ask()
		a.at = time.Now()
	}
	for _, m := range a.got {
		to <- m
	}
}

// answers gathers metrics; add may be called by many.
type answers struct {
	mu   sync.Mutex
	list []prometheus.Metric
}

func (as *answers) add(name string, value float64, labels ...string) {
	m := metric(name)
	for i, l := range labels {
		labels[i] = clean(l)
	}
	kind := prometheus.GaugeValue
	if m.Type == typeCounter {
		kind = prometheus.CounterValue
	}
	v, err := prometheus.NewConstMetric(m.desc(), kind, value, labels...)
	if err != nil {
		v = prometheus.NewInvalidMetric(m.desc(), err)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	as.list = append(as.list, v)
}

// ask asks all sources at once. What does not answer is missing, and told so.
func (a *asked) ask() []prometheus.Metric {
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	var as answers
	as.add("parley_build_info", 1, a.version, runtime.Version())
	for about, is := range a.unsafe() {
		value := 0.0
		if is {
			value = 1
		}
		as.add("parley_unsafe", value, about)
	}
	var all sync.WaitGroup
	source := func(name string, ask func() error) {
		all.Go(func() {
			up := 1.0
			if err := ask(); err != nil {
				up = 0
				if !errors.Is(err, bus.ErrNoResponders) {
					a.log.Warn("not all figures for the page of metrics", slog.String("source", name), slog.Any("error", err))
				}
			}
			as.add("parley_source_up", up, name)
		})
	}
	source(sourceWorkers, func() error { return addWorkers(ctx, a.bus, &as) })
	source(sourceRouter, func() error { return addTasks(ctx, a.bus, &as) })
	source(sourceWebhooks, func() error { return addWebhooks(ctx, a.bus, &as) })
	source(sourceRegistry, func() error { return addAgents(ctx, a.bus, &as) })
	source(sourceEscalation, func() error { return addAlerts(ctx, a.bus, &as) })
	source(sourceJetStream, func() error { return addStreams(ctx, a.bus, &as) })
	all.Wait()
	return as.list
}

// kinds are those of all workers.
func kinds() []string {
	return []string{
		"a2e", "audit", "callout", "escalation", "gateway", "mesh", "registry", "router", "runs", "schedules", "sessions", "telemetry", "webhooks",
	}
}

// addWorkers counts those that answer: one that hangs does not run. This worker
// is one of them, so that nobody else is 0, not an error.
func addWorkers(ctx context.Context, b *bus.Bus, as *answers) error {
	list, err := b.Services(ctx)
	if err != nil {
		return err
	}
	n := make(map[string]int)
	told := make(map[string]bool) // by process: its services all say the same
	for _, s := range list {
		n[s.Kind]++
		if told[s.Process] {
			continue
		}
		told[s.Process] = true
		for _, skipped := range s.Skipped {
			as.add("parley_messages_skipped_total", float64(skipped.Count), s.Process, skipped.Place)
		}
	}
	for _, kind := range kinds() {
		as.add("parley_workers", float64(n[kind]), kind)
	}
	return nil
}

// service asks all workers that serve it.
func service[T any](ctx context.Context, b *bus.Bus, name string) ([]T, error) {
	told, err := b.ServiceFigures(ctx, name)
	if err != nil {
		return nil, err
	}
	return figuresOf[T](name, told)
}

func figuresOf[T any](name string, told []bus.ServiceFigures) ([]T, error) {
	list := make([]T, len(told))
	for i, s := range told {
		if err := json.Unmarshal(s.Data, &list[i]); err != nil {
			return nil, fmt.Errorf("figures of the service %s, %s: %w", name, s.ID, err)
		}
	}
	return list, nil
}

func addTasks(ctx context.Context, b *bus.Bus, as *answers) error {
	list, err := service[fleet.TaskFigures](ctx, b, "fleet")
	if err != nil {
		return err
	}
	var f fleet.Figures
	for i := range list {
		f.AddTasks(&list[i])
	}
	for state, n := range f.States {
		as.add("parley_tasks", float64(n), string(state))
	}
	as.add("parley_leases", float64(f.Leases))
	for _, c := range f.Classes[:min(len(f.Classes), fleet.MaxClasses)] {
		as.add("parley_queue_depth", float64(c.Depth), c.Class)
		as.add("parley_queue_oldest_seconds", c.OldestSeconds, c.Class)
	}
	byWhy := make(map[string]fleet.WaitingFigures)
	for _, x := range f.Waiting {
		byWhy[x.Why] = x
	}
	for _, why := range metric("parley_waiting_tasks").Values("why") {
		as.add("parley_waiting_tasks", float64(byWhy[why].Tasks), why)
		as.add("parley_waiting_oldest_seconds", byWhy[why].OldestSeconds, why)
	}
	shown := make(map[string]bool)
	for _, l := range f.Limits[:min(len(f.Limits), fleet.MaxLimits)] {
		if shown[clean(l.Account)] {
			continue // two accounts with one label
		}
		shown[clean(l.Account)] = true
		reset := float64(l.Reset.Unix())
		if l.Guessed {
			reset = 0
		}
		as.add("parley_account_limit_reset_timestamp_seconds", reset, l.Account)
		as.add("parley_account_limit_late_tasks", float64(l.Late), l.Account)
	}
	return nil
}

// addWebhooks shows each worker's counts by themselves: a sum would fall as one
// of them goes, which looks like a counter that began anew.
func addWebhooks(ctx context.Context, b *bus.Bus, as *answers) error {
	told, err := b.ServiceFigures(ctx, "webhooks")
	if err != nil {
		return err
	}
	list, err := figuresOf[fleet.WebhookFigures]("webhooks", told)
	for i, f := range list {
		as.add("parley_webhook_deliveries_total", float64(f.Succeeded), told[i].ID, webhooksSucceeded)
		as.add("parley_webhook_deliveries_total", float64(f.Failed), told[i].ID, webhooksFailed)
	}
	return err
}

// addAgents shows what the registry says that knows most: they all know the
// same, but for one that has just begun.
func addAgents(ctx context.Context, b *bus.Bus, as *answers) error {
	list, err := service[fleet.AgentFigures](ctx, b, "registry")
	if err != nil {
		return err
	}
	var best fleet.AgentFigures
	most := -1
	for _, f := range list {
		n := 0
		for _, c := range f.Agents {
			n += c.N
		}
		if n > most {
			best, most = f, n
		}
	}
	for _, c := range best.Agents {
		as.add("parley_agents", float64(c.N), c.State, c.Tier)
	}
	for _, c := range best.MCP {
		as.add("parley_mcp_servers", float64(c.N), c.Name, c.Health)
	}
	return nil
}

func addAlerts(ctx context.Context, b *bus.Bus, as *answers) error {
	list, err := service[fleet.AlertFigures](ctx, b, "escalation")
	if err != nil {
		return err
	}
	var most fleet.AlertFigures
	for _, f := range list {
		most.Waiting, most.Alerts = max(most.Waiting, f.Waiting), max(most.Alerts, f.Alerts)
		most.LogFailures += f.LogFailures // each has its own
	}
	as.add("parley_waiting_for_human", float64(most.Waiting))
	as.add("parley_alerts", float64(most.Alerts))
	as.add("parley_change_log_failures", float64(most.LogFailures))
	return nil
}

// addStreams shows those that answer, where others do not.
func addStreams(ctx context.Context, b *bus.Bus, as *answers) error {
	list, err := b.StreamFigures(ctx)
	for _, s := range list {
		as.add("parley_stream_messages", float64(s.Msgs), s.Name)
		as.add("parley_stream_bytes", float64(s.Bytes), s.Name)
		as.add("parley_stream_replicas", float64(s.Replicas), s.Name)
		as.add("parley_stream_replicas_behind", float64(len(s.Behind)), s.Name)
		if s.MaxBytes > 0 {
			as.add("parley_stream_limit_bytes", float64(s.MaxBytes), s.Name)
		}
		for _, c := range s.Consumers {
			as.add("parley_consumer_pending", float64(c.Pending), s.Name, c.Name)
			as.add("parley_consumer_unacknowledged", float64(c.Unacked), s.Name, c.Name)
		}
	}
	return err
}
