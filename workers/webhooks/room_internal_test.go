package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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

// leave stores what a delivery has come to, and not the delivery.
func leave(t *testing.T, b *bus.Bus, d *fleet.Delivery, state string, reason *fleet.Reason) error {
	t.Helper()
	st := begin(d, time.Now())
	st.State, st.Attempts, st.Error = state, 3, reason
	_, err := b.Store(t.Context(), subjects.WebhookEvent(d.DeliveryID), fleet.MustEncode(&st), "", nil)
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
			err := leave(t, b, d, fleet.DeliveryDead, nil)
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
	if first := x.stale(start.Add(time.Hour), keep{KeepDelivered, KeepDead, keepMost, 3}, 1); len(first) != 1 || first[0].id != "d0" {
		t.Errorf("first %v is forgotten, want d0, the oldest", first)
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

// However long one that died is kept, nothing is held of those that went.
func TestEndingsGo(t *testing.T) {
	t.Parallel()
	x := newIndex(func(string) bool { return true }, limits{perEndpoint: 4, openAfter: 5, probeEvery: time.Minute})
	start := time.Unix(1e9, 0).UTC()
	for n := range 5000 {
		d := sized(fmt.Sprint("d", n), fleet.SchedulePush, 1)
		st := begin(d, start)
		st.State, st.Updated = fleet.DeliveryDead, start
		x.recorded(&st, uint64(n+1), start)
		if n > 0 {
			x.forget(x.entries[d.DeliveryID])
		}
	}
	x.stale(start, keep{KeepDelivered, KeepDead, keepMost, keepDeadOf}, 100)
	if n := len(x.endings[fleet.DeliveryDead]); n != 1 {
		t.Errorf("%d endings are held, want that of the one that is kept", n)
	}
	// Sent again, it ends once more: in the place of the first time.
	st := x.entries["d0"].state
	st.State = fleet.DeliveryPending
	x.recorded(&st, 6000, start)
	st.State = fleet.DeliveryDead
	x.recorded(&st, 6001, start)
	if spare := x.spare(fleet.DeliveryDead, start, 100); len(spare) != 1 {
		t.Errorf("%d died, want the one, once", len(spare))
	}
}

// Where the outbox fills with the word of what was delivered, that goes, and not
// what died or waits.
func TestDeliveredLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := smallOutbox(t)
		push := func(id, url string) *fleet.Delivery {
			d := sized(id, fleet.SchedulePush, 100)
			d.Endpoint, d.URL = "", url
			return d
		}
		for n := range 5 { // the circuit of the receiver is open
			if err := leave(t, b, push(fmt.Sprint("dead", n), "https://away.example/hook"), fleet.DeliveryDead, answered(503, 0).err); err != nil {
				t.Fatal(err)
			}
		}
		for n := 0; held(t, b) < 0.78; n++ {
			if err := leave(t, b, push(fmt.Sprint("d", n), "https://healthy.example/hook"), fleet.DeliveryDelivered, nil); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(keepBriefly + time.Second)
		if err := put(t, b, push("waits", "https://away.example/hook")); err != nil {
			t.Fatal(err)
		}
		f := &fake{answer: func() outcome { return answered(503, 0) }}
		w := f.begin(t, b)
		<-time.After(2 * roomEvery)
		if part := held(t, b); part > tightAt {
			t.Errorf("%.0f %% of the outbox are in use, want at most %.0f %%", 100*part, 100*tightAt)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if got := w.index.count; got[fleet.DeliveryDead] != 5 || got[fleet.DeliveryPending] != 1 {
			t.Errorf("of 5 that died and one that waits there are %v", got)
		}
	})
}

// A human is called as soon as there is room for that, however long it takes to make
// more, and the time it took is not taken from the attempt.
func TestCallAwaitsNoMoreRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewFake(t)
		b := s.Connect(t)
		if err := b.Provision(t.Context(), bus.Provisioning{WebhooksMaxBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if err := put(t, b, sized("call", fleet.ScheduleHuman, 100)); err != nil {
			t.Fatal(err)
		}
		var err error
		for n := 0; err == nil; n++ {
			err = leave(t, b, sized(fmt.Sprint("d", n), fleet.SchedulePush, 1), fleet.DeliveryDead, nil)
		}
		if !errors.Is(err, bus.ErrFull) {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		const late = time.Second // so that the room takes longer to make than an attempt may take
		f.begin(t, slow(t, s, late))
		// What is kept of one receiver is swept at the same time: every other removal.
		<-time.After(2*roomForCall*late + 5*time.Second)
		if f.of("call") != 1 {
			t.Errorf("the human was called %d times, want once, when a little room was made; %.0f %% of the outbox are in use", f.of("call"), 100*held(t, b))
		}
		if part := held(t, b); part < tightAt {
			t.Errorf("only %.0f %% of the outbox are in use: the test does not test", 100*part)
		}
		<-time.After(time.Minute)
		if got := lastState(t, b, "call"); got.State != fleet.DeliveryDelivered || got.Attempts != 1 {
			t.Errorf("the call is %s after %d attempts, want delivered after one", got.State, got.Attempts)
		}
	})
}

// slow is a connection to s that hears late that something is purged.
func slow(t *testing.T, s *bustest.Server, late time.Duration) *bus.Bus {
	t.Helper()
	c := s.Config()
	c.InProcess = slowServer{c.InProcess, late}
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

type slowServer struct {
	server interface{ InProcessConn() (net.Conn, error) }
	late   time.Duration
}

// InProcessConn implements what bus.Config asks of a server.
func (s slowServer) InProcessConn() (net.Conn, error) {
	conn, err := s.server.InProcessConn()
	return &slowConn{conn, s.late}, err
}

type slowConn struct {
	net.Conn
	late time.Duration
}

// Read gives what the server sends, and that something is purged late.
func (c *slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if purged := bytes.Count(p[:n], []byte("stream_purge_response")); purged > 0 {
		<-time.After(time.Duration(purged) * c.late)
	}
	return n, err
}
