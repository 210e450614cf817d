package gateway

import (
	"bytes"
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
	"google.golang.org/protobuf/encoding/protojson"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// pathKeys is where the public key of signed cards is.
const pathKeys = "/.well-known/jwks.json"

// cardSigner signs cards (specification, 8.4): JWS over the canonical JSON
// (RFC 8785) of the card without its signatures. The same card keeps the same
// signature, so that its ETag stays.
type cardSigner struct {
	key  jose.SigningKey
	pub  jose.JSONWebKey
	keys string // the address of the public key

	mu     sync.Mutex
	signed map[[sha256.Size]byte]*a2apb.AgentCardSignature // by payload
}

// newCardSigner reads a private key in PEM: Ed25519, or ECDSA on P-256. The public
// key is served at the address keys.
func newCardSigner(text []byte, keys string) (*cardSigner, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no PEM in it")
	}
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("expected a private key in PKCS #8: %w", err)
	}
	s := &cardSigner{keys: keys, signed: make(map[[sha256.Size]byte]*a2apb.AgentCardSignature)}
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

// sign is the signature of a payload.
func (s *cardSigner) sign(payload []byte) (*a2apb.AgentCardSignature, error) {
	mark := sha256.Sum256(payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig, ok := s.signed[mark]; ok {
		return sig, nil
	}
	signer, err := jose.NewSigner(s.key, (&jose.SignerOptions{}).WithType("JOSE").WithHeader("jku", s.keys))
	if err != nil {
		return nil, err
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		return nil, err
	}
	sig := new(a2apb.AgentCardSignature)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(jws.FullSerialize()), sig); err != nil {
		return nil, err
	}
	if len(s.signed) >= 1024 {
		clear(s.signed)
	}
	s.signed[mark] = sig
	return sig, nil
}

// sign signs a card, where a key is configured: over its canonical form and, where
// that is another one, over the form that the SDKs verify.
func (w *Worker) sign(card *a2apb.AgentCard) error {
	if w.signer == nil {
		return nil
	}
	card.Signatures = nil
	exact, lean, err := canonicalCard(card)
	if err != nil {
		return err
	}
	payloads := [][]byte{exact}
	if !bytes.Equal(exact, lean) {
		payloads = append(payloads, lean)
	}
	var all []*a2apb.AgentCardSignature
	for _, payload := range payloads {
		sig, err := w.signer.sign(payload)
		if err != nil {
			return err
		}
		all = append(all, sig)
	}
	card.Signatures = all
	return nil
}

// canonicalCard is a card without signatures in canonical JSON (RFC 8785). exact
// follows the specification (8.4.1): the fields that are set, and those that are
// required. lean lacks everything that is empty, as the official SDKs of Python and
// JavaScript 1.3 have it.
func canonicalCard(card *a2apb.AgentCard) (exact, lean []byte, err error) {
	data, err := cardJSON(card)
	if err != nil {
		return nil, nil, err
	}
	if exact, err = jcs.Transform(data); err != nil {
		return nil, nil, err
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, err
	}
	if data, err = json.Marshal(withoutEmpty(m)); err != nil {
		return nil, nil, err
	}
	lean, err = jcs.Transform(data)
	return exact, lean, err
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

// serveKeys serves the public key of signed cards.
func (w *Worker) serveKeys(rw http.ResponseWriter, _ *http.Request) {
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	if w.signer != nil {
		set.Keys = append(set.Keys, w.signer.pub)
	}
	writeJSON(rw, http.StatusOK, "application/json", set)
}
