package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// webhookPoints are the crash points of the webhooks worker, :2 in the second
// attempt. A receiver that fails first makes it begin one.
var webhookPoints = []string{
	"before_webhook_claim", "after_webhook_claim", "after_webhook_send", "after_webhook_outcome",
	"before_webhook_claim:2", "after_webhook_claim:2", "after_webhook_send:2", "after_webhook_outcome:2",
	"after_webhook_purge",
}

// poisonPoints are those at which it deals with what is no delivery.
var poisonPoints = []string{"after_burial"}

const webhookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

// hook is a receiver whose first answer is a failure.
type hook struct {
	*httptest.Server
	mu  sync.Mutex
	ids []string // guarded by mu; the webhook-ids of what came, in order
}

func newHook(tb testing.TB) *hook {
	tb.Helper()
	wh, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		tb.Fatal(err)
	}
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the sender died in the middle
		}
		if err := wh.Verify(body, r.Header); err != nil {
			tb.Errorf("signature: %v", err)
		}
		h.mu.Lock()
		h.ids = append(h.ids, r.Header.Get("webhook-id"))
		first := len(h.ids) == 1
		h.mu.Unlock()
		if first {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	tb.Cleanup(h.Close)
	return h
}

func (h *hook) came() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ids)
}

// webhooks starts a webhooks worker of the binary given.
func (f *testFleet) webhooks(name, binary string, h *hook, env ...string) *process {
	f.tb.Helper()
	return start(f.tb, f.dir, program{
		name: name, path: binary,
		env: append(env, "PARLEY_WEBHOOK_URL="+h.URL, "PARLEY_WEBHOOK_SECRET="+webhookSecret,
			"PARLEY_WEBHOOK_ALLOW=127.0.0.1", "PARLEY_WEBHOOK_BASE=100ms", "PARLEY_WEBHOOK_TIMEOUT=3s", "PARLEY_WEBHOOK_RETRIES=5"),
		args: []string{
			"serve", "--workers", "webhooks", "--server", f.url, "--http", "off",
			"--provision", "verify", "--log-format", "text", "--log-level", "debug",
		},
	})
}

// TestWebhookCrash kills a webhooks worker between every two steps of a
// delivery's life, and another one takes over, or has it lose acknowledgements.
// The receiver hears of each delivery,
// in order, under one id, nothing is left in the outbox, and what is no delivery
// is among the dead letters once.
func TestWebhookCrash(t *testing.T) {
	sweep(t, slices.Concat(webhookPoints, poisonPoints), crashWebhook)
}

func crashWebhook(t *testing.T, point string) {
	f := newFleet(t, "registry")
	h := newHook(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	js, err := jetstream.New(f.nc)
	if err != nil {
		t.Fatal(err)
	}
	first := f.webhooks("webhooks-1", crashBinary(t), h, crashEnv(point))
	if _, err := js.Publish(ctx, "fleet.webhook.t.d0", []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"d1", "d2"} {
		m := nats.NewMsg("fleet.webhook.t." + id)
		m.Header.Set("Nats-Msg-Id", id)
		m.Data = []byte(`{"delivery_id":"` + id + `","endpoint":"human","order":"t","schedule":"push","body":{"text":"` + id + `"}}`)
		if _, err := js.PublishMsg(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if dies(t, first, point) {
		f.webhooks("webhooks-2", parleyBinary(t), h)
	}
	for _, id := range []string{"d1", "d2"} {
		f.awaitWebhook(ctx, js, id)
	}
	ids := h.came()
	if got := slices.Compact(slices.Clone(ids)); !slices.Equal(got, []string{"d1", "d2"}) {
		t.Errorf("the receiver heard %v, want d1 as often as it takes, then d2", ids)
	}
	if len(ids) > 4 { // d1 fails once and then arrives, d2 arrives; one attempt more for the crash
		t.Errorf("%d attempts, want 4 at most: %v", len(ids), ids)
	}
	checkLost(t, first, point, "fleet.webhookevent.")
	s, err := js.Stream(ctx, "FLEET_WEBHOOKS")
	if err != nil {
		t.Fatal(err)
	}
	for {
		info, err := s.Info(ctx, jetstream.WithSubjectFilter("fleet.webhook.*.*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(info.State.Subjects) == 0 {
			break
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("left in the outbox: %v", info.State.Subjects)
		}
	}
	if dead := f.deadLetters(); len(dead) != 1 {
		t.Errorf("among the dead letters are %q, want what is no delivery, once", dead)
	}
}

// awaitWebhook waits until a delivery has reached its receiver.
func (f *testFleet) awaitWebhook(ctx context.Context, js jetstream.JetStream, id string) {
	f.tb.Helper()
	s, err := js.Stream(ctx, "FLEET_WEBHOOKS")
	if err != nil {
		f.tb.Fatal(err)
	}
	for {
		var state struct {
			State string `json:"state"`
		}
		m, err := s.GetLastMsgForSubject(ctx, "fleet.webhookevent."+id)
		if err == nil {
			if err := json.Unmarshal(m.Data, &state); err != nil {
				f.tb.Fatal(err)
			}
		}
		if state.State == "delivered" {
			return
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			f.tb.Fatalf("%s is %q (%v)", id, state.State, err)
		}
	}
}
