package webhooks_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/webhooks"
)

func TestDelivers(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	r := newReceiver(t, always(204))
	w, _ := start(t, webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}})
	put(t, b, fleet.Delivery{DeliveryID: "d1", Order: "t1", TaskID: "t1"})
	v := await(t, b, "d1", fleet.DeliveryDelivered)
	if v.Attempts != 1 || v.Status != 204 || v.Error != nil || v.TaskID != "t1" || v.Endpoint != "human" || v.Sending != nil {
		t.Errorf("state %+v", v)
	}
	if got := r.got(); len(got) != 1 || got[0].id != "d1" || got[0].body != `{"text":"d1"}` {
		t.Errorf("calls %+v", got)
	}
	bustest.Eventually(t, "an outbox without the delivery", func() bool {
		_, err := b.Last(t.Context(), subjects.StreamWebhooks, subjects.Webhook("t1", "d1"))
		return err != nil
	})
	// A repeat of what was delivered, beyond the stream's duplicate window.
	d := fleet.Delivery{DeliveryID: "d1", Order: "t1", Endpoint: "human", Body: json.RawMessage(`1`)}
	if _, err := b.Store(t.Context(), subjects.Webhook("t1", "d1"), fleet.MustEncode(&d), "", nil); err != nil {
		t.Fatal(err)
	}
	put(t, b, fleet.Delivery{DeliveryID: "d2", Order: "t1"})
	await(t, b, "d2", fleet.DeliveryDelivered)
	if got := r.ids(); !slices.Equal(got, []string{"d1", "d2"}) {
		t.Errorf("calls %v, want d1 d2: what was delivered is not sent again", got)
	}
	if f := w.Figures(); f.Attempts != 2 || f.Succeeded != 2 || f.Failed != 0 || f.Rate() != 1 {
		t.Errorf("figures %+v", f)
	}
}

// One id in all attempts, the same bytes, and the schedule's waits.
func TestRetries(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	r := newReceiver(t, func(n int, _ string) int {
		if n <= 3 {
			return []int{500, 404, 301}[n-1]
		}
		return 200
	})
	start(t, quick(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}}))
	put(t, b, fleet.Delivery{DeliveryID: "d1", Order: "t1"})
	if v := await(t, b, "d1", fleet.DeliveryDelivered); v.Attempts != 4 {
		t.Errorf("delivered after %d attempts, want 4", v.Attempts)
	}
	for _, c := range r.got() {
		if c.id != "d1" || c.body != `{"text":"d1"}` {
			t.Errorf("call %+v, want the same in each attempt", c)
		}
	}
}

func TestDeadLetterIsReplayed(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	var up sync.Map
	r := newReceiver(t, func(_ int, id string) int {
		if _, ok := up.Load(id); ok {
			return 200
		}
		return 503
	})
	_, stop := start(t, quick(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}, OpenAfter: 100}))
	for _, id := range []string{"d1", "d2", "d3"} {
		put(t, b, fleet.Delivery{DeliveryID: subjects.DeliveryID(id), Order: id, Schedule: fleet.SchedulePush})
	}
	for _, id := range []string{"d1", "d2", "d3"} {
		v := await(t, b, id, fleet.DeliveryDead)
		if v.Attempts != 3 || v.Status != 503 || v.Error == nil || v.Error.Code != subjects.CodeUnavailable || v.Delivery == nil {
			t.Errorf("dead letter %+v", v)
		}
	}
	stop() // another worker knows them as well
	start(t, quick(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}, OpenAfter: 100}))
	list := must[fleet.WebhookListReply](t, b, "list", fleet.WebhookList{State: fleet.DeliveryDead})
	if list.Total != 3 || list.Count[fleet.DeliveryDead] != 3 {
		t.Fatalf("list %+v", list)
	}
	up.Store("d1", true)
	if got := must[fleet.WebhookReplayReply](t, b, "replay", fleet.WebhookReplay{DeliveryID: "d1"}); got.Total != 1 {
		t.Errorf("replay %+v", got)
	}
	v := await(t, b, "d1", fleet.DeliveryDelivered)
	if v.Replays != 1 || v.Attempts != 1 || v.By != "operator" {
		t.Errorf("replayed %+v", v)
	}
	if _, err := ask[fleet.WebhookReplayReply](t, b, "replay", fleet.WebhookReplay{DeliveryID: "d1"}); subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("replay of what was delivered = %v, want not_found", err)
	}
	must[fleet.WebhookView](t, b, "drop", fleet.WebhookRef{DeliveryID: "d2"})
	up.Store("d3", true)
	if got := must[fleet.WebhookReplayReply](t, b, "replay", fleet.WebhookReplay{All: true}); got.Total != 1 || got.Deliveries[0].DeliveryID != "d3" {
		t.Errorf("replay of all %+v, want d3 alone", got)
	}
	await(t, b, "d3", fleet.DeliveryDelivered)
	await(t, b, "d2", fleet.DeliveryDropped)
	for _, c := range r.got() {
		if !slices.Contains([]string{"d1", "d2", "d3"}, c.id) {
			t.Errorf("id %s", c.id)
		}
	}
}

// An operator's replay does not wait for the probe of an open circuit, nor for
// what the receiver asked for.
func TestReplayGoesNow(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	var up atomic.Bool
	r := newReceiver(t, func(int, string) int {
		if up.Load() {
			return 200
		}
		return 503
	})
	c := quick(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}, OpenAfter: 1})
	c.ProbeEvery = time.Hour
	start(t, c)
	put(t, b, fleet.Delivery{DeliveryID: "d1", Order: "d1", Schedule: fleet.ScheduleHuman})
	bustest.Eventually(t, "the first attempt", func() bool {
		v, err := ask[fleet.WebhookView](t, b, "get", fleet.WebhookRef{DeliveryID: "d1"}) // the worker may not have read it yet
		return err == nil && v.Status == 503
	})
	up.Store(true)
	must[fleet.WebhookReplayReply](t, b, "replay", fleet.WebhookReplay{DeliveryID: "d1"})
	await(t, b, "d1", fleet.DeliveryDelivered)
}

// What goes wrong once for an order holds back that order alone; deliveries of
// one order go one at a time, in order, however many workers there are; an
// endpoint has at most four at a time.
func TestOneAtATimePerOrder(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	var mu sync.Mutex
	open := map[string]int{}
	failed := map[string]bool{}
	r := newReceiver(t, func(_ int, id string) int {
		order, _, _ := strings.Cut(id, "-")
		mu.Lock()
		open[order]++
		if open[order] > 1 {
			t.Errorf("two deliveries of order %s at once", order)
		}
		first := !failed[id]
		failed[id] = true
		mu.Unlock()
		<-time.After(3 * time.Millisecond)
		mu.Lock()
		open[order]--
		mu.Unlock()
		if first && strings.HasSuffix(id, "-3") {
			return 500
		}
		return 200
	})
	for range 3 {
		start(t, quick(webhooks.Config{Bus: s.Connect(t), Endpoints: []webhooks.Endpoint{r.endpoint("human")}, OpenAfter: 1000}))
	}
	const orders, each = 6, 6
	for n := range each {
		for o := range orders {
			put(t, b, fleet.Delivery{DeliveryID: subjects.DeliveryID(fmt.Sprintf("o%d-%d", o, n)), Order: fmt.Sprintf("o%d", o)})
		}
	}
	bustest.Eventually(t, "all delivered", func() bool {
		return must[fleet.WebhookListReply](t, b, "list", fleet.WebhookList{}).Count[fleet.DeliveryDelivered] == orders*each
	})
	at := map[string]int{}
	for _, id := range r.ids() {
		order, n, _ := strings.Cut(id, "-")
		if want := strconv.Itoa(at[order]); n != want && (n != strconv.Itoa(at[order]-1) || n != "3") {
			t.Fatalf("order %s: %s came, want %s", order, n, want)
		} else if n == want {
			at[order]++
		}
	}
	if got := len(r.got()); got != orders*each+orders {
		t.Errorf("%d calls, want %d: each once, and one retry for each order", got, orders*each+orders)
	}
}

func TestFourAtATime(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	four := make(chan struct{})
	var once sync.Once
	var r *receiver
	r = newReceiver(t, func(int, string) int {
		r.mu.Lock()
		if r.busy >= webhooks.DefaultPerEndpoint {
			once.Do(func() { close(four) })
		}
		r.mu.Unlock()
		select {
		case <-four:
		case <-time.After(time.Minute / 2):
		}
		return 200
	})
	other := newReceiver(t, always(200))
	start(t, webhooks.Config{Bus: b, Timeout: time.Minute, Endpoints: []webhooks.Endpoint{r.endpoint("human"), other.endpoint("other")}})
	for n := range 20 {
		put(t, b, fleet.Delivery{DeliveryID: subjects.DeliveryID(fmt.Sprint("d", n)), Order: fmt.Sprint("t", n)})
	}
	put(t, b, fleet.Delivery{DeliveryID: "other", Order: "t", Endpoint: "other"})
	await(t, b, "other", fleet.DeliveryDelivered) // not held back
	bustest.Eventually(t, "all delivered", func() bool {
		return must[fleet.WebhookListReply](t, b, "list", fleet.WebhookList{}).Count[fleet.DeliveryDelivered] == 21
	})
	if r.most != webhooks.DefaultPerEndpoint {
		t.Errorf("%d at a time, want %d", r.most, webhooks.DefaultPerEndpoint)
	}
}

// A dead endpoint costs a probe now and then, not an attempt per delivery; all
// arrive once when it is back.
func TestCircuit(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	var mu sync.Mutex
	back := false
	r := newReceiver(t, func(int, string) int {
		mu.Lock()
		defer mu.Unlock()
		if back {
			return 200
		}
		return 503
	})
	other := newReceiver(t, always(200))
	cfg := quick(webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human"), other.endpoint("other")}})
	w, stop := start(t, cfg)
	const waiting = 120
	begin := time.Now()
	for n := range waiting {
		put(t, b, fleet.Delivery{DeliveryID: subjects.DeliveryID(fmt.Sprint("d", n)), Order: fmt.Sprint("t", n)})
	}
	find := func() (e fleet.WebhookEndpoint) {
		for _, e := range must[fleet.WebhookStatusReply](t, b, "status", fleet.WebhookStatus{}).Endpoints {
			if e.Endpoint == "human" {
				return e
			}
		}
		return e
	}
	bustest.Eventually(t, "an open circuit", func() bool { e := find(); return e.Circuit == fleet.CircuitOpen && e.Pending == waiting })
	put(t, b, fleet.Delivery{DeliveryID: "other", Order: "t", Endpoint: "other"})
	await(t, b, "other", fleet.DeliveryDelivered)
	probed := w.Figures().Attempts
	bustest.Eventually(t, "probes", func() bool { return w.Figures().Attempts >= probed+3 })
	if e := find(); e.Sending > 1 || e.Error == nil || e.ProbeAt == nil {
		t.Errorf("while it is open: %+v", e)
	}
	// A machine that is slow has time for more probes.
	if calls := len(r.got()); calls > waiting/4+int(time.Since(begin)/cfg.ProbeEvery) {
		t.Errorf("%d calls to a dead endpoint", calls)
	}
	stop() // what another worker reads tells it that the circuit is open
	start(t, cfg)
	if e := find(); e.Circuit != fleet.CircuitOpen || e.Pending != waiting {
		t.Errorf("another worker has it %s, %d pending; want open, %d", e.Circuit, e.Pending, waiting)
	}
	mu.Lock()
	back = true
	mu.Unlock()
	before := len(r.got())
	bustest.Eventually(t, "all delivered", func() bool {
		return must[fleet.WebhookListReply](t, b, "list", fleet.WebhookList{}).Count[fleet.DeliveryDelivered] == waiting+1
	})
	seen := map[string]int{}
	for _, c := range r.got()[before:] {
		if seen[c.id]++; seen[c.id] > 1 {
			t.Errorf("%s came twice", c.id)
		}
	}
	if e := find(); e.Circuit != fleet.CircuitClosed || e.Failures != 0 {
		t.Errorf("in the end %+v", e)
	}
}

func TestBadDeliveriesAreBuried(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	r := newReceiver(t, always(200))
	start(t, webhooks.Config{Bus: b, Endpoints: []webhooks.Endpoint{r.endpoint("human")}})
	put(t, b, fleet.Delivery{DeliveryID: "taken", Order: "u"})
	await(t, b, "taken", fleet.DeliveryDelivered)
	for id, text := range map[string]string{
		"taken": `{"delivery_id":"taken","order":"t","endpoint":"human","body":"another order's"}`,
		"b1":    `nonsense`, "b2": `{"delivery_id":"b2"}`, "b3": `{"delivery_id":"other","order":"t","endpoint":"human","body":1}`,
	} {
		if _, err := b.Store(t.Context(), subjects.Webhook("t", subjects.DeliveryID(id)), []byte(text), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	put(t, b, fleet.Delivery{DeliveryID: "good", Order: "t"})
	await(t, b, "good", fleet.DeliveryDelivered)
	if ids := r.ids(); !slices.Equal(ids, []string{"taken", "good"}) {
		t.Errorf("sent %v, want what is right alone", ids)
	}
	bustest.Eventually(t, "four dead letters", func() bool {
		letters, err := b.DeadLetters(t.Context(), 10)
		return err == nil && len(letters) == 4
	})
}

// A delivery to an endpoint that is not configured waits for a worker that has
// it, and for its time to end.
func TestUnknownEndpointWaits(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	start(t, webhooks.Config{Bus: b})
	put(t, b, fleet.Delivery{DeliveryID: "d1", Order: "t"})
	soon := time.Now().Add(300 * time.Millisecond)
	put(t, b, fleet.Delivery{DeliveryID: "d2", Order: "u", NotAfter: &soon})
	if v := await(t, b, "d1", fleet.DeliveryPending); !strings.Contains(v.Note, "not configured") || v.Attempts != 0 {
		t.Errorf("view %+v", v)
	}
	if v := await(t, b, "d2", fleet.DeliveryDead); v.Error == nil || v.Error.Code != subjects.CodeDeadlineExceeded {
		t.Errorf("after its time %+v", v)
	}
	r := newReceiver(t, always(200))
	start(t, webhooks.Config{Bus: s.Connect(t), Endpoints: []webhooks.Endpoint{r.endpoint("human")}})
	await(t, b, "d1", fleet.DeliveryDelivered)
}

func TestPushTokenStaysHidden(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	got := make(chan http.Header, 8)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	start(t, quick(webhooks.Config{Bus: b, Allow: []string{"127.0.0.1"}}))
	put(t, b, fleet.Delivery{
		DeliveryID: "p1", Order: "t", URL: server.URL + "/secret-path?x=their-token", Schedule: fleet.SchedulePush,
		Headers: map[string]string{"A2A-Notification-Token": "their-token"},
	})
	v := await(t, b, "p1", fleet.DeliveryDead) // ask checks for secrets
	if v.Endpoint != server.URL || v.Delivery == nil || v.Delivery.Headers["A2A-Notification-Token"] != "(hidden)" {
		t.Errorf("view %+v %+v", v, v.Delivery)
	}
	if h := <-got; h.Get("A2A-Notification-Token") != "their-token" || h.Get("Webhook-Signature") != "" {
		t.Errorf("headers %v", h)
	}
}

func TestAPIIsTheOperators(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, webhooks.Config{Bus: b, Operators: []subjects.AgentID{"boss"}})
	for _, verb := range []string{"list", "get", "replay", "drop", "status"} {
		m, err := b.Request(t.Context(), subjects.API("bob", "webhook", verb), []byte(`{"delivery_id":"x"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fleet.DecodeReply[fleet.WebhookListReply](m.Data); subjects.CodeOf(err) != subjects.CodeForbidden {
			t.Errorf("%s by bob = %v, want forbidden", verb, err)
		}
	}
	for req, want := range map[string]subjects.Code{
		`{"delivery_id":"x"}`: subjects.CodeNotFound, `{"delivery_id":"a.b"}`: subjects.CodeInvalidID, `{}`: subjects.CodeInvalidMessage, `x`: subjects.CodeInvalidMessage,
	} {
		m, err := b.Request(t.Context(), subjects.API("boss", "webhook", "drop"), []byte(req), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fleet.DecodeReply[fleet.WebhookView](m.Data); subjects.CodeOf(err) != want {
			t.Errorf("drop %s = %v, want %s", req, err, want)
		}
	}
}

// TestFullOutboxDrains: what ends makes room for the word of it, so that an outbox
// which is full does not stay so.
func TestFullOutboxDrains(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{WebhooksMaxBytes: 256 << 10}); err != nil {
		t.Fatal(err)
	}
	start(t, webhooks.Config{Bus: b, Operators: []subjects.AgentID{"operator"}})
	soon := time.Now().Add(3 * time.Second)
	var err error
	for i, size := 0, 32<<10; size > 0; i++ {
		d := fleet.Delivery{
			DeliveryID: subjects.DeliveryID(fmt.Sprint("d", i)), Order: "t1", Endpoint: "nowhere", Schedule: fleet.SchedulePush,
			Body: json.RawMessage(`"` + strings.Repeat("x", size) + `"`),
		}
		d.Type = fleet.TypeDelivery
		if i > 0 {
			d.NotAfter = &soon
		}
		if _, err = b.Store(t.Context(), subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(&d), string(d.DeliveryID), nil); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, bus.ErrFull) {
		t.Fatalf("Store = %v, want ErrFull", err)
	}
	if _, err := ask[fleet.WebhookView](t, b, "drop", fleet.WebhookRef{DeliveryID: "d0"}); err != nil {
		t.Errorf("drop = %v", err)
	}
	await(t, b, "d1", fleet.DeliveryDead)
}
