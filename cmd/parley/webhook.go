package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
)

func (a *app) webhookCommand() *cobra.Command {
	c := noun("webhook", "Look after webhooks: what waits, what arrived, and dead letters", "webhooks")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.webhookList(), a.webhookShow(), a.webhookReplay(), a.webhookDrop(), a.webhookStatus())
	return c
}

func (a *app) webhookList() *cobra.Command {
	var q fleet.WebhookList
	var task string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List deliveries, the newest first", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			q.TaskID = subjects.TaskID(task)
			r, err := call[fleet.WebhookListReply](ctx, c, "webhook", "list", q)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "deliveries")
			}
			if len(r.value.Deliveries) == 0 {
				a.notice("no deliveries")
				return nil
			}
			g := a.grid("Webhooks", []string{"Delivery", "Endpoint", "State", "Attempt", "Queued", "Next", "Task", "Error"}, "Error")
			for i := range r.value.Deliveries {
				d := &r.value.Deliveries[i]
				next := "-"
				if d.NextAt != nil {
					next = a.when(*d.NextAt)
				}
				g.add(string(d.DeliveryID), d.Endpoint, a.delivery(d.State), d.Attempts, a.when(d.Queued), next, string(d.TaskID), oneLine(reason(d.Error)))
			}
			g.print()
			if more := r.value.Total - len(r.value.Deliveries); more > 0 {
				a.notice("and %s more; --limit shows up to 1000", thousands(int64(more)))
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&q.State, "state", "", "only these: "+strings.Join(fleet.DeliveryStates(), ", "))
	cmd.Flags().StringVar(&q.Endpoint, "endpoint", "", "only to this endpoint")
	cmd.Flags().StringVar(&task, "task", "", "only of this task")
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "how many at most")
	a.completeFlag(cmd, "state", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return fleet.DeliveryStates(), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// delivery paints a delivery's state.
func (a *app) delivery(state string) painted {
	c := faint
	switch state {
	case fleet.DeliveryPending:
		c = yellow
	case fleet.DeliveryDelivered:
		c = green
	case fleet.DeliveryDead:
		c = red
	}
	return a.paint(c, state)
}

func (a *app) webhookShow() *cobra.Command {
	return &cobra.Command{
		Use: "show DELIVERY", Aliases: []string{"get", "info"}, Short: "Show a delivery whole", Args: one("delivery id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[fleet.WebhookView](ctx, c, "webhook", "get", fleet.WebhookRef{DeliveryID: subjects.DeliveryID(args[0])})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.printDelivery(&r.value)
			return nil
		}),
	}
}

func (a *app) printDelivery(v *fleet.WebhookView) {
	g := a.card("Delivery " + string(v.DeliveryID))
	g.fact("State", v.State)
	if v.Note != "" {
		g.fact("Waits", v.Note)
	}
	g.fact("Endpoint", v.Endpoint)
	g.fact("Task", string(v.TaskID))
	g.fact("Order", v.Order)
	g.fact("Schedule", v.Schedule)
	g.fact("Queued", a.moment(v.Queued))
	g.fact("Updated", a.moment(v.Updated))
	g.fact("Attempts", strconv.Itoa(v.Attempts))
	if v.NextAt != nil {
		g.fact("Next", a.moment(*v.NextAt))
	}
	g.fact("Until", a.moment(v.NotAfter))
	g.fact("Error", reason(v.Error))
	if v.By != "" {
		g.fact("By", fmt.Sprintf("%s, replayed %d times", v.By, v.Replays))
	}
	if v.Delivery != nil {
		g.fact("URL", v.Delivery.URL)
		var headers []string
		for name, value := range v.Delivery.Headers {
			headers = append(headers, name+": "+value)
		}
		slices.Sort(headers)
		g.fact("Headers", strings.Join(headers, "\n"))
		g.fact("Content", v.Delivery.ContentType)
	}
	g.print()
	if v.Delivery != nil {
		a.print(printable(string(v.Delivery.Body)))
	}
}

func (a *app) webhookReplay() *cobra.Command {
	var q fleet.WebhookReplay
	var since time.Duration
	cmd := &cobra.Command{
		Use: "replay DELIVERY…", Short: "Send dead letters again under the same id, or what waits now",
		Example: `  parley webhook replay esc_01J9
  parley webhook replay --all --endpoint human --since 2h`,
		Args: func(_ *cobra.Command, args []string) error {
			if q.All == (len(args) > 0) {
				return usage("expected delivery ids, or --all").next("parley webhook ls --state dead")
			}
			return nil
		},
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			if !q.All && (q.Endpoint != "" || since > 0) {
				return usage("--endpoint and --since go with --all")
			}
			if since > 0 {
				q.Since = new(a.now().Add(-since))
			}
			for _, id := range args {
				r, err := call[fleet.WebhookReplayReply](ctx, c, "webhook", "replay", fleet.WebhookReplay{DeliveryID: subjects.DeliveryID(id)})
				if err != nil {
					return err
				}
				if err := a.printReplayed(r); err != nil {
					return err
				}
			}
			for q.All {
				r, err := call[fleet.WebhookReplayReply](ctx, c, "webhook", "replay", q)
				if err != nil {
					return err
				}
				if err := a.printReplayed(r); err != nil {
					return err
				}
				if r.value.Omitted == 0 || r.value.Total == 0 {
					a.notice("%d sent again", r.value.Total)
					return nil
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&q.All, "all", false, "every dead letter there is")
	cmd.Flags().StringVar(&q.Endpoint, "endpoint", "", "with --all: only to this endpoint")
	cmd.Flags().DurationVar(&since, "since", 0, "with --all: only those that died within this time")
	return cmd
}

func (a *app) printReplayed(r reply[fleet.WebhookReplayReply]) error {
	if a.json() {
		return a.printList(r.raw, "deliveries")
	}
	for _, d := range r.value.Deliveries {
		a.notice("%s is sent again", d.DeliveryID)
	}
	return nil
}

func (a *app) webhookDrop() *cobra.Command {
	return &cobra.Command{
		Use: "drop DELIVERY…", Aliases: []string{"rm"}, Short: "Give deliveries up for good",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("expected delivery ids").next("parley webhook ls --state dead")
			}
			return nil
		},
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			for _, id := range args {
				r, err := call[fleet.WebhookView](ctx, c, "webhook", "drop", fleet.WebhookRef{DeliveryID: subjects.DeliveryID(id)})
				if err != nil {
					return err
				}
				if a.json() {
					if err := a.printJSON(r.raw); err != nil {
						return err
					}
				}
				a.notice("%s is given up", id)
			}
			return nil
		}),
	}
}

func (a *app) webhookStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show how the endpoints are, and how many attempts succeed", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := call[fleet.WebhookStatusReply](ctx, c, "webhook", "status", fleet.WebhookStatus{})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			v := &r.value
			g := a.grid("Webhook endpoints", []string{"Endpoint", "Circuit", "Pending", "Sending", "Dead", "Next", "Error"}, "Error")
			for i := range v.Endpoints {
				e := &v.Endpoints[i]
				circuit, says := a.paint(green, e.Circuit), oneLine(reason(e.Error))
				if e.Circuit == fleet.CircuitOpen {
					circuit = a.paint(red, e.Circuit)
				}
				if !e.Known {
					circuit = a.paint(yellow, "not configured")
				}
				if says == "" && e.Unreached != "" {
					says = "not reachable at the start: " + e.Unreached
				}
				next := "-"
				for _, t := range []*time.Time{e.ProbeAt, e.HoldUntil} {
					if t != nil {
						next = a.when(*t)
					}
				}
				g.add(e.Endpoint, circuit, e.Pending, e.Sending, e.Dead, next, says)
			}
			g.print()
			a.print(fmt.Sprintf("%s attempts, %s succeeded, %s failed (%.1f %%) by %s since %s",
				thousands(int64(v.Attempts)), thousands(int64(v.Succeeded)), thousands(int64(v.Failed)),
				100*v.Rate, v.Worker, v.Since.UTC().Format(time.RFC3339)))
			return nil
		}),
	}
}
