package gateway

import (
	"cmp"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// DoorConfig is who a Door lets in. Its fields are those of Config.
type DoorConfig struct {
	Auth      Auth
	Open      bool
	Origins   []string
	Rate      float64
	URL       string
	Anonymous subjects.AgentID // who calls, where nobody is asked; "": nobody in particular

	WriteTimeout time.Duration // for a reader that does not read; absent 30 s
}

// Door keeps out of other pages on the gateway's port whom the gateway keeps
// out: hosts that are not ours, pages of the web, callers who do not say who
// they are, and those who call too often.
type Door struct {
	cfg    DoorConfig
	auth   *authenticator
	limits *limits
	host   string // of cfg.URL
}

// NewDoor checks cfg and makes a Door.
func NewDoor(cfg DoorConfig) (*Door, error) {
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, writeTimeout)
	d := &Door{cfg: cfg, auth: newAuthenticator(cfg.Auth), limits: newLimits(cfg.Rate)}
	if cfg.URL != "" {
		u, err := url.Parse(cfg.URL)
		if err != nil {
			return nil, err
		}
		d.host = u.Hostname()
	}
	return d, nil
}

// Headers that pages of listed origins may send to other pages than the
// gateway's, and read from them.
const (
	sentHeaders = "Authorization, Content-Type, Last-Event-ID, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id, A2E-Session-Token, " + headerAPIKey
	readHeaders = "Mcp-Session-Id, A2E-Session-Token, Retry-After"
)

// Page is a page that asks next for every request that names one of our hosts
// and comes from no page of the web but those that may, and lets a reader go that
// does not read. Who calls is Caller's.
func (d *Door) Page(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		rw := impatiently(out, d.cfg.WriteTimeout)
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		if !hostAllowed(r.Host, d.host, d.auth.cfg.required() || d.cfg.Open) {
			refusePage(rw, &fault{kind: kindUnauthorized, message: "this host name is not served here"})
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !sameOrigin(origin, r.Host) {
			if !slices.Contains(d.cfg.Origins, origin) {
				refusePage(rw, &fault{kind: kindUnauthorized, message: "pages of this origin may not call"})
				return
			}
			h := rw.Header()
			h.Set("Access-Control-Allow-Origin", origin)
			h.Add("Vary", "Origin")
			h.Set("Access-Control-Expose-Headers", readHeaders)
			if r.Method == http.MethodOptions {
				h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
				h.Set("Access-Control-Allow-Headers", sentHeaders)
				h.Set("Access-Control-Max-Age", "600")
				rw.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(rw, r)
	})
}

// Guard is a Page that calls serve with the caller whom a request proves.
func (d *Door) Guard(serve func(http.ResponseWriter, *http.Request, subjects.AgentID)) http.Handler {
	return d.Page(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		from, err := d.identify(r)
		if err == nil && from == "" {
			err = faultf(kindUnauthenticated, "the request does not say who calls")
		}
		if err != nil {
			refusePage(rw, asFault(err))
			return
		}
		patient(rw)
		serve(rw, r, from)
	}))
}

// Caller says who makes a request. The error is a *subjects.Error.
func (d *Door) Caller(r *http.Request) (subjects.AgentID, error) {
	id, err := d.identify(r)
	if err == nil {
		return id, nil
	}
	f := asFault(err)
	code := subjects.CodeUnavailable
	switch f.kind {
	case kindUnauthenticated:
		code = subjects.CodeAuthFailed
	case kindRateLimited:
		code = subjects.CodeRateLimited
	}
	return "", subjects.Errorf(code, "%s", f.message).RetryAfter(f.retry)
}

// identify says who calls, as a caller of the gateway, and counts the call.
func (d *Door) identify(r *http.Request) (subjects.AgentID, error) {
	from := d.cfg.Anonymous
	if d.auth.cfg.required() {
		var err error
		if from, err = d.auth.identify(r.Context(), r.Header, peerOf(r)); err != nil {
			return "", err
		}
	}
	return from, d.limits.take(from)
}

// refusePage answers an error in plain words.
func refusePage(rw http.ResponseWriter, f *fault) {
	if f.retry > 0 {
		rw.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retry.Seconds()))))
	}
	if f.kind == kindUnauthenticated {
		rw.Header().Set("WWW-Authenticate", `Bearer realm="parley"`)
	}
	http.Error(rw, f.message, f.kind.http)
}

// sameOrigin reports whether a page's origin is the host that it calls.
func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// maxHost is how long a host may be that a request names.
const maxHost = 255

// hostAllowed keeps pages of the web from a port that asks nobody who they are:
// such a one answers only under names that mean this machine, or ours.
func hostAllowed(host, ours string, anyone bool) bool {
	if len(host) > maxHost {
		return false
	}
	if anyone {
		return true
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback() || ours != "" && strings.EqualFold(name, ours)
}
