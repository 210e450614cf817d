package mcp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/workers/gateway"
)

// TestHTTP uses the tools over streamable HTTP, as those whom tokens name.
func TestHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := w.http(gateway.DoorConfig{Auth: gateway.Auth{Tokens: map[string]subjects.AgentID{aliceToken: "alice", "token-of-bob-0123456789": "bob"}}})
	alice, bob := w.overHTTP(t, asked, aliceToken), w.overHTTP(t, asked, "token-of-bob-0123456789")
	id := alice.dispatch(args{"brief": "hello"})
	if got := alice.await(id); got.Tasks[0].Output != "hello" {
		t.Errorf("fleet_wait gave %+v", got)
	}
	// Tasks of others do not exist, and deciding is for operators.
	bob.fails("fleet_result", args{"task_id": id}, "not_found")
	bob.fails("fleet_answer_escalation", args{"task_id": id, "decision": "retry"}, "forbidden")

	open := w.http(gateway.DoorConfig{Anonymous: "mcp", Origins: []string{"https://good.example"}})
	anybody := w.overHTTP(t, open, "")
	if got := anybody.await(anybody.dispatch(args{"brief": "hello"})); got.Tasks[0].Output != "hello" {
		t.Errorf("fleet_wait gave %+v", got)
	}
}

// TestDoor tries what must not come in.
func TestDoor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := w.http(gateway.DoorConfig{Anonymous: "mcp", Origins: []string{"https://good.example"}})
	asked := w.http(gateway.DoorConfig{Auth: gateway.Auth{Tokens: map[string]subjects.AgentID{aliceToken: "alice"}}})
	hasty := w.http(gateway.DoorConfig{Anonymous: "mcp", Rate: 0.001})
	for _, c := range []struct {
		name, url, method string
		host, origin      string
		token             string
		want              int
		header            string // that must be there
	}{
		{name: "as it should be", url: open, want: 200},
		{name: "host of somebody else, as after DNS rebinding", url: open, host: "evil.example", want: 403},
		{name: "host of somebody else with a port", url: open, host: "evil.example:80", want: 403},
		{name: "page of somebody else", url: open, origin: "https://evil.example", want: 403},
		{name: "page of this machine, elsewhere", url: open, origin: "http://localhost:3000", want: 403},
		{name: "page without an origin", url: open, origin: "null", want: 403},
		{name: "page that may", url: open, origin: "https://good.example", want: 200, header: "Access-Control-Allow-Origin"},
		{name: "page that asks whether it may", url: open, method: http.MethodOptions, origin: "https://good.example", want: 204, header: "Access-Control-Allow-Methods"},
		{name: "nobody", url: asked, want: 401, header: "WWW-Authenticate"},
		{name: "somebody else", url: asked, token: "wrong", want: 401},
		{name: "alice", url: asked, token: aliceToken, want: 200},
		{name: "alice, under any host", url: asked, token: aliceToken, host: "fleet.example", want: 200},
		{name: "alice, from a page of somebody else", url: asked, token: aliceToken, origin: "https://evil.example", want: 403},
		{name: "first", url: hasty, want: 200},
		{name: "second at once", url: hasty, want: 429, header: "Retry-After"},
	} {
		const body = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
		if c.method == "" {
			c.method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != c.want || c.header != "" && res.Header.Get(c.header) == "" {
			t.Errorf("%s: %d %v %s, want %d %s", c.name, res.StatusCode, res.Header, got, c.want, c.header)
		}
	}
}

// TestProgress hears how far a call has come, if it asks to.
func TestProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	heard := make(chan string, 16)
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { heard <- r.Params.Message },
	})
	url := w.http(gateway.DoorConfig{Anonymous: "mcp"})
	s, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	p := &sdk.CallToolParams{Name: "fleet_dispatch_many", Arguments: args{"tasks": []args{{"brief": "a"}}}}
	p.SetProgressToken("p")
	if _, err := s.CallTool(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-heard:
		if m != "dispatched" {
			t.Errorf("heard %q", m)
		}
	case <-time.After(bustest.Patience):
		t.Error("no progress was told")
	}
}
