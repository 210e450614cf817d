package webhooks

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// fake is a receiver under fake time: what a sender's post would have got.
type fake struct {
	mu       sync.Mutex
	attempts []time.Time // guarded by mu
	ids      map[string]int
	answer   func() outcome
}

func (f *fake) post(_ context.Context, _ *endpoint, d *fleet.Delivery) outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts = append(f.attempts, time.Now())
	if f.ids == nil {
		f.ids = make(map[string]int)
	}
	f.ids[string(d.DeliveryID)]++
	return f.answer()
}

// made are the times of the attempts.
func (f *fake) made() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.attempts)
}

// of counts the attempts of a delivery.
func (f *fake) of(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids[id]
}

// begin runs a worker that posts to f until the test ends.
func (f *fake) begin(t *testing.T, b *bus.Bus) *Worker {
	t.Helper()
	w, err := New(Config{Bus: b, Endpoints: []Endpoint{{Name: "human", URL: "https://hook.example/"}}})
	if err != nil {
		t.Fatal(err)
	}
	w.post = f.post
	bustest.Run(t, w.Run)
	return w
}

func store(t *testing.T, b *bus.Bus, id, order string) {
	t.Helper()
	d := delivery(id)
	d.Order = order
	if _, err := b.Store(t.Context(), subjects.Webhook(order, d.DeliveryID), fleet.MustEncode(d), id, nil); err != nil {
		t.Fatal(err)
	}
}

func lastState(t *testing.T, b *bus.Bus, id string) fleet.DeliveryState {
	t.Helper()
	m, err := b.Last(t.Context(), subjects.StreamWebhooks, subjects.WebhookEvent(subjects.DeliveryID(id)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := fleet.DecodeDeliveryState(m.Data)
	if err != nil {
		t.Fatal(err)
	}
	return *s
}

// A receiver that is away for the whole time of a delivery: it is called again
// and again as the schedule has it, and what remains is a dead letter.
func TestAwayForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		f := &fake{answer: func() outcome { return answered(503, 0) }}
		f.begin(t, b)
		start := time.Now()
		d := delivery("d1")
		d.NotAfter = new(start.Add(3 * time.Hour))
		if _, err := b.Store(t.Context(), subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(d), "d1", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Hour + time.Minute)
		got, made := lastState(t, b, "d1"), f.made()
		if got.State != fleet.DeliveryDead || got.Attempts < 17 || got.Attempts > 27 || got.Attempts != len(made) {
			t.Errorf("in the end %s, %d attempts (%d made)", got.State, got.Attempts, len(made))
		}
		if first := made[0].Sub(start); first > time.Second {
			t.Errorf("first attempt after %v, want at once", first)
		}
		for i := 1; i < len(made); i++ {
			if gap := made[i].Sub(made[i-1]); gap > 13*time.Minute || gap < 3*time.Second {
				t.Errorf("attempt %d came %v after the one before", i+1, gap)
			}
		}
		if _, err := b.Last(t.Context(), subjects.StreamWebhooks, subjects.Webhook("t1", "d1")); err != nil {
			t.Errorf("its body: %v", err)
		}
	})
}

// A delivery whose end could not be stored rests before that is tried again.
func TestAnEndThatFails(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	now := time.Unix(1e9, 0).UTC()
	d := delivery("d")
	d.NotAfter = new(now.Add(-time.Second))
	x.stored(d, 1, now)
	_, over, _ := x.next(now, 10, 64)
	if len(over) != 1 {
		t.Fatalf("%d deliveries are over, want one", len(over))
	}
	x.release(over[0], now.Add(retryBus))
	if _, again, wake := x.next(now, 10, 64); len(again) != 0 || !wake.Equal(now.Add(retryBus)) {
		t.Errorf("%d are over again, next look at %s, want none before %s", len(again), wake, now.Add(retryBus))
	}
	if _, again, _ := x.next(now.Add(retryBus), 10, 64); len(again) != 1 {
		t.Errorf("%d are over after that, want one", len(again))
	}
}

// Ended deliveries are forgotten after their time, and no sooner.
func TestStale(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	start := time.Unix(1e9, 0).UTC()
	for n, state := range []string{fleet.DeliveryPending, fleet.DeliveryDelivered, fleet.DeliveryDead, fleet.DeliveryDropped} {
		d := delivery(state)
		x.stored(d, uint64(n+1), start)
		st := begin(d, start)
		st.State = state
		x.recorded(&st, uint64(n+10), start)
	}
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{KeepDelivered - time.Minute, 0}, {KeepDelivered + time.Minute, 2}, {KeepDead - time.Minute, 2}, {KeepDead + time.Minute, 3}, {365 * 24 * time.Hour, 3}} {
		if got := x.stale(start.Add(tt.after), keep{KeepDelivered, KeepDead, keepMost, keepDeadOf}, 100); len(got) != tt.want {
			t.Errorf("after %v %d are old, want %d", tt.after, len(got), tt.want)
		}
	}
	if got := x.stale(start.Add(2*time.Hour), keep{KeepDelivered, KeepDead, 0, keepDeadOf}, 100); len(got) != 1 || got[0].state.State != fleet.DeliveryDelivered {
		t.Errorf("%d are too many, want the delivered one", len(got))
	}
}

// A target that failed is forgotten a day after, once nothing waits for it.
func TestStaleLanes(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	start := time.Unix(1e9, 0).UTC()
	fail := func(target string, n int, state string) {
		d := delivery(target)
		d.Endpoint, d.URL = "", target+"/hook"
		x.stored(d, uint64(len(x.entries)+1), start)
		for i := range n {
			st := begin(d, start)
			st.Attempts, st.Error = i+1, &fleet.Reason{Code: subjects.CodeUnavailable}
			if i == n-1 {
				st.State = state
			}
			x.recorded(&st, uint64(1000*len(x.entries)+i), start)
		}
	}
	fail("https://once.example", 1, fleet.DeliveryDead)
	fail("https://often.example", 9, fleet.DeliveryDead)
	fail("https://waits.example", 9, fleet.DeliveryPending)
	k := keep{KeepDelivered, KeepDead, keepMost, keepDeadOf}
	x.stale(start.Add(24*time.Hour), k, 100)
	if len(x.lanes) != 3 || x.lanes["https://once.example"].failures != 1 || x.lanes["https://often.example"].failures != 9 {
		t.Errorf("after a day %d targets are known, want three, and how often they failed", len(x.lanes))
	}
	x.stale(start.Add(24*time.Hour+2*time.Minute), k, 100)
	if len(x.lanes) != 1 || x.lanes["https://waits.example"] == nil {
		t.Errorf("after that %d targets are known, want the one that something waits for", len(x.lanes))
	}
}

// The endpoint comes back after an hour: what waited arrives within minutes,
// each once.
func TestBackAfterAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		back := time.Now().Add(time.Hour)
		f := &fake{answer: func() outcome {
			if time.Now().Before(back) {
				return outcome{err: &fleet.Reason{Code: subjects.CodeUnavailable, Message: "no answer in time"}}
			}
			return outcome{status: 200}
		}}
		f.begin(t, b)
		const waiting = 50
		for n := range waiting {
			store(t, b, fmt.Sprint("d", n), fmt.Sprint("t", n))
		}
		time.Sleep(59 * time.Minute)
		if n := len(f.made()); n > 75 {
			t.Errorf("%d attempts within an hour for %d deliveries: the circuit does not spare them", n, waiting)
		}
		time.Sleep(14 * time.Minute)
		for n := range waiting {
			if got := lastState(t, b, fmt.Sprint("d", n)); got.State != fleet.DeliveryDelivered {
				t.Errorf("d%d is %s", n, got.State)
			}
		}
	})
}

// A receiver that asks for quiet gets it, for all that waits for it.
func TestRetryAfterHoldsTheEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		first := true
		f := &fake{}
		f.answer = func() outcome {
			defer func() { first = false }()
			if first {
				return answered(429, 20*time.Minute)
			}
			return outcome{status: 200}
		}
		f.begin(t, b)
		store(t, b, "d1", "t1")
		time.Sleep(time.Second)
		store(t, b, "d2", "t2")
		time.Sleep(19 * time.Minute)
		if n := len(f.made()); n != 1 {
			t.Errorf("%d attempts while the receiver wants quiet, want 1", n)
		}
		time.Sleep(2 * time.Minute)
		for _, id := range []string{"d1", "d2"} {
			if got := lastState(t, b, id); got.State != fleet.DeliveryDelivered {
				t.Errorf("%s is %s", id, got.State)
			}
		}
	})
}

// A claim whose worker is gone is honoured for its lease, and no longer.
func TestLeaseOfADeadWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		store(t, b, "d1", "t1")
		store(t, b, "d2", "t1")
		st := begin(delivery("d1"), time.Now())
		st.Attempts, st.Sending = 1, &fleet.Sending{By: "webhooks-gone", LeaseSeconds: 15}
		if _, err := b.Store(t.Context(), subjects.WebhookEvent("d1"), fleet.MustEncode(&st), "", nil); err != nil {
			t.Fatal(err)
		}
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		f.begin(t, b)
		time.Sleep(14 * time.Second)
		if n := len(f.made()); n != 0 {
			t.Errorf("%d attempts within the lease, want none", n)
		}
		time.Sleep(2 * time.Second)
		if f.of("d1") != 1 || f.of("d2") != 1 {
			t.Errorf("%d and %d attempts, want one of each", f.of("d1"), f.of("d2"))
		}
		if got := lastState(t, b, "d1"); got.Attempts != 2 || got.State != fleet.DeliveryDelivered {
			t.Errorf("d1 %+v", got)
		}
	})
}

// What is in hand when the worker stops is finished.
func TestStopFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		w, err := New(Config{Bus: b, Endpoints: []Endpoint{{Name: "human", URL: "https://hook.example/"}}})
		if err != nil {
			t.Fatal(err)
		}
		w.post = func(ctx context.Context, ep *endpoint, d *fleet.Delivery) outcome {
			time.Sleep(5 * time.Second)
			return f.post(ctx, ep, d)
		}
		stop := bustest.Run(t, w.Run)
		store(t, b, "d1", "t1")
		time.Sleep(time.Second)
		stop()
		if got := lastState(t, b, "d1"); got.State != fleet.DeliveryDelivered {
			t.Errorf("state %+v", got)
		}
	})
}

// Ten thousand deliveries to a dead endpoint cost neither writes nor time, and
// the pick for another endpoint stays cheap.
func TestIndexWithTenThousandWaiting(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	now := time.Unix(1e9, 0)
	const waiting = 10_000
	for n := range waiting {
		d := delivery(fmt.Sprint("d", n))
		d.Order = fmt.Sprint("t", n)
		x.stored(d, uint64(n+1), now)
	}
	seq := uint64(waiting)
	record := func(e *entry, o outcome) {
		st := e.state
		st.Attempts++
		Human().next(&st, o, now, 0)
		seq++
		x.recorded(&st, seq, now)
		x.release(e, time.Time{})
	}
	sent := 0
	for range 20 * 60 { // twenty hours, minute by minute
		for {
			send, over, _ := x.next(now, 64, 64)
			if len(send)+len(over) == 0 {
				break
			}
			for _, e := range send {
				sent++
				record(e, answered(503, 0))
			}
			for _, e := range over {
				t.Fatalf("%s is over before its time", e.id)
			}
		}
		now = now.Add(time.Minute)
	}
	if sent > 20*60+10 {
		t.Errorf("%d attempts in 20 hours, want one a minute", sent)
	}
	// It is back: four at a time, all of them, each once.
	seen := map[subjects.DeliveryID]bool{}
	for len(seen) < waiting {
		send, over, wake := x.next(now, 64, 64)
		if len(send) > 4 || len(over) > 0 {
			t.Fatalf("%d at a time, %d over, after %d", len(send), len(over), len(seen))
		}
		if len(send) == 0 { // the next probe, and those that were tried lately, wait for their time
			if !wake.After(now) {
				t.Fatalf("nothing to do at %v, and asked for again at %v", now, wake)
			}
			now = wake
		}
		for _, e := range send {
			if seen[e.id] {
				t.Fatalf("%s twice", e.id)
			}
			seen[e.id] = true
			record(e, outcome{status: 200})
		}
	}
	if x.count[fleet.DeliveryDelivered] != waiting || x.lanes["human"].size != 0 {
		t.Errorf("in the end %v, %d in the lane", x.count, x.lanes["human"].size)
	}
}

// TestGuestsLeaveRoom: receivers that subscribers name, however many and slow
// they are, do not take all that a worker can do at a time.
func TestGuestsLeaveRoom(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, guests: 48, openAfter: 5, probeEvery: time.Minute})
	now, inHand := time.Unix(1e9, 0), 0
	for n := range 200 {
		d := delivery(fmt.Sprint("push", n))
		d.Order, d.URL = fmt.Sprint("t", n), fmt.Sprintf("https://%d.example.org/hook", n/4)
		x.stored(d, uint64(n+1), now)
	}
	for range 3 {
		send, _, _ := x.next(now, 64-inHand, 64)
		inHand += len(send)
	}
	if inHand != 48 {
		t.Errorf("guests have %d of 64 in hand, want 48", inHand)
	}
	x.stored(delivery("human"), 1000, now)
	if send, _, _ := x.next(now, 64-inHand, 64); len(send) != 1 || send[0].id != "human" {
		t.Errorf("the call to a human is not sent beside them: %v", send)
	}
}

// TestEndsLeaveRoom: however many end unsent, they take no place from what is sent,
// to the same receiver or another.
func TestEndsLeaveRoom(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, guests: 48, openAfter: 5, probeEvery: time.Minute})
	now, seq := time.Unix(1e9, 0), uint64(0)
	add := func(id, url string, over bool) {
		d := delivery(id)
		d.Order, d.URL, d.Schedule = id, url, fleet.SchedulePush
		if over {
			d.NotAfter = new(now.Add(-time.Second))
		}
		seq++
		x.stored(d, seq, now)
	}
	for n := range 200 {
		add(fmt.Sprint("away", n), "https://away.example/hook", false)
		add(fmt.Sprint("late", n), "", true)
	}
	away := x.lane("https://away.example")
	away.failures, away.probeAt = 5, now.Add(time.Minute)
	if given := x.away(now, 100); len(given) != 100 {
		t.Fatalf("%d are given up, want 100", len(given))
	}
	if _, over, _ := x.next(now, 0, 16); len(over) != 16 {
		t.Fatalf("%d are over, want 16", len(over))
	}
	add("human", "", false)
	add("push", "https://healthy.example/hook", false)
	send, over, _ := x.next(now, 64, 0)
	var ids []string
	for _, e := range send {
		ids = append(ids, string(e.id))
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []string{"human", "push"}) || len(over) > 0 {
		t.Errorf("sent are %v, and %d more are over, want human and push, and none beyond the bound", ids, len(over))
	}
}

func BenchmarkNext(b *testing.B) {
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	now := time.Unix(1e9, 0)
	for n := range 10_000 {
		d := delivery(fmt.Sprint("d", n))
		d.Order = fmt.Sprint("t", n)
		x.stored(d, uint64(n+1), now)
	}
	x.lane("human").failures, x.lane("human").probeAt = 5, now.Add(time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		if send, _, _ := x.next(now, 64, 64); len(send) > 0 {
			b.Fatal("the circuit is open")
		}
	}
}
