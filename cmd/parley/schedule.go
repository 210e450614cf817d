package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/subjects/schedule"
)

func (a *app) scheduleCommand() *cobra.Command {
	c := noun("schedule", "Tasks, runs and messages that come by the clock", "schedules")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.scheduleCreate(), a.scheduleList(), a.scheduleGet(), a.scheduleRunNow(),
		a.scheduleChange("pause", "Begin nothing more by the clock"),
		a.scheduleChange("resume", "Go on with a paused schedule, from its next time on"),
		a.scheduleChange("rm", "Forget schedules; what they have begun goes on", "remove", "delete"))
	return c
}

// scheduleFlags are the flags of schedule create.
type scheduleFlags struct {
	cron, zone, at, missed, overlap, note string
	every, grace                          time.Duration
	letter                                letterFlags
	noReply                               bool
}

func (a *app) scheduleCreate() *cobra.Command {
	var f scheduleFlags
	cmd := &cobra.Command{
		Use:   "create NAME --cron EXPR|--every D|--at TIME dispatch FILE | run FILE | mesh --to AGENT TEXT…",
		Short: "Have a task dispatched, a run started or a message sent by the clock",
		Long: `Have something done again and again, or at one time, in your name, whoever sleeps
meanwhile: dispatch a task from a file (a TASK_DISPATCH in JSON, or a brief with
hints), start a run from a file, or send a message to an agent.

--cron has minute, hour, day, month and weekday, with the seconds before them if
need be, in the zone of --tz. A time that nobody was there for, or that is later
than --grace, is missed: the last of those is made up for once, or skipped. One
that comes while what was begun before is under way is skipped, waits in a
queue, or cancels that.

A dispatch that names a session continues it each time: the agent wakes with its
context.`,
		Example: `  parley schedule create standup --cron "0 9 * * 1-5" --tz Europe/Berlin dispatch standup.json
  parley schedule create sweep --every 15m --overlap queue run sweep.yaml
  parley schedule create wake-isa --at 30m mesh --to isa "Look at the build again."`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 3 {
				return usage("expected a name, dispatch, run or mesh, and what it takes").next(cmd.CommandPath() + " --help")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.scheduled(&f, args)
			if err != nil {
				return err
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				r, err := call[schedule.View](ctx, c, "schedule", "create", d)
				if subjects.CodeOf(err) == subjects.CodeIdempotencyConflict && fromNow(f.at) {
					return explain(err).because("--at %s is another time at each call", f.at).
						next("parley schedule get " + args[0] + "  shows the one that there is; to create it again, give --at its time")
				}
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(r.raw)
				}
				a.print(string(r.value.Definition.Name))
				if r.value.Duplicate {
					a.notice("it existed already, and is %s", r.value.State)
				}
				if len(r.value.Upcoming) > 0 {
					a.notice("next: %s", a.clock(r.value.Upcoming[0], &r.value.Definition))
				}
				return nil
			})(cmd, args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.cron, "cron", "", `when: a cron expression, such as "0 9 * * 1-5"`)
	fs.StringVar(&f.zone, "tz", "", "time zone of --cron, such as Europe/Berlin (default UTC)")
	fs.DurationVar(&f.every, "every", 0, "when: an interval, at least 1s")
	fs.StringVar(&f.at, "at", "", "when: one time, 30m from now, or 2026-05-31T21:00:00Z")
	fs.StringVar(&f.missed, "missed", "", "times that were missed: once or skip (default once)")
	fs.DurationVar(&f.grace, "grace", 0, "later than this is missed (default 1m)")
	fs.StringVar(&f.overlap, "overlap", "", "times that come too early: skip, queue or cancel (default skip)")
	fs.StringVar(&f.note, "description", "", "what it is for, for people to read")
	fs.StringSliceVar(&f.letter.to, "to", nil, "of mesh: the agent that it is for")
	fs.StringVar(&f.letter.action, "action", string(mesh.Do), "of mesh: do or info")
	fs.StringVar(&f.letter.thread, "thread", "", "of mesh: thread that it belongs to (default: a new one each time)")
	fs.StringVar(&f.letter.name, "name", "", "of mesh: name of the sender, for people to read")
	fs.BoolVar(&f.noReply, "no-reply", false, "of mesh: no answer is wanted")
	complete(cmd, "missed", string(schedule.Once), string(schedule.SkipThem))
	complete(cmd, "overlap", string(schedule.Skip), string(schedule.Queue), string(schedule.Cancel))
	complete(cmd, "action", string(mesh.Do), string(mesh.Info))
	a.completeFlag(cmd, "to", a.completeAgents)
	return cmd
}

// scheduled is what the flags and arguments of schedule create say.
func (a *app) scheduled(f *scheduleFlags, args []string) (*schedule.Definition, error) {
	d := &schedule.Definition{
		Header: fleet.Header{Type: schedule.TypeSchedule, ProtocolVersion: fleet.Version},
		Name:   schedule.Name(args[0]), Description: f.note,
		Cron: f.cron, TimeZone: f.zone, EverySeconds: f.every.Seconds(),
		Missed: schedule.Missed(f.missed), GraceSeconds: f.grace.Seconds(), Overlap: schedule.Overlap(f.overlap),
	}
	if f.at != "" {
		at, err := moment("--at", f.at, a.now())
		if err != nil {
			return nil, err
		}
		d.At = &at
	}
	what, rest := args[1], args[2:]
	if what != "mesh" && len(rest) != 1 {
		return nil, usage("%s: expected one file, got %d", what, len(rest))
	}
	var work any
	var to *json.RawMessage
	var err error
	switch what {
	case "dispatch":
		work, err = a.dispatch(nil, rest[0])
		to = &d.Dispatch
	case "run":
		work, err = a.definition(rest[0])
		to = &d.Run
	case "mesh":
		if len(f.letter.to) != 1 {
			return nil, usage("--to: expected one agent, got %d", len(f.letter.to)).next("make a schedule for each")
		}
		var m *mesh.Message
		if m, err = f.letter.message(a, rest); err == nil {
			m.To, m.Reply = subjects.AgentID(f.letter.to[0]), mesh.Yes
			if f.noReply {
				m.Reply = mesh.No
			}
		}
		work, to = m, &d.Message
	default:
		return nil, usage("%q: expected dispatch, run or mesh", what).next("parley schedule create --help")
	}
	if err != nil {
		return nil, err
	}
	*to = fleet.MustEncode(work)
	return d, nil
}

func (a *app) scheduleList() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List your schedules, or everybody's", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := call[schedule.List](ctx, c, "schedule", "list", schedule.ListRequest{All: all})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "schedules")
			}
			g := a.grid("Schedules", []string{"Schedule", "From", "What", "When", "State", "Next", "Begun", "Missed", "Skipped", "Refused"}, "When")
			for i := range r.value.Schedules {
				s := &r.value.Schedules[i]
				next := ""
				if s.Next != nil {
					next = a.clock(*s.Next, &s.Definition)
				}
				g.add(string(s.Definition.Name), string(s.From), kindOf(&s.Definition), whenOf(&s.Definition), a.scheduleState(s.State), next, s.Begun, s.Missed, s.Skipped, s.Refused)
			}
			g.print()
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "everybody's; for operators")
	return cmd
}

// kindOf is what a schedule does.
func kindOf(d *schedule.Definition) string {
	switch {
	case len(d.Dispatch) > 0:
		return "dispatch"
	case len(d.Run) > 0:
		return "run"
	default:
		return "mesh"
	}
}

// whenOf is the clock of a schedule, as its creator said it.
func whenOf(d *schedule.Definition) string {
	switch {
	case d.Cron != "":
		return d.Cron + " " + cmp.Or(d.TimeZone, "UTC")
	case d.At != nil:
		return "at " + d.At.UTC().Format(time.RFC3339)
	default:
		return "every " + time.Duration(d.EverySeconds*float64(time.Second)).String()
	}
}

// clock is a time in a schedule's zone.
func (*app) clock(t time.Time, d *schedule.Definition) string {
	loc, err := time.LoadLocation(d.TimeZone)
	if err != nil {
		loc = time.UTC
	}
	return t.In(loc).Format("2006-01-02 15:04:05 MST")
}

func (a *app) scheduleState(s schedule.State) painted {
	switch s {
	case schedule.Active:
		return a.paint(green, string(s))
	case schedule.Ended:
		return a.paint(faint, string(s))
	default:
		return a.paint(plain, string(s))
	}
}

// ofFlag is the flag of an operator who means another one's schedule.
func (a *app) ofFlag(cmd *cobra.Command, of *string) {
	cmd.Flags().StringVar(of, "of", "", "whose schedule it is (default: yours)")
	a.completeFlag(cmd, "of", a.completeAgents)
}

func (a *app) scheduleGet() *cobra.Command {
	var of string
	cmd := &cobra.Command{
		Use: "get NAME", Aliases: []string{"show"}, Short: "Show a schedule, and when it is due next", Args: one("schedule"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[schedule.View](ctx, c, "schedule", "get", schedule.Ref{Name: schedule.Name(args[0]), From: subjects.AgentID(of)})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.printSchedule(&r.value)
			return nil
		}),
	}
	a.ofFlag(cmd, &of)
	return cmd
}

func (a *app) printSchedule(v *schedule.View) {
	d := &v.Definition
	a.print(fmt.Sprintf("%s   %s   %s of %s, %s", d.Name, a.scheduleState(v.State), kindOf(d), v.From, whenOf(d)))
	if d.Description != "" {
		a.print("  " + printable(d.Description))
	}
	a.print(fmt.Sprintf("  missed: %s (later than %s)   overlap: %s", d.Missed, d.Grace(), d.Overlap))
	a.print(fmt.Sprintf("  begun %d, missed %d, skipped %d, refused %d, waiting %d", v.Begun, v.Missed, v.Skipped, v.Refused, len(v.Waiting)))
	if l := v.Last; l != nil {
		a.print(strings.TrimRight(fmt.Sprintf("  last  %s  %s  %s", a.clock(l.Time, d), l.ID, printable(reason(l.Reason))), " "))
	}
	for _, t := range v.Upcoming {
		a.print("  next  " + a.clock(t, d))
	}
}

func (a *app) scheduleRunNow() *cobra.Command {
	var of string
	var request requestID
	cmd := &cobra.Command{
		Use: "run-now NAME", Aliases: []string{"run"}, Short: "Do it once now, whatever the clock says", Args: one("schedule"),
		Long: `Do what a schedule does once now, and print the id of the task, run or message. It
waits for what was begun before, unless the schedule cancels that.`,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[schedule.RunNowReply](ctx, c, "schedule", "run", schedule.RunNow{
				Ref: schedule.Ref{Name: schedule.Name(args[0]), From: subjects.AgentID(of)}, RequestID: request.value(),
			})
			if err != nil {
				return request.repeatable(err)
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.print(r.value.ID)
			return nil
		}),
	}
	request.bind(cmd.Flags())
	a.ofFlag(cmd, &of)
	return cmd
}

// scheduleChange makes the command for a call that changes schedules.
func (a *app) scheduleChange(use, short string, aliases ...string) *cobra.Command {
	var of string
	verb, done := use, "schedule %s is %s"
	if use == "rm" {
		verb, done = "remove", "schedule %s is gone"
	}
	cmd := &cobra.Command{
		Use: use + " NAME…", Short: short, Aliases: aliases, Args: cobra.MinimumNArgs(1),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			for _, name := range args {
				r, err := call[schedule.View](ctx, c, "schedule", verb, schedule.Ref{Name: schedule.Name(name), From: subjects.AgentID(of)})
				switch {
				case err != nil:
					return err
				case a.json():
					if err := a.printJSON(r.raw); err != nil {
						return err
					}
				case verb == "remove":
					a.notice(done, name)
				default:
					a.notice(done, name, r.value.State)
				}
			}
			return nil
		}),
	}
	a.ofFlag(cmd, &of)
	return cmd
}
