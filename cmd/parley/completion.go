package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// completionTime bounds what a person waits for when pressing Tab.
const completionTime = 500 * time.Millisecond

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completeFlag completes a flag's value.
func (a *app) completeFlag(cmd *cobra.Command, flag string, f completer) {
	values := func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return f(cmd, nil, prefix)
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // no such flag, or registered twice: a mistake in this program
	}
}

// completeTasks offers the ids of tasks, each with its state.
func (a *app) completeTasks(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.live(cmd, args, prefix, func(ctx context.Context, c *client) []string {
		r, err := call[fleet.TaskListReply](ctx, c, "task", "list", fleet.TaskList{Limit: 200})
		if err != nil {
			return nil
		}
		var ids []string
		for _, t := range r.value.Tasks {
			ids = append(ids, string(t.TaskID)+"\t"+string(t.State))
		}
		return ids
	})
}

// completeAgents offers the ids of agents.
func (a *app) completeAgents(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.live(cmd, args, prefix, func(ctx context.Context, c *client) []string {
		r, err := c.agents(ctx, fleet.AgentList{})
		if err != nil {
			return nil
		}
		var ids []string
		for _, v := range r.value.Agents {
			ids = append(ids, string(v.Announce.Worker.AgentID))
		}
		slices.Sort(ids)
		return slices.Compact(ids)
	})
}

// live asks the fleet what there is. A fleet that does not answer at once has
// nothing to offer.
func (a *app) live(cmd *cobra.Command, args []string, prefix string, ask func(context.Context, *client) []string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	cfg := a.busConfig("parley completion", subjects.AgentID(a.conf.As))
	cfg.ConnectTimeout = completionTime
	cfg.Log = slog.New(slog.DiscardHandler)
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer b.Close()
	ids := ask(ctx, &client{bus: b, from: subjects.AgentID(a.conf.As), timeout: completionTime})
	return slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, prefix) }), cobra.ShellCompDirectiveNoFileComp
}
