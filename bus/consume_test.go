package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
)

func TestConsumeVerdicts(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, who := range []string{"ok", "later", "never", "panic", "error"} {
		if _, err := b.Store(ctx, "fleet.dispatch."+who, []byte(who), "id-"+who, bus.Header{"Fleet-Kind": {"x"}}); err != nil {
			t.Fatal(err)
		}
	}
	settled := make(chan string, 100)
	consume := make(chan error, 1)
	go func() {
		consume <- b.Consume(ctx, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers", DeadLetter: true, Concurrency: 4},
			func(_ context.Context, m bus.Msg) error {
				settled <- fmt.Sprint(string(m.Data), m.Delivered)
				switch who := string(m.Data); {
				case m.Delivered > 1:
					return nil
				case who == "later":
					return bus.Later(errors.New("busy"), time.Millisecond)
				case who == "never":
					return bus.Never(errors.New("not\na dispatch"))
				case who == "panic":
					panic("oops")
				case who == "error":
					return errors.New("store is away")
				}
				return nil
			})
	}()
	var got []string
	for range 7 {
		got = append(got, <-settled)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"error1", "error2", "later1", "later2", "never1", "ok1", "panic1"}, got); diff != "" {
		t.Errorf("deliveries (-want +got):\n%s", diff)
	}
	bustest.Eventually(t, "an inbox that is done with", func() bool { return undone(t, b) == 0 })
	if err := b.DropDone(ctx, "FLEET_INBOX", "routers", time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if s, err := b.StreamState(ctx, "FLEET_INBOX"); err != nil || s.Msgs != 1 || s.LastSeq != 5 {
		t.Errorf("after it was cleared up it holds %d messages up to %d, %v; want the last one, 5", s.Msgs, s.LastSeq, err)
	}
	letters, err := b.DeadLetters(ctx, 10)
	if err != nil || len(letters) != 2 {
		t.Fatalf("DeadLetters = %v, %v, want 2", letters, err)
	}
	for _, d := range letters {
		if d.Subject != "fleet.dispatch."+string(d.Data) || d.Stream != "FLEET_INBOX" || d.Deliveries != 1 ||
			d.OriginSeq == 0 || d.Header.Get("Fleet-Kind") != "x" {
			t.Errorf("dead letter = %+v", d)
		}
		if string(d.Data) == "never" && d.Reason != "not a dispatch" {
			t.Errorf("reason = %q", d.Reason)
		}
		if err := b.ReplayDeadLetter(ctx, d.Seq); err != nil {
			t.Errorf("ReplayDeadLetter: %v", err)
		}
		if _, err := b.DeadLetterBySeq(ctx, d.Seq); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("DeadLetterBySeq after replay = %v, want ErrNotFound", err)
		}
	}
	replayed := []string{<-settled, <-settled}
	slices.Sort(replayed)
	if diff := cmp.Diff([]string{"never1", "panic1"}, replayed); diff != "" {
		t.Errorf("replayed (-want +got):\n%s", diff)
	}
	cancel()
	if err := <-consume; err != nil {
		t.Errorf("Consume = %v", err)
	}
}

// TestDropDoneOfACrowdedStream: what is done goes before its time where a quarter
// of the room is taken, and what is not done stays.
func TestDropDoneOfACrowdedStream(t *testing.T) {
	t.Parallel()
	ctx, srv := t.Context(), bustest.New(t)
	b := srv.Connect(t)
	if err := b.Provision(ctx, bus.Provisioning{Replicas: 1, InboxMaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	const most, undoneFrom = 40, 36
	for i := range most {
		if _, err := b.Store(ctx, "fleet.dispatch.boss", bytes.Repeat([]byte("x"), 16<<10), strconv.Itoa(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan uint64, most)
	consume := make(chan error, 1)
	reading, stop := context.WithCancel(ctx)
	go func() {
		consume <- b.Consume(reading, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers", Concurrency: 1},
			func(_ context.Context, m bus.Msg) error {
				if m.Seq >= undoneFrom {
					return bus.Later(errors.New("busy"), time.Hour)
				}
				done <- m.Seq
				return nil
			})
	}()
	for range undoneFrom - 1 {
		<-done
	}
	bustest.Eventually(t, "acknowledgements", func() bool { return undone(t, b) == most+1-undoneFrom })
	for _, want := range []uint64{21, 31, 31} { // 40 of 16 KiB, then 20, then 10
		if err := b.DropDone(ctx, "FLEET_INBOX", "routers", time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		if s, err := b.StreamState(ctx, "FLEET_INBOX"); err != nil || s.FirstSeq != want {
			t.Errorf("it begins with %d, %v, want %d", s.FirstSeq, err, want)
		}
	}
	if err := b.DropDone(ctx, "FLEET_INBOX", "routers", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if s, err := b.StreamState(ctx, "FLEET_INBOX"); err != nil || s.FirstSeq != undoneFrom-1 || s.LastSeq != most {
		t.Errorf("it holds %d to %d, %v, want %d to %d", s.FirstSeq, s.LastSeq, err, undoneFrom-1, most)
	}
	stop()
	if err := <-consume; err != nil {
		t.Error(err)
	}
}

// Later and errors come again when they said; a handler that works for long
// keeps its message; fake time makes hours of it milliseconds.
func TestRedelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, who := range []string{"later", "long", "error"} {
			if _, err := b.Store(ctx, "fleet.dispatch."+who, []byte(who), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		type call struct {
			who       string
			delivered uint64
			after     time.Duration
		}
		calls := make(chan call, 100)
		done := make(chan error, 1)
		go func() {
			done <- b.Consume(ctx, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers", Concurrency: 3},
				func(ctx context.Context, m bus.Msg) error {
					calls <- call{string(m.Data), m.Delivered, time.Since(start)}
					switch who := string(m.Data); {
					case who == "long":
						<-time.After(2 * time.Hour) // AckWait is 30 s
					case who == "later" && m.Delivered < 3:
						return bus.Later(errors.New("busy"), 10*time.Minute)
					case who == "error" && m.Delivered < 9:
						return errors.New("still broken")
					}
					return nil
				})
		}()
		got := map[string][]call{}
		for range 3 + 1 + 9 {
			c := <-calls
			got[c.who] = append(got[c.who], c)
		}
		if len(got["long"]) != 1 || len(got["later"]) != 3 || len(got["error"]) != 9 {
			t.Errorf("deliveries = %v", got)
		}
		for i, c := range got["later"] {
			if want := time.Duration(i) * 10 * time.Minute; c.delivered != uint64(i+1) || c.after < want || c.after > want+time.Second {
				t.Errorf("later: delivery %d after %v, want %d after %v", c.delivered, c.after, i+1, want)
			}
		}
		for i, c := range got["error"][1:] {
			wait := c.after - got["error"][i].after
			want := min(time.Second<<i, time.Minute)
			if wait < want*3/4 || wait > want*5/4+time.Second {
				t.Errorf("error: delivery %d came after %v, want about %v", i+2, wait, want)
			}
		}
		<-time.After(3 * time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Consume = %v", err)
		}
		if n := undone(t, b); n != 0 || len(calls) != 0 {
			t.Errorf("%d messages left, %d more deliveries", n, len(calls))
		}
	})
}

// When ctx ends, what is in hand is finished; what outlasts the grace period is
// canceled and given back.
func TestConsumeStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		for _, who := range []string{"short", "endless"} {
			if _, err := b.Store(t.Context(), "fleet.dispatch."+who, []byte(who), "", nil); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan string, 2)
		done := make(chan error, 1)
		go func() {
			done <- b.Consume(ctx, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers", Concurrency: 2},
				func(ctx context.Context, m bus.Msg) error {
					began <- string(m.Data)
					if string(m.Data) == "endless" {
						<-ctx.Done()
						return context.Cause(ctx)
					}
					<-time.After(3 * time.Second)
					return ctx.Err()
				})
		}()
		<-began
		<-began
		start := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Consume = %v", err)
		}
		if took := time.Since(start); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("Consume ended after %v, want the grace of 10 s", took)
		}
		if n := undone(t, b); n != 1 {
			t.Errorf("%d messages left, want 1: the short one was finished", n)
		}
	})
}

// No more messages are taken than there are handlers.
func TestConsumeTakesNoMore(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 50 {
		if _, err := b.Store(ctx, "fleet.dispatch.a", fmt.Append(nil, i), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	pending := make(chan uint64)
	release := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- b.Consume(ctx, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers", Concurrency: 4},
			func(_ context.Context, m bus.Msg) error {
				pending <- m.Pending
				<-release
				return nil
			})
	}()
	least := uint64(50)
	for range 4 {
		least = min(least, <-pending)
	}
	if least != 46 {
		t.Errorf("%d messages are still at the server, want 46", least)
	}
	close(release)
	for range 46 {
		<-pending
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Consume = %v", err)
	}
	err := b.Consume(t.Context(), bus.Consumer{Stream: "NONE", Durable: "x"}, nil)
	if !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Consume(NONE) = %v, want ErrNotFound", err)
	}
}

// TestFiguresSayWhoDropsWhatIsOld: streams that are never full are told from those
// that take nothing new then.
func TestFiguresSayWhoDropsWhatIsOld(t *testing.T) {
	t.Parallel()
	list, err := bustest.New(t).Bus(t).StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, s := range list {
		got[s.Name] = s.DropsOld
	}
	for name, want := range map[string]bool{"FLEET_LOG": true, "FLEET_DLQ": true, "FLEET_ANNOUNCE": true, "FLEET_AUDIT": true, "FLEET_ESCALATIONS": true, "FLEET_TASKS": false, "FLEET_RUNS": false, "KV_FLEET_AGENTS": false} {
		if drops, ok := got[name]; !ok || drops != want {
			t.Errorf("%s drops what is old: %t (there: %t), want %t", name, drops, ok, want)
		}
	}
}

// undone counts the messages that the inbox's consumer has not done with.
func undone(t *testing.T, b *bus.Bus) (n int) {
	t.Helper()
	list, err := b.StreamFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		for _, c := range s.Consumers {
			if s.Name == "FLEET_INBOX" {
				n += int(c.Pending) + c.Unacked
			}
		}
	}
	return n
}
