package webhooks

import (
	"bufio"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/subjects"
	"parley/subjects/fleet"
)

var testSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

func checked(t *testing.T, e Endpoint) *endpoint {
	t.Helper()
	c := Config{}.withDefaults()
	if e.Name == "" {
		e.Name = "human"
	}
	ep, err := e.check(&c)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

func delivery(id string) *fleet.Delivery {
	return &fleet.Delivery{
		DeliveryID: subjects.DeliveryID(id), Endpoint: "human", Order: "t1", ContentType: "application/json",
		Body: []byte(`{"escalation_level": 3,  "reason":"agent_failure"}`), Schedule: fleet.ScheduleHuman,
	}
}

func post(t *testing.T, ep *endpoint, d *fleet.Delivery, roots *x509.CertPool) outcome {
	t.Helper()
	s := newSender(net.DefaultResolver, roots, "Parley/test", time.Now)
	t.Cleanup(s.close)
	ctx, cancel := context.WithTimeout(t.Context(), ep.Timeout)
	defer cancel()
	return s.post(ctx, ep, d)
}

// The receiver sees the very bytes, the endpoint's headers, and signatures that
// the maintained library of Standard Webhooks verifies, one for each secret.
func TestPostIsSigned(t *testing.T) {
	t.Parallel()
	other := "whsec_" + base64.StdEncoding.EncodeToString([]byte("another secret of 24 bytes or so"))
	got := make(chan *http.Request, 1)
	body := make(chan []byte, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r
		body <- b
	}))
	defer server.Close()
	d := delivery("esc_1")
	o := post(t, checked(t, Endpoint{
		URL: server.URL + "/webhook/x", Secrets: []string{testSecret, other}, Allow: []string{"127.0.0.1"},
		Headers: map[string]string{"X-N8N-Key": "k1", "Authorization": "Bearer b1"},
	}), d, nil)
	if !o.ok() || o.status != 200 {
		t.Fatalf("outcome %+v", o)
	}
	r, b := <-got, <-body
	if string(b) != string(d.Body) {
		t.Errorf("body %s, want %s", b, d.Body)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "X-N8N-Key": "k1", "Authorization": "Bearer b1", "Webhook-Id": "esc_1",
		"Idempotency-Key": "esc_1", "User-Agent": "Parley/test",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, secret := range []string{testSecret, other} {
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(b, r.Header); err != nil {
			t.Errorf("verify: %v", err)
		}
		if wh.Verify(append(b, ' '), r.Header) == nil {
			t.Error("another body verifies too")
		}
	}
}

// A request is stamped by the servers' clocks: a receiver refuses what is too old
// or from the future, whatever is wrong with the clock of this machine.
func TestPostIsStampedByTheServersTime(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer server.Close()
	at := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	s := newSender(net.DefaultResolver, nil, "Parley/test", func() time.Time { return at })
	defer s.close()
	if o := s.post(t.Context(), checked(t, Endpoint{URL: server.URL, Allow: []string{"127.0.0.1"}}), delivery("esc_1")); !o.ok() {
		t.Fatalf("outcome %+v", o)
	}
	if stamp, want := (<-got).Get("Webhook-Timestamp"), strconv.FormatInt(at.Unix(), 10); stamp != want {
		t.Errorf("webhook-timestamp %s, want %s", stamp, want)
	}
}

// A delivery with a URL of its own brings its own headers, and is signed with
// the secret that its endpoint lends it.
func TestPostToAURL(t *testing.T) {
	t.Parallel()
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header }))
	defer server.Close()
	d := delivery("push_1")
	d.Endpoint, d.URL, d.ContentType = "push", server.URL+"/cb", "application/a2a+json"
	d.Headers = map[string]string{"A2A-Notification-Token": "tok", "Authorization": "Bearer theirs"}
	lender := Endpoint{Name: "push", Secrets: []string{testSecret}, Headers: map[string]string{"X-API-Key": "ours"}, Allow: []string{"127.0.0.0/8"}}
	if o := post(t, checked(t, lender), d, nil); !o.ok() {
		t.Fatalf("outcome %+v", o)
	}
	h := <-got
	if h.Get("A2A-Notification-Token") != "tok" || h.Get("Authorization") != "Bearer theirs" ||
		h.Get("Content-Type") != "application/a2a+json" || h.Get("Webhook-Signature") == "" || h.Get("X-API-Key") != "" {
		t.Errorf("headers %v", h)
	}
	lender.URL = "https://elsewhere.example/"
	if o := post(t, checked(t, lender), d, nil); o.ok() || !o.refused {
		t.Errorf("an endpoint with a URL lends its secret to another URL: %+v", o)
	}
}

func TestPostOverHTTP2(t *testing.T) {
	t.Parallel()
	proto := make(chan int, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto <- r.ProtoMajor }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	ep := checked(t, Endpoint{URL: server.URL, Allow: []string{"127.0.0.1"}})
	if o := post(t, ep, delivery("d"), roots); !o.ok() {
		t.Fatalf("outcome %+v", o)
	}
	if got := <-proto; got != 2 {
		t.Errorf("HTTP/%d, want 2", got)
	}
	if o := post(t, ep, delivery("d"), nil); o.ok() || o.err.Code != subjects.CodeUnavailable {
		t.Errorf("a certificate nobody vouches for is accepted: %+v", o)
	}
}

// raw serves one connection after another by hand.
func raw(t *testing.T, serve func(ctx context.Context, c net.Conn, r *http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				serve(ctx, c, r)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { cancel(); _ = l.Close(); <-done })
	return "http://" + l.Addr().String() + "/secret-path?key=secret-query"
}

func TestFaultyReceivers(t *testing.T) {
	t.Parallel()
	inside := new(atomic.Int64)
	metadata := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	t.Cleanup(metadata.Close)
	tick := func(ctx context.Context, d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for name, tt := range map[string]struct {
		serve   func(ctx context.Context, c net.Conn, r *http.Request)
		ok      bool
		status  int
		code    subjects.Code
		says    string
		refused bool
		after   time.Duration
		timeout time.Duration // of the exchange, where that ends it; otherwise it is long
	}{
		"hangs": {
			timeout: 400 * time.Millisecond,
			serve:   func(ctx context.Context, _ net.Conn, _ *http.Request) { <-ctx.Done() },
			code:    subjects.CodeUnavailable, says: "no answer in time",
		},
		"drips its headers": {
			timeout: 400 * time.Millisecond,
			serve: func(ctx context.Context, c net.Conn, _ *http.Request) {
				for _, b := range []byte(head + strings.Repeat("X-Slow: 1\r\n", 100)) {
					if _, err := c.Write([]byte{b}); err != nil || !tick(ctx, 10*time.Millisecond) {
						return
					}
				}
			},
			code: subjects.CodeUnavailable, says: "no answer in time",
		},
		"endless headers": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, err := io.WriteString(c, head)
				for err == nil {
					_, err = io.WriteString(c, "X-More: "+strings.Repeat("x", 1000)+"\r\n")
				}
			},
			code: subjects.CodeUnavailable,
		},
		"accepts, then drips its body": {
			timeout: 2 * time.Second,
			serve: func(ctx context.Context, c net.Conn, _ *http.Request) {
				_, err := io.WriteString(c, head+"Content-Length: 1000\r\n\r\n")
				for err == nil && tick(ctx, 10*time.Millisecond) {
					_, err = c.Write([]byte("x"))
				}
			},
			ok: true, status: 200,
		},
		"accepts, with an endless body": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, err := io.WriteString(c, head+"\r\n")
				for n := 0; err == nil && n < 64<<20; n += 1 << 20 {
					_, err = c.Write(make([]byte, 1<<20))
				}
				if err == nil {
					t.Error("64 MiB of an answer were read")
				}
			},
			ok: true, status: 200,
		},
		"accepts, then closes early": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, head+"Content-Length: 1000\r\n\r\nx")
			},
			ok: true, status: 200,
		},
		"closes at once": {
			serve: func(context.Context, net.Conn, *http.Request) {},
			code:  subjects.CodeUnavailable, says: "closed before an answer",
		},
		"speaks no HTTP": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, "220 smtp\r\n\r\n") },
			code:  subjects.CodeUnavailable,
		},
		"500": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
			},
			status: 500, code: subjects.CodeUnavailable, says: "500",
		},
		"429": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, "HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")
			},
			status: 429, code: subjects.CodeRateLimited, after: 7 * time.Second,
		},
		"redirects inside": {
			serve: func(_ context.Context, c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, "HTTP/1.1 301 Moved\r\nLocation: "+metadata.URL+"/latest/meta-data\r\nContent-Length: 0\r\n\r\n")
			},
			status: 301, code: subjects.CodeInvalidMessage, says: "not followed", refused: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := raw(t, tt.serve)
			ep := checked(t, Endpoint{URL: address, Allow: []string{"127.0.0.1"}, Timeout: cmp.Or(tt.timeout, time.Minute)})
			o := post(t, ep, delivery("d"), nil)
			if o.ok() != tt.ok || o.status != tt.status || o.refused != tt.refused || o.retryAfter != tt.after {
				t.Errorf("outcome %+v (%v), want %+v", o, o.err, tt)
			}
			if o.err != nil && (o.err.Code != tt.code || !strings.Contains(o.err.Message, tt.says)) {
				t.Errorf("reason %v, want %s with %q", o.err, tt.code, tt.says)
			}
			if o.err != nil && strings.Contains(o.err.Message, "secret") {
				t.Errorf("the reason tells the address: %s", o.err.Message)
			}
		})
	}
	t.Cleanup(func() {
		if inside.Load() > 0 {
			t.Error("a redirect was followed")
		}
	})
}

func TestPostRefusesInsideAddresses(t *testing.T) {
	t.Parallel()
	reached := new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer server.Close()
	port := strconv.Itoa(server.Listener.Addr().(*net.TCPAddr).Port)
	for _, u := range []string{server.URL, "http://localhost:" + port, "https://127.0.0.1:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://0x7f.1:" + port} {
		o := post(t, checked(t, Endpoint{URL: u, Timeout: 2 * time.Second}), delivery("d"), nil)
		if o.ok() || o.err.Code != subjects.CodeHostNotAllowed && !strings.Contains(u, "0x7f") {
			t.Errorf("%s: %v, want host_not_allowed", u, o.err)
		}
	}
	if reached.Load() > 0 {
		t.Error("an address of this machine was reached")
	}
}

func TestEndpointRefusals(t *testing.T) {
	t.Parallel()
	c := Config{}.withDefaults()
	for name, e := range map[string]Endpoint{
		"name":          {Name: "a b"},
		"scheme":        {Name: "a", URL: "ftp://a.example"},
		"no secret":     {Name: "a", Secrets: []string{"hunter2"}},
		"short secret":  {Name: "a", Secrets: []string{"whsec_aHVudGVyMg=="}},
		"secret base64": {Name: "a", Secrets: []string{"whsec_hunter2!"}},
		"header":        {Name: "a", Headers: map[string]string{"Webhook-Id": "hunter2"}},
		"header value":  {Name: "a", Headers: map[string]string{"X": "hunter2\n"}},
		"allow":         {Name: "a", Allow: []string{"10.0.0.0/99"}},
		"time-out":      {Name: "a", Timeout: time.Hour},
		"schedule":      {Name: "a", Push: Schedule{Attempts: 2}},
		"password":      {Name: "a", URL: "https://u:hunter2@a.example"},
	} {
		if _, err := e.check(&c); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
