package conformance_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/go-jose/go-jose/v4"
	"github.com/gowebpki/jcs"
	"google.golang.org/protobuf/encoding/protojson"

	"parley/subjects"
	"parley/workers/gateway"
)

// TestSignedCards: every card has a signature over the card as it is served, in
// canonical JSON without its signatures (8.4.1), by the key at the address that the
// signature names; whatever host a request names, that address is --a2a-url's.
func TestSignedCards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := gateway.Config{
		CardKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), URL: "https://fleet.example.org/x/",
		Auth: gateway.Auth{Tokens: map[string]subjects.AgentID{aliceToken: "alice"}},
	}
	at, _ := w.gateway(cfg)
	c := &client{T: t, w: w, b: rest{}, at: at, h: v10.with("Authorization", "Bearer "+aliceToken)}
	for _, path := range []string{"/.well-known/agent-card.json", "/agents/second/.well-known/agent-card.json", "/a2a/extendedAgentCard", "/a2a/second/extendedAgentCard"} {
		req, reqErr := http.NewRequestWithContext(t.Context(), http.MethodGet, at+path, nil)
		if reqErr != nil {
			t.Fatal(reqErr)
		}
		req.Host = "evil.example"
		for k, v := range c.h {
			req.Header.Set(k, v)
		}
		res, doErr := httpClient.Do(req)
		if doErr != nil {
			t.Fatal(doErr)
		}
		var card map[string]json.RawMessage
		err = json.NewDecoder(res.Body).Decode(&card)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, res.StatusCode, err)
		}
		verifyCard(t, path, card, key.Public())
	}
	for _, b := range bindings {
		card := new(a2apb.AgentCard)
		if _, err = b.call(t, at, "GetExtendedAgentCard", c.h, &a2apb.GetExtendedAgentCardRequest{}, card); err != nil {
			t.Fatalf("%s: %v", b.name(), err)
		}
		data, marshalErr := protojson.Marshal(card)
		var members map[string]json.RawMessage
		if marshalErr != nil || json.Unmarshal(data, &members) != nil {
			t.Fatal(marshalErr)
		}
		verifyCard(t, b.name(), members, key.Public())
	}
	cfg.URL, cfg.Bus = "", w.bus
	if _, err = gateway.New(cfg); err == nil || !strings.Contains(err.Error(), "URL") {
		t.Errorf("a key without an address of the gateway: %v", err)
	}
}

// verifyCard verifies the first signature of a card literally.
func verifyCard(t *testing.T, what string, card map[string]json.RawMessage, key any) {
	t.Helper()
	var signatures []struct{ Protected, Signature string }
	if err := json.Unmarshal(card["signatures"], &signatures); err != nil || len(signatures) == 0 {
		t.Fatalf("%s: no signatures (%v)", what, err)
	}
	delete(card, "signatures")
	data, err := json.Marshal(card)
	if err == nil {
		data, err = jcs.Transform(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	jws, err := jose.ParseDetached(signatures[0].Protected+".."+signatures[0].Signature, data, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if err := jws.DetachedVerify(data, key); err != nil {
		t.Errorf("%s: the signature does not hold for %s", what, data)
	}
	if jku, _ := jws.Signatures[0].Protected.ExtraHeaders["jku"].(string); jku != "https://fleet.example.org/x/.well-known/jwks.json" {
		t.Errorf("%s: the key is at %q", what, jku)
	}
	if strings.Contains(string(data), "evil") {
		t.Errorf("%s names the host of the request: %s", what, data)
	}
}
