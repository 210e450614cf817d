package gateway

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/protobuf/proto"

	"parley/bus"
	"parley/subjects"
	"parley/workers/gateway/a2anats"
)

// TestStoppingEndsStreamsOverNATS: the client of a stream hears that its gateway
// stops, also while that waits for a confirmation; it heard nothing, and took the
// stream up when it had been silent for long.
func TestStoppingEndsStreamsOverNATS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		w.nats = newNATS(w, "root")
		w.ops[opSubscribe] = &operation{request: w.ops[opSubscribe].request, stream: func(ctx context.Context, _ *call, _ proto.Message, send func(frame) error) error {
			if err := send(frame{id: "1", msg: taskFrame(&picture{task: someTask()}, nil)}); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		serving, ended := make(chan bool), make(chan error, 1)
		go func() { ended <- w.nats.run(ctx, func() { close(serving) }) }()
		<-serving
		c, err := w.cfg.Bus.Converse(a2anats.Subject("root", anonymous, opSubscribe), []byte(`{"id":"x"}`), bus.Header{headerVersion: {protocolVersion}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, want := range []string{a2anats.FrameEvent, a2anats.FrameAlive, a2anats.FrameError} {
			waiting, cancel := context.WithTimeout(t.Context(), a2anats.Silence)
			m, err := c.Next(waiting)
			cancel()
			if got := m.Header.Get(a2anats.HeaderFrame); err != nil || got != want {
				t.Fatalf("frame %q, %v, want %q", got, err, want)
			}
			if want == a2anats.FrameAlive {
				stop() // and nobody confirms it
			}
			if want == a2anats.FrameError && !strings.Contains(string(m.Data), kindUnavailable.reason) {
				t.Errorf("the error is %s, want %s", m.Data, kindUnavailable.reason)
			}
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the door stays open")
		}
	})
}

// TestSignedOverNATS: a gateway that takes signed messages only serves who signs,
// through many confirmed alive frames, and tells who does not.
func TestSignedOverNATS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := onBus(t)
		w.nats = newNATS(w, a2anats.Root)
		events := make(chan frame)
		w.ops[opSubscribe] = &operation{request: w.ops[opSubscribe].request, stream: func(ctx context.Context, _ *call, _ proto.Message, send func(frame) error) error {
			for f := range events {
				if err := send(f); err != nil {
					return err
				}
			}
			return nil
		}}
		b := w.cfg.Bus
		b.SetGuard(bus.Guard{Message: func(_ context.Context, m bus.Msg, _ uint64) error {
			if m.Header.Get("Signed") == "" {
				return subjects.Errorf(subjects.CodeAuthFailed, "the message is not signed")
			}
			return nil
		}})
		ctx, stop := context.WithCancel(t.Context())
		serving, ended := make(chan bool), make(chan error, 1)
		go func() { ended <- w.nats.run(ctx, func() { close(serving) }) }()
		<-serving
		client, err := a2anats.New(a2anats.Config{Bus: b, From: anonymous})
		if err != nil {
			t.Fatal(err)
		}
		follow := func() iter.Seq2[a2a.Event, error] {
			return client.SubscribeToTask(t.Context(), nil, &a2a.SubscribeToTaskRequest{ID: "x"})
		}
		for _, err := range follow() {
			if !errors.Is(err, a2a.ErrUnauthenticated) {
				t.Errorf("unsigned: %v, want %v", err, a2a.ErrUnauthenticated)
			}
		}
		b.SetSigner(func(string, []byte, bus.Header) bus.Header { return bus.Header{"Signed": {"yes"}} })
		go func() {
			defer close(events)
			for range 3 {
				time.Sleep(10 * w.cfg.KeepAlive)
				events <- frame{id: "1", msg: taskFrame(&picture{task: someTask()}, nil)}
			}
		}()
		got := 0
		for _, err := range follow() {
			if err != nil {
				t.Fatal(err)
			}
			got++
		}
		if got != 3 {
			t.Errorf("%d events, want 3", got)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
