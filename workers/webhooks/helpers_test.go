package webhooks_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/webhooks"
)

var secret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

// start runs a worker until the test ends or stop is called, and waits until
// it serves.
func start(t *testing.T, cfg webhooks.Config) (w *webhooks.Worker, stop func()) {
	t.Helper()
	w, err := webhooks.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w, bustest.Serve(t, w)
}

// call is one POST that a receiver got.
type call struct {
	id, body string
	at       time.Time
}

// receiver is an HTTP server that verifies signatures and notes calls.
type receiver struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex
	calls  []call
	answer func(n int, id string) int // the status of the n-th call, from 1
	busy   int
	most   int
}

func newReceiver(t *testing.T, answer func(n int, id string) int) *receiver {
	t.Helper()
	r := &receiver{t: t, answer: answer}
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = wh.Verify(body, req.Header)
		}
		if err != nil {
			t.Errorf("signature: %v", err)
		}
		r.mu.Lock()
		r.busy++
		r.most = max(r.most, r.busy)
		r.calls = append(r.calls, call{req.Header.Get("webhook-id"), string(body), time.Now()})
		n := len(r.calls)
		r.mu.Unlock()
		status := r.answer(n, req.Header.Get("webhook-id"))
		r.mu.Lock()
		r.busy--
		r.mu.Unlock()
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) got() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func (r *receiver) ids() []string {
	var ids []string
	for _, c := range r.got() {
		ids = append(ids, c.id)
	}
	return ids
}

func (r *receiver) endpoint(name string) webhooks.Endpoint {
	return webhooks.Endpoint{Name: name, URL: r.URL + "/webhook/secret-path", Secrets: []string{secret}, Allow: []string{"127.0.0.1"}}
}

func always(status int) func(int, string) int { return func(int, string) int { return status } }

// quick are schedules for tests.
func quick(c webhooks.Config) webhooks.Config {
	c.Human = webhooks.Schedule{Steps: []time.Duration{20 * time.Millisecond}, Refused: true}
	c.Push = webhooks.Schedule{Attempts: 3, Base: 10 * time.Millisecond}
	c.ProbeEvery = 100 * time.Millisecond
	return c
}

// put stores a delivery to an endpoint.
func put(t *testing.T, b *bus.Bus, d fleet.Delivery) {
	t.Helper()
	if d.Endpoint == "" && d.URL == "" {
		d.Endpoint = "human"
	}
	if d.Body == nil {
		d.Body = json.RawMessage(`{"text":"` + string(d.DeliveryID) + `"}`)
	}
	d.Type = fleet.TypeDelivery
	if _, err := b.Store(t.Context(), subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(&d), string(d.DeliveryID), nil); err != nil {
		t.Fatal(err)
	}
}

// ask calls the API as an operator.
func ask[T any](t *testing.T, b *bus.Bus, verb string, req any) (T, error) {
	t.Helper()
	m, err := b.Request(t.Context(), subjects.API("operator", "webhook", verb), fleet.MustEncode(req), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{secret, "secret-path", "their-token"} {
		if strings.Contains(string(m.Data), no) {
			t.Errorf("webhook %s tells a secret: %s", verb, m.Data)
		}
	}
	return fleet.DecodeReply[T](m.Data)
}

func must[T any](t *testing.T, b *bus.Bus, verb string, req any) T {
	t.Helper()
	v, err := ask[T](t, b, verb, req)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// await waits until a delivery is in a state.
func await(t *testing.T, b *bus.Bus, id, state string) (v fleet.WebhookView) {
	t.Helper()
	bustest.Eventually(t, id+" "+state, func() bool {
		var err error
		v, err = ask[fleet.WebhookView](t, b, "get", fleet.WebhookRef{DeliveryID: subjects.DeliveryID(id)})
		return err == nil && v.State == state
	})
	return v
}
