package bus_test

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// wordGuard admits what has the header, and remembers the readers.
type wordGuard struct {
	mu      sync.Mutex
	readers map[uint64]int
}

func (g *wordGuard) message(_ context.Context, m bus.Msg, reader uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.readers == nil {
		g.readers = map[uint64]int{}
	}
	g.readers[reader]++
	return word(m)
}

func word(m bus.Msg) error {
	if m.Header.Get("Word") != "friend" {
		return subjects.Errorf(subjects.CodeAuthFailed, "speak")
	}
	return nil
}

func code(t *testing.T, data []byte) subjects.Code {
	t.Helper()
	var r struct {
		Error struct {
			Code subjects.Code `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return r.Error.Code
}

// What the guard does not admit reaches no handler, by none of the four ways.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b, client := s.Bus(t), s.Connect(t)
	g := &wordGuard{}
	b.SetGuard(bus.Guard{Message: g.message, Stored: word})
	friend := bus.Header{"Word": {"friend"}}
	var served, queued, heard, consumed, tailed, refused atomic.Int64

	stop, err := b.Serve(t.Context(), bus.Service{Name: "s", Version: "1.0.0", Endpoints: []bus.Endpoint{{
		Name: "e", Subject: "e.served", Handle: func(context.Context, bus.Msg) ([]byte, error) { served.Add(1); return []byte("{}"), nil },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	answer := func(n *atomic.Int64) func(bus.Msg) {
		return func(m bus.Msg) { n.Add(1); _ = m.Respond([]byte("{}"), nil) }
	}
	grouped, err := b.Subscribe("e.queued", "group", answer(&queued))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sub, err := b.Subscribe("e.heard", "", answer(&heard))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sub.Unsubscribe() }()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() {
		err := b.Consume(ctx, bus.Consumer{Stream: subjects.StreamInbox, Durable: "routers", DeadLetter: true}, func(context.Context, bus.Msg) error {
			consumed.Add(1)
			return nil
		})
		if err != nil {
			t.Errorf("Consume = %v", err)
		}
	})
	loops.Go(func() {
		err := b.Tail(ctx, bus.Tail{
			Stream: subjects.StreamAnnounce, Handle: func(bus.Msg) { tailed.Add(1) }, Refused: func(bus.Msg, error) { refused.Add(1) },
		})
		if err != nil {
			t.Errorf("Tail = %v", err)
		}
	})
	defer loops.Wait()
	defer cancel()
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for subject, n := range map[string]*atomic.Int64{"e.served": &served, "e.queued": &queued, "e.heard": &heard} {
		m, err := client.Request(t.Context(), subject, nil, nil)
		if err != nil || code(t, m.Data) != subjects.CodeAuthFailed || n.Load() != 0 {
			t.Errorf("%s: %s, %v, handled %d times, want it refused", subject, m.Data, err, n.Load())
		}
		if m, err = client.Request(t.Context(), subject, nil, friend); err != nil || code(t, m.Data) != "" {
			t.Errorf("%s: %s, %v, want it answered", subject, m.Data, err)
		}
	}
	for _, subject := range []string{subjects.Dispatch("a"), subjects.Announce("a", "main")} {
		for _, h := range []bus.Header{nil, friend} {
			if _, err := client.Store(t.Context(), subject, []byte("x"), "", h); err != nil {
				t.Fatal(err)
			}
		}
	}
	bustest.Eventually(t, "all to be judged", func() bool {
		dead, err := client.StreamState(t.Context(), subjects.StreamDLQ)
		return err == nil && dead.Msgs == 1 && consumed.Load() == 1 && tailed.Load() == 1 && refused.Load() == 1 && heard.Load() == 2
	})
	g.mu.Lock()
	// Two subscriptions have a name each, everything else is one of several.
	if len(g.readers) != 3 || g.readers[bus.Shared] != 6 {
		t.Errorf("readers %v, want two of their own with 2 each, and 6 shared", g.readers)
	}
	g.mu.Unlock()
	if err := grouped.Drain(); err != nil {
		t.Error(err)
	}
}

// Drain waits for what is judged and handled beside the subscription.
func TestGuardDrains(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Connect(t)
	b.SetGuard(bus.Guard{Message: func(context.Context, bus.Msg, uint64) error { return nil }})
	began, release := make(chan struct{}, 10), make(chan struct{})
	var done atomic.Int64
	sub, err := b.Subscribe("e.slow", "group", func(bus.Msg) {
		began <- struct{}{}
		<-release
		done.Add(1)
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := b.Publish("e.slow", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // side by side
		<-began
	}
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	if err := sub.Drain(); err != nil || done.Load() != 3 {
		t.Errorf("Drain = %v with %d handled, want 3", err, done.Load())
	}
}

// Each try is signed anew, and headers that are there stay.
func TestSigner(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b, other := s.Bus(t), s.Connect(t)
	var n atomic.Int64
	b.SetSigner(func(subject string, data []byte, h bus.Header) bus.Header {
		if subject != "e.signed" && subject != subjects.Dispatch("a") {
			return nil
		}
		return bus.Header{"Sum": {subject + string(data) + h.Get("Own") + strconv.FormatInt(n.Add(1), 10)}}
	})
	got := make(chan string, 10)
	sub, err := other.Subscribe("e.*", "", func(m bus.Msg) {
		got <- m.Header.Get("Sum") + " " + m.Header.Get("Own")
		_ = m.Respond([]byte("{}"), nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := other.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := bus.Header{"Own": {"x"}}
	again := 0
	if _, err := b.RequestUntil(t.Context(), "e.signed", []byte("d"), own, 0, func(bus.Msg) bool { again++; return again < 2 }); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish("e.signed", nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish("e.plain", nil, own); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"e.signeddx1 x", "e.signeddx2 x", "e.signed3 ", " x"} {
		if g := <-got; g != want {
			t.Errorf("heard %q, want %q", g, want)
		}
	}
	if len(own) != 1 {
		t.Errorf("the caller's headers became %v", own)
	}
	// A stream keeps them.
	if _, err := b.Store(t.Context(), subjects.Dispatch("a"), []byte("d"), "", own); err != nil {
		t.Fatal(err)
	}
	m, err := b.Last(t.Context(), subjects.StreamInbox, subjects.Dispatch("a"))
	if want := subjects.Dispatch("a") + "dx4"; err != nil || m.Header.Get("Sum") != want || m.Header.Get("Own") != "x" {
		t.Errorf("stored with %v, %v, want Sum %s", m.Header, err, want)
	}
}

// What the guard cannot judge just now is not passed over: a tail gets it later,
// once, and in order.
func TestTailWaitsForTheGuard(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b, client := s.Bus(t), s.Connect(t)
	var asked atomic.Int64
	b.SetGuard(bus.Guard{Stored: func(m bus.Msg) error {
		switch n := asked.Add(1); {
		case string(m.Data) == "b" && n == 2:
			return subjects.Errorf(subjects.CodeUnavailable, "not now")
		case string(m.Data) == "b" && n == 3:
			return context.DeadlineExceeded
		case string(m.Data) == "c":
			return subjects.Errorf(subjects.CodeForbidden, "never")
		}
		return nil
	}})
	for _, text := range []string{"a", "b", "c", "d"} {
		if _, err := client.Store(t.Context(), subjects.Announce("x", subjects.InstanceID(text)), []byte(text), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var heard string
	err := b.Tail(ctx, bus.Tail{
		Stream: subjects.StreamAnnounce, Handle: func(m bus.Msg) { heard += string(m.Data) },
		Refused: func(m bus.Msg, err error) { heard += "-" + string(m.Data) + string(subjects.CodeOf(err)) }, CaughtUp: func(uint64) { cancel() },
	})
	if want := "ab-cforbiddend"; err != nil || heard != want {
		t.Errorf("heard %q, %v, want %q", heard, err, want)
	}
}
