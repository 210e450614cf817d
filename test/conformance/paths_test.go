package conformance_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// TestRPCPaths: JSON-RPC is served at the address that the card names, with a slash
// behind it too, as some clients write it, and at an agent's own address.
func TestRPCPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &client{T: t, w: w, b: rpc{}, at: w.open, h: v10}
	body := func(tenant, text string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"` + tenant +
			`","message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"` + text + `"}]}}}`
	}
	for _, q := range []struct{ path, body, want string }{
		{"/a2a/", body("", "hello"), `"text":"hello"`},
		{"/a2a/", body("second", "who"), `"text":"second"`},
		{"/a2a/second", body("", "who"), `"text":"second"`},
		{"/a2a/second/", body("", "who"), `"text":"second"`},
		{"/a2a/second/", body("second", "who"), `"text":"second"`},
	} {
		a := c.ask(http.MethodPost, q.path, q.body)
		if a.status != http.StatusOK || !strings.Contains(a.body, q.want) {
			t.Errorf("POST %s %s = %d %s, want %s", q.path, q.body, a.status, a.body, q.want)
		}
	}
	c.askFails(http.MethodPost, "/a2a/second", body("worker", "who"), invalidParams)
	if a := c.ask(http.MethodGet, "/a2a/", ""); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != http.MethodPost {
		t.Errorf("GET /a2a/ = %d, Allow %q", a.status, a.header.Get("Allow"))
	}
	c.b = rest{}
	c.askFails(http.MethodPost, "/a2a/tasks", body("", "who"), fault{"METHOD_NOT_FOUND", 0, 405, 0})
	c.askFails(http.MethodPost, "/a2a/second/message:send", strings.Replace(message, "{", `{"tenant":"worker",`, 1), invalidParams)
	c.b = rpc{}
	id := c.send(func() *a2apb.SendMessageRequest { m := say("who"); m.Tenant = "worker"; return m }()).GetId()
	get := `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"` + id + `"}}`
	c.askFails(http.MethodPost, "/a2a/second/", get, taskNotFound)
	if a := c.ask(http.MethodPost, "/a2a/worker/", get); !strings.Contains(a.body, `"TASK_STATE_COMPLETED"`) {
		t.Errorf("the task at its agent's address: %s", a.body)
	}
}

// TestLegacyRPCRefused: a JSON-RPC client of version 0.3 is refused in the envelope
// that it reads.
func TestLegacyRPCRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &client{T: t, w: w, b: rpc{}, at: w.asked, h: headers{}}
	for _, path := range []string{"/a2a", "/a2a/", "/a2a/second", "/a2a/second/"} {
		got := c.ask(http.MethodPost, path, `{"jsonrpc":"2.0","id":"q7","method":"message/send","params":{"message":{"kind":"message","messageId":"1","role":"user","parts":[]}}}`)
		var a struct {
			Version string `json:"jsonrpc"`
			ID      string `json:"id"`
			Error   struct {
				Code    int            `json:"code"`
				Message string         `json:"message"`
				Data    map[string]any `json:"data"`
			} `json:"error"`
		}
		err := json.Unmarshal([]byte(got.body), &a)
		if err != nil || got.status != http.StatusUnauthorized || a.Version != "2.0" || a.ID != "q7" || a.Error.Code >= 0 || a.Error.Message == "" || a.Error.Data == nil {
			t.Errorf("%s = %d %s (%v)", path, got.status, got.body, err)
		}
		if got.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: headers %v", path, got.header)
		}
	}
}

// TestLegacyRESTNames: HTTP+JSON of version 0.3 takes the names of the protocol buffer,
// which the official Python client writes, and those of JSON.
func TestLegacyRESTNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &client{T: t, w: w, b: rest{}, at: w.open, h: headers{"A2A-Version": "0.3"}}
	for _, body := range []string{
		`{"request":{"message_id":"7787","context_id":"ctx","role":"ROLE_USER","content":[{"text":"hi 0.3"}]},"configuration":{"blocking":true}}`,
		`{"request":{"messageId":"7787","contextId":"ctx","role":"ROLE_USER","content":[{"text":"hi 0.3"}]},"configuration":{"blocking":true}}`,
		`{"message":{"message_id":"7787","context_id":"ctx","role":1,"content":[{"text":"hi 0.3"}]},"configuration":{"blocking":true}}`,
		`{"message":{"messageId":"7787","contextId":"ctx","role":"ROLE_USER","content":[{"text":"hi 0.3"}]},"configuration":{"blocking":true}}`,
	} {
		for _, path := range []string{"/a2a/v1/message:send", "/a2a/second/v1/message:send", "/a2a/v1/message:stream"} {
			a := c.ask(http.MethodPost, path, body)
			if a.status != http.StatusOK || !strings.Contains(a.body, "TASK_STATE_COMPLETED") || !strings.Contains(a.body, "ctx") || strings.Count(a.body, "hi 0.3") < 2 {
				t.Errorf("%s %s = %d %s", path, body, a.status, a.body)
			}
		}
	}
}
