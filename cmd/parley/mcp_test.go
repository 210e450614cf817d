package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"parley/bus/bustest"
)

// TestMCPByPipe checks that requests that come by a pipe are all answered, the
// last of them too.
func TestMCPByPipe(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	out := newShell(t).pipe(t, strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fleet_help","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":4,"method":"ping"}`, // and no end of line
	}, "\n"), "mcp", "--server", server.URL())
	if out.code != 0 {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
	var ids []int
	for line := range strings.Lines(out.stdout) {
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || len(m.Result) == 0 {
			t.Errorf("said %q: %v", line, err)
		}
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []int{1, 2, 3, 4}) {
		t.Errorf("answered %v, want 1 to 4", ids)
	}
}
