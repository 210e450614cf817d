package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// smallOutbox is a bus whose outbox has a mebibyte.
func smallOutbox(t *testing.T) *bus.Bus {
	t.Helper()
	b := bustest.NewFake(t).Connect(t)
	if err := b.Provision(t.Context(), bus.Provisioning{WebhooksMaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	return b
}

// held is the part of the outbox that is in use.
func held(t *testing.T, b *bus.Bus) float64 {
	t.Helper()
	s, err := b.StreamState(t.Context(), subjects.StreamWebhooks)
	if err != nil {
		t.Fatal(err)
	}
	return float64(s.Bytes) / float64(s.MaxBytes)
}

// sized is a delivery with a body of so many bytes, in an order of its own.
func sized(id, schedule string, size int) *fleet.Delivery {
	return &fleet.Delivery{
		Header: fleet.Header{Type: fleet.TypeDelivery, ProtocolVersion: fleet.Version}, DeliveryID: subjects.DeliveryID(id), Endpoint: "human", Order: id,
		ContentType: "application/json", Schedule: schedule, Body: json.RawMessage(`"` + strings.Repeat("x", size) + `"`),
	}
}

func put(t *testing.T, b *bus.Bus, d *fleet.Delivery) error {
	t.Helper()
	_, err := b.Store(t.Context(), subjects.Webhook(d.Order, d.DeliveryID), fleet.MustEncode(d), string(d.DeliveryID), nil)
	return err
}

// What is left of push notifications that died takes no room from calls to humans.
func TestDeadPushesLeaveRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := smallOutbox(t)
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		w := f.begin(t, b)
		over := time.Now().Add(10 * time.Second)
		for n := 0; held(t, b) < 0.8; n++ {
			d := sized(fmt.Sprint("d", n), fleet.SchedulePush, 400)
			d.Endpoint, d.NotAfter = "nowhere", &over
			if err := put(t, b, d); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Minute)
		w.mu.Lock()
		pending := w.index.count[fleet.DeliveryPending]
		w.mu.Unlock()
		if pending > 0 {
			t.Errorf("%d push notifications are pending beyond their time", pending)
		}
		if err := put(t, b, sized("call", fleet.ScheduleHuman, 20<<10)); err != nil {
			t.Fatalf("a human is not called, with %.0f %% of the outbox in use: %v", 100*held(t, b), err)
		}
		<-time.After(time.Minute)
		if f.of("call") != 1 {
			t.Errorf("the human was called %d times, want once", f.of("call"))
		}
	})
}

// A receiver to which nothing can be delivered does not keep the push notifications
// to others out, whether it refuses them or is away.
func TestLostReceiverLeavesRoom(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 503} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := smallOutbox(t)
				w, err := New(Config{Bus: b})
				if err != nil {
					t.Fatal(err)
				}
				var arrived atomic.Bool
				w.post = func(_ context.Context, _ *endpoint, d *fleet.Delivery) outcome {
					if d.DeliveryID == "healthy" {
						arrived.Store(true)
						return outcome{status: 200}
					}
					return answered(status, 0)
				}
				bustest.Run(t, w.Run)
				// A gateway stores what fits into four fifths of the outbox.
				push := func(id, url string) bool {
					d := sized(id, fleet.SchedulePush, 2<<10)
					d.Endpoint, d.URL = "", url
					if held(t, b)+3<<10/float64(1<<20) > 0.8 {
						return false
					}
					if err := put(t, b, d); err != nil {
						t.Fatal(err)
					}
					return true
				}
				for n := range 1000 {
					push(fmt.Sprint("d", n), "https://lost.example/hook")
					if n%10 == 0 {
						<-time.After(time.Second)
					}
				}
				stored := false
				for range 60 {
					if stored = stored || push("healthy", "https://healthy.example/hook"); arrived.Load() {
						break
					}
					<-time.After(time.Second)
				}
				if !arrived.Load() {
					t.Errorf("within a minute nothing arrived at another receiver (stored: %t), %.0f %% of the outbox are in use", stored, 100*held(t, b))
				}
			})
		})
	}
}

// A human is called out of an outbox that is full, too: dead push notifications go
// for it.
func TestCallOutOfAFullOutbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := smallOutbox(t)
		if err := put(t, b, sized("call", fleet.ScheduleHuman, 100)); err != nil {
			t.Fatal(err)
		}
		for n, size := 0, 32<<10; size > 0; n++ {
			d := sized(fmt.Sprint("d", n), fleet.SchedulePush, size)
			st := begin(d, time.Now())
			st.State, st.Attempts = fleet.DeliveryDead, 3
			_, err := b.Store(t.Context(), subjects.WebhookEvent(d.DeliveryID), fleet.MustEncode(&st), "", nil)
			if err == nil {
				err = put(t, b, d)
			}
			switch {
			case errors.Is(err, bus.ErrFull):
				size /= 2
			case err != nil:
				t.Fatal(err)
			}
		}
		<-time.After(time.Hour)
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		f.begin(t, b)
		<-time.After(time.Second)
		if f.of("call") != 1 {
			t.Errorf("the human was called %d times, want once, at once; %.0f %% of the outbox are in use", f.of("call"), 100*held(t, b))
		}
	})
}

// Of push notifications that died at one receiver the latest are kept.
func TestStaleDeadOfOneReceiver(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	start := time.Unix(1e9, 0).UTC()
	for n := range 8 {
		d := sized(fmt.Sprint("d", n), fleet.SchedulePush, 1)
		d.Endpoint, d.URL = "", fmt.Sprintf("https://%d.example/hook", n%2)
		x.stored(d, uint64(n+1), start)
		st := begin(d, start)
		st.State, st.Updated = fleet.DeliveryDead, start.Add(time.Duration(n)*time.Second)
		x.recorded(&st, uint64(n+100), start)
	}
	old := x.stale(start.Add(time.Hour), keep{KeepDelivered, KeepDead, keepMost, 3}, 100)
	got := map[subjects.DeliveryID]bool{}
	for _, e := range old {
		got[e.id] = true
		x.forget(e)
		x.forget(e) // as two that clear up may
	}
	if len(old) != 2 || !got["d0"] || !got["d1"] || x.count[fleet.DeliveryDead] != 6 {
		t.Errorf("%v are forgotten and %d are kept, want d0 and d1, the oldest of each, and 6", got, x.count[fleet.DeliveryDead])
	}
}
