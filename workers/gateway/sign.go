package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-jose/go-jose/v4"
	"github.com/gowebpki/jcs"
)

// pathKeys is where the public key of signed cards is.
const pathKeys = "/.well-known/jwks.json"

// cardSigner signs cards (specification, 8.4): JWS over the canonical JSON
// (RFC 8785) of the card without its signatures. The same card keeps the same
// signature, so that its ETag stays.
type cardSigner struct {
	key jose.SigningKey
	pub jose.JSONWebKey

	mu     sync.Mutex
	signed map[[sha256.Size]byte]map[string]any // by address of the keys and payload
}

// newCardSigner reads a private key in PEM: Ed25519, or ECDSA on P-256.
func newCardSigner(text []byte) (*cardSigner, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM in it")
	}
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("expected a private key in PKCS #8: %w", err)
	}
	s := &cardSigner{signed: make(map[[sha256.Size]byte]map[string]any)}
	var alg jose.SignatureAlgorithm
	switch k := private.(type) {
	case ed25519.PrivateKey:
		alg, s.pub.Key = jose.EdDSA, k.Public()
	case *ecdsa.PrivateKey:
		if k.Curve.Params().BitSize != 256 {
			return nil, errors.New("expected an ECDSA key on P-256, or an Ed25519 key")
		}
		alg, s.pub.Key = jose.ES256, k.Public()
	default:
		return nil, errors.New("expected an ECDSA key on P-256, or an Ed25519 key")
	}
	mark, err := s.pub.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, err
	}
	s.pub.KeyID, s.pub.Algorithm, s.pub.Use = base64.RawURLEncoding.EncodeToString(mark), string(alg), "sig"
	s.key = jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: private, KeyID: s.pub.KeyID}}
	return s, nil
}

// sign is the signature of a card, whose keys are at address.
func (s *cardSigner) sign(card []byte, address string) (map[string]any, error) {
	payload, err := canonicalCard(card)
	if err != nil {
		return nil, err
	}
	mark := sha256.Sum256(append([]byte(address+"\x00"), payload...))
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig, ok := s.signed[mark]; ok {
		return sig, nil
	}
	signer, err := jose.NewSigner(s.key, (&jose.SignerOptions{}).WithType("JOSE").WithHeader("jku", address))
	if err != nil {
		return nil, err
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		return nil, err
	}
	var flat struct {
		Protected string `json:"protected"`
		Signature string `json:"signature"`
	}
	if err := json.Unmarshal([]byte(jws.FullSerialize()), &flat); err != nil {
		return nil, err
	}
	if len(s.signed) >= 1024 {
		clear(s.signed)
	}
	s.signed[mark] = map[string]any{"protected": flat.Protected, "signature": flat.Signature}
	return s.signed[mark], nil
}

// canonicalCard is what is signed: the card without signatures and without what
// is empty, in canonical JSON.
func canonicalCard(card []byte) ([]byte, error) {
	var m map[string]any
	if err := json.Unmarshal(card, &m); err != nil {
		return nil, err
	}
	delete(m, "signatures")
	data, err := json.Marshal(withoutEmpty(m))
	if err != nil {
		return nil, err
	}
	return jcs.Transform(data)
}

// withoutEmpty drops empty texts, lists and objects, innermost first; nil when
// nothing is left.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if item = withoutEmpty(item); item == nil {
				delete(v, k)
			} else {
				v[k] = item
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		kept := v[:0]
		for _, item := range v {
			if item = withoutEmpty(item); item != nil {
				kept = append(kept, item)
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case string:
		if v == "" {
			return nil
		}
	}
	return v
}

// signed is a card with its signature, where a key is configured.
func (w *Worker) signed(card []byte, at base) ([]byte, error) {
	if w.signer == nil {
		return card, nil
	}
	sig, err := w.signer.sign(card, at.url+pathKeys)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(card, &m); err != nil {
		return nil, err
	}
	m["signatures"] = []any{sig}
	return json.Marshal(m)
}

// serveKeys serves the public key of signed cards.
func (w *Worker) serveKeys(rw http.ResponseWriter, _ *http.Request) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	if w.signer != nil {
		set.Keys = append(set.Keys, w.signer.pub)
	}
	writeJSON(rw, http.StatusOK, "application/json", set)
}
