package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/subjects/fleet"
)

// serverGrace is how long a probed server has to end, once for its closed
// stdin and once for SIGTERM.
const serverGrace = 500 * time.Millisecond

// prober asks MCP servers how they are: initialize and ping.
type prober struct {
	env     []string
	timeout time.Duration // of one request over HTTP
	log     *slog.Logger
}

// probe is one probe; ctx bounds it. A command is started for it and ended
// afterwards, with all that it started.
func (p prober) probe(ctx context.Context, s MCPServer) string {
	err := p.session(ctx, s)
	switch _, unknown := errors.AsType[*degradedError](err); {
	case err == nil:
		return fleet.HealthOK
	case unknown:
		p.log.Debug("probe of an MCP server", slog.String("server", s.Name), slog.Any("error", err))
		return fleet.HealthDegraded
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fleet.HealthTimeout
	}
	p.log.Debug("probe of an MCP server", slog.String("server", s.Name), slog.Any("error", err))
	return fleet.HealthError
}

// degradedError: the server is there and speaks, but refuses a ping.
type degradedError struct{ err error }

func (d *degradedError) Error() string { return "ping: " + d.err.Error() }
func (d *degradedError) Unwrap() error { return d.err }

func (p prober) session(ctx context.Context, s MCPServer) error {
	transport, end, err := p.transport(s)
	if err != nil {
		return err
	}
	defer end()
	client := mcp.NewClient(&mcp.Implementation{Name: "parley-agent", Version: fleet.Version},
		&mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	defer func() { _ = session.Close() }()
	err = session.Ping(ctx, nil)
	if said, ok := errors.AsType[*jsonrpc.Error](err); ok {
		if said.Code == jsonrpc.CodeMethodNotFound {
			return nil // it answers; ping is newer than it
		}
		return &degradedError{err}
	}
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// transport reaches s; end takes down whatever was made for it.
func (p prober) transport(s MCPServer) (t mcp.Transport, end func(), err error) {
	if s.URL == "" {
		return p.command(s)
	}
	base := &http.Transport{DisableKeepAlives: true}
	client := &http.Client{Transport: headers{s.Headers, base}, Timeout: p.timeout}
	end = base.CloseIdleConnections
	if s.SSE {
		return &mcp.SSEClientTransport{Endpoint: s.URL, HTTPClient: client}, end, nil
	}
	return &mcp.StreamableClientTransport{
		Endpoint: s.URL, HTTPClient: client, MaxRetries: -1, DisableStandaloneSSE: true,
	}, end, nil
}

// headers adds headers to every request.
type headers struct {
	add  map[string]string
	next http.RoundTripper
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h.add {
		r.Header.Set(name, value)
	}
	return h.next.RoundTrip(r)
}

// command starts a server and gives the transport over its stdin and stdout.
func (p prober) command(s MCPServer) (mcp.Transport, func(), error) {
	env := childEnv(p.env, nil)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, name+"="+s.Env[name])
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	proc, err := startProcess(spec{argv: append([]string{s.Command}, s.Args...), env: env, stdin: in, stdout: out})
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		_ = toServer.Close()
		_ = fromServer.Close()
		if !within(proc.done, serverGrace) {
			proc.stop(serverGrace)
		}
	}
	return &mcp.IOTransport{Reader: fromServer, Writer: toServer}, end, nil
}
