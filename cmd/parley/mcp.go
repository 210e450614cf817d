package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/workers"
	"parley/workers/mcp"
)

// mcpFlags are the settings of parley mcp beside those of a client: who may
// call over HTTP is said as for the gateway.
var mcpFlags = []string{
	"as", "mcp-escalations", "grace", "http-cert", "http-key", "http-client-ca",
	"a2a-url", "a2a-tokens", "a2a-issuer", "a2a-audience", "a2a-open", "a2a-origins", "a2a-rate",
}

func (a *app) mcpCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use: "mcp", Short: "Let a model use the fleet: an MCP server", Args: cobra.NoArgs,
		Long: `Let a model use the fleet: an MCP server with tools to find agents, dispatch tasks,
wait for them, read what came out, and talk to agents while they work.

It speaks over standard input and output, as the program that starts it expects;
with --http, over streamable HTTP at /mcp of that address. parley up --serve-mcp serves
the same page on the port of the fleet.`,
		Example: `  claude mcp add parley -- parley mcp
  claude mcp add parley -- parley mcp --as alice --server nats://fleet.example.org:4222
  parley mcp --http 127.0.0.1:7412     then: claude mcp add --transport http parley http://127.0.0.1:7412/mcp`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.bus.Close()
			if address != "" {
				return a.mcpHTTP(cmd.Context(), c, address)
			}
			w, err := a.newMCP(c.bus, nil, a.clientLog())
			if err != nil {
				return err
			}
			return w.Serve(cmd.Context(), c.from, io.NopCloser(a.stdin), unclosed{a.stdout})
		},
	}
	bind(cmd.Flags(), a.conf, append(mcpFlags, connectionFlags...)...)
	cmd.Flags().StringVar(&address, "http", "", "serve streamable HTTP at this address instead, such as 127.0.0.1:7412")
	return cmd
}

// unclosed is a writer that somebody else closes.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// newMCP makes the MCP server as the settings say.
func (a *app) newMCP(b *bus.Bus, stopping <-chan struct{}, log *slog.Logger) (*mcp.Worker, error) {
	return mcp.New(mcp.Config{Bus: b, Version: semver(), Escalations: a.conf.MCPEscalations, Stopping: stopping, Log: log})
}

// mcpPage is the page of an MCP server behind the gateway's door. anonymous is
// who calls where nobody is asked; the process drains when ctx ends.
func (a *app) mcpPage(ctx context.Context, b *bus.Bus, address string, anonymous subjects.AgentID, log *slog.Logger) (http.Handler, error) {
	door, err := a.httpDoor(b, address, "the MCP server", anonymous, log)
	if err != nil {
		return nil, err
	}
	w, err := a.newMCP(b, ctx.Done(), log)
	if err != nil {
		return nil, err
	}
	return door.Guard(w.Page), nil
}

// mcpHTTP serves the MCP server alone, until ctx ends.
func (a *app) mcpHTTP(ctx context.Context, c *client, address string) error {
	log := a.logger(slog.LevelInfo)
	h, err := a.listenHealth(address, healthChecks{connected: c.bus.Connected, stopping: ctx.Done()})
	if err != nil {
		return err
	}
	if h == nil {
		return usage("--http %s serves nothing", address).next("give an address such as 127.0.0.1:7412")
	}
	defer h.close()
	page, err := a.mcpPage(ctx, c.bus, address, c.from, log)
	if err != nil {
		return err
	}
	h.serve(mcp.Path, page)
	at := h.address() + mcp.Path
	if !a.json() {
		a.print("MCP at " + at + "   Ctrl-C stops it")
	} else if err := a.printValue(map[string]string{"mcp": at}); err != nil {
		return err
	}
	if err := workers.Run(ctx, time.Duration(a.conf.Grace), workers.Worker{Name: "http", Run: h.Run}); err != nil {
		return failed("serve %s: %w", address, err)
	}
	return nil
}
