package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"parley/bus/bustest"
	"parley/subjects"
)

// issuer is an OpenID provider: its discovery document, its keys, and tokens.
type issuer struct {
	url    string
	signer jose.Signer
	away   atomic.Bool  // its keys cannot be had
	asked  atomic.Int32 // for its keys
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{}
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { writeJSON(rw, 200, "application/json", v) }
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	i.url = s.URL
	mux.HandleFunc("/.well-known/openid-configuration", answer(map[string]any{
		"issuer": s.URL, "jwks_uri": s.URL + "/keys", "authorization_endpoint": s.URL, "token_endpoint": s.URL,
		"id_token_signing_alg_values_supported": []string{"ES256"},
	}))
	keys := answer(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	mux.HandleFunc("/keys", func(rw http.ResponseWriter, r *http.Request) {
		i.asked.Add(1)
		if i.away.Load() {
			http.Error(rw, "not now", http.StatusServiceUnavailable)
			return
		}
		keys(rw, r)
	})
	i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) token(t *testing.T, c jwt.Claims) string {
	t.Helper()
	s, err := jwt.Signed(i.signer).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestJWT checks which tokens of an OpenID provider say who calls.
func TestJWT(t *testing.T) {
	t.Parallel()
	i, other := newIssuer(t), newIssuer(t)
	a := newAuthenticator(Auth{Issuer: i.url, Audience: "fleet"})
	now := time.Now()
	good := jwt.Claims{Issuer: i.url, Subject: "user 1", Audience: jwt.Audience{"fleet"}, Expiry: jwt.NewNumericDate(now.Add(time.Hour))}
	ask := func(token string) (subjects.AgentID, error) {
		return a.identify(t.Context(), http.Header{"Authorization": {"Bearer " + token}}, peer{})
	}
	id, err := ask(i.token(t, good))
	if err != nil || !strings.HasPrefix(string(id), "jwt-") {
		t.Fatalf("identify = %q, %v", id, err)
	}
	if again, err := ask(i.token(t, good)); err != nil || again != id {
		t.Errorf("the same subject is %q, then %q, %v", id, again, err)
	}
	second := good
	second.Subject = "operator"
	if two, err := ask(i.token(t, second)); err != nil || two == id || two == "operator" {
		t.Errorf("another subject is %q, %v", two, err)
	}
	for name, change := range map[string]func(*jwt.Claims){
		"expired":          func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-time.Hour)) },
		"nobody":           func(c *jwt.Claims) { c.Subject = "" },
		"another audience": func(c *jwt.Claims) { c.Audience = jwt.Audience{"other"} },
		"another issuer":   func(c *jwt.Claims) { c.Issuer = other.url },
	} {
		c := good
		change(&c)
		if _, err := ask(i.token(t, c)); asFault(err).kind != kindUnauthenticated {
			t.Errorf("%s: %v, want UNAUTHENTICATED", name, err)
		}
	}
	if _, err := ask(other.token(t, good)); asFault(err).kind != kindUnauthenticated {
		t.Errorf("another's signature: %v, want UNAUTHENTICATED", err)
	}
	away := newAuthenticator(Auth{Issuer: "http://127.0.0.1:1", Audience: "fleet"})
	if _, err := away.identify(t.Context(), http.Header{"Authorization": {"Bearer " + i.token(t, good)}}, peer{}); asFault(err).kind != kindUnavailable {
		t.Errorf("no provider: %v, want UNAVAILABLE", err)
	}
}

// TestTokensByTheServersClock: a token has expired when it has by the clock of the
// bus, whatever this machine's says.
func TestTokensByTheServersClock(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	claims := jwt.Claims{Issuer: i.url, Subject: "user 1", Audience: jwt.Audience{"fleet"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	a := newAuthenticator(Auth{Issuer: i.url, Audience: "fleet", Now: func() time.Time { return time.Now().Add(2 * time.Hour) }})
	_, err := a.identify(t.Context(), http.Header{"Authorization": {"Bearer " + i.token(t, claims)}}, peer{})
	if f := asFault(err); err == nil || f.kind != kindUnauthenticated || f.message != "the token has expired" {
		t.Errorf("identify = %v, want that the token has expired", err)
	}
}

// TestKeysAway: while the keys of a provider cannot be had, nobody knows whether
// a token is valid; nobody is refused, or told of. Keys that are known stay.
func TestKeysAway(t *testing.T) {
	t.Parallel()
	i, forger := newIssuer(t), newIssuer(t)
	good := jwt.Claims{Issuer: i.url, Subject: "ann", Audience: jwt.Audience{"fleet"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	refused := 0
	cfg := Auth{Issuer: i.url, Audience: "fleet", Refused: func(context.Context, string, string) { refused++ }}
	ask := func(a *authenticator, by *issuer) error {
		_, err := a.identify(t.Context(), http.Header{"Authorization": {"Bearer " + by.token(t, good)}}, peer{})
		return err
	}
	i.away.Store(true)
	if f := asFault(ask(newAuthenticator(cfg), i)); f.kind != kindUnavailable || f.retry <= 0 || refused != 0 {
		t.Errorf("keys that cannot be had: %v, retry after %s, %d refused, want UNAVAILABLE and none", f, f.retry, refused)
	}
	i.away.Store(false)
	a := newAuthenticator(cfg)
	if err := ask(a, i); err != nil {
		t.Fatal(err)
	}
	i.asked.Store(0)
	const forged = 20
	for range forged {
		if f := asFault(ask(a, forger)); f.kind != kindUnauthenticated {
			t.Errorf("a forged token: %v, want UNAUTHENTICATED", f)
		}
	}
	if n := i.asked.Load(); refused != forged || n > 2 {
		t.Errorf("%d of %d forged tokens are told of, and the provider was asked for its keys %d times", refused, forged, n)
	}
	i.away.Store(true)
	if err := ask(a, i); err != nil {
		t.Errorf("a key that is known: %v", err)
	}
}

// TestCertificates checks that a verified client certificate says who calls, and
// only a verified one.
func TestCertificates(t *testing.T) {
	t.Parallel()
	a := newAuthenticator(Auth{Certificates: true})
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "robot"}, Issuer: pkix.Name{CommonName: "ca"}}
	verified := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}}
	id, err := a.identify(t.Context(), http.Header{}, peerOf(verified))
	if err != nil || !strings.HasPrefix(string(id), "mtls-") {
		t.Errorf("identify = %q, %v", id, err)
	}
	verified.TLS.VerifiedChains = nil
	if _, err := a.identify(t.Context(), http.Header{}, peerOf(verified)); asFault(err).kind != kindUnauthenticated {
		t.Errorf("a certificate that was not verified: %v, want UNAUTHENTICATED", err)
	}
}

// TestLimits checks that a caller who calls too often is told when to repeat,
// and that others are not held up.
func TestLimits(t *testing.T) {
	t.Parallel()
	l := newLimits(0.5)
	if err := l.take("a"); err != nil {
		t.Fatal(err)
	}
	f := asFault(l.take("a"))
	if f.kind != kindRateLimited || f.retry <= 0 || f.retry > 2*time.Second {
		t.Errorf("the second call: %v, retry after %s", f, f.retry)
	}
	if err := l.take("b"); err != nil {
		t.Errorf("another caller: %v", err)
	}
}

// TestOrigins checks that pages of the web get in from listed origins alone.
func TestOrigins(t *testing.T) {
	t.Parallel()
	w := door(t)
	w.cfg.Origins = []string{"https://app.example.org"}
	for origin, want := range map[string]string{"https://app.example.org": "https://app.example.org", "https://evil.example.org": "", "": ""} {
		r := httptest.NewRequest(http.MethodOptions, "http://localhost/a2a", nil)
		r.Header.Set("Origin", origin)
		rec := httptest.NewRecorder()
		w.guarded(http.HandlerFunc(w.serveRPC)).ServeHTTP(rec, r)
		if got := rec.Header().Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("from %q: %q, want %q", origin, got, want)
		}
	}
	// A page may send what needs no preflight: it must not be carried out.
	for origin, want := range map[string]int{
		"https://app.example.org": 200, "http://localhost": 200, "": 200, "https://evil.example.org": 403, "null": 403,
	} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/a2a/tasks/t1:cancel?A2A-Version=1.0", nil)
		r.Header.Set("Origin", origin)
		rec := httptest.NewRecorder()
		w.guarded(http.HandlerFunc(w.serveREST)).ServeHTTP(rec, r)
		if rec.Code != want {
			t.Errorf("a cancel from %q: %d, want %d", origin, rec.Code, want)
		}
	}
}

// TestSilentProvider: a provider that takes connections and answers nothing holds
// nobody up for longer than it may, however many wait.
func TestSilentProvider(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newAuthenticator(Auth{Issuer: "http://" + l.Addr().String(), Audience: "fleet"})
	a.provider.Timeout = 2 * time.Second
	const callers = 100
	answers := make(chan error, callers)
	for range callers {
		go func() {
			_, err := a.identify(t.Context(), http.Header{"Authorization": {"Bearer a.b.c"}}, peer{})
			answers <- err
		}()
	}
	limit := time.After(bustest.Patience) // one after the other they would wait for longer
	for range callers {
		select {
		case err := <-answers:
			if f := asFault(err); f.kind != kindUnavailable || f.retry <= 0 {
				t.Errorf("identify = %v, want UNAVAILABLE and when to repeat", err)
			}
		case <-limit:
			t.Fatal("callers wait for a provider that does not answer")
		}
	}
}

// TestPublicAddress checks the card of a gateway behind a proxy.
func TestPublicAddress(t *testing.T) {
	t.Parallel()
	w := door(t)
	w.cfg.URL, w.publicHost, w.publicAuthority = "https://fleet.example.org", "fleet.example.org", "fleet.example.org"
	w.listing.at = time.Now().Add(time.Hour) // nobody is there to ask
	r := httptest.NewRequest(http.MethodGet, "http://fleet.example.org/.well-known/agent-card.json", nil)
	rec := httptest.NewRecorder()
	w.guarded(http.HandlerFunc(w.serveCard)).ServeHTTP(rec, r)
	var card struct{ SupportedInterfaces []struct{ URL string } }
	if err := json.Unmarshal(rec.Body.Bytes(), &card); err != nil || len(card.SupportedInterfaces) != 3 || card.SupportedInterfaces[0].URL != "https://fleet.example.org/a2a" {
		t.Errorf("card %s, %v", rec.Body, err)
	}
}

// TestRefusedIsTold: who does not prove who they are is told of, and from where;
// who does, is not.
func TestRefusedIsTold(t *testing.T) {
	t.Parallel()
	var told []string
	a := newAuthenticator(Auth{Tokens: map[string]subjects.AgentID{"right": "ann"}, Refused: func(_ context.Context, address, why string) {
		told = append(told, address+" "+why)
	}})
	for _, token := range []string{"right", "canary-wrong", ""} {
		h := http.Header{}
		if token != "" {
			h.Set("Authorization", "Bearer "+token)
		}
		_, err := a.identify(t.Context(), h, peer{address: "192.0.2.7:1"})
		if (err == nil) != (token == "right") {
			t.Errorf("%q: %v", token, err)
		}
	}
	if len(told) != 2 || !strings.HasPrefix(told[0], "192.0.2.7:1 the token") || strings.Contains(strings.Join(told, ""), "canary") {
		t.Errorf("told %q", told)
	}
}
