package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/bus"
	"parley/subjects"
	"parley/workers"
	"parley/workers/agent"
	"parley/workers/agent/remote"
)

// spare is what an agent has beyond the grace time, and the one that commands
// have to end (--kill-after), to hand in results and to end its processes.
const spare = 20 * time.Second

// agentFlags are the flags of agent run.
type agentFlags struct {
	id, instance, driver         string
	model, tier, kind, account   string
	tiers, tools, env, set       []string
	labels                       map[string]string
	window                       int64
	parallel, messages           int
	noMesh                       bool
	heartbeat, delay             time.Duration
	mcp, repo, dir, spool, usage string
	mcpInterval, mcpTimeout      time.Duration
	killAfter, stall             time.Duration
	card                         string
	auth                         authFlags
	poll, idle, patience         time.Duration
}

func (f *agentFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.id, "id", "", "agent id (required)")
	fs.StringVar(&f.instance, "instance", "", "instance id (default: a random one)")
	fs.StringVar(&f.driver, "driver", "", "echo answers with the brief, exec runs the command after --, a2a hands tasks to the agent of --card (default exec)")
	fs.StringVar(&f.model, "model", "", "model that it says it has")
	fs.StringVar(&f.tier, "tier", "", "tier of the model")
	fs.StringSliceVar(&f.tiers, "tiers", nil, "the fleet's tiers, the least first (default haiku,sonnet,opus)")
	fs.Int64Var(&f.window, "context-window", 0, "context window, in tokens")
	fs.StringVar(&f.kind, "type", "", "agent type: virtual or registered")
	fs.StringSliceVar(&f.tools, "tools", nil, "tools that it has: what a task may require as a capability")
	fs.StringToStringVarP(&f.labels, "label", "l", nil, "labels, as k=v")
	fs.StringVar(&f.account, "account", "", "account that the limits of its model hold for (default: the login of --usage claude or codex)")
	fs.IntVar(&f.parallel, "max-parallel", 1, "tasks at once")
	fs.IntVar(&f.messages, "max-messages", 1, "messages of other agents at once, beside the tasks")
	fs.BoolVar(&f.noMesh, "no-mesh", false, "take no messages of other agents")
	fs.DurationVar(&f.heartbeat, "heartbeat", 0, "time between heartbeats (default 10s)")
	fs.StringVar(&f.mcp, "mcp", "", "file in the form of .mcp.json: servers to probe and announce")
	fs.DurationVar(&f.mcpInterval, "mcp-interval", 0, "time between the probes of an MCP server (default 1m)")
	fs.DurationVar(&f.mcpTimeout, "mcp-timeout", 0, "time that a probe may take (default 10s)")
	fs.StringVar(&f.repo, "repo", "", "git work tree whose state it announces")
	fs.StringVar(&f.spool, "spool", "", "directory for results until they are handed in; off for none (default: below --data)")
	fs.DurationVar(&f.delay, "delay", 0, "echo: time that a task takes")
	fs.StringVar(&f.usage, "usage", "", "exec: what the command prints: claude, codex, or nothing of these")
	fs.StringVar(&f.dir, "dir", "", "exec: directory to run in (default: --repo, or this one)")
	fs.StringSliceVar(&f.env, "env", nil, "exec: variables that the command may see, NAME or PREFIX*")
	fs.StringArrayVar(&f.set, "set", nil, "exec: variable to set, NAME=value")
	fs.DurationVar(&f.killAfter, "kill-after", 0, "exec: time between TERM and KILL (default 5s)")
	fs.StringVar(&f.card, "card", "", "a2a: address of the agent's card or server, or a name of parley a2a ls")
	f.auth.bindTo(fs)
	fs.DurationVar(&f.poll, "poll", 0, "a2a: time between looks at the card (default 30s)")
	fs.DurationVar(&f.idle, "idle", 0, "a2a: take a stream up anew in which nothing comes for so long (default 2m)")
	fs.DurationVar(&f.patience, "patience", 0, "a2a: give an attempt up when the agent cannot be reached for so long (default 2m)")
	fs.DurationVar(&f.stall, "stall", 0, "exec: give up a command that is silent for so long (default never)")
}

func (a *app) agentRun() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use: "run --id ID [-- COMMAND ARGS…]", Aliases: []string{"start"}, Short: "Run an agent",
		Long: `Run an agent until a signal ends it: it announces itself, takes the tasks that fit,
and hands in what comes of them.

The driver exec runs the command once per task: the brief on standard input, the
terms in variables PARLEY_TASK_ID, PARLEY_DEADLINE, PARLEY_CONTRACT (a file with all
of them) and so on, the answer on standard output, progress on standard error.

The driver a2a hands each task to an A2A agent somewhere else, and announces its
skills and its health; while its card cannot be got, no task is offered.`,
		Example: `  parley agent run --id echo --driver echo
  parley agent run --id upper -- tr a-z A-Z
  parley agent run --id helper --driver a2a --card https://agent.example.org --auth bearer --auth-env HELPER_TOKEN
  parley agent run --id claude --model opus --tier opus --mcp .mcp.json --repo . \
      --env 'ANTHROPIC_*' --usage claude -- \
      claude -p --permission-mode acceptEdits --output-format stream-json --verbose --include-partial-messages`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runAgent(cmd.Context(), &f, args) },
	}
	f.bind(cmd.Flags())
	bind(cmd.Flags(), a.conf, "data", "grace")
	bind(cmd.Flags(), a.conf, "a2a-identities")
	complete(cmd, "auth", remote.AuthBearer, remote.AuthAPIKey)
	complete(cmd, "driver", "echo", "exec", "a2a")
	complete(cmd, "usage", string(agent.UsageClaude), string(agent.UsageCodex))
	complete(cmd, "type", "virtual", "registered")
	return cmd
}

// runAgent is an agent's life.
func (a *app) runAgent(ctx context.Context, f *agentFlags, command []string) error {
	me, err := a.identity()
	if err != nil {
		return err
	}
	if f.id == "" && me != nil {
		f.id = string(me.AgentID)
	}
	id, err := subjects.ParseAgentID(f.id)
	switch {
	case f.id == "":
		return usage("--id is missing: an agent needs a name").next("parley agent run --id echo --driver echo")
	case err != nil:
		return err
	}
	for _, at := range [][2]string{{"--repo", f.repo}, {"--dir", f.dir}} {
		if err := directory(at[1]); err != nil {
			return usage("%s: %w", at[0], err).next("name a directory that is there, or leave " + at[0] + " out")
		}
	}
	handler, watch, err := a.driver(ctx, f, command)
	if err != nil {
		return err
	}
	log := a.logger(slog.LevelDebug)
	cfg := agent.Config{
		ID: id, Instance: subjects.InstanceID(f.instance),
		Model: f.model, ModelTier: f.tier, Tiers: f.tiers, ContextWindow: f.window, AgentType: f.kind,
		Tools: f.tools, Labels: a.agentLabels(f), MaxParallel: f.parallel, HoldLimits: f.driver == "" || f.driver == "exec",
		Heartbeat: f.heartbeat, Grace: time.Duration(a.conf.Grace), Repo: f.repo, Env: a.environ,
		Log: log, Handler: handler, Watch: watch, MaxMessages: f.messages,
		MCP: agent.MCPConfig{Interval: f.mcpInterval, Timeout: f.mcpTimeout},
	}
	if !f.noMesh {
		cfg.Inbox = agent.BriefInbox(handler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = -1 // none, where 0 would be the default
	}
	if f.mcp != "" {
		data, readErr := os.ReadFile(f.mcp)
		if readErr != nil {
			return usage("--mcp: %w", readErr).next("name a file in the form of .mcp.json, or leave --mcp out")
		}
		if cfg.MCP.Servers, err = agent.ParseMCP(data, a.environ); err != nil {
			return usage("--mcp %s: %w", f.mcp, err)
		}
	}
	free, err := a.spool(f.spool, &cfg)
	if err != nil {
		return failed("take the spool: %w", err).next("parley agent run --spool DIR, one for each process, or --spool off")
	}
	defer free()
	return a.beAgent(ctx, cfg, me, time.Duration(a.conf.Grace)+f.killAfter+spare)
}

// directory is an error unless path is one, or empty.
func directory(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", path)
	}
	return err
}

// beAgent connects an agent and runs it until ctx ends, and then for as long as
// bound.
func (a *app) beAgent(ctx context.Context, cfg agent.Config, me *myself, bound time.Duration) error {
	bc := a.busConfig("parley agent "+string(cfg.ID), cfg.ID)
	if err := me.use(&bc, cfg.ID); err != nil {
		return err
	}
	bc.Log = cfg.Log.With(slog.String("component", "bus"))
	b, err := bus.Connect(ctx, bc)
	if err != nil {
		return a.noServer(err)
	}
	defer b.Close()
	me.sign(b)
	cfg.Bus = b
	w, err := agent.New(cfg)
	if err != nil {
		return usage("%w", err).next("parley agent run --help")
	}
	run := workers.Worker{Name: "agent " + string(cfg.ID), Run: w.Run}
	return stopped(workers.Run(ctx, bound, run))
}

// driver makes the handler that does the tasks, and what looks after whoever
// does them for it.
func (a *app) driver(ctx context.Context, f *agentFlags, command []string) (agent.Handler, func(context.Context, func(agent.Condition)), error) {
	switch {
	case (f.driver == "echo" || f.driver == "a2a") && len(command) > 0:
		return nil, nil, usage("the driver %s runs no command, but %q is given", f.driver, command[0]).next("leave --driver out")
	case f.driver == "echo":
		return agent.Echo{Delay: f.delay}, nil, nil
	case f.driver == "a2a":
		return a.remoteDriver(ctx, f)
	case f.driver != "" && f.driver != "exec":
		return nil, nil, usage("there is no driver %q, only echo, exec and a2a", f.driver).next("leave --driver out to run the command after --")
	}
	e, err := a.execDriver(f, command)
	return e, nil, err
}

// execDriver runs a command for each task.
func (a *app) execDriver(f *agentFlags, command []string) (agent.Handler, error) {
	if len(command) == 0 {
		return nil, usage("no command is given").
			next("parley agent run --id " + f.id + " -- COMMAND ARGS…   or, to try it out, --driver echo")
	}
	for _, kv := range f.set {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return nil, usage("--set %q: expected NAME=value", kv)
		}
	}
	if err := agent.AdoptOrphans(); err != nil {
		a.logger(slog.LevelDebug).Debug("orphans of commands go to init", slog.Any("error", err))
	}
	dir := cmp.Or(f.dir, f.repo)
	e, err := agent.NewExec(agent.ExecConfig{
		Command: command, Dir: dir, Env: a.environ, Allow: f.env, Set: f.set,
		Usage: agent.Usage(f.usage), KillAfter: f.killAfter, Stall: f.stall,
		StateDir: filepath.Join(a.conf.Data, "tool-sessions"),
	})
	if err != nil {
		return nil, usage("%w", err).next("parley agent run --help")
	}
	return e, nil
}
