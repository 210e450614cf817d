package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// waitFor is how long one task wait call stays open.
const waitFor = 20 * time.Second

// firstWait is how long the first of them does.
const firstWait = 2 * time.Second

// waitPause is between two of them, for a router that answers at once because
// it is about to go.
const waitPause = 100 * time.Millisecond

func (a *app) taskCommand() *cobra.Command {
	c := noun("task", "Give the fleet tasks, and see what becomes of them", "tasks")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.Long = `Give the fleet tasks, and see what becomes of them.

The id of a task may be abbreviated to its beginning or its end, as long as only one
task has it.`
	c.AddCommand(a.taskSend(), a.taskList(), a.taskGet(), a.taskWait(), a.taskWatch(), a.taskLogs(),
		a.taskEvents(), a.taskExplain(), a.taskAnswer(), a.taskTell(), a.taskRetry(), a.taskCancel())
	return c
}

// ask makes a command's body: f with a connection that is closed afterwards.
func (a *app) ask(f func(ctx context.Context, c *client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.bus.Close()
		return f(cmd.Context(), c, args)
	}
}

// one wants exactly one argument, called name.
func one(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return usage("expected one %s, got %d", name, len(args)).next(cmd.CommandPath() + " --help")
	}
}

// oneTask wants exactly one argument, a task id.
func oneTask(cmd *cobra.Command, args []string) error {
	if err := one("task id")(cmd, args); err != nil {
		return err
	}
	_, err := subjects.ParseTaskID(args[0])
	return err
}

func (a *app) taskGet() *cobra.Command {
	return &cobra.Command{
		Use: "get TASK", Aliases: []string{"info", "show"}, Short: "Show a task as it is now", Args: oneTask,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := onTask[fleet.TaskView](ctx, c, "get", args[0], func(id subjects.TaskID) any { return fleet.TaskRef{TaskID: id} })
			if err != nil {
				return err
			}
			return a.printTask(r)
		}),
	}
}

func (a *app) taskList() *cobra.Command {
	var q fleet.TaskList
	var ago string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the tasks that live and those that ended lately", Args: cobra.NoArgs,
		Example: `  parley task ls --state blocked --since 1h
  parley task ls --run run-thpcsuhi4gniabcd
  parley task ls --text parser -o wide`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			if ago != "" {
				at, err := since(ago, a.now())
				if err != nil {
					return err
				}
				q.Since = &at
			}
			r, err := call[fleet.TaskListReply](ctx, c, "task", "list", q)
			if err != nil {
				return err
			}
			return a.printTasks(r, q)
		}),
	}
	cmd.Flags().StringVar((*string)(&q.State), "state", "", "only tasks in this state")
	cmd.Flags().StringVar((*string)(&q.AgentID), "agent", "", "only tasks of this agent")
	cmd.Flags().StringVar((*string)(&q.From), "from", "", "only tasks that this one has sent")
	cmd.Flags().StringVar((*string)(&q.RunID), "run", "", "only tasks of this run")
	cmd.Flags().StringVar((*string)(&q.SessionID), "session", "", "only tasks of this session")
	cmd.Flags().StringToStringVarP(&q.Labels, "label", "l", nil, "only tasks that ask for these labels, as k=v")
	cmd.Flags().StringVar(&ago, "since", "", "only tasks sent since: 2h ago, or 2026-05-31T21:00:00Z")
	cmd.Flags().StringVar(&q.Text, "text", "", "only tasks with this text in their brief, type, id or reason")
	cmd.Flags().BoolVar(&q.Waiting, "waiting", false, "only tasks that wait to be offered, or for a human, and why")
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "how many at most")
	states := []string{string(fleet.StateQueued), string(fleet.StateWorking), string(fleet.StateInputRequired)}
	for _, o := range outcomes {
		states = append(states, string(o.state))
	}
	complete(cmd, "state", states...)
	a.completeFlag(cmd, "agent", a.completeAgents)
	return cmd
}

func (a *app) taskWait() *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "wait TASK", Short: "Wait for a task's outcome and print it", Args: oneTask,
		Long: `Wait for a task's outcome and print it: the output on standard output, everything
else on standard error. The exit code tells how the task ended (parley help exit-codes).`,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			return a.waitAndPrint(ctx, c, subjects.TaskID(args[0]), limit)
		}),
	}
	cmd.Flags().DurationVar(&limit, "for", 0, "how long to wait at most (0: until it has ended)")
	return cmd
}

// waitAndPrint waits for a task's outcome, prints it, and turns it into the
// command's own.
func (a *app) waitAndPrint(ctx context.Context, c *client, id subjects.TaskID, limit time.Duration) error {
	r, err := byTask(ctx, c, string(id), func(id subjects.TaskID) (reply[fleet.TaskView], error) { return a.wait(ctx, c, id, limit) })
	if err != nil {
		return err
	}
	id = r.value.TaskID
	if !r.value.State.Terminal() {
		if a.json() {
			if err := a.printJSON(r.raw); err != nil {
				return err
			}
		}
		return failed("task %s is %s still", id, r.value.State).because("waited %s", roughly(limit)).
			next("parley task watch " + string(id))
	}
	if err := a.printOutcome(r); err != nil {
		return err
	}
	return outcomeError(r.value.State)
}

// wait asks until the task has ended, ctx ends, or the limit (0: none) is over.
// Workers that are away for a while do not end it.
func (a *app) wait(ctx context.Context, c *client, id subjects.TaskID, limit time.Duration) (reply[fleet.TaskView], error) {
	var over <-chan time.Time
	begin := a.now()
	if limit > 0 {
		over = time.After(limit)
	}
	patient := *c
	patient.timeout = waitFor + c.timeout
	told, why := false, ""
	for first := true; ; first = false {
		stay := waitFor
		if first {
			stay = firstWait // says soon why it waits
		}
		if limit > 0 {
			stay = min(stay, max(limit-a.now().Sub(begin), 0))
		}
		r, err := call[fleet.TaskView](ctx, &patient, "task", "wait", fleet.TaskWait{TaskID: id, TimeoutSeconds: max(stay.Seconds(), 0.1)})
		var pause time.Duration
		switch {
		case err == nil && r.value.State.Terminal():
			return r, nil
		case err == nil:
			told, pause = false, waitPause
			if s := a.waits(r.value.Waiting); s != why && s != "" {
				a.notice("waiting: %s", printable(s))
				why = s
			}
		case ctx.Err() != nil:
			return r, interrupted(ctx, id)
		case !away(err):
			return r, err
		default:
			if !told {
				a.notice("still waiting: %v", err)
			}
			told, pause = true, patience
		}
		select {
		case <-ctx.Done():
			return r, interrupted(ctx, id)
		case <-over:
			return r, err
		case <-time.After(pause):
		}
	}
}

// away reports whether err only says that no worker answers for the moment.
func away(err error) bool {
	return errors.Is(err, bus.ErrNoResponders) || errors.Is(err, bus.ErrTimeout) ||
		subjects.CodeOf(err) == subjects.CodeUnavailable
}

// interrupted says that the task goes on although the command does not.
func interrupted(ctx context.Context, id subjects.TaskID) error {
	return &problem{
		what: "interrupted; the task goes on", exit: exitInterrupted, err: ctx.Err(),
		then: "parley task wait " + string(id) + "  or  parley task cancel " + string(id),
	}
}

func (a *app) taskEvents() *cobra.Command {
	var q fleet.TaskEvents
	var all bool
	cmd := &cobra.Command{
		Use: "events TASK", Aliases: []string{"history"}, Short: "List what happened to a task", Args: oneTask,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			id := subjects.TaskID(args[0])
			var events []fleet.Event
			for {
				r, err := onTask[fleet.TaskEventsReply](ctx, c, "events", string(id), func(full subjects.TaskID) any {
					id, q.TaskID = full, full
					return q
				})
				if err != nil {
					return err
				}
				if a.json() && !all {
					return a.printList(r.raw, "events")
				}
				events = append(events, r.value.Events...)
				if n := len(r.value.Events); n == 0 || !all || !r.value.More {
					return a.printEvents(id, events, r.value.More)
				}
				q.AfterSeq = events[len(events)-1].Seq
			}
		}),
	}
	cmd.Flags().Uint64Var(&q.AfterSeq, "after", 0, "only those after this number")
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "how many at most")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all of them, page by page")
	return cmd
}

func (a *app) taskExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain TASK", Short: "Say, per agent, why it was or was not chosen", Args: oneTask,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := onTask[fleet.TaskExplanation](ctx, c, "explain", args[0], func(id subjects.TaskID) any { return fleet.TaskRef{TaskID: id} })
			if err != nil {
				return err
			}
			return a.printExplanation(r)
		}),
	}
}

func (a *app) taskCancel() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "cancel TASK", Aliases: []string{"rm"}, Short: "End a task", Args: oneTask,
		ValidArgsFunction: a.completeTasks,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := onTask[fleet.TaskView](ctx, c, "cancel", args[0], func(id subjects.TaskID) any {
				return fleet.TaskCancel{TaskID: id, Reason: why}
			})
			if err != nil {
				return err
			}
			id := r.value.TaskID
			if a.json() {
				return a.printJSON(r.raw)
			}
			if r.value.State != fleet.StateCanceled {
				a.notice("task %s had ended before: %s", id, r.value.State)
				return nil
			}
			a.notice("task %s is %s", id, r.value.State)
			return nil
		}),
	}
	cmd.Flags().StringVar(&why, "reason", "", "why, for the record")
	return cmd
}

// taskAndText wants a task id, which text may follow.
func taskAndText(text string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("expected a task id and %s", text).next(cmd.CommandPath() + " --help")
		}
		_, err := subjects.ParseTaskID(args[0])
		return err
	}
}

func (a *app) taskAnswer() *cobra.Command {
	var q fleet.TaskAnswer
	var file string
	cmd := &cobra.Command{
		Use: "answer TASK [TEXT…]", Short: "Answer the question that a task waits for",
		Args:              taskAndText("the answer"),
		ValidArgsFunction: a.completeTasks,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.text(args[1:], file, "an answer")
			if err != nil {
				return err
			}
			q.Text = strings.TrimSpace(string(text))
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				r, err := onTask[fleet.TaskView](ctx, c, "answer", args[0], func(id subjects.TaskID) any {
					q.TaskID = id
					return q
				})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(r.raw)
				}
				a.notice("answered; task %s is %s", r.value.TaskID, r.value.State)
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&q.QuestionID, "question", "", "id of the question (default: the open one)")
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the answer from a file, - for standard input")
	return cmd
}
