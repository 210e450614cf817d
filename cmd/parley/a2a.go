package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/subjects"
	"parley/workers/agent"
	"parley/workers/agent/remote"
)

func (a *app) a2aCommand() *cobra.Command {
	c := noun("a2a", "Look at A2A agents of others, keep them under a name, and send them messages")
	bind(c.PersistentFlags(), a.conf, "a2a-identities", "timeout")
	c.AddCommand(a.a2aDiscover(), a.a2aRegister(), a.a2aList(), a.a2aRemove(), a.a2aSend(), a.a2aCancel())
	return c
}

// authFlags say how we prove who we are to an agent that is named by its address.
type authFlags struct{ kind, env, header string }

func (f *authFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.bindTo(fs)
	complete(cmd, "auth", remote.AuthBearer, remote.AuthAPIKey)
}

func (f *authFlags) bindTo(fs *pflag.FlagSet) {
	fs.StringVar(&f.kind, "auth", "", "to an agent that is named by its address: bearer or api_key")
	fs.StringVar(&f.env, "auth-env", "", "variable of the environment that holds the token or key")
	fs.StringVar(&f.header, "auth-header", "", "header for it (default Authorization, or X-API-Key)")
}

func (f *authFlags) auth() *remote.Auth {
	if f.kind == "" && f.env == "" && f.header == "" {
		return nil
	}
	return &remote.Auth{Type: cmp.Or(f.kind, remote.AuthBearer), ValueEnv: f.env, Header: f.header}
}

// farIdentity is the agent that an argument names: an address, or a name that was
// registered.
func (a *app) farIdentity(arg string, f *authFlags) (*remote.Identity, error) {
	if strings.Contains(arg, "://") {
		return remote.NewIdentity("remote", arg, f.auth())
	}
	if f.auth() != nil {
		return nil, usage("--auth is for an agent that is named by its address; %s has its own in its file", arg)
	}
	path, err := a.identityFile(arg)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, subjects.Errorf(subjects.CodeNotFound, "there is no agent %q in %s", arg, a.farIdentities()).
			WithRemedy("parley a2a ls  lists them; parley a2a register ADDRESS --id " + arg + "  adds one")
	}
	if err != nil {
		return nil, failed("read an identity: %w", err)
	}
	id, err := remote.DecodeIdentity(data)
	if err != nil {
		return nil, usage("%s: %w", path, err).next("mend the file, or register the agent again")
	}
	if id.ID != arg {
		return nil, usage("%s: its id is %q", path, id.ID).next("name the file after the id")
	}
	return id, nil
}

// farIdentities is the directory of the identities.
func (a *app) farIdentities() string {
	if a.conf.A2AIdentities != "" {
		return a.conf.A2AIdentities
	}
	return filepath.Join(configHome(a.getenv), "parley", "a2a")
}

func (a *app) identityFile(id string) (string, error) {
	if _, err := subjects.ParseAgentID(id); err != nil {
		return "", err
	}
	return filepath.Join(a.farIdentities(), id+".yaml"), nil
}

// remoteAgent is the client of the agent that an argument names.
func (a *app) remoteAgent(arg string, f *authFlags) (*remote.Remote, error) {
	id, err := a.farIdentity(arg, f)
	if err != nil {
		return nil, err
	}
	return a.newRemote(id)
}

func (a *app) newRemote(id *remote.Identity) (*remote.Remote, error) {
	return remote.New(remote.Config{
		Identity: id, Getenv: a.getenv, Proxy: http.ProxyFromEnvironment, Timeout: time.Duration(a.conf.Timeout), Trace: a.trace(),
		Log: a.clientLog(),
	})
}

// remoteError is what a remote agent's failure is on the command line.
func remoteError(err error) error {
	if f, ok := errors.AsType[*agent.Fail](err); ok {
		return subjects.Errorf(cmp.Or(f.Code, subjects.CodeUnavailable), "%s", cmp.Or(f.Message, err.Error()))
	}
	return err
}

func (a *app) a2aDiscover() *cobra.Command {
	var f authFlags
	cmd := &cobra.Command{
		Use: "discover ADDRESS|NAME", Short: "Show an agent's card", Args: one("address or name"),
		Long: `Get the card of an A2A agent, by its address or the name that it is registered
under, and show what it can do and how it is reached.`,
		Example: `  parley a2a discover https://agent.example.org
  KEY=… parley a2a discover https://agent.example.org --auth api_key --auth-env KEY`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.remoteAgent(args[0], &f)
			if err != nil {
				return err
			}
			card, err := r.Discover(cmd.Context())
			if err != nil {
				return remoteError(err)
			}
			if a.json() {
				return a.printValue(card)
			}
			a.printCard(card)
			return nil
		},
	}
	f.bind(cmd)
	return cmd
}

func (a *app) printCard(c *remote.Card) {
	g := a.card("Agent " + oneLine(c.Name))
	g.fact("About", oneLine(c.Description))
	g.fact("Version", oneLine(c.Version))
	for _, i := range c.Interfaces {
		text := i.Binding + " " + i.Version + " " + i.URL
		if i.Refused != "" {
			text += " (not used: " + i.Refused + ")"
		}
		g.fact("Reached by", oneLine(text))
	}
	for _, s := range c.Skills {
		g.fact("Skill", oneLine(s.ID+": "+cmp.Or(s.Description, s.Name)))
	}
	slices.Sort(c.Security)
	g.fact("Asks for", oneLine(strings.Join(c.Security, ", ")))
	var can []string
	for _, x := range []struct {
		has  bool
		name string
	}{{c.Streaming, "streams"}, {c.Push, "pushes"}, {c.Signed, "card has a signature, which is not verified here"}} {
		if x.has {
			can = append(can, x.name)
		}
	}
	g.fact("Can", strings.Join(can, ", "))
	g.print()
}

func (a *app) a2aRegister() *cobra.Command {
	var f authFlags
	var id, name, file string
	var force, offline bool
	cmd := &cobra.Command{
		Use: "register ADDRESS --id ID", Short: "Keep an agent under a name", Args: cobra.MaximumNArgs(1),
		Long: `Write the identity of an A2A agent of somebody else's, as a file in YAML below
--a2a-identities, once its card has been got. Secrets never get into the file:
--auth-env names the variable of the environment that holds one.`,
		Example: `  parley a2a register https://agent.example.org --id helper --auth bearer --auth-env HELPER_TOKEN
  parley a2a register --file helper.yaml
  parley agent run --driver a2a --id helper --card helper`,
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := a.newIdentity(args, file, id, &f)
			if err != nil {
				return err
			}
			x.Name = cmp.Or(name, x.Name)
			if !offline {
				r, err := a.newRemote(x)
				if err != nil {
					return err
				}
				card, err := r.Discover(cmd.Context())
				if err != nil {
					return remoteError(err)
				}
				x.Name = cmp.Or(x.Name, oneLine(card.Name))
			}
			return a.keepIdentity(x, force)
		},
	}
	f.bind(cmd)
	cmd.Flags().StringVar(&id, "id", "", "the name to keep it under")
	cmd.Flags().StringVar(&name, "name", "", "its name for people (default: its card's)")
	cmd.Flags().StringVarP(&file, "file", "f", "", "take the identity from this file instead, - for standard input")
	cmd.Flags().BoolVar(&force, "force", false, "replace one of this id")
	cmd.Flags().BoolVar(&offline, "offline", false, "do not get its card first")
	return cmd
}

func (a *app) newIdentity(args []string, file, id string, f *authFlags) (*remote.Identity, error) {
	switch {
	case file != "" && (len(args) > 0 || id != "" || f.auth() != nil):
		return nil, usage("--file has all of the identity: leave the address, --id and --auth out")
	case file != "":
		data, err := a.text(nil, file, "an identity")
		if err != nil {
			return nil, err
		}
		x, err := remote.DecodeIdentity(data)
		if err != nil {
			return nil, usage("%s: %w", file, err)
		}
		return x, nil
	case len(args) == 0:
		return nil, usage("name the agent's address, or --file").next("parley a2a register --help")
	case id == "":
		return nil, usage("--id is missing: the name to keep it under").next("parley a2a register " + args[0] + " --id helper")
	}
	return remote.NewIdentity(id, args[0], f.auth())
}

// keepIdentity writes an identity's file, whole or not at all.
func (a *app) keepIdentity(x *remote.Identity, force bool) error {
	path, err := a.identityFile(x.ID)
	if err != nil {
		return err
	}
	data, err := x.Encode()
	if err != nil {
		return failed("write an identity: %w", err)
	}
	if err := os.MkdirAll(a.farIdentities(), 0o700); err != nil {
		return failed("write an identity: %w", err)
	}
	tmp, err := os.CreateTemp(a.farIdentities(), ".new-*")
	if err != nil {
		return failed("write an identity: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return failed("write an identity: %w", err)
	}
	if force {
		err = os.Rename(tmp.Name(), path)
	} else {
		err = os.Link(tmp.Name(), path)
	}
	if errors.Is(err, fs.ErrExist) {
		return usage("there is an agent %q already", x.ID).next("--force replaces it; parley a2a rm " + x.ID + "  removes it")
	}
	if err != nil {
		return failed("write an identity: %w", err)
	}
	if a.json() {
		return a.printValue(x)
	}
	a.print(x.ID)
	a.notice("%s; parley agent run --driver a2a --id %s --card %s  has it serve in the fleet", path, x.ID, x.ID)
	return nil
}

func (a *app) a2aList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the agents that are registered", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := filepath.Glob(filepath.Join(a.farIdentities(), "*.yaml"))
			if err != nil {
				return failed("list identities: %w", err)
			}
			list := []*remote.Identity{}
			for _, path := range files {
				id, err := a.farIdentity(strings.TrimSuffix(filepath.Base(path), ".yaml"), &authFlags{})
				if err != nil {
					a.notice("%s", err)
					continue
				}
				list = append(list, id)
			}
			if a.json() {
				raw, err := json.Marshal(map[string]any{"agents": list})
				if err != nil {
					return err
				}
				return a.printList(raw, "agents")
			}
			if len(list) == 0 {
				a.notice("no agents; parley a2a register ADDRESS --id NAME  adds one")
				return nil
			}
			g := a.grid("A2A agents", []string{"ID", "Name", "Address", "Secret in"}, "Address")
			for _, id := range list {
				t := id.Transports.Card
				if t == nil {
					t = id.Transports.RPC
				}
				secret := "-"
				if t.Auth != nil && t.Auth.ValueEnv != "" {
					secret = t.Auth.ValueEnv
				}
				g.add(id.ID, oneLine(id.Name), t.URL+t.Path, secret)
			}
			g.print()
			return nil
		},
	}
}

func (a *app) a2aRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Aliases: []string{"remove", "delete"}, Short: "Forget a registered agent", Args: one("name"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := a.identityFile(args[0])
			if err != nil {
				return err
			}
			err = os.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				return subjects.Errorf(subjects.CodeNotFound, "there is no agent %q in %s", args[0], a.farIdentities()).WithRemedy("parley a2a ls  lists them")
			}
			if err != nil {
				return failed("remove an identity: %w", err)
			}
			return nil
		},
	}
}

func (a *app) a2aSend() *cobra.Command {
	var f authFlags
	var m remote.Message
	var file string
	cmd := &cobra.Command{
		Use: "send ADDRESS|NAME [TEXT…]", Short: "Send a message to an agent of others, past the fleet", Args: cobra.MinimumNArgs(1),
		Long: `Send a message straight to an A2A agent and print what it tells, until its task
ends or waits for somebody. To have the fleet see a task through, let the agent
serve in it: parley agent run --driver a2a.`,
		Example: `  parley a2a send helper "Name three colours."
  parley a2a send helper --task 0b5d… "The blue one."`,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := a.text(args[1:], file, "a text")
			if err != nil {
				return err
			}
			m.Text = strings.TrimSpace(string(text))
			r, err := a.remoteAgent(args[0], &f)
			if err != nil {
				return err
			}
			return remoteError(r.Send(cmd.Context(), m, a.printTold()))
		},
	}
	f.bind(cmd)
	fs := cmd.Flags()
	fs.StringVar(&m.TaskID, "task", "", "task that the message belongs to (default: a new one)")
	fs.StringVar(&m.ContextID, "in-context", "", "context that it belongs to")
	fs.StringVar(&m.ID, "key", "", "id of the message, under which a repeat is the same one")
	fs.BoolVar(&m.Now, "no-wait", false, "come back as soon as there is a task")
	fs.StringVarP(&file, "file", "f", "", "read the text from a file, - for standard input")
	return cmd
}

// printTold prints what an agent tells: its words on standard output, how it
// goes on standard error.
func (a *app) printTold() func(remote.Told) error {
	known := ""
	return func(t remote.Told) error {
		if a.json() {
			return a.printJSON(t.Event)
		}
		if t.TaskID != "" && t.TaskID != known {
			known = t.TaskID
			a.notice("task %s", printable(oneLine(t.TaskID)))
		}
		if t.State != "" {
			a.notice("%s", strings.ToLower(strings.TrimPrefix(printable(oneLine(t.State)), "TASK_STATE_")))
		}
		if t.Text != "" {
			a.print(printable(t.Text))
		}
		return nil
	}
}

func (a *app) a2aCancel() *cobra.Command {
	var f authFlags
	cmd := &cobra.Command{
		Use: "cancel ADDRESS|NAME TASK", Short: "Cancel a task of an agent of others", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := a.remoteAgent(args[0], &f)
			if err != nil {
				return err
			}
			return remoteError(r.Cancel(cmd.Context(), args[1], a.printTold()))
		},
	}
	f.bind(cmd)
	return cmd
}

// remoteDriver has an A2A agent do the work.
func (a *app) remoteDriver(ctx context.Context, f *agentFlags) (agent.Handler, func(context.Context, func(agent.Condition)), error) {
	if f.card == "" {
		return nil, nil, usage("--card is missing: the address of the agent's card, or a name of parley a2a ls").
			next("parley agent run --id " + f.id + " --driver a2a --card https://agent.example.org")
	}
	id, err := a.farIdentity(f.card, &f.auth)
	if err != nil {
		return nil, nil, err
	}
	r, err := remote.New(remote.Config{
		Identity: id, Getenv: a.getenv, Proxy: http.ProxyFromEnvironment, Poll: f.poll, Idle: f.idle, Patience: f.patience,
		Log: a.logger(slog.LevelDebug),
	})
	if err != nil {
		return nil, nil, err
	}
	return r, r.Watch, ctx.Err()
}
