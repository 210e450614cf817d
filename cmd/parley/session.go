package main

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

func (a *app) sessionCommand() *cobra.Command {
	c := noun("session", "Let agents share a context: sessions, their tokens and what is in them", "sessions")
	c.Long = `A session is a working relation of agents: they share a context that each reads
and adds to. It is kept for 24 h after its last renewal (session update); its
token lasts one hour. Tasks sent with --session get the context with their
offer, and their results are added to it.

Who is neither its owner nor an operator uses a session with its token, in
PARLEY_SESSION_TOKEN.`
	bind(c.PersistentFlags(), a.conf, append([]string{"as", "session-token"}, connectionFlags...)...)
	c.AddCommand(a.sessionCreate(), a.sessionGet(), a.sessionUpdate(), a.sessionDelete(), a.sessionList(),
		a.sessionAppend(), a.sessionContext(), a.sessionFetch())
	return c
}

// oneSession wants exactly one argument, a session id.
func oneSession(cmd *cobra.Command, args []string) error {
	if err := one("session id")(cmd, args); err != nil {
		return err
	}
	_, err := subjects.ParseSessionID(args[0])
	return err
}

// purpose are the flags of what a session is for.
type purpose struct {
	task     string
	metadata handshake.TaskMetadata
	timeout  time.Duration
}

func (p *purpose) bind(fs *pflag.FlagSet) {
	fs.StringVar(&p.task, "task", "", "the task that it is for")
	fs.StringVar(&p.metadata.Type, "type", "", "kind of task, such as multi-agent-run")
	fs.StringVar(&p.metadata.Priority, "priority", "", "critical, high, normal or low")
	fs.DurationVar(&p.timeout, "task-timeout", 0, "how long the task may take")
}

func (p *purpose) value() handshake.TaskMetadata {
	p.metadata.Timeout = p.timeout.Seconds()
	return p.metadata
}

func (a *app) sessionCreate() *cobra.Command {
	var p purpose
	var tokenFile string
	cmd := &cobra.Command{
		Use: "create", Aliases: []string{"add"}, Short: "Open a session and print its id", Args: cobra.NoArgs,
		Example: `  parley session create --token-file session.token
  parley session create -o json        with the token`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			req := handshake.Create{TaskID: subjects.TaskID(p.task), TaskMetadata: p.value()}
			r, err := call[handshake.Opened](ctx, c, "session", "create", req)
			if err != nil {
				return err
			}
			return a.printOpened(r, tokenFile)
		}),
	}
	p.bind(cmd.Flags())
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "write the token to this file, for its owner's eyes only")
	return cmd
}

// printOpened prints a session and, for programs or into a file, its token.
func (a *app) printOpened(r reply[handshake.Opened], tokenFile string) error {
	if tokenFile != "" {
		if err := os.WriteFile(tokenFile, []byte(r.value.Token+"\n"), 0o600); err != nil {
			return failed("write the token: %w", err)
		}
	}
	if a.json() {
		return a.printJSON(r.raw)
	}
	a.print(string(r.value.Session.SessionID))
	a.notice("its token lasts until %s, the session until %s", r.value.Session.ExpiresAt.Format(time.RFC3339), r.value.KeptUntil.Format(time.RFC3339))
	if tokenFile == "" {
		a.notice("for the token: --token-file FILE, or -o json")
	}
	return nil
}

func (a *app) sessionGet() *cobra.Command {
	return &cobra.Command{
		Use: "get SESSION", Aliases: []string{"info", "show"}, Short: "Show a session", Args: oneSession,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[handshake.View](ctx, c, "session", "get", a.sessionRef(args[0]))
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			s := &r.value.Session
			g := a.card("Session " + string(s.SessionID))
			g.fact("Owner", string(s.Orchestrator))
			g.fact("Created", a.moment(s.CreatedAt))
			g.fact("Token until", a.moment(s.ExpiresAt))
			g.fact("Kept until", a.moment(r.value.KeptUntil))
			g.fact("Task", string(s.TaskID))
			g.fact("Type", s.TaskMetadata.Type)
			g.fact("Priority", s.TaskMetadata.Priority)
			g.fact("Context", "version "+strconv.FormatUint(r.value.Version, 10))
			g.print()
			return nil
		}),
	}
}

func (a *app) sessionRef(id string) handshake.Ref {
	return handshake.Ref{SessionID: subjects.SessionID(id), Token: a.conf.Session}
}

func (a *app) sessionUpdate() *cobra.Command {
	var p purpose
	var tokenFile string
	cmd := &cobra.Command{
		Use: "update SESSION", Aliases: []string{"renew"}, Short: "Renew a session, and change what it is for", Args: oneSession,
	}
	cmd.RunE = a.ask(func(ctx context.Context, c *client, args []string) error {
		req := handshake.Update{SessionID: subjects.SessionID(args[0]), TaskID: subjects.TaskID(p.task)}
		for _, flag := range []string{"type", "priority", "task-timeout"} {
			if cmd.Flags().Changed(flag) {
				metadata := p.value()
				req.TaskMetadata = &metadata
			}
		}
		r, err := call[handshake.Opened](ctx, c, "session", "update", req)
		if err != nil {
			return err
		}
		return a.printOpened(r, tokenFile)
	})
	p.bind(cmd.Flags())
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "write the new token to this file, for its owner's eyes only")
	return cmd
}

func (a *app) sessionDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete SESSION", Aliases: []string{"rm"}, Short: "End a session, and drop all that it holds", Args: oneSession,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[handshake.Deleted](ctx, c, "session", "delete", a.sessionRef(args[0]))
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.notice("session %s is gone, with all that it held", args[0])
			return nil
		}),
	}
}

func (a *app) sessionList() *cobra.Command {
	var q handshake.List
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List your sessions; all of them for an operator", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := call[handshake.ListReply](ctx, c, "session", "list", q)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "sessions")
			}
			if len(r.value.Sessions) == 0 {
				a.notice("no sessions; parley session create makes one")
				return nil
			}
			g := a.grid("Sessions", []string{"Session", "Owner", "Created", "Token until", "Kept until", "Task", "Type"})
			for _, v := range r.value.Sessions {
				s := &v.Session
				g.add(string(s.SessionID), string(s.Orchestrator), a.when(s.CreatedAt), a.when(s.ExpiresAt), a.when(v.KeptUntil), string(s.TaskID), s.TaskMetadata.Type)
			}
			g.print()
			return nil
		}),
	}
	cmd.Flags().IntVarP(&q.Limit, "limit", "n", 100, "how many at most")
	return cmd
}

// addition are the flags of session append.
type addition struct {
	status, findings, outputFile, file string
	task                               string
	shared                             map[string]string
	after                              uint64
	redact                             bool
	request                            requestID
}

func (a *app) sessionAppend() *cobra.Command {
	var n addition
	cmd := &cobra.Command{
		Use: "append SESSION [OUTPUT…]", Short: "Add what was done to a session's context",
		Long: `Add what was done to a session's context: the output is what the arguments say,
or the file of -f. One of more than 128 KiB is kept beside the context and read
with session fetch. What looks like a secret is refused; --redact masks it.`,
		Args: func(cmd *cobra.Command, args []string) error { return oneSession(cmd, args[:min(len(args), 1)]) },
	}
	cmd.RunE = a.ask(func(ctx context.Context, c *client, args []string) error {
		req, err := a.addition(ctx, c, &n, args)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("after") {
			req.AfterVersion = &n.after
		}
		r, err := call[handshake.Appended](ctx, c, "session", "append", req)
		if err != nil {
			return n.request.repeatable(err)
		}
		if a.json() {
			return a.printJSON(r.raw)
		}
		a.print(strconv.FormatUint(r.value.Version, 10))
		for _, what := range r.value.Redacted {
			a.notice("masked: %s", printable(what))
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&n.status, "status", "completed", "how it went")
	f.StringVar(&n.findings, "findings", "", "what was found, a JSON object")
	f.StringVar(&n.outputFile, "output-file", "", "where the output is kept, if elsewhere")
	f.StringVarP(&n.file, "file", "f", "", "read the output from a file")
	f.StringVar(&n.task, "task", "", "the task whose work it is")
	f.StringToStringVar(&n.shared, "share", nil, "data for all, as name=value; a value may be JSON")
	f.Uint64Var(&n.after, "after", 0, "refuse it if the context has a later version than this")
	n.request.bind(f)
	f.BoolVar(&n.redact, "redact", false, "mask what looks like a secret instead of refusing it")
	return cmd
}

// addition makes the request of an append. It has a key, so that repeating it
// is safe.
func (a *app) addition(ctx context.Context, c *client, n *addition, args []string) (*handshake.Append, error) {
	req := &handshake.Append{
		SessionID: subjects.SessionID(args[0]), Token: a.conf.Session, Redact: n.redact, Key: n.request.value(),
		Entry: handshake.Entry{Status: n.status, OutputFile: n.outputFile, TaskID: subjects.TaskID(n.task)},
	}
	if n.findings != "" {
		if !json.Valid([]byte(n.findings)) {
			return nil, usage("--findings is not JSON")
		}
		req.Entry.Findings = json.RawMessage(n.findings)
	}
	for name, value := range n.shared {
		if req.SharedData == nil {
			req.SharedData = map[string]json.RawMessage{}
		}
		req.SharedData[name] = jsonOrText([]byte(value))
	}
	switch {
	case n.file != "" && len(args) > 1:
		return nil, usage("an output is given twice: as arguments and as a file").next("leave one of them out")
	case len(args) > 1:
		req.Entry.Output = fleet.MustEncode(strings.Join(args[1:], " "))
	case n.file != "":
		data, err := os.ReadFile(n.file)
		if err != nil {
			return nil, usage("read the output: %w", err)
		}
		if len(data) <= handshake.MaxInline/2 { // quoted as JSON it is longer
			req.Entry.Output = jsonOrText(data)
			break
		}
		if req.Entry.Stored, err = a.putOutput(ctx, c, req.SessionID, data); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// jsonOrText is data as JSON: as it is, or as a text.
func jsonOrText(data []byte) json.RawMessage {
	if json.Valid(data) {
		return data
	}
	return fleet.MustEncode(string(data))
}
