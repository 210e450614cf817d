package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects/fleet"
)

// metrics are the figures of this process, from the workers that count them.
// Whatever shows figures asks here or, for the whole fleet, the statistics of
// the workers' micro services, which are the same numbers.
type metrics struct {
	mu   sync.Mutex // guards from
	from []func(*fleet.Figures)
}

// add takes a worker's figures in from now on.
func (m *metrics) add(from func(*fleet.Figures)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.from = append(m.from, from)
}

// figures are the figures of now.
func (m *metrics) figures() fleet.Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	var f fleet.Figures
	for _, from := range m.from {
		from(&f)
	}
	return f
}

// log writes the figures every so often, until ctx ends.
func (m *metrics) log(ctx context.Context, log *slog.Logger, every time.Duration) error {
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		f := m.figures()
		log.Info("metrics", slog.String("uptime", time.Since(began).Round(time.Second).String()),
			slog.Uint64("webhook_attempts", f.Webhooks.Attempts), slog.Uint64("webhook_success", f.Webhooks.Succeeded),
			slog.Uint64("webhook_failed", f.Webhooks.Failed), slog.Float64("webhook_success_rate", f.Webhooks.Rate()),
			slog.Uint64("tasks_received", f.Received), slog.Uint64("tasks_completed", f.Completed),
			slog.Uint64("tasks_canceled", f.Canceled), slog.Uint64("tasks_failed", f.Failed), slog.Int("queue_depth", f.Queued))
	}
}

func (a *app) metricsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "metrics", Short: "Show uptime, tasks, webhooks and the queue of the whole fleet", Args: cobra.NoArgs,
		Long: `Show uptime, tasks, webhooks and the queue of the whole fleet: what the workers that
run now have counted since they began. A worker that is started anew begins at 0.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			f, err := fleetFigures(ctx, c)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printValue(f)
			}
			for _, line := range f.lines() {
				a.print(line)
			}
			return nil
		}),
	}
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	return cmd
}

// metricsReport is what metrics shows.
type metricsReport struct {
	UptimeSeconds float64 `json:"uptime_seconds"`
	Rate          float64 `json:"webhook_success_rate"`
	Routers       int     `json:"routers"`
	fleet.Figures
}

// fleetFigures adds up what every worker tells of itself.
func fleetFigures(ctx context.Context, c *client) (*metricsReport, error) {
	var r metricsReport
	routers, err := c.bus.ServiceFigures(ctx, "fleet")
	if err != nil {
		return nil, c.unanswered(err, "fleet", "metrics")
	}
	hooks, err := c.bus.ServiceFigures(ctx, "webhooks")
	if err != nil && !errors.Is(err, bus.ErrNoResponders) { // a fleet may have none
		return nil, c.unanswered(err, "webhook", "metrics")
	}
	r.Routers = len(routers)
	for _, s := range routers {
		var t fleet.TaskFigures
		if err := json.Unmarshal(s.Data, &t); err != nil {
			return nil, failed("the router %s tells no figures: %w", s.ID, err).next("let all workers be of one version")
		}
		r.AddTasks(&t)
	}
	for _, s := range hooks {
		var w fleet.WebhookFigures
		if err := json.Unmarshal(s.Data, &w); err != nil {
			return nil, failed("the webhooks worker %s tells no figures: %w", s.ID, err).next("let all workers be of one version")
		}
		r.AddWebhooks(&w)
	}
	r.UptimeSeconds, r.Rate = time.Since(r.Since).Seconds(), r.Webhooks.Rate()
	return &r, nil
}

// lines is the report as text.
func (r *metricsReport) lines() []string {
	w := &r.Webhooks
	n := func(v uint64) string { return thousands(int64(v)) }
	return []string{
		"Uptime:      " + (time.Duration(r.UptimeSeconds) * time.Second).String(),
		fmt.Sprintf("Webhooks:    %s attempts, %s success, %s failed (%.1f %%)", n(w.Attempts), n(w.Succeeded), n(w.Failed), 100*r.Rate),
		fmt.Sprintf("Tasks:       %s received, %s completed, %s canceled, %s failed", n(r.Received), n(r.Completed), n(r.Canceled), n(r.Failed)),
		"Queue depth: " + n(uint64(max(r.Queued, 0))),
	}
}
