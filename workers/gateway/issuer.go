package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// keysAge is how long the issuer is not asked for keys again: tokens that nobody
// has signed would have it asked for each of them.
const keysAge = 5 * time.Second

// maxKeys is how long the issuer's keys may be, as JSON.
const maxKeys = 1 << 20

// trusted is an issuer: the keys that its tokens are signed with. Those that are
// known stay while it does not answer.
type trusted struct {
	// fixed after discover
	client     *http.Client
	address    string // of the keys
	algorithms []string

	known atomic.Pointer[oidc.StaticKeySet]

	mu    sync.Mutex // guards what follows; held while the issuer is asked
	asked time.Time
	err   error // of the last time
}

// discover finds an issuer's keys through its discovery document.
func discover(ctx context.Context, client *http.Client, issuer string) (*trusted, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), client), issuer)
	if err != nil {
		return nil, err
	}
	var said struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&said); err != nil {
		return nil, err
	}
	t := &trusted{client: client, address: said.Keys}
	for _, alg := range said.Algorithms {
		if slices.Contains(signatures, alg) {
			t.algorithms = append(t.algorithms, alg)
		}
	}
	t.known.Store(new(oidc.StaticKeySet))
	return t, nil
}

// signatures are the algorithms that count: those by which nobody who can check
// a signature can make one.
var signatures = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// newer asks the issuer for its keys, unless somebody just has.
func (t *trusted) newer(ctx context.Context) (*oidc.StaticKeySet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked.IsZero() || time.Since(t.asked) >= keysAge {
		var keys *oidc.StaticKeySet
		if keys, t.err = t.fetch(context.WithoutCancel(ctx)); t.err == nil {
			t.known.Store(keys)
		}
		t.asked = time.Now()
	}
	return t.known.Load(), t.err
}

func (t *trusted) fetch(ctx context.Context) (*oidc.StaticKeySet, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.address, nil)
	if err != nil {
		return nil, err
	}
	res, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // what matters of it is read
	body, err := io.ReadAll(io.LimitReader(res.Body, maxKeys))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the keys of the identity provider: it answers %s", res.Status)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("the keys of the identity provider: %w", err)
	}
	keys := new(oidc.StaticKeySet)
	for _, k := range set.Keys {
		if k.IsPublic() {
			keys.PublicKeys = append(keys.PublicKeys, k.Key)
		}
	}
	return keys, nil
}

// verdict is the look at one token's signature.
type verdict struct {
	keys *trusted
	away error // why the keys could not be had that might be the token's
}

var _ oidc.KeySet = (*verdict)(nil)

// VerifySignature holds a token against the keys that are known, and then
// against newer ones.
func (v *verdict) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := v.keys.known.Load().VerifySignature(ctx, token)
	if err == nil {
		return payload, nil
	}
	keys, err := v.keys.newer(ctx)
	if err != nil {
		v.away = err
		return nil, err
	}
	return keys.VerifySignature(ctx, token)
}
