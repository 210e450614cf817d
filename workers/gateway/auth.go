package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"parley/subjects"
)

// Auth says who may call. The zero value lets everybody in, as one caller.
type Auth struct {
	// Tokens are bearer tokens and API keys, each with the caller it proves.
	Tokens map[string]subjects.AgentID
	// Issuer is an OpenID provider whose tokens count, if they are for Audience.
	Issuer, Audience string
	// Certificates: a client certificate that the server has verified counts.
	Certificates bool
	// Now is the time by which an issuer's tokens are judged; nil: this machine's.
	Now func() time.Time
	// Refused is told of callers who do not prove who they are, and from where
	// they call.
	Refused func(ctx context.Context, address, why string)
}

// required reports whether a caller must say who they are.
func (a *Auth) required() bool { return len(a.Tokens) > 0 || a.Issuer != "" || a.Certificates }

// authenticator identifies callers.
type authenticator struct {
	cfg    Auth
	hashed map[[sha256.Size]byte]subjects.AgentID

	provider *http.Client // asks the issuer

	trusted shared[*trusted]
}

// issuerTimeout bounds a question to the issuer: who waits for it holds others up.
const issuerTimeout = 10 * time.Second

func newAuthenticator(cfg Auth) *authenticator {
	a := &authenticator{
		cfg: cfg, hashed: make(map[[sha256.Size]byte]subjects.AgentID), provider: &http.Client{Timeout: issuerTimeout},
	}
	for token, id := range cfg.Tokens {
		a.hashed[sha256.Sum256([]byte(token))] = id
	}
	return a
}

const headerAPIKey = "X-API-Key" //nolint:gosec // the name of a header

// identify says who calls, and tells of who does not prove it.
func (a *authenticator) identify(ctx context.Context, p params, peer peer) (subjects.AgentID, error) {
	if !a.cfg.required() {
		return anonymous, nil
	}
	id, err := a.prove(ctx, p, peer)
	if f, ok := errors.AsType[*fault](err); ok && f.kind == kindUnauthenticated && a.cfg.Refused != nil {
		a.cfg.Refused(ctx, peer.address, f.message)
	}
	return id, err
}

// prove says who calls: each way of proving it that is configured counts.
func (a *authenticator) prove(ctx context.Context, p params, peer peer) (subjects.AgentID, error) {
	if a.cfg.Certificates {
		for _, c := range peer.certified {
			return named("mtls", c.fingerprint, c.subject), nil
		}
	}
	token := first(p, headerAPIKey)
	if scheme, value, ok := strings.Cut(first(p, "Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		token = strings.TrimSpace(value)
	}
	if token == "" {
		return "", faultf(kindUnauthenticated, "the request does not say who calls: send a bearer token, or the header "+headerAPIKey)
	}
	if id, ok := a.known(token); ok {
		return id, nil
	}
	if a.cfg.Issuer == "" || strings.Count(token, ".") != 2 {
		return "", faultf(kindUnauthenticated, "the token is not valid")
	}
	return a.verify(ctx, token)
}

// known looks a token up by its hash, comparing every one in constant time.
func (a *authenticator) known(token string) (id subjects.AgentID, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for h, owner := range a.hashed {
		if subtle.ConstantTimeCompare(h[:], sum[:]) == 1 {
			id, ok = owner, true
		}
	}
	return id, ok
}

// verify checks a token of the issuer.
func (a *authenticator) verify(ctx context.Context, token string) (subjects.AgentID, error) {
	away := func(err error) error {
		f := faultf(kindUnavailable, "the identity provider does not answer")
		f.retry, f.cause = time.Second, err
		return f
	}
	keys, err := a.trusted.get(time.Now(), forever, func() (*trusted, error) { return discover(ctx, a.provider, a.cfg.Issuer) })
	if err != nil {
		return "", away(err)
	}
	v := &verdict{keys: keys}
	t, err := oidc.NewVerifier(a.cfg.Issuer, v, &oidc.Config{ClientID: a.cfg.Audience, SupportedSigningAlgs: keys.algorithms, Now: a.cfg.Now}).Verify(ctx, token)
	if v.away != nil {
		return "", away(v.away)
	}
	if err != nil {
		f := faultf(kindUnauthenticated, "the token is not valid")
		if _, expired := errors.AsType[*oidc.TokenExpiredError](err); expired {
			f.message = "the token has expired"
		}
		f.cause = err
		return "", f
	}
	if t.Subject == "" { // whoever has one like it would be the same caller
		return "", faultf(kindUnauthenticated, "the token names nobody: it has no claim sub")
	}
	return named("jwt", t.Issuer, t.Subject), nil
}

// named is the id of somebody whom another party knows by a name that need not
// be one token. It can be nobody's whom the fleet knows otherwise.
func named(how, realm, name string) subjects.AgentID {
	sum := sha256.Sum256([]byte(realm + "\x00" + name))
	return subjects.AgentID(how + "-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])))
}

// limits bounds how often each caller calls.
type limits struct {
	rate  rate.Limit // 0: no limit
	burst int

	mu      sync.Mutex // guards callers
	callers map[subjects.AgentID]*rate.Limiter
}

func newLimits(perSecond float64) *limits {
	return &limits{rate: rate.Limit(perSecond), burst: max(1, int(2*perSecond)), callers: make(map[subjects.AgentID]*rate.Limiter)}
}

// maxCallers bounds the memory of limits; beyond it everybody starts afresh.
const maxCallers = 100_000

// take counts a call; the error says when the next one may come.
func (l *limits) take(id subjects.AgentID) error {
	if l.rate <= 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lim := l.callers[id]
	if lim == nil {
		if len(l.callers) >= maxCallers {
			clear(l.callers)
		}
		lim = rate.NewLimiter(l.rate, l.burst)
		l.callers[id] = lim
	}
	if r := lim.Reserve(); r.Delay() > 0 {
		f := faultf(kindRateLimited, "too many calls; repeat later")
		f.retry = r.Delay()
		r.Cancel()
		return f
	}
	return nil
}
