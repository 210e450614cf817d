package e2e_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/bus/bustest"
)

// TestMCP uses a fleet through parley mcp as a subprocess, as a model's client
// starts it, and through the HTTP port of parley up.
func TestMCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	up := start(t, dir, program{
		name: "up", path: parleyBinary(t),
		args: []string{"up", "--data", filepath.Join(dir, "jetstream"), "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m", "--serve-mcp", "-o", "json", "--log-format", "text"},
	})
	out := up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "}") })
	var banner struct {
		NATS string `json:"nats"`
		HTTP string `json:"http"`
	}
	if err := json.Unmarshal([]byte(out), &banner); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start(t, dir, program{name: "agent", path: parleyBinary(t), args: []string{"agent", "run", "--id", "echo", "--driver", "echo", "--server", banner.NATS}})

	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		cmd := exec.Command(parleyBinary(t), "mcp", "--as", "alice", "--server", banner.NATS, "--mcp-escalations")
		cmd.Env = bareEnv(dir)
		stderr := new(bytes.Buffer)
		cmd.Stderr = stderr
		useMCP(t, &sdk.CommandTransport{Command: cmd}, 10)
		if stderr.Len() > 0 {
			t.Errorf("parley mcp said %q", stderr)
		}
	})
	t.Run("streamable HTTP", func(t *testing.T) {
		t.Parallel()
		useMCP(t, &sdk.StreamableClientTransport{Endpoint: banner.HTTP + "/mcp", DisableStandaloneSSE: true}, 9)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, banner.HTTP+"/mcp", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example"
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("a host of somebody else gave %d, want 403", res.StatusCode)
		}
	})
	t.Run("parley mcp --http", func(t *testing.T) {
		t.Parallel()
		p := start(t, dir, program{name: "mcp", path: parleyBinary(t), args: []string{"mcp", "--http", "127.0.0.1:0", "--as", "bob", "--server", banner.NATS}})
		said := p.waitOutput("address", func(s string) bool { return strings.Contains(s, "/mcp ") })
		_, said, _ = strings.Cut(said, "MCP at ")
		address, _, _ := strings.Cut(said, " ")
		useMCP(t, &sdk.StreamableClientTransport{Endpoint: address, DisableStandaloneSSE: true}, 9)
	})
}

// useMCP does what an orchestrating model does.
func useMCP(t *testing.T, transport sdk.Transport, tools int) {
	t.Helper()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if l, err := s.ListTools(t.Context(), nil); err != nil || len(l.Tools) != tools {
		t.Fatalf("%v tools, %v, want %d", l, err, tools)
	}
	call := func(name string, args map[string]any, out any) bool {
		t.Helper()
		res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, ok := res.Content[0].(*sdk.TextContent)
		if !ok || res.IsError {
			t.Logf("%s: %+v", name, res.Content[0])
			return false
		}
		return json.Unmarshal([]byte(text.Text), out) == nil
	}
	bustest.Eventually(t, "an agent is there", func() bool {
		var l struct{ Agents []struct{ Live bool } }
		return call("fleet_agents", nil, &l) && len(l.Agents) == 1
	})
	var d struct {
		Results []struct {
			TaskID string `json:"task_id"`
		}
	}
	if !call("fleet_dispatch_many", map[string]any{"tasks": []any{map[string]any{"brief": "one"}, map[string]any{"brief": "two"}}}, &d) || len(d.Results) != 2 {
		t.Fatalf("fleet_dispatch_many gave %+v", d)
	}
	var w struct {
		Done  bool
		Tasks []struct{ Output string }
	}
	bustest.Eventually(t, "both are done", func() bool {
		return call("fleet_wait", map[string]any{"task_ids": []string{d.Results[0].TaskID, d.Results[1].TaskID}, "timeout_seconds": 5}, &w) && w.Done
	})
	if len(w.Tasks) != 2 || w.Tasks[0].Output != "one" || w.Tasks[1].Output != "two" {
		t.Errorf("fleet_wait gave %+v", w)
	}
	var r struct{ Text string }
	if !call("fleet_result", map[string]any{"task_id": d.Results[1].TaskID}, &r) || r.Text != "two" {
		t.Errorf("fleet_result gave %+v", r)
	}
}
