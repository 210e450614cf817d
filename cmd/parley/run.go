package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/fleet"
	runwire "parley/subjects/run"
)

func (a *app) runCommand() *cobra.Command {
	c := noun("run", "Tasks tied by dependencies: start them, and see how far they are", "runs")
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.runStart(), a.runGet(), a.runList(), a.runWatch(), a.runOutput(), a.runGraph(),
		a.runChange("cancel", "End a run and its tasks"), a.runChange("pause", "Begin nothing more of a run; what is under way goes on"),
		a.runChange("resume", "Go on with a paused run"), a.runChange("retry", "Run what has not succeeded again"), a.runRerun())
	return c
}

func (a *app) runStart() *cobra.Command {
	var wait bool
	var request requestID
	cmd := &cobra.Command{
		Use: "start FILE", Short: "Start a run from a file in YAML or JSON, - for standard input", Args: one("file"),
		Long: `Start a run and print its id. The file says which agents do what, and what
depends on what. With --wait the command follows the run to its end and prints
its output document; the exit code tells how it ended.

Started again with the same task_id, it is the same run.`,
		Example: `  parley run start review.yaml --wait
  parley run graph review.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := a.definition(args[0])
			if err != nil {
				return err
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				return a.startRun(ctx, c, d, &request, wait, "")
			})(cmd, args)
		},
	}
	request.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "follow it to its end and print the output")
	return cmd
}

// definition reads a definition from a file, and says everything that is wrong
// with it.
func (a *app) definition(file string) (*runwire.Definition, error) {
	data, err := a.text(nil, file, "a definition")
	if err != nil {
		return nil, err
	}
	return runwire.Read(data)
}

// startRun starts a run. One without an id has that of the request, so that a
// repeat is the same run.
func (a *app) startRun(ctx context.Context, c *client, d *runwire.Definition, request *requestID, wait bool, file string) error {
	if d.TaskID == "" {
		if request.id == "" {
			request.id = "run-" + strings.ToLower(rand.Text()[:16])
		}
		d.TaskID = subjects.RunID(request.id)
	}
	r, err := call[runwire.Started](ctx, c, "run", "start", d)
	if isUnclear(err) && request.id == "" { // the file names the run
		return explain(err).because("it may have been started all the same").next("repeat the command: it is run " + string(d.TaskID) + ", once")
	}
	if err != nil {
		return request.repeatable(err)
	}
	id := r.value.RunID
	if !wait {
		if a.json() {
			return a.printJSON(r.raw)
		}
		a.print(string(id))
		a.notice("next: parley run watch %s", id)
		return nil
	}
	a.notice("run %s", id)
	return a.followRun(ctx, c, id, file)
}

func (a *app) endOfRun(ctx context.Context, c *client, r *runwire.Record, file string) error {
	out, err := document(ctx, c, r.RunID)
	if err == nil && file != "" {
		if err = os.WriteFile(file, out, 0o600); err != nil {
			err = failed("write the output: %w", err)
		}
	} else if err == nil {
		err = a.printDocument(out)
	}
	if err != nil {
		return err
	}
	if r.State == runwire.Done {
		return nil
	}
	code := subjects.CodeAgentError
	if r.Reason != nil {
		code = r.Reason.Code
	}
	return &problem{what: "the run has " + string(r.State), where: reason(r.Reason), exit: cmp.Or(codeExit(code), exitFailed), then: "parley run retry " + string(r.RunID)}
}

// document reads the document of a run that has ended, part by part.
func document(ctx context.Context, c *client, id subjects.RunID) ([]byte, error) {
	var all []byte
	for {
		p, err := call[runwire.Part](ctx, c, "run", "part", runwire.PartRef{RunID: id, Offset: int64(len(all))})
		if err != nil {
			return nil, err
		}
		if all = append(all, p.value.Data...); int64(len(all)) >= p.value.Size || len(p.value.Data) == 0 {
			return all, nil
		}
	}
}

func (a *app) printDocument(data []byte) error {
	if a.json() {
		return a.printJSON(data)
	}
	a.print(string(bytes.TrimSpace(data)))
	return nil
}

func (a *app) runWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch RUN", Short: "Follow a run to its end and print its output", Args: one("run id"),
		Long: `Follow a run to its end and print its output document. On a terminal it shows the
run as a tree that is drawn anew as things happen, elsewhere a line for each change.`,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			return a.followRun(ctx, c, subjects.RunID(args[0]), "")
		}),
	}
}

func (a *app) runRerun() *cobra.Command {
	var wait bool
	var request requestID
	cmd := &cobra.Command{
		Use: "rerun RUN", Short: "Start a new run with the same inputs", Args: one("run id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[runwire.Record](ctx, c, "run", "get", runwire.Ref{RunID: subjects.RunID(args[0])})
			if err != nil {
				return err
			}
			d := r.value.Definition
			d.TaskID = ""
			return a.startRun(ctx, c, &d, &request, wait, "")
		}),
	}
	request.bind(cmd.Flags())
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "follow it to its end and print the output")
	return cmd
}

func (a *app) runOutput() *cobra.Command {
	return &cobra.Command{
		Use: "output RUN", Short: "Print the output document of a run that has ended", Args: one("run id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			data, err := document(ctx, c, subjects.RunID(args[0]))
			if err != nil {
				return err
			}
			return a.printDocument(data)
		}),
	}
}

func (a *app) runGet() *cobra.Command {
	return &cobra.Command{
		Use: "get RUN", Aliases: []string{"show"}, Short: "Show how far a run is", Args: one("run id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[runwire.Record](ctx, c, "run", "get", runwire.Ref{RunID: subjects.RunID(args[0])})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			v := &r.value
			g := a.grid(strings.TrimSpace(fmt.Sprintf("Run %s: %s %s", v.RunID, v.State, reason(v.Reason))),
				[]string{"Node", "State", "Agent", "After", "Attempt", "Tokens", "Why"}, "After", "Why")
			for i := range v.Definition.Agents {
				d := &v.Definition.Agents[i]
				n := v.Nodes[d.Name()]
				g.add(string(d.Name()), string(n.State)+progress(n), string(n.AgentID), joined(d.Dependencies), n.Attempts, thousands(n.Tokens), nodeNote(n))
			}
			g.print()
			return nil
		}),
	}
}

func joined(names []runwire.NodeID) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = string(n)
	}
	return strings.Join(list, " ")
}

func (a *app) runList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the runs that live and those that ended lately", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := call[runwire.List](ctx, c, "run", "list", struct{}{})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "runs")
			}
			g := a.grid("Runs", []string{"Run", "From", "State", "Nodes", "Tokens", "Started", "What"}, "What")
			for _, s := range r.value.Runs {
				g.add(string(s.RunID), string(s.From), string(s.State), fmt.Sprintf("%d/%d", s.Done, s.Nodes), thousands(s.Tokens), a.when(s.Created), oneLine(s.Description))
			}
			g.print()
			return nil
		}),
	}
}

// runChange makes the command for a call that changes a run.
func (a *app) runChange(verb, short string) *cobra.Command {
	var why string
	cmd := &cobra.Command{
		Use: verb + " RUN", Short: short, Args: one("run id"),
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[runwire.Record](ctx, c, "run", verb, runwire.Ref{RunID: subjects.RunID(args[0]), Reason: why})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			state := string(r.value.State)
			if r.value.Cancel != "" && !r.value.State.Ended() {
				state = "being canceled"
			}
			a.notice("run %s is %s", r.value.RunID, state)
			return nil
		}),
	}
	if verb == "cancel" {
		cmd.Flags().StringVar(&why, "reason", "", "why, for the record")
	}
	return cmd
}

func (a *app) runGraph() *cobra.Command {
	var dot bool
	cmd := &cobra.Command{
		Use: "graph FILE|RUN", Short: "Print what depends on what as Mermaid, or DOT", Args: one("file or run id"),
		Long: `Print a definition as a graph, in the language of Mermaid or Graphviz. What is no
file is a run, which is drawn in the colours of its states.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); args[0] != "-" && err != nil && subjects.ValidToken(args[0]) {
				return a.ask(func(ctx context.Context, c *client, _ []string) error {
					r, err := call[runwire.Record](ctx, c, "run", "get", runwire.Ref{RunID: subjects.RunID(args[0])})
					if err != nil {
						return err
					}
					a.print(strings.TrimSpace(graph(&r.value.Definition, r.value.Nodes, dot)))
					return nil
				})(cmd, args)
			}
			d, err := a.definition(args[0])
			if err != nil {
				return err
			}
			a.print(strings.TrimSpace(graph(d, nil, dot)))
			return nil
		},
	}
	cmd.Flags().BoolVar(&dot, "dot", false, "in the language of Graphviz")
	return cmd
}

func (a *app) orchestrateCommand() *cobra.Command {
	var agents []string
	var file string
	var request requestID
	limit := span(time.Hour)
	cmd := &cobra.Command{
		Use: "orchestrate --agents A,B,C [BRIEF…]", Short: "Have agents work one after the other, each with what came before",
		Long: `Run agents in the sequence given: each gets the brief and the results of those
before it. The output document goes to standard output, or to a file.`,
		Example: `  parley orchestrate --agents discovery-cartographer,compose-engineer --output run.json "Get the status."`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(agents) == 0 {
				return usage("--agents is missing: name those who work, in their sequence")
			}
			d := &runwire.Definition{TaskType: runwire.MultiAgentRun, Description: strings.Join(args, " "), Timeout: time.Duration(limit).Seconds()}
			for i, id := range agents {
				n := runwire.Node{ID: runwire.NodeID(fmt.Sprintf("%d-%s", i+1, id)), AgentID: subjects.AgentID(id), Sequence: i + 1, Brief: d.Description, Dependencies: []runwire.NodeID{}}
				for k := range i {
					n.Dependencies = append(n.Dependencies, d.Agents[k].ID)
				}
				d.Agents = append(d.Agents, n)
			}
			if _, err := runwire.Decode(fleet.MustEncode(d)); err != nil {
				return err
			}
			return a.ask(func(ctx context.Context, c *client, _ []string) error {
				return a.startRun(ctx, c, d, &request, true, file)
			})(cmd, args)
		},
	}
	bind(cmd.Flags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	cmd.Flags().StringSliceVar(&agents, "agents", nil, "the agents, in their sequence (required)")
	cmd.Flags().StringVar(&file, "output", "", "write the output document to a file")
	request.bind(cmd.Flags())
	cmd.Flags().Var(&limit, "session-timeout", "how long all of it may take; a number alone is of seconds")
	a.completeFlag(cmd, "agents", a.completeAgents)
	return cmd
}
