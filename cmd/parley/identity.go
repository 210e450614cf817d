package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"parley/subjects"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/workers/callout"
)

func (a *app) identityCommand() *cobra.Command {
	c := noun("identity", "Say who may connect and sign, with which keys, and what they may announce", "identities", "id")
	c.Long = `An identity is an agent's name with a key: the agent connects by it, where the
servers ask the fleet who may (auth callout), and signs what it sends. Its record
says where it may connect from and what it may announce. Keys can be changed
while both count, and an identity can be revoked at once.`
	bind(c.PersistentFlags(), a.conf, append([]string{"as"}, connectionFlags...)...)
	c.AddCommand(a.identityAdd(), a.identityList(), a.identityGet(), a.identityRotate(), a.identityRevoke(),
		a.identityPassword(), a.identitySign())
	return c
}

// oneIdentity wants exactly one argument, an agent id.
func oneIdentity(cmd *cobra.Command, args []string) error {
	if err := one("agent id")(cmd, args); err != nil {
		return err
	}
	_, err := subjects.ParseAgentID(args[0])
	return err
}

// limitFlags are the flags of what an identity may.
type limitFlags struct {
	add            identity.Add
	hosts          []string
	from           string
	file, existing string
}

func (n *limitFlags) bind(f *pflag.FlagSet) {
	f.StringVar(&n.add.Role, "role", "", "agent, orchestrator or operator (default agent)")
	f.StringVar(&n.add.AgentType, "type", "", "virtual or registered")
	f.StringSliceVar(&n.hosts, "host", nil, "where it may connect from: addresses, networks, host names (default anywhere)")
	f.StringSliceVar(&n.add.Capabilities, "capability", nil, "tools that it may announce (default any)")
	f.StringSliceVar(&n.add.MCPServers, "mcp-server", nil, "MCP servers that it may announce (default any)")
	f.StringVar(&n.add.MaxTier, "max-tier", "", "highest model tier that it may announce (default any)")
	f.StringVar(&n.add.Signatures, "signatures", "", "v1, or v0 to take the session protocol's plain form too (default v1)")
	f.StringVar(&n.from, "from", "", "file with an identity of the session protocol, whose type, capabilities and hosts count")
	f.StringVar(&n.existing, "secret-file", "", "file with the secret that the agent has already, 32 bytes or more, for its owner only (default: a new one)")
	f.StringVar(&n.file, "file", "", "where to write identity and key, for its owner only; it must be new (default ID.identity.json)")
	f.BoolVar(&n.add.Update, "update", false, "change what an identity may that is there already; its keys stay")
}

// request makes the request of flags and files.
func (n *limitFlags) request(f *pflag.FlagSet, id string) (*identity.Add, error) {
	q := n.add
	q.AgentID = subjects.AgentID(id)
	for name, list := range map[string]*[]string{"host": &q.AllowedHosts, "capability": &q.Capabilities, "mcp-server": &q.MCPServers} {
		if name == "host" {
			*list = n.hosts
		}
		switch {
		case !f.Changed(name):
			*list = nil
		case len(*list) == 1 && (*list)[0] == "":
			*list = []string{} // none at all
		}
	}
	if n.from == "" {
		return &q, nil
	}
	data, err := os.ReadFile(n.from)
	if err != nil {
		return nil, usage("--from: %w", err)
	}
	d, err := handshake.DecodeIdentity(data)
	if err != nil {
		return nil, err
	}
	if string(d.AgentID) != id {
		return nil, usage("--from %s is the identity of %s, not of %s", n.from, d.AgentID, id)
	}
	if !f.Changed("type") {
		q.AgentType = d.AgentType
	}
	if !f.Changed("capability") {
		q.Capabilities = d.Capabilities
	}
	if !f.Changed("host") {
		q.AllowedHosts = d.AllowedHosts
	}
	return &q, nil
}

// existingSecret reads a secret that somebody has already.
func existingSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	if err := private("--secret-file", path); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usage("--secret-file: %w", err)
	}
	return []byte(strings.TrimRight(string(data), "\r\n")), nil
}

func (a *app) identityAdd() *cobra.Command {
	var n limitFlags
	cmd := &cobra.Command{
		Use: "add ID", Aliases: []string{"create"}, Short: "Let somebody in, or change what they may", Args: oneIdentity,
		Long: `Let somebody in: the fleet makes a key, which is written to a file for its
owner's eyes only and shown never again. With --update, change what somebody may
who is there already: what is not given is not limited any more.`,
		Example: `  parley identity add bot --host 10.0.0.0/8 --max-tier sonnet --file bot.identity.json
  parley agent run --identity bot.identity.json -- COMMAND
  parley identity add bot --update --capability shell,git`,
	}
	cmd.RunE = a.ask(func(ctx context.Context, c *client, args []string) error {
		q, err := n.request(cmd.Flags(), args[0])
		if err != nil {
			return err
		}
		if q.Secret, err = existingSecret(n.existing); err != nil {
			return err
		}
		return a.issue(ctx, c, issuing{"add", q, q.AgentID, n.file, !q.Update})
	})
	n.bind(cmd.Flags())
	complete(cmd, "role", subjects.RoleAgent, subjects.RoleOrchestrator, subjects.RoleOperator)
	complete(cmd, "signatures", identity.V1, identity.V0)
	return cmd
}

// issuing is a call that may give a key.
type issuing struct {
	verb  string
	req   any
	id    subjects.AgentID
	file  string
	gives bool
}

// issue makes a call that may give a key, and keeps that in a file.
func (a *app) issue(ctx context.Context, c *client, i issuing) error {
	id, file, gives := i.id, i.file, i.gives
	write, drop := func(subjects.AgentID, string) error { return nil }, func() {}
	if file == "" {
		file = string(id) + ".identity.json"
	}
	if gives {
		var err error
		if write, drop, err = writeIdentity(file); err != nil {
			return err
		}
	}
	r, err := call[identity.Issued](ctx, c, "identity", i.verb, i.req)
	if err != nil {
		drop()
		return err
	}
	if err := write(id, r.value.Key); err != nil {
		return failed("%w", err).next("parley identity rotate " + string(id) + "  gives another key")
	}
	if a.json() {
		return a.printValue(&r.value.Identity)
	}
	if gives {
		a.print(file)
		a.notice("the key %s of %s is in there, and nowhere else: its owner needs it as --identity (PARLEY_IDENTITY)", r.value.Identity.Keys[0].ID, id)
		return nil
	}
	a.notice("the identity %s is changed; what it has announced counts until it announces anew", id)
	return nil
}

func (a *app) identityList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List all identities", Args: cobra.NoArgs,
		RunE: a.ask(func(ctx context.Context, c *client, _ []string) error {
			r, err := call[identity.ListReply](ctx, c, "identity", "list", identity.List{})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printList(r.raw, "identities")
			}
			if len(r.value.Identities) == 0 {
				a.notice("no identities; parley identity add makes one")
				return nil
			}
			g := a.grid("Identities", []string{"Identity", "Role", "Keys", "Signatures", "Hosts", "Created", "State"})
			for i := range r.value.Identities {
				v := &r.value.Identities[i]
				g.add(string(v.AgentID), v.Role, strconv.Itoa(len(v.Active(a.now()))), v.Signatures, limits(v.AllowedHosts), a.when(v.Created), identityState(v))
			}
			g.print()
			return nil
		}),
	}
}

// limits shows a list that limits something.
func limits(list []string) string {
	switch {
	case list == nil:
		return "any"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, ", ")
}

func identityState(v *identity.View) string {
	if v.Revoked != nil {
		return "revoked"
	}
	return "active"
}

func (a *app) identityGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Aliases: []string{"info", "show"}, Short: "Show an identity, without its keys' secrets", Args: oneIdentity,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[identity.View](ctx, c, "identity", "get", identity.Ref{AgentID: subjects.AgentID(args[0])})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			v := &r.value
			g := a.card("Identity " + string(v.AgentID))
			g.fact("State", identityState(v))
			g.fact("Role", v.Role)
			g.fact("Type", v.AgentType)
			g.fact("Signatures", v.Signatures)
			g.fact("Hosts", limits(v.AllowedHosts))
			g.fact("Capabilities", limits(v.Capabilities))
			g.fact("MCP servers", limits(v.MCPServers))
			g.fact("Tier at most", v.MaxTier)
			for _, k := range v.Keys {
				until := ""
				if !k.Until.IsZero() {
					until = ", until " + a.moment(k.Until)
				}
				g.fact("Key "+k.ID, "since "+a.moment(k.Created)+until)
			}
			if x := v.Revoked; x != nil {
				g.fact("Revoked", a.moment(x.At)+" by "+string(x.By))
				g.fact("Reason", x.Reason)
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) identityRotate() *cobra.Command {
	var overlap time.Duration
	var file, existing string
	cmd := &cobra.Command{
		Use: "rotate ID", Short: "Give an identity a new key; the old one counts a while longer", Args: oneIdentity,
		Example: `  parley identity rotate bot --overlap 24h --file bot-2.identity.json
  parley identity rotate bot --overlap 0        the old key is lost, or known to others`,
	}
	cmd.RunE = a.ask(func(ctx context.Context, c *client, args []string) error {
		secret, err := existingSecret(existing)
		if err != nil {
			return err
		}
		q := &identity.Rotate{AgentID: subjects.AgentID(args[0]), OverlapSeconds: overlap.Seconds(), Secret: secret}
		return a.issue(ctx, c, issuing{"rotate", q, q.AgentID, file, true})
	})
	cmd.Flags().DurationVar(&overlap, "overlap", time.Hour, "how long the old key counts")
	cmd.Flags().StringVar(&file, "file", "", "where to write identity and key, for its owner only; it must be new (default ID.identity.json)")
	cmd.Flags().StringVar(&existing, "secret-file", "", "file with a secret, 32 bytes or more, for its owner only (default: a new one)")
	return cmd
}

func (a *app) identityRevoke() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "Let somebody in no more; rotate lets them in again", Args: oneIdentity,
		RunE: a.ask(func(ctx context.Context, c *client, args []string) error {
			r, err := call[identity.View](ctx, c, "identity", "revoke", identity.Revoke{AgentID: subjects.AgentID(args[0]), Reason: reason})
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(r.raw)
			}
			a.notice("%s gets in no more; a connection that it has ends with its time, %s at most where nothing else is set", args[0], shortDuration(callout.DefaultTTL))
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever asks later")
	return cmd
}

// needIdentity reads the identity, which must be there and have a name.
func (a *app) needIdentity() (*myself, error) {
	me, err := a.identity()
	if err == nil && me == nil {
		err = usage("no identity is given").next("--identity FILE (PARLEY_IDENTITY), or --identity-key (PARLEY_IDENTITY_KEY) with --as ID")
	}
	if err == nil && me.AgentID == "" {
		me.AgentID = subjects.AgentID(a.conf.As)
	}
	return me, err
}

func (a *app) identityPassword() *cobra.Command {
	return &cobra.Command{
		Use: "password", Short: "Print a password for one connection of another program", Args: cobra.NoArgs,
		Long: `Print a password for one connection of another program. It counts once, and for
five minutes. The user is the agent id; as a token it needs no user.`,
		Example: `  nats --user bot --password "$(parley identity password --identity bot.identity.json)" \
      --inbox-prefix _INBOX_bot req fleet.api.bot.task.list '{}'`,
		RunE: func(*cobra.Command, []string) error {
			me, err := a.needIdentity()
			if err != nil {
				return err
			}
			a.print(me.password())
			return nil
		},
	}
}

func (a *app) identitySign() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "sign SUBJECT [TEXT]", Short: "Print the headers that sign one message of another program", Args: cobra.RangeArgs(1, 2),
		Example: `  nats req fleet.dispatch.bot "say hello" $(parley identity sign fleet.dispatch.bot "say hello" | sed 's/^/-H /')`,
		RunE: func(_ *cobra.Command, args []string) error {
			me, err := a.needIdentity()
			if err != nil {
				return err
			}
			var body []byte
			switch {
			case file != "":
				if body, err = os.ReadFile(file); err != nil {
					return usage("read the message: %w", err)
				}
			case len(args) == 2:
				body = []byte(args[1])
			}
			h := callout.Signer(me.AgentID, me.key, time.Now)(args[0], body, nil)
			if h == nil {
				return usage("%s is no subject that %s writes", args[0], me.AgentID).next("parley subjects  lists them")
			}
			if a.json() {
				return a.printValue(h)
			}
			for _, name := range []string{subjects.HeaderAgent, subjects.HeaderTimestamp, subjects.HeaderNonce, subjects.HeaderSignature} {
				a.print(name + ":" + h.Get(name))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "sign what is in a file")
	return cmd
}
