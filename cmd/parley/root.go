package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/workers/callout"
)

// process is what the operating system gives a command: everything that run
// may touch outside.
type process struct {
	args    []string
	environ []string // NAME=value
	// settings reads the PARLEY_ variables; nil reads none
	settings func(*config) error
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	clock    func() time.Time // nil is time.Now
}

// getenv is the value of a variable, "" when it is not set.
func (p *process) getenv(name string) string {
	for _, kv := range slices.Backward(p.environ) {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// app is what every command works with.
type app struct {
	process
	conf *config
	now  func() time.Time

	level slog.LevelVar // of the log of workers

	// Of the fleet that this process serves.
	identities *callout.Identities
	safety     *safety
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, p process) int {
	a := &app{process: p, now: p.clock}
	if a.now == nil {
		a.now = time.Now
	}
	conf, err := loadConfig(&p)
	if err != nil {
		report(p.stderr, err, false)
		return exitCode(err)
	}
	a.conf = conf
	root := a.rootCommand()
	root.SetArgs(p.args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	started := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.conf.check(); err != nil {
			return err
		}
		started = true
		for _, line := range strangers(a.environ) {
			a.notice("%s", line)
		}
		if err := a.guardSecrets(cmd); err != nil {
			return err
		}
		if err := a.identify(cmd); err != nil {
			return err
		}
		return a.oneServer(cmd)
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started {
		if _, ok := errors.AsType[*problem](err); !ok && subjects.CodeOf(err) == subjects.CodeInternal {
			err = mistyped(err, cmd.CommandPath())
		}
	}
	if err != nil {
		report(p.stderr, err, a.json())
	}
	return exitCode(err)
}

// mistyped is an error of the command line's own, as people are told.
func mistyped(err error, command string) error {
	p := usage("%w", err)
	what, meant, found := strings.Cut(p.what, "\n\nDid you mean this?\n")
	if !found {
		return p.next(command + " --help")
	}
	p.what = what
	return p.next("did you mean " + strings.Join(strings.Fields(meant), " or ") + "? " + command + " --help  lists all")
}

// oneServer settles which of server and context counts: the one that was typed.
func (a *app) oneServer(cmd *cobra.Command) error {
	server, context := cmd.Flags().Lookup("server"), cmd.Flags().Lookup("context")
	if server == nil || context == nil {
		return nil
	}
	if server.Changed && context.Changed {
		return usage("--server and --context exclude each other").next("leave one of them out")
	}
	if server.Changed {
		a.conf.Context = ""
	}
	if a.conf.Context != "" {
		return checkContext(a.getenv, a.conf.Context)
	}
	return nil
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "parley",
		Short: "Run a fleet of agents on NATS, and give it tasks",
		Long: `Parley runs a fleet of agents on NATS JetStream and gives it tasks.
Every acknowledged task ends exactly once, whatever fails.

First steps, each in a terminal of its own:

  parley up                                    a fleet on this machine
  parley agent run --id echo --driver echo     an agent
  parley task send --wait "say hello"          a task, and its outcome`,
		SilenceErrors: true, SilenceUsage: true,
		Version: version,
	}
	root.SetVersionTemplate("parley {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w", err).next(cmd.CommandPath() + " --help")
	})
	bind(root.PersistentFlags(), a.conf, "output", "log-level", "log-format")
	complete(root, "output", "table", "wide", "json", "jsonl")
	complete(root, "log-level", "debug", "info", "warn", "error")
	complete(root, "log-format", "auto", "text", "json")
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run a fleet:"},
		&cobra.Group{ID: "use", Title: "Use it:"},
		&cobra.Group{ID: "know", Title: "Look things up:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", a.upCommand(), a.serveCommand(), a.authCommand(), newDemoCommand(a))
	add("use", a.taskCommand(), a.runCommand(), a.orchestrateCommand(), a.scheduleCommand(), a.sessionCommand(), a.identityCommand(), a.invokeCommand(), a.meshCommand(), a.agentCommand(), a.mcpCommand(), a.a2eCommand(),
		a.a2aCommand(), a.escalationCommand(), a.webhookCommand(), a.auditCommand(), a.dlqCommand())
	add("know", a.subjectsCommand(), a.schemaCommand(), a.manCommand(), a.versionCommand(), a.doctorCommand(), a.metricsCommand(), a.topCommand(), a.validateCommand())
	root.AddCommand(helpTopics(a.getenv)...)
	root.SetHelpCommandGroupID("know")
	root.SetCompletionCommandGroupID("know")
	return root
}

// complete offers fixed values for a persistent flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // no such flag, or registered twice: a mistake in this program
	}
}

// noun makes a command that only groups others.
func noun(use, short string, aliases ...string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Aliases: aliases, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// json reports whether a program reads the output.
func (a *app) json() bool { return strings.HasPrefix(a.conf.Output, "json") }

// notice tells a person something that is no data.
func (a *app) notice(format string, args ...any) {
	if !a.json() {
		fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}

// logger makes the process's logger: for eyes on a terminal, JSON otherwise.
func (a *app) logger(least slog.Level) *slog.Logger { return a.logAt(max(a.conf.level(), least)) }

func (a *app) logAt(level slog.Leveler) *slog.Logger {
	if a.conf.LogFormat == "text" || a.conf.LogFormat == "auto" && isTerminal(a.stderr) {
		return slog.New(tint.NewTextHandler(a.stderr, &tint.Options{Level: level, TimeFormat: time.TimeOnly, NoColor: !a.colours(a.stderr)}))
	}
	return slog.New(slog.NewJSONHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}

// clientLog is the logger of commands that only ask: they say themselves what
// goes wrong, so it is silent but for errors, unless --log-level debug wants to
// see everything.
func (a *app) clientLog() *slog.Logger {
	if a.conf.level() < slog.LevelInfo {
		return a.logger(slog.LevelDebug)
	}
	return a.logger(slog.LevelError)
}

// colours reports whether w may be given colours.
func (a *app) colours(w io.Writer) bool { return a.getenv("NO_COLOR") == "" && isTerminal(w) }

// isTerminal reports whether w is a terminal; /dev/null is none.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(f.Fd())
}

// semver is the program's version as NATS micro services must have it.
func semver() string {
	v := strings.TrimPrefix(version, "v")
	if len(v) > 0 && v[0] >= '0' && v[0] <= '9' && strings.Count(cmp.Or(strings.SplitN(v, "-", 2)[0], v), ".") == 2 {
		return v
	}
	return "0.0.0-" + strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, v)
}
