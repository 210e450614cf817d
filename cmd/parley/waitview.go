package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects/fleet"
)

// timeOfDay writes a time that is near, as people here read it.
func (a *app) timeOfDay(t time.Time) string {
	t, now := t.In(a.now().Location()), a.now()
	switch ahead := t.Sub(now).Abs(); {
	case t.YearDay() == now.YearDay() && t.Year() == now.Year():
		return t.Format("15:04")
	case ahead < 6*24*time.Hour:
		return t.Format("Mon 15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// waits says why a task waits, "" where it does not.
func (a *app) waits(w *fleet.Waiting) string {
	if w == nil {
		return ""
	}
	return w.Describe(a.timeOfDay)
}

// reasonOf is the reason of a listed task: why it waits, or else what its record says.
func (a *app) reasonOf(t *fleet.TaskView, waiting bool) string {
	switch s := a.waits(t.Waiting); {
	case s == "":
		return reason(t.Reason)
	case waiting:
		return s
	default:
		return "waiting: " + s
	}
}

// limited says in a word until when an account is limited.
func (a *app) limited(l *fleet.AccountLimit) string {
	switch {
	case l.Probe != nil, !l.ProbeAt.IsZero() && l.HalfOpen(a.now()):
		return "limit ended, being probed"
	case l.Step > 0:
		return "limited, tried again at " + a.timeOfDay(l.Until)
	}
	return "limited until " + a.timeOfDay(l.Until)
}

// limitLine is an account's limit in the view of the fleet.
func limitLine(l *fleet.LimitFigures, clock func(time.Time) string) string {
	s := l.Account + " until " + clock(l.Reset)
	if l.Guessed {
		s = l.Account + ", nobody knows until when"
	}
	if l.Tasks > 0 {
		s += "; " + waiting(l.Tasks)
	}
	if l.Late > 0 {
		s += fmt.Sprintf(", too late for %d", l.Late)
	}
	return s
}

func (a *app) agentLimits() *cobra.Command {
	var lift string
	cmd := &cobra.Command{
		Use: "limits", Short: "List the accounts that are limited, and until when", Args: cobra.NoArgs,
		Long: `List the accounts that a provider limits, and until when. Meanwhile none of their
agents is offered a task; tasks that only they could do wait. An account is the label
account of an agent, or else its id.

--lift ends the limits of an account, as an operator: when it is known to be over.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			verb := "limits"
			if lift != "" {
				verb = "lift"
			}
			r, err := call[fleet.AgentLimitsReply](ctx, c, "agent", verb, fleet.AgentLimits{Account: lift})
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printList(r.raw, "limits")
			case lift != "":
				a.notice("account %s is open; its tasks go on", lift)
				return nil
			case len(r.value.Limits) == 0:
				a.notice("no account is limited")
				return nil
			}
			g := a.grid("Limits", []string{"Account", "Tier", "State", "Since", "Said by", "Message"}, "Message")
			for i := range r.value.Limits {
				l := &r.value.Limits[i]
				g.add(l.Account, l.Tier, a.paint(yellow, a.limited(l)), a.when(l.Since), string(l.By), oneLine(l.Message))
			}
			g.print()
			a.notice("parley agent limits --lift ACCOUNT  ends a limit that is over")
			return nil
		}),
	}
	cmd.Flags().StringVar(&lift, "lift", "", "end the limits of this account")
	return cmd
}

// silentWaits is whether tasks wait for long, and nobody is notified of it: they say
// that nobody is to be (escalate: never), or there is no contact.
func (a *app) silentWaits(causes []fleet.WaitingCause, contacts bool) finding {
	after := time.Duration(a.conf.WaitAlert)
	var bad []string
	for _, k := range causes {
		n, oldest := k.Silent, k.OldestSilent
		if !contacts {
			n = k.Tasks
			if oldest.IsZero() || !k.Oldest.IsZero() && k.Oldest.Before(oldest) {
				oldest = k.Oldest
			}
		}
		k.Silent = 0
		if n == 0 || oldest.IsZero() || !k.Notified() {
			continue
		}
		if k.Since.After(oldest) {
			oldest = k.Since
		}
		if lasts := a.now().Sub(oldest); lasts > after {
			bad = append(bad, fmt.Sprintf("%d tasks: %s, for %s", n, k.Describe(a.timeOfDay), roughly(lasts)))
		}
	}
	if len(bad) == 0 {
		return finding{Check: "waits", OK: true, Found: "no task waits for longer than " + roughly(after) + " of which nobody is notified"}
	}
	return finding{
		Check: "waits", Found: "of what waits nobody is notified: " + strings.Join(bad[:min(len(bad), atMost)], "; "),
		Then: "parley task ls --waiting  shows what waits; start what is missing, or parley task cancel TASK",
	}
}
