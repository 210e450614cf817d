package webhooks

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"parley/bus/plant"
	"parley/subjects"
	"parley/subjects/fleet"
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// sender does HTTP exchanges. Connections are kept per endpoint, so that what
// one endpoint may reach is never lent to another.
type sender struct {
	// fixed after newSender
	resolver resolver
	roots    *x509.CertPool
	agent    string
	now      func() time.Time // by which requests are stamped

	mu      sync.Mutex
	clients map[clientKey]*http.Client // guarded by mu
}

type clientKey struct {
	endpoint string
	plain    bool
}

func newSender(r resolver, roots *x509.CertPool, agent string, now func() time.Time) *sender {
	return &sender{resolver: r, roots: roots, agent: agent, now: now, clients: make(map[clientKey]*http.Client)}
}

// client is the one for ep. There are as many as endpoints, not as receivers.
func (s *sender) client(ep *endpoint, plain bool) *http.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := clientKey{ep.Name, plain}
	c, ok := s.clients[key]
	if !ok {
		g := &guard{allow: ep.allow, plain: plain, resolver: s.resolver}
		c = &http.Client{
			Transport: &http.Transport{
				// No Proxy: one from the environment would go around the guard.
				DialContext:       g.dial,
				TLSClientConfig:   &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12},
				ForceAttemptHTTP2: true, DisableCompression: true,
				MaxResponseHeaderBytes: maxAnswer, MaxIdleConnsPerHost: 4, MaxIdleConns: 64,
				IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: ep.Timeout,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		s.clients[key] = c
	}
	return c
}

func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
}

// post brings d to its receiver once; ctx bounds the whole exchange.
func (s *sender) post(ctx context.Context, ep *endpoint, d *fleet.Delivery) outcome {
	start := time.Now()
	o := s.exchange(ctx, ep, d, s.now())
	o.took = time.Since(start)
	return o
}

func (s *sender) exchange(ctx context.Context, ep *endpoint, d *fleet.Delivery, now time.Time) outcome {
	address, headers := ep.URL, ep.Headers
	if d.URL != "" {
		if ep.URL != "" {
			return refused(subjects.CodeInvalidMessage, "the delivery has a url, and so has its endpoint")
		}
		address, headers = d.URL, d.Headers
	}
	if address == "" {
		return refused(subjects.CodeInvalidMessage, "the endpoint has no URL, and neither has the delivery")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(d.Body))
	if err != nil {
		return refused(subjects.CodeInvalidMessage, "the URL cannot be called")
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	if plant.Bug("body_changes") {
		req.Body = io.NopCloser(strings.NewReader(string(d.Body) + strconv.Itoa(now.Nanosecond())))
		req.ContentLength = -1
	}
	id, stamp := string(d.DeliveryID), strconv.FormatInt(now.Unix(), 10)
	req.Header.Set("Content-Type", d.ContentType)
	req.Header.Set("User-Agent", s.agent)
	req.Header.Set("Idempotency-Key", id)
	if d.Traceparent != "" {
		req.Header.Set("Traceparent", d.Traceparent)
	}
	req.Header.Set("Webhook-Id", id)
	if plant.Sometimes("stamp_wrong", 5) {
		stamp = strconv.FormatInt(now.Add(-time.Hour).Unix(), 10)
	}
	req.Header.Set("Webhook-Timestamp", stamp)
	if plant.Sometimes("sign_wrong", 2) {
		stamp += "1"
	}
	if keys := ep.keys; len(keys) > 0 {
		if plant.Bug("one_key") {
			keys = keys[:1]
		}
		req.Header.Set("Webhook-Signature", sign(keys, id, stamp, d.Body))
	}
	resp, err := s.client(ep, req.URL.Scheme == "http").Do(req)
	if err != nil {
		return unanswered(err)
	}
	defer func() { _ = resp.Body.Close() }()
	// A receiver that has said 2xx has taken it, whatever becomes of the rest
	// of its answer; reading some of that keeps the connection.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	return answered(resp.StatusCode, parseRetryAfter(resp.Header.Get("Retry-After"), now))
}

// sign makes the webhook-signature of Standard Webhooks: one v1 per key.
func sign(keys [][]byte, id, stamp string, body []byte) string {
	all := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		all[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(all, " ")
}

func refused(code subjects.Code, message string) outcome {
	return outcome{refused: true, err: &fleet.Reason{Code: code, Message: message}}
}

// unanswered is what an exchange without an answer means. Its text has nothing
// of the address but the host: a path may be a secret.
func unanswered(err error) outcome {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	fail := func(message string) outcome {
		return outcome{err: &fleet.Reason{Code: subjects.CodeUnavailable, Message: message}}
	}
	var timeout net.Error
	dns, isDNS := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, errForbidden):
		return refused(subjects.CodeHostNotAllowed, err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fail("no answer in time")
	case isDNS:
		return fail("the host " + dns.Name + " is not found")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fail("the connection closed before an answer came")
	}
	return fail("no answer: " + clip(err.Error()))
}

// clip bounds text from outside.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// reach opens a connection to ep and closes it again.
func (s *sender) reach(ctx context.Context, ep *endpoint) error {
	u, err := url.Parse(ep.URL)
	if err != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	g := &guard{allow: ep.allow, plain: u.Scheme == "http", resolver: s.resolver}
	conn, err := g.dial(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	return conn.Close()
}
