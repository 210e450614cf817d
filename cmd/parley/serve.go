package main

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", Short: "Run workers against a NATS server or cluster that is there already", Args: cobra.NoArgs,
		Long: `Run workers against a NATS server or cluster that is there already. Start as many
as you like: they share the work, and any of them can be killed at any time.`,
		Example: `  parley serve --server nats://n1:4222,nats://n2:4222 --creds worker.creds --replicas 3
  parley serve --workers router --http off --context production`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
	bind(cmd.Flags(), a.conf, slices.Concat(connectionFlags, []string{"provision", "replicas", "sync", "monitor"}, workerFlags)...)
	cmd.Flags().Lookup("sync").Usage = "sync_interval of the servers, as they are believed to have it: always, or a time such as 2m; --monitor has it looked at"
	complete(cmd, "provision", "create", "verify", "off")
	return cmd
}

// serve runs workers on an outside server until ctx ends.
func (a *app) serve(ctx context.Context) error {
	log := a.workerLog()
	cfg := a.busConfig("parley serve", "worker")
	cfg.InboxPrefix = a.conf.InboxPrefix // workers may hear every inbox
	always, _, err := a.conf.sync()
	if err != nil {
		return err
	}
	cfg.SyncAlways, cfg.Open = always, a.conf.open()
	cfg.Log = log.With(slog.String("component", "bus"))
	if err := a.checkSync(ctx); err != nil {
		return err
	}
	door, err := openDoor(log)
	if err != nil {
		return err
	}
	cfg.Refused = door.access.Asked
	b, err := bus.Connect(ctx, cfg)
	if err != nil {
		return a.noServer(err)
	}
	defer b.Close()
	begin := time.Now()
	return a.fleet(ctx, b, 0, log, func(health string) {
		log.Info("ready", slog.Any("workers", a.conf.Workers), slog.String("server", a.serverName()),
			slog.String("http", health), slog.String("took", roughly(time.Since(begin))))
	}, door.workers(b)...)
}
