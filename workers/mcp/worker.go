package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/bus"
	"parley/subjects"
)

// Path is where the server is on an HTTP port.
const Path = "/mcp"

// maxBody is how long a request may be: many dispatches.
const maxBody = 8 << 20

// Config is what a server needs.
type Config struct {
	Bus     *bus.Bus // required
	Version string   // of the program
	// Escalations offers the tool that answers what waits for a human.
	Escalations bool
	// Stopping is closed when the process drains: who waits for the fleet is told
	// then how things stand. nil: never.
	Stopping <-chan struct{}

	Log *slog.Logger // nil: discarded
}

// Worker is an MCP server. New is required; it runs nothing by itself.
type Worker struct {
	// fixed after New
	cfg     Config
	log     *slog.Logger
	tools   []tool
	manuals map[string]manual
	schemas *sdk.SchemaCache
}

// New checks cfg and wires a server.
func New(cfg Config) (*Worker, error) {
	if cfg.Bus == nil {
		return nil, errors.New("mcp: no bus")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Version == "" {
		cfg.Version = "0.0.0"
	}
	w := &Worker{cfg: cfg, log: cfg.Log.With(slog.String("component", "mcp")), manuals: manuals(helpText), schemas: sdk.NewSchemaCache()}
	var err error
	if w.tools, err = toolbox(w); err != nil {
		return nil, fmt.Errorf("mcp: %w", err)
	}
	return w, nil
}

// server is a server for one caller.
func (w *Worker) server(from subjects.AgentID) *sdk.Server {
	s := sdk.NewServer(
		&sdk.Implementation{Name: "parley", Title: "Parley fleet", Version: w.cfg.Version},
		&sdk.ServerOptions{
			Instructions: w.instructions(), SchemaCache: w.schemas,
			Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
		},
	)
	c := &caller{w: w, from: from}
	for _, t := range w.tools {
		t.add(s, c)
	}
	return s
}

// instructions is what a client may tell its model of the server as a whole.
func (w *Worker) instructions() string {
	return "Parley gives work to a fleet of other agents, which do it in parallel and in the background.\n\n" + w.manuals["fleet_help"].more
}

// Serve speaks with one caller over in and out until either ends, or ctx does.
// What in has asked before its end is answered, in a minute at most.
func (w *Worker) Serve(ctx context.Context, from subjects.AgentID, in io.ReadCloser, out io.WriteCloser) error {
	p := newPiped(in, out)
	err := w.server(from).Run(ctx, &sdk.IOTransport{Reader: reader{p}, Writer: writer{p}, MaxLineLength: maxBody})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("mcp: %w", err)
	}
	return nil
}

// Page answers the requests of one caller over streamable HTTP. Whoever serves
// it says who calls, and keeps out whom it must. No session is kept: any
// process answers any request.
func (w *Worker) Page(rw http.ResponseWriter, r *http.Request, from subjects.AgentID) {
	sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return w.server(from) }, &sdk.StreamableHTTPOptions{
		Stateless: true, MaxRequestBodyBytes: maxBody, PropagateRequestCancellation: true,
		DisableLocalhostProtection: true, // the door does that, by its settings
	}).ServeHTTP(rw, r)
}
