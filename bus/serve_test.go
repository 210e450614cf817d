package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

func serve(t *testing.T, b *bus.Bus, handle func(context.Context, bus.Msg) ([]byte, error)) func() {
	t.Helper()
	stop, err := b.Serve(t.Context(), bus.Service{
		Name: "fleet", Version: "1.2.3", Description: "the API", Queue: "routers", Metadata: map[string]string{"kind": "router"},
		Endpoints: []bus.Endpoint{{Name: "task-get", Subject: "fleet.api.*.task.get", Handle: handle, Metadata: map[string]string{"noun": "task"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return stop
}

func TestServe(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Connect(t)
	stop := serve(t, b, func(_ context.Context, m bus.Msg) ([]byte, error) {
		switch string(m.Data) {
		case "ok":
			return []byte("yes"), nil
		case "not found":
			return nil, subjects.Errorf(subjects.CodeNotFound, "no task\nof that id").At("/task_id")
		case "wrapped":
			return nil, fmt.Errorf("get: %w", subjects.Errorf(subjects.CodeForbidden, "not yours"))
		case "away":
			return nil, fmt.Errorf("get: %w", bus.ErrNoResponders)
		case "large":
			return make([]byte, 5<<20), nil
		case "panic":
			panic("oops")
		}
		return nil, errors.New("secret detail")
	})
	client := s.Connect(t)
	for in, want := range map[string]struct{ code, status string }{
		"ok": {}, "not found": {"not_found", "404"}, "wrapped": {"forbidden", "403"}, "away": {"unavailable", "503"},
		"large": {"payload_too_large", "413"}, "panic": {"internal", "500"}, "other": {"internal", "500"},
	} {
		reply, err := client.Request(t.Context(), "fleet.api.bob.task.get", []byte(in), nil)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		var got struct{ Error subjects.Error }
		if want.code == "" {
			if string(reply.Data) != "yes" || len(reply.Header) != 0 {
				t.Errorf("%s: %q %v", in, reply.Data, reply.Header)
			}
			continue
		}
		if err := json.Unmarshal(reply.Data, &got); err != nil || string(got.Error.Code) != want.code {
			t.Errorf("%s: %s, %v, want code %s", in, reply.Data, err, want.code)
		}
		if status := reply.Header.Get("Nats-Service-Error-Code"); status != want.status || reply.Header.Get("Nats-Service-Error") == "" {
			t.Errorf("%s: headers %v, want status %s", in, reply.Header, want.status)
		}
		if in == "other" && got.Error.Message != "an internal error" {
			t.Errorf("other: message %q tells what is inside", got.Error.Message)
		}
	}
	var stats struct {
		Type, Name, Version string
		Endpoints           []struct {
			Name        string
			QueueGroup  string `json:"queue_group"`
			NumRequests int    `json:"num_requests"`
			NumErrors   int    `json:"num_errors"`
			LastError   string `json:"last_error"`
		}
	}
	reply, err := client.Request(t.Context(), "$SRV.STATS.fleet", nil, nil)
	if err == nil {
		err = json.Unmarshal(reply.Data, &stats)
	}
	if err != nil || len(stats.Endpoints) != 1 || stats.Endpoints[0].NumRequests != 7 || stats.Endpoints[0].NumErrors != 6 ||
		stats.Endpoints[0].QueueGroup != "routers" || stats.Type != "io.nats.micro.v1.stats_response" {
		t.Errorf("stats = %+v, %v", stats, err)
	}
	for _, verb := range []string{"PING", "INFO"} {
		if reply, err := client.Request(t.Context(), "$SRV."+verb, nil, nil); err != nil || !json.Valid(reply.Data) {
			t.Errorf("%s = %s, %v", verb, reply.Data, err)
		}
	}
	stop()
	if _, err := client.Request(t.Context(), "fleet.api.bob.task.get", []byte("ok"), nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Request after stop = %v, want ErrNoResponders", err)
	}
}

// TestServeTimeout: a call that waits for what does not come is refused once its
// time is over.
func TestServeTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Connect(t)
		stop, err := b.Serve(t.Context(), bus.Service{Name: "fleet", Version: "1.2.3", Endpoints: []bus.Endpoint{{
			Name: "get", Subject: "fleet.api.bob.task.get", Timeout: bus.StoreTime,
			Handle: func(ctx context.Context, _ bus.Msg) ([]byte, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), bus.StoreTime+time.Second)
		defer cancel()
		m, err := b.Request(ctx, "fleet.api.bob.task.get", nil, nil)
		if err != nil || !strings.Contains(string(m.Data), `"unavailable"`) {
			t.Errorf("the call = %s, %v, want unavailable", m.Data, err)
		}
	})
}

// Handlers run beside each other, and stop waits for those in hand.
func TestServeConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewFake(t)
		const n = 50
		var all sync.WaitGroup
		all.Add(n)
		release := make(chan struct{})
		stop := serve(t, s.Connect(t), func(context.Context, bus.Msg) ([]byte, error) {
			all.Done()
			<-release
			return []byte("done"), nil
		})
		client := s.Connect(t)
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if m, err := client.Request(t.Context(), "fleet.api.bob.task.get", nil, nil); err != nil || string(m.Data) != "done" {
					t.Errorf("Request = %q, %v", m.Data, err)
				}
			})
		}
		all.Wait() // every request is in a handler at once
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		bustest.Eventually(t, "no new requests", func() bool {
			_, err := client.Request(t.Context(), "$SRV.PING.fleet", nil, nil)
			return errors.Is(err, bus.ErrNoResponders)
		})
		select {
		case <-stopped:
			t.Error("stop did not wait for the handlers")
		default:
		}
		close(release)
		wg.Wait()
		<-stopped
	})
}

func TestServiceLives(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Connect(t)
	lives := func(want bool) {
		t.Helper()
		if got, err := b.ServiceLives(t.Context(), "fleet"); err != nil || got != want {
			t.Errorf("ServiceLives = %v, %v, want %v", got, err, want)
		}
	}
	lives(false)
	stop := serve(t, s.Connect(t), func(context.Context, bus.Msg) ([]byte, error) { return nil, nil })
	lives(true)
	stop()
	lives(false)
	s.Close()
	if _, err := b.ServiceLives(t.Context(), "fleet"); err == nil {
		t.Error("no error without a server")
	}
}

// TestServicesTell: what a process knows of itself is told with its services, as
// it is when somebody asks.
func TestServicesTell(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b, err := bus.Connect(t.Context(), bus.Config{URL: s.URL(), Open: "0.0.0.0:80"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	serve(t, b, nil)
	other := s.Connect(t)
	stop, err := other.Serve(t.Context(), bus.Service{Name: "runs", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	b.SetClockAhead(5 * time.Minute)
	list, err := other.Services(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("Services = %+v, %v", list, err)
	}
	for _, i := range list {
		open, ahead := "", time.Duration(0)
		if i.Name == "fleet" {
			open, ahead = "0.0.0.0:80", 5*time.Minute
		}
		if i.Open != open || i.ClockAhead.Round(time.Second) != ahead {
			t.Errorf("%s: open %q, ahead %s, want %q, %s", i.Name, i.Open, i.ClockAhead, open, ahead)
		}
	}
	if n := other.OtherServers(); n != 0 {
		t.Errorf("there are %d other servers", n)
	}
}

// TestRepliesAfterTheEnd: replies that can be sent to nobody any more are one log
// line, however many calls were in hand.
func TestRepliesAfterTheEnd(t *testing.T) {
	t.Parallel()
	const calls = 50
	s := bustest.New(t)
	var log bytes.Buffer
	cfg := s.Config()
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	b, err := bus.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var begun sync.WaitGroup
	begun.Add(calls)
	release := make(chan struct{})
	stop := serve(t, b, func(context.Context, bus.Msg) ([]byte, error) {
		begun.Done()
		<-release
		return []byte("late"), nil
	})
	client := s.Connect(t)
	for i := range calls {
		c, err := client.Converse("fleet.api.bob.task.get", fmt.Appendf(nil, "%d", i), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	begun.Wait()
	b.Close()
	close(release)
	stop()
	lines := strings.Count(log.String(), "not sent")
	if lines != 1 || !strings.Contains(log.String(), fmt.Sprintf("count=%d", calls)) {
		t.Errorf("%d lines tell of replies that were not sent, want one that counts %d:\n%s", lines, calls, log.String())
	}
}
