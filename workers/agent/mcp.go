package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"parley/subjects/fleet"
)

// MCPServer is an MCP server that the agent uses: a command that speaks over
// stdin and stdout, or, with URL set, a server on the network.
type MCPServer struct {
	Name string

	Command string
	Args    []string
	Env     map[string]string // on top of what Config.Env lets through

	URL     string
	SSE     bool // the transport of 2024 instead of streamable HTTP
	Headers map[string]string
}

// LogValue keeps arguments, environment and headers out of the log: they hold
// secrets.
func (s MCPServer) LogValue() slog.Value { return slog.StringValue(s.Name) }

// MCPConfig is which MCP servers to probe, and how. The outcome is announced,
// and a task that requires a server which is not ok is refused.
type MCPConfig struct {
	Servers  []MCPServer
	Interval time.Duration // between the probes of a server; absent 60 s
	Timeout  time.Duration // of a probe; absent 10 s
	// Probe tells the health of a server, a value of fleet.MCPHealth. Absent:
	// initialize and ping, for real.
	Probe func(ctx context.Context, s MCPServer) string
}

const (
	defaultProbeEvery   = time.Minute
	defaultProbeTimeout = 10 * time.Second
	probesAtOnce        = 4
)

func (c MCPConfig) withDefaults() MCPConfig {
	c.Interval = cmp.Or(c.Interval, defaultProbeEvery)
	c.Timeout = cmp.Or(c.Timeout, defaultProbeTimeout)
	return c
}

func (c MCPConfig) validate() error {
	if c.Interval < 0 || c.Timeout < 0 {
		return errors.New("agent: MCPConfig.Interval and MCPConfig.Timeout must not be negative")
	}
	seen := map[string]bool{}
	for _, s := range c.Servers {
		switch {
		case s.Name == "" || seen[s.Name]:
			return fmt.Errorf("agent: the name %q of an MCP server is empty or there twice", s.Name)
		case (s.Command == "") == (s.URL == "") && c.Probe == nil:
			return fmt.Errorf("agent: MCP server %s needs a command or a url", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

// ParseMCP reads a file in the form of .mcp.json:
//
//	{"mcpServers": {"files": {"command": "files-mcp", "args": ["-v"], "env": {"KEY": "${KEY}"}},
//	                "web": {"type": "http", "url": "https://…", "headers": {"Authorization": "Bearer ${TOKEN}"}}}}
//
// ${NAME} and ${NAME:-otherwise} are replaced from env (NAME=value). What it
// does not know it ignores. The servers come by name.
func ParseMCP(data []byte, env []string) ([]MCPServer, error) {
	var file struct {
		Servers map[string]struct {
			Type     string            `json:"type"`
			Command  string            `json:"command"`
			Args     []string          `json:"args"`
			Env      map[string]string `json:"env"`
			URL      string            `json:"url"`
			Headers  map[string]string `json:"headers"`
			Disabled bool              `json:"disabled"`
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("read MCP servers: %w", err)
	}
	var out []MCPServer
	for _, name := range slices.Sorted(maps.Keys(file.Servers)) {
		f := file.Servers[name]
		if f.Disabled {
			continue
		}
		x := expansion{env: env}
		s := MCPServer{
			Name: name, Command: x.one(f.Command), Args: x.all(f.Args), Env: x.values(f.Env),
			URL: x.one(f.URL), Headers: x.values(f.Headers),
		}
		switch f.Type {
		case "", "stdio":
		case "http", "streamable-http", "streamableHttp":
		case "sse":
			s.SSE = true
		default:
			return nil, fmt.Errorf("MCP server %s: unknown type %q, want stdio, http or sse", name, f.Type)
		}
		switch {
		case x.err != nil:
			return nil, fmt.Errorf("MCP server %s: %w", name, x.err)
		case (s.Command == "") == (s.URL == ""):
			return nil, fmt.Errorf("MCP server %s needs a command or a url", name)
		}
		out = append(out, s)
	}
	return out, nil
}

// expansion replaces variables and keeps the first error.
type expansion struct {
	env []string
	err error
}

func (x *expansion) one(s string) string {
	out, err := expandEnv(s, x.env)
	if x.err == nil {
		x.err = err
	}
	return out
}

func (x *expansion) all(list []string) (out []string) {
	for _, s := range list {
		out = append(out, x.one(s))
	}
	return out
}

func (x *expansion) values(m map[string]string) map[string]string {
	out := maps.Clone(m)
	for _, name := range slices.Sorted(maps.Keys(out)) {
		out[name] = x.one(out[name])
	}
	return out
}

// watchMCP probes every server at the start and on the interval, until life
// ends.
func (w *Worker) watchMCP(life context.Context) {
	c := w.cfg.MCP
	if len(c.Servers) == 0 {
		return
	}
	probe := c.Probe
	if probe == nil {
		probe = prober{env: w.cfg.Env, timeout: c.Timeout, log: w.log}.probe
	}
	t := time.NewTicker(c.Interval)
	defer t.Stop()
	for {
		w.probeAll(life, probe)
		select {
		case <-life.Done():
			return
		case <-t.C:
		}
	}
}

// probeAll probes every server once, a few at a time.
func (w *Worker) probeAll(life context.Context, probe func(context.Context, MCPServer) string) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, probesAtOnce)
	for _, s := range w.cfg.MCP.Servers {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(life, w.cfg.MCP.Timeout)
			defer cancel()
			health := probe(ctx, s)
			if life.Err() != nil {
				return
			}
			if w.state.setHealth(s.Name, health, time.Now()) {
				level := slog.LevelInfo
				if health != fleet.HealthOK {
					level = slog.LevelWarn
				}
				w.log.Log(life, level, "MCP server's health changed", slog.String("server", s.Name), slog.String("health", health))
			}
		})
	}
}
