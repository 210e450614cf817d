package e2e_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"parley/subjects"
	"parley/subjects/identity"
)

// key reads the key of an identity's file.
func (g *guarded) key(id string) identity.Key {
	g.tb.Helper()
	var f struct{ Key string }
	data, err := os.ReadFile(g.identity(id))
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		g.tb.Fatal(err)
	}
	k, err := identity.ParseKey(f.Key)
	if err != nil {
		g.tb.Fatal(err)
	}
	return k
}

// proveAs is a proof for one connection.
func proveAs(id string, k identity.Key, at time.Time) *identity.Proof {
	p := &identity.Proof{AgentID: subjects.AgentID(id), Timestamp: identity.Timestamp(at), Nonce: rand.Text()}
	p.Sign(k, identity.Connect, nil)
	return p
}

// enter connects with a password, once.
func (g *guarded) enter(user, password string) error {
	nc, err := nats.Connect(g.url, nats.UserInfo(user, password), nats.CustomInboxPrefix("_INBOX_"+user), nats.Timeout(patience))
	if err == nil {
		nc.Close()
	}
	return err
}

// attackProofs is what somebody tries who wants to be let in by a proof that
// does not count.
func attackProofs(t *testing.T, g *guarded) {
	for id, more := range map[string][]string{"far": {"--host", "192.0.2.1"}, "gone": nil, "plain": {"--signatures", "v0"}, "small": {"--capability", "read"}} {
		g.must(g.as("operator", append([]string{"identity", "add", id, "--file", g.identity(id)}, more...)...))
	}
	now, window := time.Now(), identity.Window+time.Minute
	wrong := identity.Key{ID: g.key("mallory").ID, Secret: make([]byte, 32)}
	used := proveAs("mallory", g.key("mallory"), now)
	if err := g.enter("mallory", used.Password()); err != nil {
		t.Fatalf("a good proof: %v", err)
	}
	stretched, other := *used, *used
	stretched.Timestamp, stretched.Nonce = identity.Timestamp(now.Add(time.Second)), rand.Text()
	other.AgentID = "victim"
	v0 := func(id string) *identity.Proof {
		p := &identity.Proof{AgentID: subjects.AgentID(id), Timestamp: identity.Timestamp(time.Now())}
		p.SignPlain(g.key(id).Secret)
		return p
	}
	if err := g.enter("plain", v0("plain").Password()); err != nil {
		t.Errorf("v0 where the record allows it: %v", err)
	}
	if err := g.enter("plain", proveAs("plain", g.key("plain"), time.Now()).Password()); err != nil {
		t.Errorf("v1: %v", err)
	}
	greedy := &identity.Proof{AgentID: "small", Timestamp: identity.Timestamp(now), Nonce: rand.Text(), Capabilities: []string{"write"}}
	greedy.Sign(g.key("small"), identity.Connect, nil)
	g.must(g.as("operator", "identity", "revoke", "gone"))
	pack := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for _, c := range []struct {
		name, user, password string
		audited              string // under whose name; "": nowhere
		code                 subjects.Code
	}{
		{"forged", "victim", proveAs("victim", g.key("mallory"), now).Password(), "victim", subjects.CodeAuthFailed},
		{"with a wrong key", "mallory", proveAs("mallory", wrong, now).Password(), "mallory", subjects.CodeAuthFailed},
		{"replayed", "mallory", used.Password(), "mallory", subjects.CodeAuthFailed},
		{"replayed with another time", "mallory", stretched.Password(), "mallory", subjects.CodeAuthFailed},
		{"replayed as another", "victim", other.Password(), "victim", subjects.CodeAuthFailed},
		{"under another's name", "victim", proveAs("mallory", g.key("mallory"), now).Password(), "victim", subjects.CodeAuthFailed},
		{"expired", "eve", proveAs("eve", g.key("eve"), now.Add(-window)).Password(), "eve", subjects.CodeAuthFailed},
		{"ahead of its time", "eve", proveAs("eve", g.key("eve"), now.Add(window)).Password(), "eve", subjects.CodeAuthFailed},
		{"in the form v0", "eve", v0("eve").Password(), "eve", subjects.CodeAuthFailed},
		{"in the form v0, after v1", "plain", v0("plain").Password(), "plain", subjects.CodeAuthFailed},
		{"from a wrong host", "far", proveAs("far", g.key("far"), now).Password(), "far", subjects.CodeHostNotAllowed},
		{"with more than it may", "small", greedy.Password(), "small", subjects.CodeForbidden},
		{"revoked", "gone", proveAs("gone", g.key("gone"), now).Password(), "gone", subjects.CodeAuthFailed},
		{"of nobody", "nobody", proveAs("nobody", wrong, now).Password(), "nobody", subjects.CodeAuthFailed},
		{"no proof", "bob", "a password", "bob", subjects.CodeAuthFailed},
		{"nested deeply", "deep", pack(`{"agent_id":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + "}"), "deep", subjects.CodeInvalidMessage},
		{"a key twice", "twice", pack(`{"agent_id":"twice","agent_id":"victim"}`), "twice", subjects.CodeInvalidMessage},
		// The server itself hangs up.
		{"nested 10,000 deep", "deep", pack(strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)), "", ""},
		{"too large", "large", strings.Repeat("a", 1<<20), "", ""},
	} {
		told := func() int {
			return strings.Count(g.audit("--agent", c.audited), `"event_type":"auth_refused","data":{"code":"`+string(c.code)+`","action":"connect"`)
		}
		before := 0
		if c.audited != "" {
			before = told()
		}
		err := g.enter(c.user, c.password)
		if err == nil {
			t.Errorf("%s: let in", c.name)
			continue
		}
		if c.code != "" && !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%s: %v, want what everybody hears, %v", c.name, err, nats.ErrAuthorization)
		}
		if c.audited == "" {
			continue
		}
		g.eventually("the refusal in the audit of a proof "+c.name, func() bool { return told() > before })
	}
	// Whoever floods the door does not keep others out, nor fill the audit.
	for range 300 {
		if err := g.enter("flood", "x"); err == nil {
			t.Fatal("let in")
		}
	}
	if err := g.enter("mallory", proveAs("mallory", g.key("mallory"), time.Now()).Password()); err != nil {
		t.Errorf("a good proof after a flood: %v", err)
	}
	out := g.audit()
	if n := strings.Count(out, `"agent_id":"flood"`); n == 0 || n > 300 {
		t.Errorf("the audit tells %d times of the flood", n)
	}
	for _, id := range []string{"mallory", "eve", "far", "plain"} {
		_, secret, _ := strings.Cut(g.key(id).Word(), ".")
		if strings.Contains(out, secret) || strings.Contains(out, used.Signature) || strings.Contains(tail(g.up.log, 1<<24), secret) {
			t.Errorf("the secret of %s, or a signature, is in the audit or the log", id)
		}
	}
}
