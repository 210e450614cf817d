package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// sortedNames are the names of a map in order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// invocation are the flags of invoke.
type invocation struct {
	session, contextFile, file string
	mcp                        []string
	timeout                    time.Duration
}

func (a *app) invokeCommand() *cobra.Command {
	var n invocation
	cmd := &cobra.Command{
		Use: "invoke AGENT OUTPUT.json [BRIEF…]", Short: "Have one agent do something, and write what came of it to a file",
		Long: `Have one agent do something, wait for it, and write its TASK_RESULT to a file. The
brief is what the arguments say, or the file of -f, or standard input. With
--session the agent gets the session's context, and its result is added to it;
--context-file gives it a context of your own, as the session protocol has it.`,
		Example: `  parley invoke status-agent status.json --session $ID --mcp github "How is the infrastructure?"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("expected an agent id and a file for its result, got %d arguments", len(args)).next(cmd.CommandPath() + " --help")
			}
			return oneAgent(cmd, args[:1])
		},
		ValidArgsFunction: a.completeAgents,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			d, err := a.invocation(&n, args)
			if err != nil {
				return err
			}
			return a.invoke(ctx, c, d, args[1])
		}),
	}
	f := cmd.Flags()
	bind(f, a.conf, append([]string{"as"}, connectionFlags...)...)
	f.StringVar(&n.session, "session", "", "session id")
	f.StringVar(&n.contextFile, "context-file", "", "file with a context of the session protocol")
	f.StringSliceVar(&n.mcp, "mcp", nil, "MCP servers that the agent must have in good health")
	f.StringVarP(&n.file, "file", "f", "", "read the brief from a file, - for standard input")
	f.DurationVar(&n.timeout, "attempt-timeout", 0, "how long one attempt may take")
	return cmd
}

// invocation makes the dispatch.
func (a *app) invocation(n *invocation, args []string) (*fleet.Dispatch, error) {
	brief, err := a.text(args[2:], n.file, "a brief")
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, failed("make a task id: %w", err)
	}
	d := &fleet.Dispatch{
		Task: fleet.Task{
			TaskID: subjects.TaskID(id.String()), Type: "single-agent", Agent: subjects.AgentID(args[0]),
			SessionID: subjects.SessionID(n.session), TimeoutSeconds: n.timeout.Seconds(),
		},
		Requirements: fleet.Requirements{RequiredMCP: n.mcp},
		Brief:        string(brief),
	}
	if n.contextFile == "" {
		return d, nil
	}
	data, err := os.ReadFile(n.contextFile)
	if err != nil {
		return nil, usage("read the context: %w", err)
	}
	view, err := handshake.DecodeContext(data)
	if err != nil {
		return nil, fmt.Errorf("--context-file %s: %w", n.contextFile, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Context (JSON)\n\n%s\n\n# The task\n\n%s", fleet.MustEncode(&view.Context), brief)
	d.Brief = b.String()
	return d, nil
}

// invoke dispatches, waits, and writes the result.
func (a *app) invoke(ctx context.Context, c *client, d *fleet.Dispatch, out string) error {
	if _, err := call[fleet.Dispatched](ctx, c, "task", "dispatch", d); err != nil {
		return err
	}
	a.notice("task %s", d.Task.TaskID)
	r, err := a.wait(ctx, c, d.Task.TaskID, 0)
	if err != nil {
		return err
	}
	raw, err := fleet.Encode(r.value.Result)
	if err != nil {
		return failed("write the result: %w", err)
	}
	var data bytes.Buffer
	if err := json.Indent(&data, raw, "", "  "); err != nil {
		return failed("write the result: %w", err)
	}
	data.WriteByte('\n')
	if err := os.WriteFile(out, data.Bytes(), 0o600); err != nil {
		return failed("write the result: %w", err)
	}
	if err := a.printOutcome(r); err != nil {
		return err
	}
	return outcomeError(r.value.State)
}
