package agent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/subjects/fleet"
	"parley/workers/agent"
)

func TestParseMCP(t *testing.T) {
	t.Parallel()
	got, err := agent.ParseMCP([]byte(`{"mcpServers":{
		"web":{"type":"http","url":"https://${HOST:-localhost}/mcp","headers":{"Authorization":"Bearer ${TOKEN}"}},
		"old":{"type":"sse","url":"http://x/sse"},
		"off":{"command":"x","disabled":true},
		"git":{"command":"git-mcp","args":["--dir","${HOME}"],"env":{"A":"b"},"cwd":"?"}},"other":1}`), []string{"TOKEN=t", "HOME=/h"})
	want := []agent.MCPServer{
		{Name: "git", Command: "git-mcp", Args: []string{"--dir", "/h"}, Env: map[string]string{"A": "b"}},
		{Name: "old", URL: "http://x/sse", SSE: true},
		{Name: "web", URL: "https://localhost/mcp", Headers: map[string]string{"Authorization": "Bearer t"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseMCP: %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{`{`, `{"mcpServers":{"x":{}}}`, `{"mcpServers":{"x":{"type":"ws","url":"y"}}}`, `{"mcpServers":{"x":{"command":"${NOPE}"}}}`} {
		if _, err := agent.ParseMCP([]byte(bad), nil); err == nil {
			t.Errorf("ParseMCP(%s) = nil, want an error", bad)
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "web", Version: "1"}, nil)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	sse := httptest.NewServer(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(sse.Close)
	for name, c := range map[string]struct {
		server agent.MCPServer
		want   string
	}{
		"good":           {agent.MCPServer{Command: os.Args[0], Args: []string{"helper", "mcp-ok"}}, fleet.HealthOK},
		"dies":           {agent.MCPServer{Command: os.Args[0], Args: []string{"helper", "mcp-die"}}, fleet.HealthError},
		"not there":      {agent.MCPServer{Command: "/no/such/server"}, fleet.HealthError},
		"http":           {agent.MCPServer{URL: web.URL, Headers: map[string]string{"Authorization": "Bearer t"}}, fleet.HealthOK},
		"http refused":   {agent.MCPServer{URL: web.URL}, fleet.HealthError},
		"http not there": {agent.MCPServer{URL: "http://127.0.0.1:1/mcp"}, fleet.HealthError},
		"sse":            {agent.MCPServer{URL: sse.URL, SSE: true}, fleet.HealthOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if got := agent.Probe(ctx, c.server, nil); got != c.want {
				t.Errorf("Probe = %s, want %s", got, c.want)
			}
		})
	}
}

// A probe ends what it started, with all that this started.
func TestProbeLeavesNothing(t *testing.T) {
	t.Parallel()
	f := newFIFO(t)
	ctx := overdue{t.Context(), make(chan struct{})}
	s := agent.MCPServer{Command: "/bin/sh", Args: []string{"-c", `"$0" helper mcp-hang "$1" & wait`, os.Args[0], f.path}}
	probed := make(chan string, 1)
	go func() { probed <- agent.Probe(ctx, s, nil) }()
	f.held()
	close(ctx.over)
	if got := next(t, "the end of the probe", probed); got != fleet.HealthTimeout {
		t.Errorf("Probe = %s, want timeout", got)
	}
	f.dead()
}

// overdue is a context whose deadline has passed once over is closed.
type overdue struct {
	context.Context //nolint:containedctx // it is one
	over            chan struct{}
}

func (o overdue) Done() <-chan struct{} { return o.over }

func (o overdue) Err() error {
	select {
	case <-o.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// What the probes find is announced, and again when it changes.
func TestHealthIsAnnounced(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	next2 := make(chan string)
	r.start(agent.Config{Handler: agent.Echo{}, MCP: agent.MCPConfig{
		Servers: []agent.MCPServer{{Name: "git"}}, Interval: time.Millisecond,
		Probe: func(ctx context.Context, _ agent.MCPServer) string {
			select {
			case health := <-next2:
				return health
			case <-ctx.Done():
				return fleet.HealthTimeout
			}
		},
	}})
	for _, health := range []string{fleet.HealthOK, fleet.HealthError, fleet.HealthOK} {
		next2 <- health
		got := await(t, "an announce of "+health, r.announces, func(x fleet.Announce) bool { return x.MCPHealth["git"] == health })
		if got.MCPProbedAt["git"].IsZero() || !slices.Equal(got.Capabilities.MCPServers, []string{"git"}) {
			t.Errorf("announce = %+v", got)
		}
	}
}
