package remote_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"parley/workers/agent/remote"
)

const minimal = `{"name":"far","description":"d","version":"1","capabilities":{},"defaultInputModes":[],"defaultOutputModes":[],"skills":[],"supportedInterfaces":[%s]}`

// TestTrust: a card cannot send us, or our secret, to a host that the operator
// has not named.
func TestTrust(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other host was asked: %s %s", r.Method, r.URL)
	}))
	defer other.Close()
	elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	card := ""
	var s *httptest.Server
	s = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/there/.well-known/agent-card.json":
			http.Redirect(rw, r, elsewhere+"/card", http.StatusTemporaryRedirect)
		case "/here/.well-known/agent-card.json":
			http.Redirect(rw, r, s.URL+"/.well-known/agent-card.json", http.StatusTemporaryRedirect)
		default:
			_, _ = fmt.Fprintf(rw, minimal, card)
		}
	}))
	defer s.Close()
	ask := func(path string) (*remote.Card, *remote.Remote, error) {
		t.Helper()
		id, err := remote.NewIdentity("far", s.URL+path, &remote.Auth{Type: remote.AuthBearer, ValueEnv: "T"})
		if err != nil {
			t.Fatal(err)
		}
		r, err := remote.New(remote.Config{Identity: id, Getenv: func(string) string { return "secret" }})
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.Discover(t.Context())
		return c, r, err
	}
	card = fmt.Sprintf(`{"url":%q,"protocolBinding":"JSONRPC","protocolVersion":"1.0"}`, elsewhere+"/rpc")
	c, r, err := ask("")
	if err != nil || len(c.Interfaces) != 1 || !strings.Contains(c.Interfaces[0].Refused, "another host") {
		t.Errorf("an interface on another host: %+v, %v", c, err)
	}
	if err := r.Send(t.Context(), remote.Message{Text: "hi"}, func(remote.Told) error { return nil }); err == nil || !strings.Contains(err.Error(), "host_not_allowed") {
		t.Errorf("it is used: %v", err)
	}
	if _, _, err := ask("/there"); err == nil || !strings.Contains(err.Error(), "host_not_allowed") {
		t.Errorf("a redirect to another host: %v", err)
	}
	if _, _, err := ask("/here"); err != nil {
		t.Errorf("a redirect to the same host: %v", err)
	}
	card = `{"url":"127.0.0.1:1","protocolBinding":"SMOKE","protocolVersion":"1.0"},null`
	if c, _, err := ask(""); err == nil && !strings.Contains(c.Interfaces[0].Refused, "not spoken") {
		t.Errorf("an unknown binding: %+v", c)
	}
	card = strings.Repeat(" ", 2<<20)
	if _, _, err := ask(""); err == nil {
		t.Error("a card of 2 MiB is read")
	}
}
