package remote_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/workers/agent/remote"
)

func vector(tb testing.TB) []byte {
	tb.Helper()
	data, err := os.ReadFile("testdata/external-identity.yaml")
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func TestIdentityVector(t *testing.T) {
	t.Parallel()
	got, err := remote.DecodeIdentity(vector(t))
	if err != nil {
		t.Fatal(err)
	}
	auth := &remote.Auth{Type: remote.AuthAPIKey, Header: "X-API-Key", ValueEnv: "EXTERNAL_DEMO_A2A_KEY"}
	want := &remote.Identity{ID: "external-demo", Name: "External Demo", External: true, Transports: remote.Transports{
		RPC:  &remote.Transport{Protocol: remote.ProtocolRPC, URL: "https://external.example/a2a/rpc", Auth: auth},
		Card: &remote.Transport{Protocol: remote.ProtocolCard, URL: "https://external.example", Path: "/.well-known/agent.json", Auth: auth},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	data, err := got.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := remote.DecodeIdentity(data)
	if diff := cmp.Diff(want, again); err != nil || diff != "" {
		t.Errorf("written and read: %v\n%s\n(-want +got):\n%s", err, data, diff)
	}
}

func TestIdentityErrors(t *testing.T) {
	t.Parallel()
	v := string(vector(t))
	change := func(from, to string) string {
		if !strings.Contains(v, from) {
			t.Fatalf("the vector lacks %q", from)
		}
		return strings.Replace(v, from, to, 1)
	}
	for _, c := range []struct{ name, in, want string }{
		{"no YAML", "id: [", "invalid_message: not YAML"},
		{"a list", "[1]", "invalid_message: expected an object"},
		{"nothing", "", "invalid_id at /id"},
		{"unknown field", change("name: External Demo", "nmae: x"), "invalid_message at /nmae: there is no such field"},
		{"unknown field below", change("value_env", "value"), "invalid_message at /transports/a2a_rpc/auth/value: there is no such field"},
		{"wrong type", change("external: true", "external: 1"), "invalid_message at /external: expected true or false"},
		{"not external", change("external: true", "external: false"), "invalid_message at /external: expected true"},
		{"bad id", change("id: external-demo", "id: a.b"), `invalid_id at /id: "a.b" is not an id`},
		{"no transports", "id: a\nexternal: true\n", "invalid_message at /transports: expected a2a_rpc, agent_card or both"},
		{"protocol", change("protocol: google-a2a\n", "protocol: grpc\n"), `invalid_message at /transports/a2a_rpc/protocol: expected google-a2a, got "grpc"`},
		{"address", change("url: https://external.example/a2a/rpc", "url: external.example"), "invalid_message at /transports/a2a_rpc/url: expected an address"},
		{"secret in the address", change("https://external.example/a2a", "https://u:p@external.example/a2a"), "invalid_message at /transports/a2a_rpc/url: it holds a secret"},
		{"query", change("https://external.example/a2a/rpc", "https://external.example/a2a?key=1"), "invalid_message at /transports/a2a_rpc/url: expected an address without ? and #"},
		{"path", change("path: /.well-known/agent.json", "path: agent.json"), "invalid_message at /transports/agent_card/path: expected the path of a card"},
		{"auth type", change("type: api_key", "type: basic"), "invalid_message at /transports/a2a_rpc/auth/type: expected none, bearer or api_key"},
		{"the secret itself", change("value_env: EXTERNAL_DEMO_A2A_KEY", "value_env: sk-live-123"), "invalid_message at /transports/a2a_rpc/auth/value_env: expected the name of a variable"},
		{"header", change("header: X-API-Key", `header: "X: Y"`), "invalid_message at /transports/a2a_rpc/auth/header: expected the name of a header"},
		{"too long", strings.Repeat("#", 70_000), "payload_too_large"},
	} {
		_, err := remote.DecodeIdentity([]byte(c.in))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

func TestNewIdentity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, url, path string }{
		{"https://a.example", "https://a.example", ""},
		{"https://a.example/", "https://a.example", ""},
		{"https://a.example/x/.well-known/agent-card.json", "https://a.example/x", "/.well-known/agent-card.json"},
		{"http://a.example/card.json", "http://a.example", "/card.json"},
	} {
		id, err := remote.NewIdentity("x", c.in, nil)
		if err != nil || id.Transports.Card.URL != c.url || id.Transports.Card.Path != c.path {
			t.Errorf("%s: %+v, %v", c.in, id.Transports.Card, err)
		}
	}
	if _, err := remote.NewIdentity("x", "file:///etc/passwd", nil); err == nil {
		t.Error("a file is taken as an agent's address")
	}
}

// FuzzIdentity: what is read can be written, and read again the same.
func FuzzIdentity(f *testing.F) {
	f.Add(vector(f))
	f.Add([]byte("{id: a, external: true, transports: {agent_card: {protocol: google-a2a-agent-card, url: 'http://x'}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		id, err := remote.DecodeIdentity(data)
		if err != nil {
			return
		}
		out, err := id.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := remote.DecodeIdentity(out)
		if diff := cmp.Diff(id, again); err != nil || diff != "" {
			t.Errorf("%q was written as %q: %v %s", data, out, err, diff)
		}
	})
}
