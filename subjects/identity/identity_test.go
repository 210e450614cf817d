package identity_test

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/identity"
	"parley/subjects/schematest"
)

var update = flag.Bool("update", false, "write testdata/vectors.json")

const session = "a2a-20231114T221320Z-0badc0de"

var (
	now = time.Unix(1700000000, 0).UTC()
	key = identity.Key{ID: "k1", Secret: []byte("0123456789abcdef0123456789abcdef")}
)

// vector is one line of testdata/vectors.json.
type vector struct {
	Name      string `json:"name"`
	Form      string `json:"form"`
	Secret    string `json:"secret"` // text
	KeyID     string `json:"key_id,omitempty"`
	AgentID   string `json:"agent_id"`
	SessionID string `json:"session_id"`
	Timestamp string `json:"timestamp"`
	Nonce     string `json:"nonce,omitempty"`
	Subject   string `json:"subject,omitempty"`
	Body      string `json:"body,omitempty"` // text
	Signature string `json:"signature"`
	Refused   bool   `json:"refused,omitempty"` // its form is not strict
}

func (v *vector) proof() identity.Proof {
	return identity.Proof{
		AgentID: subjects.AgentID(v.AgentID), SessionID: subjects.SessionID(v.SessionID), Timestamp: v.Timestamp, Nonce: v.Nonce,
	}
}

func vectors() []vector {
	secret := string(key.Secret)
	v1 := vector{
		Form: "v1", Secret: secret, KeyID: "k1", AgentID: "status-agent", SessionID: session, Timestamp: "1700000000",
		Nonce: "nonce-0123456789", Subject: "fleet.result.status-agent.t1", Body: `{"status":"done"}`,
	}
	list := []vector{v1, v1, v1, v1, v1}
	list[0].Name = "message"
	list[1].Name, list[1].Subject, list[1].Body, list[1].SessionID = "connection", identity.Connect, "", ""
	list[2].Name, list[2].Body = "another body", `{"status":"error"}`
	list[3].Name, list[3].KeyID = "another key id", "k2"
	list[4].Name, list[4].Timestamp = "another form of time", "2023-11-14T22:13:20Z"
	for _, v := range []vector{
		{Name: "plain", AgentID: "status-agent", SessionID: session, Timestamp: "1700000000"},
		{Name: "plain, no session", AgentID: "status-agent", Timestamp: "1700000000"},
		{Name: "runs together 1", AgentID: "bot", SessionID: "1s42", Timestamp: "1700000000", Refused: true},
		{Name: "runs together 2", AgentID: "bot1", SessionID: "s42", Timestamp: "1700000000", Refused: true},
		{Name: "runs together 3", AgentID: "bot", SessionID: "1s4", Timestamp: "21700000000", Refused: true},
	} {
		v.Form, v.Secret = "v0", secret
		list = append(list, v)
	}
	for i := range list {
		v := &list[i]
		p := v.proof()
		if v.Form == identity.V0 {
			p.SignPlain([]byte(v.Secret))
		} else {
			p.Sign(identity.Key{ID: v.KeyID, Secret: []byte(v.Secret)}, v.Subject, []byte(v.Body))
		}
		v.Signature = p.Signature
	}
	return list
}

func TestVectors(t *testing.T) {
	t.Parallel()
	const path = "testdata/vectors.json"
	list := vectors()
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, append(data, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(data)); diff != "" {
		t.Fatalf("the vectors differ (-want +got):\n%s", diff)
	}
	for _, v := range list {
		p := v.proof()
		p.Signature = v.Signature
		terms := identity.Terms{Keys: []identity.Key{{ID: v.KeyID, Secret: []byte(v.Secret)}}, Plain: true, At: now}
		if err := identity.Verify(terms, &p, v.Subject, []byte(v.Body)); (err != nil) != v.Refused {
			t.Errorf("%s: Verify = %v, want refused %v", v.Name, err, v.Refused)
		}
	}
	// What reliability has been shown not to tell apart has one signature, and
	// none of the three is taken.
	if list[7].Signature != list[8].Signature || list[8].Signature != list[9].Signature {
		t.Errorf("%q %q %q are not the same", list[7].Signature, list[8].Signature, list[9].Signature)
	}
	// Known from elsewhere: openssl dgst -sha256 -hmac.
	if got, want := list[6].Signature, plainByHand; got != want {
		t.Errorf("plain, no session: %s, want %s", got, want)
	}
}

const plainByHand = "e55d41bdb4116dcc0a39cf2992d64f6fe352d25c352e2008eda34d4a85e2ad78"

func TestVerify(t *testing.T) {
	t.Parallel()
	const subject, body = "fleet.dispatch.bot", "hello"
	good := identity.Proof{AgentID: "bot", SessionID: session, Timestamp: "1700000000", Nonce: "nonce-0123456789"}
	good.Sign(key, subject, []byte(body))
	plain := good
	plain.SignPlain(key.Secret)
	other := identity.Key{ID: "k2", Secret: []byte("ffffffffffffffffffffffffffffffff")}
	for _, c := range []struct {
		name   string
		proof  identity.Proof
		terms  identity.Terms
		change func(p *identity.Proof)
		sub    string
		body   string
		want   subjects.Code
	}{
		{name: "good", proof: good},
		{name: "second key", proof: good, terms: identity.Terms{Keys: []identity.Key{other, key}}},
		{name: "third key does not count", proof: good, terms: identity.Terms{Keys: []identity.Key{other, other, key}}, want: subjects.CodeAuthFailed},
		{name: "unknown", proof: good, terms: identity.Terms{Keys: []identity.Key{}}, want: subjects.CodeAuthFailed},
		{name: "wrong key", proof: good, terms: identity.Terms{Keys: []identity.Key{{ID: "k1", Secret: other.Secret}}}, want: subjects.CodeAuthFailed},
		{name: "rotated key", proof: good, terms: identity.Terms{Keys: []identity.Key{{ID: "k9", Secret: key.Secret}}}, want: subjects.CodeAuthFailed},
		{name: "other body", proof: good, body: "bye", want: subjects.CodeAuthFailed},
		{name: "other subject", proof: good, sub: "fleet.result.bot.t", want: subjects.CodeAuthFailed},
		{name: "other agent", proof: good, change: func(p *identity.Proof) { p.AgentID = "bot2" }, want: subjects.CodeAuthFailed},
		{name: "other session", proof: good, change: func(p *identity.Proof) { p.SessionID = "" }, want: subjects.CodeAuthFailed},
		{name: "other nonce", proof: good, change: func(p *identity.Proof) { p.Nonce = "nonce-9876543210" }, want: subjects.CodeAuthFailed},
		{name: "no nonce", proof: good, change: func(p *identity.Proof) { p.Nonce = "" }, want: subjects.CodeInvalidMessage},
		{name: "five minutes old", proof: good, terms: identity.Terms{At: now.Add(identity.Window)}},
		{name: "older", proof: good, terms: identity.Terms{At: now.Add(identity.Window + time.Second)}, want: subjects.CodeAuthFailed},
		{name: "five minutes early", proof: good, terms: identity.Terms{At: now.Add(-identity.Window)}},
		{name: "earlier", proof: good, terms: identity.Terms{At: now.Add(-identity.Window - time.Second)}, want: subjects.CodeAuthFailed},
		{name: "plain by default", proof: plain, want: subjects.CodeAuthFailed},
		{name: "plain, allowed", proof: plain, terms: identity.Terms{Plain: true}},
		{name: "plain, allowed, any body", proof: plain, terms: identity.Terms{Plain: true}, body: "bye"},
		{name: "plain after v1", proof: plain, terms: identity.Terms{Plain: true, SeenV1: true}, want: subjects.CodeAuthFailed},
		{name: "v1 after v1", proof: good, terms: identity.Terms{SeenV1: true}},
		{name: "plain with capitals", proof: plain, terms: identity.Terms{Plain: true}, change: func(p *identity.Proof) { p.AgentID = "Bot" }, want: subjects.CodeInvalidMessage},
		{name: "time of eleven digits", proof: plain, terms: identity.Terms{Plain: true}, change: func(p *identity.Proof) { p.Timestamp = "21700000000" }, want: subjects.CodeInvalidMessage},
		{name: "time with an offset", proof: good, change: func(p *identity.Proof) { p.Timestamp = "2023-11-14T22:13:20+00:00" }, want: subjects.CodeInvalidMessage},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, terms := c.proof, c.terms
			if terms.Keys == nil {
				terms.Keys = []identity.Key{key}
			}
			if terms.At.IsZero() {
				terms.At = now
			}
			if c.change != nil {
				c.change(&p)
			}
			sub, b := c.sub, c.body
			if sub == "" {
				sub = subject
			}
			if b == "" {
				b = body
			}
			err := identity.Verify(terms, &p, sub, []byte(b))
			if got := subjects.CodeOf(err); got != c.want {
				t.Errorf("Verify = %v, want %q", err, c.want)
			}
		})
	}
}

// Nobody learns from the refusal whether an identity exists.
func TestRefusalsAreAlike(t *testing.T) {
	t.Parallel()
	p := identity.Proof{AgentID: "bot", Timestamp: "1700000000", Nonce: "nonce-0123456789"}
	p.Sign(identity.Key{ID: "k1", Secret: make([]byte, 32)}, "s", nil)
	unknown := identity.Verify(identity.Terms{At: now}, &p, "s", nil)
	wrong := identity.Verify(identity.Terms{At: now, Keys: []identity.Key{key}}, &p, "s", nil)
	if unknown == nil || wrong == nil || unknown.Error() != wrong.Error() {
		t.Errorf("unknown: %v\nwrong: %v\nwant the same refusal", unknown, wrong)
	}
}

// What v0 signs can be taken apart in one way only.
func TestPlainIsInjective(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) identity.Proof {
			p := identity.Proof{
				AgentID:   subjects.AgentID(rapid.StringMatching(`[a-c0-2][a-c0-2-]{0,5}(a2a-2023)?[0-2-]{0,4}`).Draw(t, name+" agent")),
				Timestamp: rapid.StringMatching(`[12]70000000[0-9]`).Draw(t, name+" time"),
			}
			if rapid.Bool().Draw(t, name+" has a session") {
				p.SessionID = subjects.SessionID("a2a-20231114T221320Z-" + rapid.StringMatching(`[0-2a]{8,12}`).Draw(t, name+" session"))
			}
			if rapid.Bool().Draw(t, name+" rfc") {
				p.Timestamp = "2023-11-14T22:13:2" + rapid.StringMatching(`[0-9]Z`).Draw(t, name+" second")
			}
			p.SignPlain(key.Secret)
			if _, err := identity.DecodeProof(fleet.MustEncode(&p)); err != nil {
				t.Skip("not of the strict form")
			}
			return p
		}
		a, b := draw("a"), draw("b")
		if a.Signature == b.Signature && (a.AgentID != b.AgentID || a.SessionID != b.SessionID || a.Timestamp != b.Timestamp) {
			t.Fatalf("%v and %v have one signature", a, b)
		}
	})
}

func TestPassword(t *testing.T) {
	t.Parallel()
	p := identity.Proof{AgentID: "bot", Timestamp: "1700000000", Nonce: "nonce-0123456789", Capabilities: []string{"shell"}}
	p.Sign(key, identity.Connect, nil)
	for _, text := range []string{p.Password(), string(fleet.MustEncode(&p))} {
		got, err := identity.ParsePassword(text)
		if err != nil {
			t.Fatalf("ParsePassword(%s): %v", text, err)
		}
		if diff := cmp.Diff(&p, got); diff != "" {
			t.Errorf("ParsePassword (-want +got):\n%s", diff)
		}
	}
	for _, text := range []string{"", "secret", "{}", `{"agent_id":"a","agent_id":"b"}`, strings.Repeat("A", 10_000), "e30"} {
		if _, err := identity.ParsePassword(text); err == nil {
			t.Errorf("ParsePassword(%.20q) = nil, want an error", text)
		}
	}
}

func TestKeyKeepsItsSecret(t *testing.T) {
	t.Parallel()
	got, err := identity.ParseKey(key.Word() + "\n")
	if err != nil || got.ID != "k1" || string(got.Secret) != string(key.Secret) {
		t.Errorf("ParseKey = %v, %v", got, err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("key", slog.Any("key", key), slog.Any("keys", []identity.Key{key}))
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", slog.Any("key", key), slog.Any("keys", []identity.Key{key}))
	said := fmt.Sprintf("%v %+v %#v %s", key, key, key, log.String())
	for _, secret := range []string{string(key.Secret), hex.EncodeToString(key.Secret), "MDEyMzQ1Njc4"} {
		if strings.Contains(said, secret) {
			t.Errorf("it says its secret: %s", said)
		}
	}
	for _, bad := range []string{"", "k1", "k1.", "k1.c2hvcnQ", "k 1." + strings.Repeat("A", 43)} {
		if _, err := identity.ParseKey(bad); err == nil || len(bad) > 3 && strings.Contains(err.Error(), bad[3:]) {
			t.Errorf("ParseKey(%q) = %v, want an error that does not show it", bad, err)
		}
	}
}

func TestRecordKeys(t *testing.T) {
	t.Parallel()
	var r identity.Record
	at := func(hours int) time.Time { return now.Add(time.Duration(hours) * time.Hour) }
	ids := func(t time.Time) (list string) {
		for _, k := range r.Active(t) {
			list += k.ID + " "
		}
		return list
	}
	r.Add(identity.Sealed{ID: "a", Created: at(0)}, 0)
	r.Add(identity.Sealed{ID: "b", Created: at(1)}, 2*time.Hour)
	for hours, want := range map[int]string{1: "b a ", 2: "b a ", 3: "b "} {
		if got := ids(at(hours)); got != want {
			t.Errorf("after %d h %q count, want %q", hours, got, want)
		}
	}
	r.Add(identity.Sealed{ID: "c", Created: at(2)}, 9*time.Hour)
	if got := ids(at(2)); got != "c b " {
		t.Errorf("%q count, want c and b", got)
	}
	r.Add(identity.Sealed{ID: "d", Created: at(3)}, 0)
	if got := ids(at(3)); got != "d " {
		t.Errorf("%q count, want d alone", got)
	}
	r.Revoked = &identity.Revoked{At: at(4)}
	if got := ids(at(4)); got != "" {
		t.Errorf("%q count, want none", got)
	}
}

func TestRecordAllows(t *testing.T) {
	t.Parallel()
	a := &fleet.Announce{Worker: fleet.Worker{ModelTier: "opus"}, Capabilities: fleet.Capabilities{Tools: []string{"shell"}, MCPServers: []string{"github"}}}
	agent := identity.Record{AgentID: "bot", Role: subjects.RoleAgent}
	for name, c := range map[string]struct {
		change func(r *identity.Record)
		want   string // pointers
	}{
		"everything": {func(*identity.Record) {}, ""},
		"named": {func(r *identity.Record) {
			r.Capabilities, r.MCPServers, r.MaxTier = []string{"shell"}, []string{"github"}, "opus"
		}, ""},
		"no tools":   {func(r *identity.Record) { r.Capabilities = []string{} }, "/capabilities/tools/0"},
		"other MCP":  {func(r *identity.Record) { r.MCPServers = []string{"jira"} }, "/capabilities/mcp_servers/0"},
		"low tier":   {func(r *identity.Record) { r.MaxTier = "sonnet" }, "/worker/model_tier"},
		"odd tier":   {func(r *identity.Record) { r.MaxTier = "mega" }, "/worker/model_tier"},
		"two things": {func(r *identity.Record) { r.MaxTier, r.Capabilities = "haiku", []string{} }, "/capabilities/tools/0 /worker/model_tier"},
		"no agent":   {func(r *identity.Record) { r.Role = subjects.RoleOperator }, "/worker/agent_id"},
		"revoked":    {func(r *identity.Record) { r.Revoked = &identity.Revoked{} }, "/worker/agent_id"},
	} {
		r := agent
		c.change(&r)
		err := r.Allows(a)
		var got []string
		if err != nil {
			e := subjects.AsError(err)
			got = []string{e.Pointer}
			for _, more := range e.Also {
				got = append(got, more.Pointer)
			}
			if e.Code != subjects.CodeForbidden {
				t.Errorf("%s: %v, want forbidden", name, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: refused %q, want %q", name, got, c.want)
		}
	}
}

// The identity of the session protocol names what a record holds, but proves
// nothing without time and nonce.
func TestSourceIdentity(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../handshake/testdata/vectors/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	id, err := handshake.DecodeIdentity(data)
	if err != nil || id.AgentID != "status-agent" || len(id.AllowedHosts) != 2 {
		t.Fatalf("DecodeIdentity = %+v, %v", id, err)
	}
	if _, err := identity.DecodeProof(data); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
		t.Errorf("DecodeProof = %v, want invalid_message", err)
	}
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	if _, err := identity.Schema("../schema"); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("Schema of nothing = %v", err)
	}
	validate := schematest.Validator(identity.Schemas(), identity.Schema)
	p := identity.Proof{AgentID: "bot", Timestamp: "1700000000", Nonce: "nonce-0123456789"}
	p.Sign(key, identity.Connect, nil)
	plain := identity.Proof{AgentID: "bot", Timestamp: "1700000000"}
	plain.SignPlain(key.Secret)
	capital := plain
	capital.AgentID = "Bot"
	noNonce := p
	noNonce.Nonce = ""
	r := identity.Record{AgentID: "bot", Role: "agent", Signatures: "v1", Keys: []identity.Sealed{{ID: "k1", Created: now}}, Created: now, By: "operator", Capabilities: []string{}}
	for _, x := range []struct {
		schema string
		value  any
		good   bool
	}{
		{"identity-proof", &p, true},
		{"identity-proof", &plain, true},
		{"identity-proof", &capital, false},
		{"identity-proof", &noNonce, false},
		{"identity-record", &r, true},
		{"identity-record", &p, false},
	} {
		doc := fleet.MustEncode(x.value)
		if err := validate(t, x.schema, doc); (err == nil) != x.good {
			t.Errorf("%s of %s: %v, want valid %v", x.schema, doc, err, x.good)
		}
		if pr, ok := x.value.(*identity.Proof); ok && x.schema == "identity-proof" {
			if _, err := identity.DecodeProof(fleet.MustEncode(pr)); (err == nil) != x.good {
				t.Errorf("DecodeProof of %s: %v, want valid %v", doc, err, x.good)
			}
		}
	}
}

func FuzzParsePassword(f *testing.F) {
	p := identity.Proof{AgentID: "bot", Timestamp: "1700000000", Nonce: "nonce-0123456789"}
	p.Sign(key, identity.Connect, nil)
	f.Add(p.Password())
	f.Add(string(fleet.MustEncode(&p)))
	p.SignPlain(key.Secret)
	f.Add(string(fleet.MustEncode(&p)))
	f.Fuzz(func(t *testing.T, text string) {
		got, err := identity.ParsePassword(text)
		if err != nil {
			return
		}
		again, err := identity.ParsePassword(got.Password())
		if err != nil {
			t.Fatalf("%+v is taken once and refused then: %v", got, err)
		}
		if again.Once() != got.Once() || again.Form() != got.Form() {
			t.Fatalf("%+v became %+v", got, again)
		}
		_ = identity.Verify(identity.Terms{Keys: []identity.Key{key}, At: now}, got, identity.Connect, nil)
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("k1.MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := identity.ParseKey(text)
		if err != nil {
			return
		}
		if again, err := identity.ParseKey(k.Word()); err != nil || again.ID != k.ID || len(k.Secret) < identity.MinSecret {
			t.Fatalf("ParseKey(%q) = %v", text, k)
		}
	})
}
