package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
)

func (a *app) escalationCommand() *cobra.Command {
	c := noun("escalation", "See to what waits for a human", "escalations", "alert")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.escalationList(), a.escalationShow(), a.escalationAck(),
		a.escalationDecide(fleet.VerbRetry, "ID", "Try it once more", 0),
		a.escalationDecide(fleet.VerbReassign, "ID AGENT", "Give it to an agent", 1),
		a.escalationDecide(fleet.VerbAnswer, "ID TEXT…", "Try it once more, and tell the next agent something", -1),
		a.escalationDecide(fleet.VerbComplete, "ID FILE", "Hand in the result: a TASK_RESULT, or what becomes its output; - is standard input", 1),
		a.escalationDecide(fleet.VerbCancel, "ID [WHY…]", "End it", -1),
		a.escalationSilence())
	return c
}

func (a *app) escalationList() *cobra.Command {
	var q fleet.EscalationList
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List alerts, the oldest first", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := c.alerts(ctx, q)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "alerts")
			}
			if len(r.value.Alerts) == 0 {
				a.notice("nothing waits for a human")
			} else {
				g := a.grid("Alerts", []string{"Alert", "State", "Tasks", "Since", "Calls", "Next call", "Cause", "Who"}, "Cause")
				for i := range r.value.Alerts {
					al := &r.value.Alerts[i]
					g.add(al.AlertID, a.alert(al.State), al.Count, a.when(al.Since), al.Calls, a.nextCall(al), causeOf(al), whoSees(al))
				}
				g.print()
			}
			for _, s := range r.value.Silences {
				a.notice("silence %s by %s until %s: %s (%s)", s.SilenceID, s.By, a.moment(s.Until), s.Reason, pairs(s.Match))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&q.All, "all", "a", false, "the last ones that are over, too")
	return cmd
}

func (a *app) alert(state string) painted {
	switch state {
	case fleet.AlertTriggered:
		return a.paint(red, state)
	case fleet.AlertAcknowledged:
		return a.paint(yellow, state)
	}
	return a.paint(green, state)
}

func (a *app) nextCall(al *fleet.Alert) string {
	switch {
	case al.State == fleet.AlertResolved:
		return "-"
	case al.Held != "":
		return "held: " + al.Held
	case al.AckUntil != nil:
		return a.when(*al.AckUntil)
	case al.NextAt != nil && al.State == fleet.AlertTriggered:
		return a.when(*al.NextAt)
	}
	return "-"
}

// waiting says how many tasks wait.
func waiting(n int) string {
	if n == 1 {
		return "1 task waits"
	}
	return thousands(int64(n)) + " tasks wait"
}

func causeOf(al *fleet.Alert) string {
	cause := pairs(al.Group)
	if len(al.Tasks) > 0 {
		cause += ": " + oneLine(al.Tasks[0].Message)
	}
	return cause
}

// whoSees is who has answered or acknowledged an alert.
func whoSees(al *fleet.Alert) string {
	switch {
	case al.Answer != nil:
		return al.Answer.By + ": " + al.Answer.Verb
	case al.AckBy != "":
		return al.AckBy
	}
	return "-"
}

func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (a *app) escalationShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"get", "info"}, Short: "Show an alert, or that of a task", Args: one("alert or task"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[fleet.Alert](ctx, c, "escalation", "get", fleet.EscalationRef{ID: args[0]})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			al := &r.value
			g := a.card("Alert " + al.AlertID)
			g.add("State", a.alert(al.State))
			g.fact("Cause", pairs(al.Group))
			g.fact("Since", a.moment(al.Since))
			g.fact("Calls", strconv.Itoa(al.Calls))
			g.fact("Next call", a.nextCall(al))
			g.fact("Who", whoSees(al))
			g.print()
			if len(al.Tasks) > 0 {
				g := a.grid(waiting(al.Count), []string{"Task", "Record", "From", "Since", "Gives up", "Tokens", "Brief", "Why"}, "Why")
				for _, t := range al.Tasks {
					g.add(string(t.TaskID), t.Seq, string(t.From), a.when(t.Since), a.when(t.GiveUpAt), thousands(t.TokensSpent), oneLine(t.Brief), string(t.Code)+": "+oneLine(t.Message))
				}
				g.print()
				a.notice("parley escalation retry|reassign|answer|complete|cancel %s", al.AlertID)
			}
			return nil
		}),
	}
}

func (a *app) escalationAck() *cobra.Command {
	return &cobra.Command{
		Use: "ack ID", Short: "Say that you see to it: nobody else is called for now", Args: one("alert or task"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[fleet.Alert](ctx, c, "escalation", "ack", fleet.EscalationRef{ID: args[0]})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			if r.value.AckUntil == nil {
				return errors.New("the reply does not say until when")
			}
			a.notice("%s sees to alert %s until %s; the tasks still wait for an answer", r.value.AckBy, r.value.AlertID, a.moment(*r.value.AckUntil))
			return nil
		}),
	}
}

// escalationDecide makes the command of one decision, with so many arguments
// after the id; -1: words.
func (a *app) escalationDecide(verb, use, short string, n int) *cobra.Command {
	var seq uint64
	var request requestID
	cmd := &cobra.Command{
		Use: verb + " " + use, Short: short,
		Long: short + ".\n\nID is an alert, and all its tasks are meant, or one task of it.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || n >= 0 && len(args) != n+1 {
				return usage("expected %s", use).next(cmd.CommandPath() + " --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			q := fleet.EscalationAnswer{ID: args[0], Seq: seq, RequestID: request.value()}
			switch verb {
			case fleet.VerbReassign:
				q.AgentID = subjects.AgentID(args[1])
			case fleet.VerbComplete:
				data, err := a.text(nil, args[1], "a result")
				if err != nil {
					return err
				}
				q.Result = result(data)
			default:
				q.Text = strings.Join(args[1:], " ")
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				r, err := call[fleet.EscalationAnswered](ctx, c, "escalation", verb, q)
				if err != nil {
					return request.repeatable(err)
				}
				if a.json() {
					return a.printJSON(r.raw)
				}
				if r.value.Duplicate {
					a.notice("%s: that answer was taken before; it counts once", verb)
					return nil
				}
				a.notice("%s: %d of %d tasks so far", verb, r.value.Applied, r.value.Tasks)
				for _, p := range r.value.Problems {
					a.notice("  %s", p)
				}
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().Uint64Var(&seq, "seq", 0, "of a task: the record that you have seen (escalation show); refused if the task has gone on since")
	request.bind(cmd.Flags())
	return cmd
}

// result is what a person hands in: a TASK_RESULT as it is, any other JSON or
// text as its output.
func result(data []byte) json.RawMessage {
	if r, err := fleet.DecodeResult(data); err == nil {
		return fleet.MustEncode(r)
	}
	output := json.RawMessage(data)
	if !json.Valid(data) {
		output = fleet.MustEncode(strings.TrimSpace(string(data)))
	}
	return fleet.MustEncode(&fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version},
		Status: fleet.StatusDone, NextSteps: []string{}, Output: output,
	})
}

func (a *app) escalationSilence() *cobra.Command {
	var q fleet.Silence
	var last time.Duration
	var end string
	cmd := &cobra.Command{
		Use: "silence NAME=VALUE…", Short: "Call nobody about some alerts for a while; they are listed all the same",
		Example: "  parley escalation silence code=mcp_unhealthy mcp=git --for 2h --reason \"being repaired\"\n  parley escalation silence --end SILENCE",
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Until = a.now().UTC().Add(last)
			if end != "" {
				q.SilenceID, q.Until = end, a.now().UTC().Add(-time.Second)
			} else if len(args) == 0 {
				return usage("expected what alerts have in common").next(cmd.CommandPath() + " code=agent_error agent=NAME --reason WHY")
			}
			q.Match = map[string]string{}
			for _, arg := range args {
				k, v, ok := strings.Cut(arg, "=")
				if !ok {
					return usage("%q is not NAME=VALUE", arg)
				}
				q.Match[k] = v
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				r, err := call[fleet.Silence](ctx, c, "escalation", "silence", q)
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(r.raw)
				}
				if end != "" {
					a.notice("silence %s is over", r.value.SilenceID)
				} else {
					a.notice("silence %s until %s", r.value.SilenceID, a.moment(r.value.Until))
				}
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().DurationVar(&last, "for", time.Hour, "how long")
	cmd.Flags().StringVar(&q.Reason, "reason", "", "why; required")
	cmd.Flags().StringVar(&end, "end", "", "end this silence")
	return cmd
}
