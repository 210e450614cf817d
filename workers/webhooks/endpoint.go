package webhooks

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Endpoint is a receiver that deliveries name.
type Endpoint struct {
	Name string // one token
	// URL is where to POST. An endpoint without one serves deliveries that
	// bring a URL of their own: it lends them secret, allow list and schedules.
	URL string
	// Secrets sign, each with a signature of its own, so that one can be
	// replaced while both hold: whsec_ and base64, as Standard Webhooks has it.
	Secrets []string
	Headers map[string]string // whatever the receiver wants to see, such as n8n's header auth
	// Allow lists hosts, addresses and networks (CIDR) that may be called
	// although they are not public, or without TLS.
	Allow   []string
	Timeout time.Duration // of a whole exchange; 0 = Config.Timeout
	Human   Schedule      // zero = Config.Human
	Push    Schedule      // zero = Config.Push
}

// LogValue keeps address, secrets and headers out of logs.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.Name) }

// String keeps address, secrets and headers out of messages.
func (e Endpoint) String() string { return "endpoint " + e.Name }

// GoString keeps them out of %#v.
func (e Endpoint) GoString() string { return e.String() }

// endpoint is an Endpoint that was checked.
type endpoint struct {
	Endpoint
	keys  [][]byte
	allow allowList
}

// secretPrefix is how a secret of Standard Webhooks begins.
const secretPrefix = "whsec_"

// parseSecret reads whsec_<base64> of 24 to 64 bytes. The error does not
// repeat it.
func parseSecret(s string) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(s), secretPrefix)
	if !ok {
		return nil, fmt.Errorf("the secret does not begin with %s", secretPrefix)
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("the secret is not base64 after %s", secretPrefix)
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, fmt.Errorf("the secret has %d bytes, expected 24 to 64; make one with: echo %s$(openssl rand -base64 32)", len(key), secretPrefix)
	}
	return key, nil
}

// check checks e, with c's defaults in the place of what it leaves open.
func (e Endpoint) check(c *Config) (*endpoint, error) {
	fail := func(err error) (*endpoint, error) { return nil, fmt.Errorf("webhook endpoint %q: %w", e.Name, err) }
	if !subjects.ValidToken(e.Name) {
		return fail(errors.New("the name must be 1 to 64 of the characters A-Z a-z 0-9 _ -"))
	}
	if e.URL != "" {
		// A delivery to it would be refused for the same reasons.
		probe := fleet.Delivery{DeliveryID: "x", Order: "x", URL: e.URL, Headers: e.Headers, Body: []byte("{}")}
		if _, err := fleet.DecodeDelivery(fleet.MustEncode(&probe)); err != nil {
			return fail(err)
		}
	}
	for name, value := range e.Headers {
		if why := fleet.BadHeader(name, value); why != "" {
			return fail(fmt.Errorf("header %q: %s", name, why))
		}
	}
	out := &endpoint{Endpoint: e}
	for _, s := range e.Secrets {
		key, err := parseSecret(s)
		if err != nil {
			return fail(err)
		}
		out.keys = append(out.keys, key)
	}
	var err error
	if out.allow, err = parseAllow(e.Allow); err != nil {
		return fail(err)
	}
	out.Timeout = cmp.Or(e.Timeout, c.Timeout)
	if out.Human.zero() {
		out.Human = c.Human
	}
	if out.Push.zero() {
		out.Push = c.Push
	}
	if err := errors.Join(out.Human.validate(), out.Push.validate()); err != nil {
		return fail(err)
	}
	if out.Timeout < 0 || out.Timeout > time.Minute {
		return fail(fmt.Errorf("time-out %s: expected at most 1m", out.Timeout))
	}
	return out, nil
}

// schedule is e's for a delivery of that kind.
func (e *endpoint) schedule(kind string) Schedule {
	if kind == fleet.SchedulePush {
		return e.Push
	}
	return e.Human
}
