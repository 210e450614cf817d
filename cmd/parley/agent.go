package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
)

func (a *app) agentCommand() *cobra.Command {
	c := noun("agent", "Run an agent, and see who is there", "agents")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.agentRun(), a.agentList(), a.agentGet(),
		a.agentDrain("drain", "Offer an agent nothing more; what it has in hand goes on"),
		a.agentDrain("resume", "Offer an agent tasks again"), a.agentForget(), a.agentLimits())
	return c
}

// oneAgent wants exactly one argument, an agent id.
func oneAgent(cmd *cobra.Command, args []string) error {
	if err := one("agent id")(cmd, args); err != nil {
		return err
	}
	_, err := subjects.ParseAgentID(args[0])
	return err
}

func (a *app) agentList() *cobra.Command {
	var live, all bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the fleet's agents", Args: cobra.NoArgs,
		Long: `List the fleet's agents: those that live, and for some minutes those that are lost.
An agent that was stopped leaves the list at once. --all lists what was heard of in
the last day.`,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := c.agents(ctx, fleet.AgentList{All: all})
			if err != nil {
				return err
			}
			if live {
				r.value.Agents = slices.DeleteFunc(r.value.Agents, func(v fleet.AgentView) bool { return !v.Live })
				if r.raw, err = fleet.Encode(r.value); err != nil {
					return err
				}
			}
			return a.printAgents(r)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those, too, that were stopped, or have been lost for minutes")
	cmd.Flags().BoolVar(&live, "live", false, "only those that live")
	return cmd
}

func (a *app) agentGet() *cobra.Command {
	return &cobra.Command{
		Use: "get AGENT", Aliases: []string{"info", "show"}, Short: "Show an agent's instances", Args: oneAgent,
		ValidArgsFunction: a.completeAgents,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			id := subjects.AgentID(args[0])
			r, err := c.agents(ctx, fleet.AgentList{AgentID: id})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "agents")
			}
			for i := range r.value.Agents {
				a.printAgent(&r.value.Agents[i])
			}
			return nil
		}),
	}
}

func (a *app) agentDrain(verb, short string) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: verb + " AGENT", Short: short, Args: oneAgent,
		ValidArgsFunction: a.completeAgents,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			id := subjects.AgentID(args[0])
			r, err := call[fleet.AgentListReply](ctx, c, "agent", verb, fleet.AgentDrain{AgentID: id, Reason: why})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "agents")
			}
			active := 0
			for _, v := range r.value.Agents {
				active += v.Active
			}
			done := "takes tasks again"
			if verb == "drain" {
				done = fmt.Sprintf("is offered nothing more; tasks in hand: %d", active)
			}
			a.notice("agent %s %s", id, done)
			if len(r.value.Agents) == 0 {
				a.notice("it is not here now; this holds when it comes")
			}
			return nil
		}),
	}
	if verb == "drain" {
		cmd.Flags().StringVar(&why, "reason", "", "why, for others to read")
	}
	return cmd
}

func (a *app) agentForget() *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: "forget AGENT", Short: "Say that an agent is gone for good", Args: oneAgent,
		Long: `Say that an agent is gone for good. It is listed no more, and no task waits for it.
An agent that announces itself later is known again.`,
		ValidArgsFunction: a.completeAgents,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			id := subjects.AgentID(args[0])
			r, err := call[fleet.AgentForgotten](ctx, c, "agent", "forget", fleet.AgentForget{AgentID: id, Reason: why})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.notice("agent %s is forgotten; instances: %d", id, r.value.Instances)
			return nil
		}),
	}
	cmd.Flags().StringVar(&why, "reason", "", "why, for the record")
	return cmd
}

// agentState is what an agent is up to, in a word.
func (a *app) agentState(v *fleet.AgentView) painted {
	switch {
	case v.Stopped:
		return a.paint(faint, "stopped")
	case !v.Live:
		return a.paint(red, "lost")
	case v.Draining:
		return a.paint(yellow, "draining")
	case v.Limit != nil:
		return a.paint(yellow, a.limited(v.Limit))
	case v.CoolUntil != nil && v.CoolUntil.After(a.now()):
		return a.paint(yellow, "cooling down")
	case v.Active >= slots(v):
		return a.paint(blue, "busy")
	case v.Active > 0:
		return a.paint(blue, "working")
	}
	return a.paint(green, "free")
}

func slots(v *fleet.AgentView) int { return max(v.Announce.Worker.MaxParallel, 1) }

// mcp lists MCP servers; those that are not well with how they are.
func (a *app) mcp(v *fleet.AgentView) painted {
	names := slices.Clone(v.Announce.Capabilities.MCPServers)
	for name := range v.Announce.MCPHealth {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var s []string
	for _, name := range names {
		switch health := v.Announce.MCPHealth[name]; health {
		case fleet.HealthOK:
			s = append(s, printable(name))
		case "", fleet.HealthUnknown:
			s = append(s, string(a.paint(yellow, name+" unknown")))
		case fleet.HealthDegraded:
			s = append(s, string(a.paint(yellow, name+" "+health)))
		default:
			s = append(s, string(a.paint(red, name+" "+health)))
		}
	}
	return painted(strings.Join(s, ", "))
}

// printAgents prints the reply to agent list.
func (a *app) printAgents(r reply[fleet.AgentListReply]) error {
	if a.json() {
		return a.printList(r.raw, "agents")
	}
	if len(r.value.Agents) == 0 {
		a.notice("no agents; parley agent run --id NAME --driver echo starts one")
		return nil
	}
	live := 0
	for _, v := range r.value.Agents {
		if v.Live {
			live++
		}
	}
	header := []string{"Agent", "State", "Load", "Model", "Tier", "MCP servers", "Seen"}
	if a.wide() {
		header = append(header, "Tools", "Labels", "Repo", "Drained by", "Epoch")
	}
	g := a.grid(fmt.Sprintf("Agents: %d live of %d", live, len(r.value.Agents)), header, "Model")
	for i := range r.value.Agents {
		v := &r.value.Agents[i]
		w := &v.Announce.Worker
		load := "" // of one that is lost nobody knows it
		if v.Live {
			load = fmt.Sprintf("%d/%d", v.Active, slots(v))
		}
		row := []any{
			who(w.AgentID, w.InstanceID), a.agentState(v), load,
			w.Model, w.ModelTier, a.mcp(v), a.when(v.LastSeen),
		}
		if a.wide() {
			row = append(row, strings.Join(v.Announce.Capabilities.Tools, ", "), labels(w.Labels),
				repo(v.Announce.Session.RepoState), v.DrainedBy, epoch(w.Epoch))
		}
		g.add(row...)
	}
	g.print()
	return nil
}

// printAgent prints one instance.
func (a *app) printAgent(v *fleet.AgentView) {
	w := &v.Announce.Worker
	g := a.card("Agent " + who(w.AgentID, w.InstanceID))
	g.add("State", a.agentState(v))
	g.fact("Drained by", v.DrainedBy)
	if v.CoolUntil != nil {
		g.fact("Cool until", a.moment(*v.CoolUntil))
		g.fact("Cools after", string(v.CoolCode))
	}
	if l := v.Limit; l != nil {
		g.fact("Account", l.Account)
		g.fact("Limit until", a.moment(l.Until))
		g.fact("It said", oneLine(l.Message))
	}
	g.fact("Load", fmt.Sprintf("%d of %d", v.Active, slots(v)))
	for _, h := range v.Holding {
		g.fact("Holds", fmt.Sprintf("%s (attempt %d)", h.TaskID, h.Attempt))
	}
	g.fact("Model", w.Model)
	g.fact("Tier", w.ModelTier)
	g.fact("Tools", strings.Join(v.Announce.Capabilities.Tools, ", "))
	if m := a.mcp(v); m != "" {
		g.add("MCP servers", m)
	}
	g.fact("Labels", labels(w.Labels))
	g.fact("Repository", repo(v.Announce.Session.RepoState))
	g.fact("Last seen", a.moment(v.LastSeen))
	g.fact("Started", epoch(w.Epoch))
	g.print()
}

func labels(m map[string]string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+"="+m[k])
	}
	return strings.Join(s, ", ")
}

func repo(r *fleet.RepoState) string {
	switch {
	case r == nil:
		return ""
	case r.Clean:
		return r.Branch + ", clean"
	}
	return r.Branch + ", dirty"
}

// epoch is the start of an instance.
func epoch(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}
