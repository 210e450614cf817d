package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/bus/embedded"
)

func (a *app) upCommand() *cobra.Command {
	var save string
	cmd := &cobra.Command{
		Use: "up", Short: "Run a whole fleet on this machine", Args: cobra.NoArgs,
		Long: `Run a whole fleet on this machine: an embedded NATS broker that keeps its data in
--data, and all workers, until a signal ends it. Agents and tasks are kept; run
it again, and it goes on where it was.`,
		Example: `  parley up
  parley up --save-context       then: nats --context parley stream ls
  parley up --sync=2m            faster; a power cut loses what was acknowledged since`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), save) },
	}
	bind(cmd.Flags(), a.conf, append(brokerFlags, workerFlags...)...)
	cmd.Flags().StringVar(&save, "save-context", "", "write a context of this name for the nats command line (default parley)")
	cmd.Flags().Lookup("save-context").NoOptDefVal = "parley"
	return cmd
}

// up runs broker and workers until ctx ends.
func (a *app) up(ctx context.Context, save string) error {
	if err := contextName(save); err != nil {
		return err
	}
	if a.conf.Auth != "" && a.conf.Callout {
		return usage("--auth and --callout are two ways to say who may connect").next("leave one of them out")
	}
	if !loopback(a.conf.Host) && !a.conf.Insecure && !a.conf.Callout && a.conf.Auth == "" {
		return usage("--host %s would let other machines reach a broker that asks nobody who they are", a.conf.Host).
			next("parley auth init DIR  and then  parley up --auth DIR; or parley up --callout; or, where nobody else is on the network, add --insecure")
	}
	log := a.workerLog()
	always, every, err := a.conf.sync()
	if err != nil {
		return err
	}
	guard, nkey, err := a.askWho()
	if err != nil {
		return err
	}
	door, err := a.door(log)
	if err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Options{
		Dir: a.conf.Data, Host: a.conf.Host, Port: a.conf.Port, Callout: guard, Trust: door.trust, Refused: door.refused,
		NoSyncAlways: !always, SyncInterval: every, Log: log.With(slog.String("component", "nats")), Quiet: true,
	})
	if err != nil {
		return a.noBroker(err)
	}
	defer server.Close()
	b, err := bus.Connect(ctx, bus.Config{
		InProcess: server, NKey: nkey, Creds: door.creds, Name: "parley up", Refused: door.access.Asked, SyncAlways: server.SyncAlways(), Open: a.conf.open(),
		Log: log.With(slog.String("component", "bus")),
	})
	if err != nil {
		return err
	}
	defer b.Close()
	a.conf.A2ANATS = cmp.Or(a.conf.A2ANATS, server.URL())
	saved := ""
	if save != "" {
		if saved, err = saveContext(a.getenv, save, door.context(server.URL())); err != nil {
			return err
		}
	}
	return a.fleet(ctx, b, server.Room(), log, func(health string) {
		a.banner(&addresses{NATS: server.URL(), HTTP: health, Data: a.conf.Data, Sync: a.conf.Sync, Context: saved, Auth: a.conf.Auth, Tenant: door.tenant})
	}, door.workers(b)...)
}

// noBroker says what to do where the broker does not start.
func (a *app) noBroker(err error) error {
	p := failed("%w", err)
	here := net.JoinHostPort(a.conf.Host, strconv.Itoa(a.conf.Port))
	switch {
	case errors.Is(err, embedded.ErrDirInUse):
		p.what = "another parley up runs with the data in " + a.conf.Data
		p.where = err.Error()
		return p.next(fmt.Sprintf("use that one, stop it, or start a second fleet: parley up --data %s2 --port %d --http %s",
			strings.TrimRight(a.conf.Data, "/"), a.conf.Port+1, nextPort(a.conf.HTTP)))
	case errors.Is(err, embedded.ErrPortTaken):
		p.what = here + " is taken: another process listens there"
		p.where = "a NATS server that runs already? parley serve --server nats://" + here + "  runs the workers against it"
		flags := []string{"--port", strconv.Itoa(a.conf.Port + 1)}
		if a.httpTaken() {
			flags = append(flags, "--http", nextPort(a.conf.HTTP))
		}
		return p.next(a.sameCommand(flags...))
	case errors.Is(err, fs.ErrPermission):
		return p.next("parley up --data DIR  with a directory that you may write")
	}
	return p
}

// sameCommand is the command line as it was typed, with other values of flags, in
// pairs.
func (a *app) sameCommand(flags ...string) string {
	words := []string{"parley"}
	for i := 0; i < len(a.args); i++ {
		name, _, whole := strings.Cut(a.args[i], "=")
		if at := slices.Index(flags, name); at >= 0 && at%2 == 0 {
			if !whole {
				i++ // its value
			}
			continue
		}
		words = append(words, quoted(a.args[i]))
	}
	for i := 0; i+1 < len(flags); i += 2 {
		words = append(words, flags[i], quoted(flags[i+1]))
	}
	return strings.Join(words, " ")
}

// httpTaken reports whether another process listens at the address of --http.
func (a *app) httpTaken() bool {
	l, err := net.Listen("tcp", a.conf.HTTP)
	if err == nil {
		_ = l.Close()
	}
	return err != nil && a.conf.HTTP != "off"
}

// addresses is what the banner shows.
type addresses struct {
	NATS    string `json:"nats"`
	HTTP    string `json:"http,omitempty"`
	Data    string `json:"data"`
	Sync    string `json:"sync"`
	Context string `json:"context,omitempty"`
	Auth    string `json:"auth,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
}

// banner tells that everything runs, and where.
func (a *app) banner(at *addresses) {
	if a.json() {
		if err := a.printValue(at); err != nil {
			a.notice("%v", err)
		}
		return
	}
	nats := at.NATS + "   open: whoever reaches it may do everything"
	next := `parley agent run --id echo --driver echo   and then   parley task send --wait "say hello"`
	if a.conf.Callout {
		nats = at.NATS + "   for who proves an identity"
		next = "parley identity add ID --identity " + printable(a.operatorFile()) + "   lets somebody in"
	}
	if at.Auth != "" {
		nats = at.NATS + "   for whom " + printable(at.Auth) + " names; the workers are those of tenant " + at.Tenant
		next = "parley auth add-agent ID   and then, with its credentials in PARLEY_CREDS,   parley agent run --id ID -- COMMAND"
	}
	if standard := defaultConfig(func(string) string { return "" }); at.NATS != standard.Server {
		next = "export PARLEY_SERVER=" + at.NATS + "   and then   " + next
	}
	if at.Context != "" {
		nats += "   nats --context " + at.Context
	}
	health := "off"
	if at.HTTP != "" {
		health = at.HTTP + "   /healthz /readyz"
	}
	data := printable(at.Data) + "   every write on the disk before it is acknowledged"
	if at.Sync != "always" {
		data = string(a.paint(yellow, fmt.Sprintf("%s   UNSAFE: on the disk every %s; a power cut loses what was acknowledged since", at.Data, at.Sync)))
	}
	a.print(fmt.Sprintf("%s is up   Ctrl-C drains and stops it", a.paint(bold, "Parley "+version)))
	for _, line := range [][2]string{
		{"NATS", nats},
		{"HTTP", health},
		{"Data", data},
		{"Next", next},
	} {
		a.print(fmt.Sprintf("  %-5s %s", line[0], line[1]))
	}
	switch {
	case loopback(a.conf.Host):
	case at.Auth != "", a.conf.Callout:
		a.notice("%s is reachable from other machines: who may connect is checked, but what passes is not encrypted", at.NATS)
	default:
		a.notice("UNSAFE: %s is reachable from other machines and asks nobody for a password", at.NATS)
	}
}

// loopback reports whether only this machine reaches host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
