package bus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
)

// What the permissions forbid is ErrDenied once the answer is overdue, not just
// a time-out.
func TestDenied(t *testing.T) {
	t.Parallel()
	s := bustest.New(t, bustest.Users(
		bustest.User{Name: "worker", Password: "w"},
		bustest.User{
			Name: "bob", Password: "b",
			Publish: []string{"fleet.api.bob.>"}, Subscribe: []string{"_INBOX_bob.>", "fleet.offer.bob.*"},
		}))
	connect := func(user, password string) (*bus.Bus, error) {
		c := s.Config()
		c.User, c.Password, c.InboxPrefix = user, password, "_INBOX_"+user
		return bus.Connect(t.Context(), c)
	}
	if _, err := connect("bob", "wrong"); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("Connect with a wrong password = %v, want ErrDenied", err)
	}
	worker, err := connect("worker", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	for _, subject := range []string{"fleet.api.bob.task.get", "fleet.api.eve.task.get"} {
		if _, err := worker.Subscribe(subject, "", func(m bus.Msg) { _ = m.Respond([]byte("ok"), nil) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := worker.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	bob, err := connect("bob", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bob.Close)
	if _, err := bob.Request(t.Context(), "fleet.api.bob.task.get", nil, nil); err != nil {
		t.Errorf("own Request = %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	if _, err := bob.Request(ctx, "fleet.api.eve.task.get", nil, nil); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("Request as eve = %v, want ErrDenied", err)
	}
	if _, err := bob.RequestUntil(t.Context(), "fleet.api.eve.task.get", nil, nil, bustest.Patience, nil); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("RequestUntil as eve = %v, want ErrDenied", err)
	}
	// So it is where somebody asks JetStream who may ask it nothing.
	if _, err := bob.Server(ctx); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("Server as bob = %v, want ErrDenied", err)
	}
	if err := bob.Provision(ctx, bus.Provisioning{Mode: bus.ProvisionVerify}); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("Provision as bob = %v, want ErrDenied", err)
	}
}

// A context of the nats command line is a file; its path does as well as its
// name.
func TestContextFile(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	path := filepath.Join(t.TempDir(), "fleet.json")
	if err := os.WriteFile(path, fmt.Appendf(nil, `{"url":%q,"inbox_prefix":"_INBOX_x"}`, s.URL()), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := bus.Connect(t.Context(), bus.Config{Context: path})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Provision(t.Context(), bus.Provisioning{}); err != nil {
		t.Errorf("Provision = %v", err)
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	ctx := t.Context()
	heard := make(chan bus.Msg, 1)
	if _, err := b.Subscribe("fleet.progress.bob.1", "", func(m bus.Msg) { heard <- m }); err != nil {
		t.Fatal(err)
	}
	m := bus.Msg{
		Subject: "fleet.progress.bob.1", Data: []byte("?"),
		Header: bus.Header{"Fleet-Agent": {"bob"}, "Nats-Expected-Last-Sequence": {"7"}, "Fleet-Dead-Reason": {"forged"}},
	}
	for _, reason := range []string{"first", "second"} {
		if err := b.BuryDeadLetter(ctx, m, reason); err != nil {
			t.Fatal(err)
		}
	}
	stored := bus.Msg{Subject: "fleet.dispatch.bob", Stream: "FLEET_INBOX", Seq: 5, Delivered: 2}
	for range 2 { // the same stored message is buried once
		if err := b.BuryDeadLetter(ctx, stored, "poison"); err != nil {
			t.Fatal(err)
		}
	}
	letters, err := b.DeadLetters(ctx, 10)
	if err != nil || len(letters) != 3 {
		t.Fatalf("DeadLetters = %v, %v, want 3", letters, err)
	}
	first := letters[0]
	if first.Reason != "first" || first.Stream != "" || first.Header.Get("Fleet-Agent") != "bob" || len(first.Header) != 1 {
		t.Errorf("dead letter = %+v", first)
	}
	if err := b.ReplayDeadLetter(ctx, first.Seq); err != nil {
		t.Errorf("ReplayDeadLetter = %v", err)
	}
	if got := <-heard; string(got.Data) != "?" || got.Header.Get("Fleet-Agent") != "bob" {
		t.Errorf("replayed %+v", got)
	}
	if err := b.DropDeadLetter(ctx, letters[1].Seq); err != nil {
		t.Errorf("DropDeadLetter = %v", err)
	}
	for what, err := range map[string]error{
		"drop":   b.DropDeadLetter(ctx, letters[1].Seq),
		"replay": b.ReplayDeadLetter(ctx, first.Seq),
	} {
		if !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("%s again = %v, want ErrNotFound", what, err)
		}
	}
}

// Without a server nothing hangs: a context ends what waits, and stop and Close
// are bounded.
func TestServerAway(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			t.Parallel()
			s := bustest.New(t, bustest.SyncAlways)
			b := s.Bus(t)
			w, stop := b.Records("FLEET_TASKS", mode)
			defer stop()
			s.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 30 {
				wg.Go(func() {
					_, err := w.Write(ctx, bus.Record{Subject: "fleet.task." + strconv.Itoa(i), WriteID: strconv.Itoa(i)})
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Write = %v, want DeadlineExceeded", err)
					}
				})
			}
			wg.Go(func() {
				if _, err := b.Store(ctx, "fleet.dispatch.bob", nil, "1", nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Store = %v, want DeadlineExceeded", err)
				}
			})
			wg.Go(func() {
				if err := b.Tail(ctx, bus.Tail{Stream: "FLEET_TASKS", Handle: func(bus.Msg) {}}); err != nil {
					t.Errorf("Tail = %v, want nil at the end of its context", err)
				}
			})
			wg.Go(func() {
				err := b.Consume(ctx, bus.Consumer{Stream: "FLEET_INBOX", Durable: "routers"}, nil)
				if err != nil {
					t.Errorf("Consume = %v, want nil at the end of its context", err)
				}
			})
			wg.Wait()
		})
	}
}

// stop commits what is queued and refuses what comes later.
func TestRecordsStop(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.CommitMode{bus.CommitDirect, bus.CommitGrouped} {
		synctest.Test(t, func(t *testing.T) {
			b := bustest.NewFake(t, bustest.SyncAlways).Bus(t)
			w, stop := b.Records("FLEET_TASKS", mode)
			stored, closed := 0, 0
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() {
					if i == 150 {
						stop()
						return
					}
					_, err := w.Write(t.Context(), bus.Record{Subject: "fleet.task." + strconv.Itoa(i), WriteID: strconv.Itoa(i)})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						stored++
					case errors.Is(err, bus.ErrClosed):
						closed++
					default:
						t.Errorf("Write = %v", err)
					}
				})
			}
			wg.Wait()
			state, err := b.StreamState(t.Context(), "FLEET_TASKS")
			if err != nil || state.Msgs != uint64(stored) || stored+closed != 299 {
				t.Errorf("%d stored, %d closed, the stream has %d, %v", stored, closed, state.Msgs, err)
			}
		})
	}
}
