package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
)

func (a *app) meshCommand() *cobra.Command {
	c := noun("mesh", "Send messages to agents, and see what they say to each other", "messages")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.meshSend(), a.meshAsk(), a.meshInbox(), a.meshThread(), a.meshGet(), a.meshWatch())
	return c
}

// letterFlags are what mesh send and mesh ask have in common.
type letterFlags struct {
	to                   []string
	action, thread, task string
	ref, file, name      string
	request              requestID
}

func (f *letterFlags) bind(a *app, cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.to, "to", nil, "agents that it is for (required)")
	fs.StringVar(&f.action, "action", string(mesh.Do), "do: they are to do something; info: they are told something")
	fs.StringVar(&f.thread, "thread", a.getenv("PARLEY_THREAD_ID"), "thread that it belongs to (default: a new one, or PARLEY_THREAD_ID)")
	fs.StringVar(&f.ref, "ref", "", "message that it answers")
	fs.StringVar(&f.task, "task", a.getenv("PARLEY_TASK_ID"), "task in whose service it is sent (default: PARLEY_TASK_ID)")
	fs.StringVar(&f.name, "name", "", "name of the sender, for people to read")
	fs.StringVarP(&f.file, "file", "f", "", "read the text from a file, - for standard input")
	f.request.bind(fs)
	complete(cmd, "action", string(mesh.Do), string(mesh.Info))
	a.completeFlag(cmd, "to", a.completeAgents)
}

// message is the message that the flags say, to nobody yet.
func (f *letterFlags) message(a *app, args []string) (*mesh.Message, error) {
	if len(f.to) == 0 {
		return nil, usage("--to is missing: name the agents that it is for").next("parley agent ls  lists them")
	}
	text, err := a.text(args, f.file, "a text")
	if err != nil {
		return nil, err
	}
	m := &mesh.Message{
		Header: fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version},
		Action: mesh.Action(f.action), ThreadID: mesh.ThreadID(f.thread), Ref: mesh.MessageID(f.ref),
		TaskID: subjects.TaskID(f.task), SenderName: f.name, Text: strings.TrimSpace(string(text)), Traceparent: a.trace(),
	}
	if budget := a.getenv("PARLEY_TOKEN_BUDGET"); budget != "" && f.task == a.getenv("PARLEY_TASK_ID") {
		if m.TokenBudget, err = strconv.ParseInt(budget, 10, 64); err != nil {
			return nil, usage("PARLEY_TOKEN_BUDGET: %w", err)
		}
	}
	return m, nil
}

// trace is the trace that the environment names, as an agent's command has it;
// "" where there is none, or where it is none by the rules.
func (a *app) trace() string {
	if t := a.getenv("TRACEPARENT"); fleet.ValidTraceparent(t) {
		return t
	}
	return ""
}

// post sends a message to the i-th of those that it is for. Its id is that of the
// request, so that a repeat is the same message; of several, each has its own.
func (f *letterFlags) post(ctx context.Context, c *client, m *mesh.Message, to []string, i int) (reply[mesh.Sent], error) {
	id := f.request.value()
	if len(to) > 1 {
		id += "-" + strconv.Itoa(i+1)
	}
	m.To, m.MessageID = subjects.AgentID(to[i]), mesh.MessageID(id)
	r, err := call[mesh.Sent](ctx, c, "mesh", "send", m)
	return r, f.request.repeatable(err)
}

func (a *app) meshSend() *cobra.Command {
	var f letterFlags
	var noReply bool
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "send --to AGENT [TEXT…]", Short: "Send a message to agents",
		Long: `Send a message into the session of an agent and print its id. It is durable: an
agent that sleeps gets it when it announces itself, at most --ttl later. An
answer, unless --no-reply says that none is wanted, comes into the inbox
(parley mesh inbox); parley mesh get tells how far the message has come.

Inside a message or a task that an agent works on, PARLEY_THREAD_ID and
PARLEY_TASK_ID say what it belongs to.`,
		Example: `  parley mesh send --to linda "Review PR 123 before I merge."
  parley mesh send --to britney --action info --no-reply "She owns dispatch."`,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.message(a, args)
			if err != nil {
				return err
			}
			m.Reply, m.TTLSeconds = mesh.Yes, ttl.Seconds()
			if noReply {
				m.Reply = mesh.No
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				for i := range f.to {
					r, err := f.post(ctx, c, m, f.to, i)
					if err != nil {
						return err
					}
					if a.json() {
						if err := a.printJSON(r.raw); err != nil {
							return err
						}
						continue
					}
					a.print(string(r.value.MessageID))
				}
				return nil
			})(cmd, args)
		},
	}
	f.bind(a, cmd)
	cmd.Flags().BoolVar(&noReply, "no-reply", false, "no answer is wanted")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it may wait (default and at most 24h)")
	return cmd
}

// quorum is how many answers mesh ask waits for.
type quorum struct {
	all, first bool
	n          int
}

func (q *quorum) bind(fs *pflag.FlagSet) {
	fs.BoolVar(&q.all, "all", false, "wait for every answer (the default)")
	fs.BoolVar(&q.first, "first", false, "wait for the first answer")
	fs.IntVar(&q.n, "quorum", 0, "wait for so many answers")
}

func (q *quorum) need(asked int) (int, error) {
	said := 0
	for _, b := range []bool{q.all, q.first, q.n != 0} {
		if b {
			said++
		}
	}
	switch {
	case said > 1:
		return 0, usage("--all, --first and --quorum exclude each other")
	case q.n < 0 || q.n > asked:
		return 0, usage("--quorum %d: expected 1 to %d, as many as are asked", q.n, asked)
	case q.first:
		return 1, nil
	}
	return cmp.Or(q.n, asked), nil
}

func (a *app) meshAsk() *cobra.Command {
	var f letterFlags
	var q quorum
	var limit time.Duration
	cmd := &cobra.Command{
		Use: "ask --to AGENT,… [TEXT…]", Short: "Ask agents, and gather their answers",
		Long: `Ask one agent or several at once, wait, and print the answers. The exit code is 0
when as many have answered as were wanted: all, the first, or --quorum of them.`,
		Example: `  parley mesh ask --to isa "What does the schema say about sizes?"
  parley mesh ask --to isa,britney,linda --quorum 2 --for 5m "Ship it?"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.message(a, args)
			if err != nil {
				return err
			}
			slices.Sort(f.to)
			f.to = slices.Compact(f.to)
			need, err := q.need(len(f.to))
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("timeout") && !cmd.Flags().Changed("for") {
				limit = time.Duration(a.conf.Timeout)
			}
			if limit <= 0 || limit > mesh.MaxTTL {
				return usage("--for %s: expected a time up to 24h", limit)
			}
			m.Reply, m.Collect = mesh.Yes, true
			m.ReplyTimeoutSeconds, m.TTLSeconds = limit.Seconds(), limit.Seconds()
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				return a.gather(ctx, c, &f, m, need, limit)
			})(cmd, args)
		},
	}
	f.bind(a, cmd)
	q.bind(cmd.Flags())
	cmd.Flags().DurationVar(&limit, "for", 10*time.Minute, "how long to wait; when absent, --timeout says so, too, where that is given")
	return cmd
}

// gather asks, waits and prints.
func (a *app) gather(ctx context.Context, c *client, f *letterFlags, m *mesh.Message, need int, limit time.Duration) error {
	var ids []mesh.MessageID
	for i := range f.to {
		r, err := f.post(ctx, c, m, f.to, i)
		if err != nil {
			return err
		}
		ids = append(ids, r.value.MessageID)
		m.ThreadID = r.value.ThreadID
	}
	a.notice("asked %s, thread %s", strings.Join(f.to, ", "), m.ThreadID)
	patient := *c
	patient.timeout = waitFor + c.timeout
	begin := a.now()
	for {
		left := limit - a.now().Sub(begin)
		stay := max(min(waitFor, left), 100*time.Millisecond)
		r, err := call[mesh.Answers](ctx, &patient, "mesh", "wait", mesh.Wait{MessageIDs: ids, Need: need, TimeoutSeconds: stay.Seconds()})
		switch {
		case err != nil && !away(err):
			return err
		case err == nil && (r.value.Done || left <= 0):
			return a.printAnswers(r, need)
		case left <= 0:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(waitPause):
		}
	}
}

func (a *app) printAnswers(r reply[mesh.Answers], need int) error {
	have := 0
	for i := range r.value.Answers {
		answer := &r.value.Answers[i]
		good := answer.Reply != nil && answer.Reply.Error == nil
		if good {
			have++
		}
		switch {
		case a.json():
		case good:
			a.print(string(a.paint(bold, string(answer.Reply.From))))
			text := answer.Reply.Text
			if len(answer.Reply.Data) > 0 {
				text = strings.TrimLeft(text+"\n"+string(answer.Reply.Data), "\n")
			}
			a.print(printable(text))
		case answer.Reply != nil:
			a.notice("%s: %s", answer.Reply.From, reason(answer.Reply.Error))
		default:
			a.notice("%s: %s %s", cmp.Or(string(answer.To), string(answer.MessageID)), answer.State, reason(answer.Reason))
		}
	}
	if a.json() {
		if err := a.printList(r.raw, "answers"); err != nil {
			return err
		}
	}
	if have < need {
		return &problem{
			what: fmt.Sprintf("%d of %d answers came", have, need), exit: codeExit(subjects.CodeAgentTimeout),
			then: "parley mesh get MESSAGE  tells how far a message has come",
		}
	}
	return nil
}

func (a *app) meshInbox() *cobra.Command {
	var q mesh.Inbox
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "inbox", Short: "List the messages to you", Args: cobra.NoArgs,
		Long: `List the messages to you (--as) that nobody has dealt with. With --take they are
dealt with by this: no instance gets them, and they are not listed again.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			patient := *c
			patient.timeout += wait
			q.WaitSeconds = wait.Seconds()
			r, err := call[mesh.List](ctx, &patient, "mesh", "inbox", q)
			if err != nil {
				return err
			}
			return a.printMessages("Inbox of "+string(c.from), r)
		}),
	}
	cmd.Flags().BoolVar(&q.Take, "take", false, "and they are dealt with")
	cmd.Flags().BoolVarP(&q.All, "all", "a", false, "those that are dealt with, too")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for the first to come, at most 1m")
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "how many at most")
	return cmd
}

func (a *app) meshThread() *cobra.Command {
	q := mesh.Thread{}
	cmd := &cobra.Command{
		Use: "thread THREAD", Short: "List the messages of a thread", Args: one("thread id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			q.ThreadID = mesh.ThreadID(args[0])
			r, err := call[mesh.List](ctx, c, "mesh", "thread", q)
			if err != nil {
				return err
			}
			return a.printMessages("Thread "+args[0], r)
		}),
	}
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "the last ones: how many")
	return cmd
}

func (a *app) meshGet() *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "get MESSAGE", Aliases: []string{"show"}, Short: "Show a message and how far it has come", Args: one("message id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[mesh.View](ctx, c, "mesh", "get", mesh.Ref{MessageID: mesh.MessageID(args[0]), From: subjects.AgentID(from)})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			m, ack := &r.value.Message, &r.value.Ack
			a.print(fmt.Sprintf("%s → %s   %s   %s, reply %s   thread %s", m.From, m.To, a.meshState(ack.State), m.Action, m.Reply, m.ThreadID))
			if ack.Reason != nil {
				a.print("  " + printable(reason(ack.Reason)))
			}
			a.print(printable(m.Text))
			return nil
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "its sender (default: you)")
	return cmd
}

// printMessages lists messages.
func (a *app) printMessages(title string, r reply[mesh.List]) error {
	if a.json() {
		return a.printList(r.raw, "messages")
	}
	g := a.grid(title, []string{"Message", "From", "To", "Action", "Reply", "State", "Sent", "Text"}, "Text")
	for i := range r.value.Messages {
		m, ack := &r.value.Messages[i].Message, &r.value.Messages[i].Ack
		g.add(string(m.MessageID), string(m.From), string(m.To), string(m.Action), string(m.Reply), a.meshState(ack.State), a.when(sentAt(m)), oneLine(m.Text))
	}
	g.print()
	return nil
}

func sentAt(m *mesh.Message) time.Time {
	if m.Time == nil {
		return time.Time{}
	}
	return *m.Time
}

// meshState paints the state of a message.
func (a *app) meshState(s mesh.State) painted {
	switch s {
	case mesh.Processed, mesh.Answered:
		return a.paint(green, string(s))
	case mesh.Failed, mesh.Expired, mesh.Refused, mesh.Unanswered:
		return a.paint(red, string(s))
	case mesh.Delivering, mesh.Delivered:
		return a.paint(blue, string(s))
	default:
		return a.paint(plain, string(s))
	}
}

func (a *app) meshWatch() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "watch", Short: "Follow what becomes of your messages, or all that agents say", Args: cobra.NoArgs,
		Long: `Follow live what becomes of the messages that you send. With --all an operator
follows every message of the fleet and what becomes of it.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			patterns := []string{subjects.MeshAck(c.from, "*")}
			if all {
				patterns = []string{subjects.MeshAckPattern, subjects.MeshPattern}
			}
			heard, stop, err := listen(ctx, c.bus, patterns...)
			if err != nil {
				return c.unanswered(err, "mesh", "watch")
			}
			defer stop()
			a.notice("listening; Ctrl-C ends it")
			for {
				select {
				case <-ctx.Done():
					return nil
				case m := <-heard:
					if err := a.printHeard(m); err != nil {
						return err
					}
				}
			}
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all agents' messages; for operators")
	return cmd
}

// printHeard prints a message, or what has become of one.
func (a *app) printHeard(m bus.Msg) error {
	if a.json() {
		return a.printJSON(m.Data)
	}
	clock := string(a.paint(faint, a.now().Format(time.TimeOnly)))
	if vars, ok := subjects.Tokens(subjects.MeshPattern, m.Subject); ok {
		text := ""
		if msg, err := mesh.DecodeMessage(m.Data); err == nil {
			text = fmt.Sprintf("%s, reply %s: %s", msg.Action, msg.Reply, oneLine(printable(mesh.Clean(msg.Body()))))
		}
		a.print(fmt.Sprintf("%s %s → %s  %s", clock, vars[1], vars[0], text))
		return nil
	}
	ack, err := mesh.DecodeAck(m.Data)
	if err != nil || ack.State == mesh.Delivering {
		return nil //nolint:nilerr // what is not an acknowledgement is nobody's business here
	}
	a.print(fmt.Sprintf("%s %s → %s  %s %s %s", clock, ack.From, ack.To, ack.MessageID, a.meshState(ack.State), printable(reason(ack.Reason))))
	return nil
}
