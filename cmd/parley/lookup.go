package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"parley/subjects"
	"parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/subjects/mesh"
	runwire "parley/subjects/run"
	"parley/subjects/schedule"
)

func (a *app) subjectsCommand() *cobra.Command {
	var permissions, passages bool
	roles := []string{subjects.RoleAgent, subjects.RoleLeaf, subjects.RoleOrchestrator, subjects.RoleOperator, subjects.RoleWorker}
	cmd := &cobra.Command{
		Use: "subjects", Short: "List the subjects of the fleet: who writes what to whom",
		Long: `List the subjects of the fleet: who writes what to whom, and where it is kept.

With --permissions ROLE ID: what that identity may do, as NATS server settings.
ROLE is agent, leaf (a NATS leaf node that connects instances of one agent),
orchestrator, operator or worker.

With --passages SIDE WORKERS CLIENTS: what passes between the account of the
workers and that of everybody else, which are called so, as NATS server settings
of one of them. SIDE is workers or clients.`,
		Example: `  parley subjects -o wide
  parley subjects --permissions agent claude
  parley subjects --passages clients FLEET CLIENTS`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case permissions && len(args) != 2:
				return usage("--permissions wants a role and an id").next("parley subjects --permissions agent claude")
			case passages && (len(args) != 3 || args[0] != sideWorkers && args[0] != sideClients):
				return usage("--passages wants a side and the names of two accounts").next("parley subjects --passages clients FLEET CLIENTS")
			case !permissions && !passages && len(args) > 0:
				return usage("unexpected %q", args[0]).next(cmd.CommandPath() + " --help")
			}
			return nil
		},
		ValidArgsFunction: cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case permissions:
				return a.printPermissions(args[0], args[1])
			case passages:
				return a.printPassages(args[0], args[1], args[2])
			}
			return a.printSubjects()
		},
	}
	cmd.Flags().BoolVar(&permissions, "permissions", false, "print what ROLE ID may publish and subscribe to")
	cmd.Flags().BoolVar(&passages, "passages", false, "print what passes between the accounts of workers and clients")
	cmd.MarkFlagsMutuallyExclusive("permissions", "passages")
	return cmd
}

// subject is an entry of the catalogue as JSON.
type subject struct {
	Subject     string `json:"subject"`
	Message     string `json:"message"`
	Writer      string `json:"writer"`
	Readers     string `json:"readers"`
	Kept        string `json:"kept,omitempty"`
	Stream      string `json:"stream,omitempty"`
	Description string `json:"description"`
}

func (a *app) printSubjects() error {
	catalogue := subjects.Catalogue()
	if a.json() {
		list := make([]subject, len(catalogue))
		for i, e := range catalogue {
			list[i] = subject{e.Pattern, e.Message, e.Writer, e.Readers, e.Kept, e.Stream, e.Description}
		}
		if a.conf.Output == "json" {
			return a.printValue(list)
		}
		for _, s := range list {
			if err := a.printValue(s); err != nil {
				return err
			}
		}
		return nil
	}
	header := []string{"Subject", "Message", "From", "To", "Kept"}
	if a.wide() {
		header = append(header, "Stream", "What for")
	}
	g := a.grid("Subjects", header)
	for _, e := range catalogue {
		row := []any{e.Pattern, e.Message, e.Writer, e.Readers, e.Kept}
		if a.wide() {
			row = append(row, e.Stream, e.Description)
		}
		g.add(row...)
	}
	g.print()
	return nil
}

// grants is what an identity may do on NATS.
type grants struct {
	Role      string   `json:"role"`
	ID        string   `json:"id"`
	Publish   []string `json:"publish"`
	Subscribe []string `json:"subscribe"`
	Responses bool     `json:"allow_responses"`
	Inbox     string   `json:"inbox_prefix"`
}

func (a *app) printPermissions(role, id string) error {
	agent, err := subjects.ParseAgentID(id)
	if err != nil {
		return err
	}
	publish, subscribe := subjects.Permissions(role, agent)
	if len(publish)+len(subscribe) == 0 {
		return usage("there is no role %q", role).next("choose agent, leaf, orchestrator, operator or worker")
	}
	g := grants{role, id, publish, subscribe, subjects.Responds(role), subjects.InboxPrefix(agent)}
	if a.json() {
		return a.printValue(g)
	}
	list := func(name string, all []string) {
		a.print("  " + name + ": {")
		a.print("    allow: [")
		for _, s := range all {
			a.print(fmt.Sprintf("      %q", s))
		}
		a.print("    ]")
		a.print("  }")
	}
	a.print(fmt.Sprintf("# %s %s; its client must use the inbox prefix %s", role, id, g.Inbox))
	a.print("permissions: {")
	list("publish", publish)
	list("subscribe", subscribe)
	if g.Responses {
		a.print("  allow_responses: true")
	}
	a.print("}")
	return nil
}

// Sides of the passages.
const (
	sideWorkers = "workers"
	sideClients = "clients"
)

// exported and imported are a passage on either side, as NATS servers have it.
type exported struct {
	Service  string   `json:"service,omitempty"`
	Stream   string   `json:"stream,omitempty"`
	Response string   `json:"response_type,omitempty"`
	Accounts []string `json:"accounts"`
}

type imported struct {
	Service *origin `json:"service,omitempty"`
	Stream  *origin `json:"stream,omitempty"`
}

type origin struct {
	Account string `json:"account"`
	Subject string `json:"subject"`
}

// printPassages prints what the account of one side exports and imports.
func (a *app) printPassages(side, workers, clients string) error {
	own, other := workers, clients
	if side == sideClients {
		own, other = clients, workers
	}
	var both struct {
		Exports []exported `json:"exports"`
		Imports []imported `json:"imports"`
	}
	for _, p := range subjects.Passages() {
		exports, from := p.ServedByWorkers() == (side == sideWorkers), &origin{other, p.Subject}
		switch {
		case exports && !p.Request:
			both.Exports = append(both.Exports, exported{Stream: p.Subject, Accounts: []string{other}})
		case exports && p.Repeated:
			both.Exports = append(both.Exports, exported{Service: p.Subject, Response: "stream", Accounts: []string{other}})
		case exports:
			both.Exports = append(both.Exports, exported{Service: p.Subject, Accounts: []string{other}})
		case p.Request:
			both.Imports = append(both.Imports, imported{Service: from})
		default:
			both.Imports = append(both.Imports, imported{Stream: from})
		}
	}
	if a.json() {
		return a.printValue(both)
	}
	a.print(fmt.Sprintf("# What passes between %s and %s, for %s: parley subjects --passages %s %s %s", workers, clients, own, side, workers, clients))
	if err := printList(a, "exports", both.Exports); err != nil {
		return err
	}
	return printList(a, "imports", both.Imports)
}

// printList prints a list that both NATS servers and YAML understand.
func printList[T any](a *app, name string, list []T) error {
	a.print(name + ": [")
	for i, v := range list {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		comma := ","
		if i == len(list)-1 {
			comma = ""
		}
		a.print("  " + strings.NewReplacer(`\u003e`, ">").Replace(string(line)) + comma)
	}
	a.print("]")
	return nil
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema [NAME]", Short: "Print the JSON Schema of a message, or list them", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return schemas(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				data, err := schema(args[0])
				if err != nil {
					return err
				}
				if a.conf.Output == "jsonl" {
					return a.printJSON(data)
				}
				a.print(strings.TrimSpace(string(data)))
				return nil
			}
			if a.json() {
				return a.printValue(schemas())
			}
			for _, name := range schemas() {
				a.print(name)
			}
			return nil
		},
	}
}

// schemas names the messages of every protocol that have a JSON Schema.
func schemas() []string {
	return slices.Concat(fleet.Schemas(), handshake.Schemas(), mesh.Schemas(), runwire.Schemas(), a2e.Schemas(), schedule.Schemas(), identity.Schemas())
}

// schema is that of a message by its name, or by what its type says, such as
// TASK_DISPATCH.
func schema(name string) ([]byte, error) {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	switch {
	case slices.Contains(handshake.Schemas(), name):
		return handshake.Schema(name)
	case slices.Contains(mesh.Schemas(), name):
		return mesh.Schema(name)
	case slices.Contains(runwire.Schemas(), name):
		return runwire.Schema(name)
	case slices.Contains(a2e.Schemas(), name):
		return a2e.Schema(name)
	case slices.Contains(identity.Schemas(), name):
		return identity.Schema(name)
	case slices.Contains(schedule.Schemas(), name):
		return schedule.Schema(name)
	}
	data, err := fleet.Schema(name)
	if err != nil {
		return nil, subjects.AsError(err).WithRemedy("ask for one of " + strings.Join(schemas(), ", "))
	}
	return data, nil
}

// build tells what this program is.
type build struct {
	Version  string `json:"version"`
	Protocol string `json:"protocol_version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := build{version, fleet.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if a.json() {
				return a.printValue(b)
			}
			a.print(fmt.Sprintf("parley %s (protocol %s, %s, %s)", b.Version, b.Protocol, b.Go, b.Platform))
			return nil
		},
	}
}

// helpTopics are pages of help that belong to no command.
func helpTopics(getenv func(string) string) []*cobra.Command {
	var env, codes strings.Builder
	writeSettings(&env, defaultConfig(getenv))
	writeExitCodes(&codes)
	return []*cobra.Command{
		{
			Use: "env", Short: "Every setting: its variable, flag, default and meaning",
			Long: "Settings. A flag wins over the environment, which wins over the file, which wins\nover the default.\n\n" + env.String(),
		},
		{
			Use: "exit-codes", Short: "What the exit code of a command says",
			Long: "Exit codes.\n\n" + codes.String(),
		},
	}
}

// writeExitCodes prints the table of exit codes.
func writeExitCodes(w *strings.Builder) {
	rows := [][]string{{"Exit", "Name", "Meaning"}}
	add := func(exit int, name, meaning string) {
		rows = append(rows, []string{strconv.Itoa(exit), name, meaning})
	}
	for _, o := range outcomes {
		if o.state == fleet.StateDone {
			add(o.exit, string(o.state), "All went well; with --wait, and for task wait and task watch: "+o.meaning+".")
			add(exitFailed, "failed", "Something went wrong that has no code; the message says what.")
			add(exitUsage, "usage", "What was typed or set cannot be meant.")
			continue
		}
		add(o.exit, string(o.state), "task send --wait, task wait, task watch: "+o.meaning+".")
	}
	for _, c := range subjects.Codes() {
		meaning, _, exit, _ := subjects.CodeInfo(c)
		add(exit, string(c), meaning)
	}
	add(exitInterrupted, "interrupted", "A signal ended the command before it was done.")
	slices.SortStableFunc(rows[1:], func(a, b []string) int { return len(a[0]) - len(b[0]) })
	markdownTable(w, rows)
}
