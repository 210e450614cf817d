package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// terms are the flags of task send: what they say wins over the file.
type terms struct {
	id, key, priority, taskType, tier, agent string
	onBlocked, escalate, reply, schema       string
	session, run, deadline                   string
	mcp, caps, alternatives                  []string
	labels                                   map[string]string
	budget, sessionBudget, runBudget         int64
	timeout                                  time.Duration
	alertRepeat, giveUpAfter                 time.Duration
	retries, losses                          int
	cleanRepo                                bool
}

func (t *terms) bind(fs *pflag.FlagSet) {
	fs.StringVar(&t.id, "id", "", "task id (default: a new one)")
	fs.StringVar(&t.key, "key", "", "idempotency key: the same key within 24 h is the same task")
	fs.StringVar(&t.priority, "priority", "", "critical, high, normal or low")
	fs.StringVar(&t.taskType, "type", "", "kind of task, for whoever reads it")
	fs.StringSliceVar(&t.mcp, "mcp", nil, "MCP servers that the agent must have in good health")
	fs.StringSliceVar(&t.caps, "cap", nil, "capabilities that the agent must have")
	fs.StringVar(&t.tier, "tier", "", "the least model tier")
	fs.StringToStringVarP(&t.labels, "label", "l", nil, "labels that the agent must have, as k=v")
	fs.BoolVar(&t.cleanRepo, "clean-repo", false, "the agent's work tree must be clean")
	fs.StringVar(&t.agent, "agent", "", "this agent and no other")
	fs.StringSliceVar(&t.alternatives, "alt", nil, "agents to turn to if --agent fails")
	fs.Int64Var(&t.budget, "budget", 0, "tokens that it may cost")
	fs.Int64Var(&t.sessionBudget, "session-budget", 0, "tokens that all tasks of the session may cost")
	fs.Int64Var(&t.runBudget, "run-budget", 0, "tokens that all tasks of the run may cost")
	fs.StringVar(&t.deadline, "deadline", "", "when it must have ended: 30m from now, or 2026-05-31T21:00:00Z; beside --id or --key a time alone")
	fs.DurationVar(&t.timeout, "attempt-timeout", 0, "how long one attempt may take")
	fs.IntVar(&t.retries, "max-retries", fleet.DefaultMaxRetries, "attempts with the same agent after the first")
	fs.IntVar(&t.losses, "max-losses", fleet.DefaultMaxLosses, "agents that may be lost in a row before a human decides")
	fs.StringVar(&t.onBlocked, "on-blocked", "", "when nobody can do it: reroute, wait, fail or escalate")
	fs.StringVar(&t.escalate, "escalate", "", "whether to wait for a human: auto, always or never")
	fs.DurationVar(&t.alertRepeat, "alert-repeat", fleet.DefaultAlertRepeat, "people are called again after this")
	fs.DurationVar(&t.giveUpAfter, "give-up-after", fleet.DefaultGiveUpAfter, "wait no longer for people")
	fs.StringVar(&t.reply, "reply", "", "form of the reply: prose, structured or json")
	fs.StringVar(&t.schema, "schema", "", "file with the JSON Schema that the output must match")
	fs.StringVar(&t.session, "session", "", "session id")
	fs.StringVar(&t.run, "run", "", "run id")
}

// apply writes the flags that were given into d.
func (t *terms) apply(d *fleet.Dispatch, fs *pflag.FlagSet, now time.Time) error {
	text := func(flag, value string, to *string) {
		if fs.Changed(flag) {
			*to = value
		}
	}
	text("id", t.id, (*string)(&d.Task.TaskID))
	text("key", t.key, &d.Task.IdempotencyKey)
	text("priority", t.priority, (*string)(&d.Task.Priority))
	text("type", t.taskType, &d.Task.Type)
	text("tier", t.tier, &d.Requirements.ModelTier)
	text("agent", t.agent, (*string)(&d.Task.Agent))
	text("on-blocked", t.onBlocked, &d.Task.OnBlocked)
	text("escalate", t.escalate, &d.Task.Escalate)
	text("reply", t.reply, &d.Task.ReplySchema)
	text("session", t.session, (*string)(&d.Task.SessionID))
	text("run", t.run, (*string)(&d.Task.RunID))
	if fs.Changed("mcp") {
		d.Requirements.RequiredMCP = t.mcp
	}
	if fs.Changed("cap") {
		d.Requirements.RequiredCapabilities = t.caps
	}
	if fs.Changed("alt") {
		d.Task.Alternatives = nil
		for _, alt := range t.alternatives {
			d.Task.Alternatives = append(d.Task.Alternatives, subjects.AgentID(alt))
		}
	}
	if fs.Changed("label") {
		d.Requirements.Labels = t.labels
	}
	if fs.Changed("clean-repo") {
		d.Requirements.CleanRepo = t.cleanRepo
	}
	if fs.Changed("budget") {
		d.Task.TokenBudget = t.budget
	}
	if fs.Changed("session-budget") {
		d.Task.SessionBudget = t.sessionBudget
	}
	if fs.Changed("run-budget") {
		d.Task.RunBudget = t.runBudget
	}
	if fs.Changed("attempt-timeout") {
		d.Task.TimeoutSeconds = t.timeout.Seconds()
	}
	if fs.Changed("alert-repeat") {
		d.Task.AlertRepeat = t.alertRepeat.Seconds()
	}
	if fs.Changed("give-up-after") {
		d.Task.GiveUpAfter = t.giveUpAfter.Seconds()
	}
	if err := t.applyCounts(d, fs); err != nil {
		return err
	}
	if fs.Changed("deadline") {
		at, err := moment("--deadline", t.deadline, now)
		if err != nil {
			return err
		}
		if fromNow(t.deadline) && (d.Task.TaskID != "" || d.Task.IdempotencyKey != "") {
			return usage("--deadline %s is another time at each call, so that a repeat with the same id or key would be another task", t.deadline).
				next("give the time itself: --deadline " + at.Format(time.RFC3339))
		}
		d.Deadline = &at
	}
	if fs.Changed("schema") {
		data, err := os.ReadFile(t.schema)
		if err != nil {
			return usage("read the schema: %w", err)
		}
		if !json.Valid(data) {
			return usage("--schema %s holds no JSON", t.schema)
		}
		d.Task.ResultSchema = data
	}
	return nil
}

// applyCounts writes how often the task may be tried again.
func (t *terms) applyCounts(d *fleet.Dispatch, fs *pflag.FlagSet) error {
	if fs.Changed("max-retries") {
		d.Task.MaxRetries = &t.retries
	}
	if fs.Changed("max-losses") {
		if t.losses < 1 {
			return usage("--max-losses %d: expected 1 or more", t.losses)
		}
		d.Task.MaxLosses = t.losses
	}
	return nil
}

// moment reads a time, or a duration from now, that a flag says.
func moment(flag, s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(d).UTC().Truncate(time.Millisecond), nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return at, usage("%s %q: expected a time from now such as 30m, or one such as 2026-05-31T21:00:00Z", flag, s)
	}
	return at.UTC(), nil
}

// fromNow reports whether a flag says a time from now, which is another one at
// each call.
func fromNow(s string) bool {
	_, err := time.ParseDuration(s)
	return err == nil
}

func (a *app) taskSend() *cobra.Command {
	var t terms
	var file string
	var wait bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "send [BRIEF…]", Aliases: []string{"add", "dispatch"}, Short: "Dispatch a task",
		Long: `Dispatch a task and print its id. The brief is what the arguments say, or the
file of -f, or standard input; a file or standard input may hold a whole
TASK_DISPATCH in JSON, and a brief may begin with hints:

  priority: high
  required_mcp: [github]

  Brief: Review pull request 7.

Flags win over both. With --wait the command waits for the outcome, prints the
output, and its exit code tells how the task ended.`,
		Example: `  parley task send "Write a haiku about queues"
  parley task send --wait --tier opus --mcp github --budget 20000 -f brief.md
  git diff | parley task send --wait --cap review`,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.dispatch(args, file)
			if err != nil {
				return err
			}
			if err := t.apply(d, cmd.Flags(), a.now()); err != nil {
				return err
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				return a.send(ctx, c, d, wait, limit)
			})(cmd, args)
		},
	}
	t.bind(cmd.Flags())
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the dispatch or the brief from a file, - for standard input")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the outcome and print it")
	cmd.Flags().DurationVar(&limit, "for", 0, "with --wait: how long at most (0: until it has ended)")
	complete(cmd, "priority", string(fleet.Critical), string(fleet.High), string(fleet.Normal), string(fleet.Low))
	complete(cmd, "on-blocked", fleet.OnBlockedReroute, fleet.OnBlockedWait, fleet.OnBlockedFail, fleet.OnBlockedEscalate)
	complete(cmd, "escalate", fleet.EscalateAuto, fleet.EscalateAlways, fleet.EscalateNever)
	complete(cmd, "reply", fleet.ReplyProse, fleet.ReplyStructured, fleet.ReplyJSON)
	a.completeFlag(cmd, "agent", a.completeAgents)
	a.completeFlag(cmd, "alt", a.completeAgents)
	return cmd
}

// dispatch reads what is to be sent. Arguments are text, whatever they look
// like; a file or standard input may be a whole dispatch.
func (a *app) dispatch(args []string, file string) (*fleet.Dispatch, error) {
	data, err := a.text(args, file, "a brief")
	if err != nil {
		return nil, err
	}
	if len(args) > 0 && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		if data, err = fleet.Encode(fleet.Dispatch{Brief: string(data)}); err != nil {
			return nil, err
		}
	}
	return fleet.DecodeDispatch(data)
}

// text is what the arguments say, or the file, or standard input.
func (a *app) text(args []string, file, what string) ([]byte, error) {
	switch {
	case len(args) > 0 && file != "":
		return nil, usage("%s is given twice: as arguments and as a file", what).next("leave one of them out")
	case len(args) > 0:
		return []byte(strings.Join(args, " ")), nil
	case file == "" && isTerminal(a.stdin):
		return nil, usage("no %s given", strings.TrimPrefix(strings.TrimPrefix(what, "an "), "a ")).
			next("give it as arguments, with -f FILE, or on standard input")
	}
	in := a.stdin
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("read %s: %w", what, err)
		}
		defer f.Close() //nolint:errcheck // only read
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, fleet.MaxMessage+1))
	if err != nil {
		return nil, failed("read %s: %w", what, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, usage("%s is empty", what).next("give it as arguments, with -f FILE, or on standard input")
	}
	return data, nil
}

// send dispatches d. It names the task, so that a repeat after an ambiguous
// time-out is the same task, unless the idempotency key does.
func (a *app) send(ctx context.Context, c *client, d *fleet.Dispatch, wait bool, limit time.Duration) error {
	if d.Task.TaskID == "" && d.Task.IdempotencyKey == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return failed("make a task id: %w", err)
		}
		d.Task.TaskID = subjects.TaskID(id.String())
	}
	r, err := call[fleet.Dispatched](ctx, c, "task", "dispatch", d)
	if p, ok := errors.AsType[*problem](err); ok && d.Task.TaskID != "" && errors.Is(err, bus.ErrTimeout) {
		id := string(d.Task.TaskID)
		p.where = "it may have been accepted all the same, as task " + id
		again := "--id " + id
		if d.Deadline != nil {
			again += " --deadline " + d.Deadline.Format(time.RFC3339Nano)
		}
		return p.next("parley task get " + id + "  tells; sending it again with " + again + " is the same task")
	}
	if err != nil {
		return err
	}
	for _, w := range r.value.Warnings {
		at := ""
		if w.Pointer != "" {
			at = " at " + w.Pointer
		}
		a.notice("warning%s: %s", at, printable(w.Message))
		part(a.stderr, "next:", printable(w.Remedy))
	}
	id := r.value.TaskID
	if wait {
		a.notice("task %s", id)
		return a.waitAndPrint(ctx, c, id, limit)
	}
	if a.json() {
		return a.printJSON(r.raw)
	}
	a.print(string(id))
	if r.value.Duplicate {
		a.notice("it existed already, and is %s", r.value.State)
	}
	a.notice("next: parley task watch %s", id)
	return nil
}
