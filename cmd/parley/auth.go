package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/bus/auth"
	"parley/subjects"
)

// identityRoles are the kinds of identities as people call them, and their
// roles.
var identityRoles = []struct{ noun, role, short string }{
	{"agent", subjects.RoleAgent, "Let an agent in: something that does tasks"},
	{"orchestrator", subjects.RoleOrchestrator, "Let somebody in who dispatches tasks"},
	{"human", subjects.RoleOperator, "Let a person in who sees and changes every task"},
	{"service", subjects.RoleWorker, "Let a process of workers in: parley serve"},
	{"leaf", subjects.RoleLeaf, "Let a NATS leaf node in, which speaks as one agent"},
}

// isClientRole reports whether credentials of role are somebody's, not a
// worker's or another system's.
func isClientRole(role string) bool {
	return role != subjects.RoleWorker && slices.ContainsFunc(identityRoles, func(r struct{ noun, role, short string }) bool { return r.role == role })
}

func nounOf(role string) string {
	for _, r := range identityRoles {
		if r.role == role {
			return r.noun
		}
	}
	return role
}

func (a *app) authCommand() *cobra.Command {
	cmd := noun("auth", "Say who may connect, and as whom")
	cmd.Long = `Say who may connect to the broker, and as whom: parley auth init makes a directory
with the keys of a fleet and a configuration for nats-server; parley up --auth DIR
lets in whom it names, and nobody else.

Everybody gets a file of credentials that allows what the catalogue of subjects
says for its role (parley subjects --permissions), under its own name.`
	cmd.Example = `  parley auth init fleet
  export PARLEY_AUTH=fleet
  parley auth add-agent claude
  parley up
  PARLEY_CREDS=fleet/creds/default/claude.creds parley agent run --id claude -- COMMAND
  parley auth revoke claude`
	bind(cmd.PersistentFlags(), a.conf, slices.Concat([]string{"auth", "tenant"}, []string{"server", "tlsca", "tlscert", "tlskey", "tlsfirst", "timeout"})...)
	cmd.AddCommand(a.authInit(), a.authTenant(), a.authList(), a.authRevoke(), a.authRenew(), a.authPush())
	for _, r := range identityRoles {
		cmd.AddCommand(a.authAdd(r.noun, r.role, r.short))
	}
	return cmd
}

func (a *app) authInit() *cobra.Command {
	var tenants []string
	cmd := &cobra.Command{
		Use: "init [DIR]", Short: "Make a directory with the keys of a fleet", Args: cobra.MaximumNArgs(1),
		Long: `Make a directory with the keys of a fleet: an operator, accounts for every tenant,
credentials for its workers (worker) and for a human (operator), and a
configuration that nats-server starts with. Without DIR it is that of --auth.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.conf.Auth = args[0]
			}
			if len(tenants) == 0 {
				tenants = []string{a.conf.Tenant}
			}
			d, err := auth.Init(a.authDir(), a.now, tenants...)
			if err != nil {
				return authProblem(err)
			}
			return a.authMade(d, tenants[0])
		},
	}
	cmd.Flags().StringSliceVar(&tenants, "tenants", nil, "tenants, walled off from each other (default: that of --tenant)")
	return cmd
}

// authMade tells what init has made.
func (a *app) authMade(d *auth.Directory, tenant string) error {
	if a.json() {
		return a.printValue(struct {
			Dir     string   `json:"dir"`
			Conf    string   `json:"nats_conf"`
			Tenants []string `json:"tenants"`
		}{d.Path(), d.ServerConf(), d.Tenants()})
	}
	for _, line := range [][2]string{
		{"Keys", d.Path() + "   who reads it is everybody: keep it, and keep it to yourself"},
		{"Start", "parley up --auth " + d.Path()},
		{"or", "nats-server -c " + d.ServerConf() + "   and   parley serve --creds " + d.Creds(tenant, auth.Worker)},
		{"Use", "PARLEY_CREDS=" + d.Creds(tenant, auth.Operator) + " parley agent ls"},
		{"Next", "parley auth add-agent ID --auth " + d.Path()},
	} {
		a.print(fmt.Sprintf("  %-5s %s", line[0], printable(line[1])))
	}
	return nil
}

func (a *app) authTenant() *cobra.Command {
	return &cobra.Command{
		Use: "add-tenant NAME", Short: "Make a tenant, walled off from the others", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAuth(cmd.Context(), true, func(d *auth.Directory) error {
				if err := d.AddTenant(args[0]); err != nil {
					return err
				}
				a.print("creds " + printable(d.Creds(args[0], auth.Worker)))
				a.print("creds " + printable(d.Creds(args[0], auth.Operator)))
				return nil
			})
		},
	}
}

func (a *app) authAdd(noun, role, short string) *cobra.Command {
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "add-" + noun + " ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAuth(cmd.Context(), false, func(d *auth.Directory) error {
				if err := d.Add(a.conf.Tenant, role, args[0], a.ends(expires)); err != nil {
					return err
				}
				return a.printCreds(d, args[0], role)
			})
		},
	}
	expiry(cmd, &expires)
	return cmd
}

func expiry(cmd *cobra.Command, expires *time.Duration) {
	cmd.Flags().DurationVar(expires, "expires", 0, "the credentials end after this; 0: never")
}

func (a *app) ends(after time.Duration) time.Time {
	if after <= 0 {
		return time.Time{}
	}
	return a.now().Add(after)
}

// printCreds tells where the credentials are, and what goes with them.
func (a *app) printCreds(d *auth.Directory, id, role string) error {
	path := d.Creds(a.conf.Tenant, id)
	if a.json() {
		return a.printValue(struct {
			Tenant string `json:"tenant"`
			ID     string `json:"id"`
			Role   string `json:"role"`
			Creds  string `json:"creds"`
			Inbox  string `json:"inbox_prefix"`
		}{a.conf.Tenant, id, role, path, subjects.InboxPrefix(subjects.AgentID(id))})
	}
	a.print("creds " + printable(path))
	if role == subjects.RoleOperator {
		a.notice("workers that run must be told that %s sees every task: --operators operator,%s; parley up --auth knows at its next start", id, id)
	}
	return nil
}

func (a *app) authRenew() *cobra.Command {
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "renew ID", Short: "Give somebody new credentials; the former ones hold until they are revoked", Args: cobra.ExactArgs(1),
		Example: `  parley auth renew claude
  parley auth revoke claude --former     once everybody has the new file`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAuth(cmd.Context(), false, func(d *auth.Directory) error {
				if err := d.Renew(a.conf.Tenant, args[0], a.ends(expires)); err != nil {
					return err
				}
				return a.printCreds(d, args[0], "")
			})
		},
	}
	expiry(cmd, &expires)
	return cmd
}

func (a *app) authRevoke() *cobra.Command {
	var former bool
	cmd := &cobra.Command{
		Use: "revoke ID", Short: "End somebody's credentials, also on servers that run", Args: cobra.ExactArgs(1),
		Long: `End somebody's credentials. The servers of --server are told at once and throw out
whoever is connected with them. Where none is reached this fails, although it is
written down: parley auth push tells them later.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeAuth(cmd.Context(), true, func(d *auth.Directory) error {
				return d.Revoke(a.conf.Tenant, args[0], former)
			})
		},
	}
	cmd.Flags().BoolVar(&former, "former", false, "end those alone that parley auth renew has replaced")
	return cmd
}

func (a *app) authPush() *cobra.Command {
	return &cobra.Command{
		Use: "push", Short: "Tell servers that run what the directory says", Args: cobra.NoArgs,
		Long: `Write the accounts again, as this version's catalogue of subjects has them, and tell
the servers of --server. Do so after an upgrade.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.changeAuth(cmd.Context(), true, (*auth.Directory).Refresh)
		},
	}
}

// authDir is where the identities are.
func (a *app) authDir() string {
	if a.conf.Auth != "" {
		return a.conf.Auth
	}
	return filepath.Join(configHome(a.getenv), "parley", "auth")
}

// changeAuth changes the directory, one process at a time, and tells the
// servers if they must know.
func (a *app) changeAuth(ctx context.Context, push bool, change func(*auth.Directory) error) error {
	lock, err := os.OpenFile(filepath.Join(a.authDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		_, err = auth.Open(a.authDir(), a.now)
		return authProblem(err)
	}
	defer func() { _ = lock.Close() }() // which frees it
	for err = tryLock(lock); err != nil; err = tryLock(lock) {
		if !errors.Is(err, errHeld) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d, err := auth.Open(a.authDir(), a.now)
	if err != nil {
		return authProblem(err)
	}
	if err := change(d); err != nil {
		return authProblem(err)
	}
	if !push {
		return nil
	}
	if err := a.pushAuth(ctx, d); err != nil {
		return failed("it is written down, but the servers at %s were not told: %w", bus.Redacted(a.conf.Server), err).
			next("parley auth push --server URL  once one runs; parley up --auth, and a server that starts with this directory, know by themselves")
	}
	return nil
}

// pushAuth tells the servers of the settings.
func (a *app) pushAuth(ctx context.Context, d *auth.Directory) error {
	c := a.conf
	b, err := bus.Connect(ctx, bus.Config{
		URL: c.Server, Creds: d.SystemCreds(), CA: c.TLSCA, Cert: c.TLSCert, Key: c.TLSKey, TLSFirst: c.TLSFirst,
		Name: "parley auth", ConnectTimeout: min(time.Duration(c.Timeout), 2*time.Second), Log: a.clientLog(),
	})
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.Timeout))
	defer cancel()
	return d.Push(ctx, b)
}

func (a *app) authList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List who may connect", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := auth.Open(a.authDir(), a.now)
			if err != nil {
				return authProblem(err)
			}
			tenant := ""
			if cmd.Flags().Lookup("tenant").Changed {
				tenant = a.conf.Tenant
			}
			return a.printUsers(d.Users(tenant))
		},
	}
}

// printUsers lists every key of users.
func (a *app) printUsers(users []auth.User) error {
	type row struct {
		Tenant  string    `json:"tenant"`
		ID      string    `json:"id"`
		Kind    string    `json:"kind"`
		State   string    `json:"state"`
		Issued  time.Time `json:"issued"`
		Expires time.Time `json:"expires,omitzero"`
		Key     string    `json:"key"`
	}
	rows := []row{}
	for _, u := range users {
		for _, k := range u.Keys {
			state := "valid"
			switch {
			case !k.Revoked.IsZero():
				state = "revoked"
			case !k.Holds(a.now()):
				state = "expired"
			}
			rows = append(rows, row{u.Tenant, u.ID, nounOf(u.Role), state, k.Issued, k.Expires, k.Public})
		}
	}
	if a.json() {
		return a.printValue(rows)
	}
	g := a.grid("Identities", []string{"Tenant", "ID", "Kind", "State", "Issued", "Expires", "Key"})
	for _, r := range rows {
		expires := "never"
		if !r.Expires.IsZero() {
			expires = r.Expires.Format(time.DateTime)
		}
		g.add(r.Tenant, r.ID, r.Kind, r.State, r.Issued.Format(time.DateTime), expires, r.Key)
	}
	g.print()
	return nil
}

// authProblem says what to do about a directory's error.
func authProblem(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, auth.ErrNotFound):
		return usage("%w", err).next("parley auth ls  lists everybody; parley auth init DIR makes a directory; --auth DIR and --tenant NAME name others")
	case errors.Is(err, auth.ErrExists):
		return usage("%w", err).next("parley auth ls  lists everybody; parley auth renew ID  gives new credentials")
	case errors.Is(err, auth.ErrNotPrivate):
		return usage("%w", err).next("chmod as the line above says; if others could read it, take a new secret")
	case subjects.CodeOf(err) == subjects.CodeInvalidID:
		return err
	}
	return failed("%w", err)
}
