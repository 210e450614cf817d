package gateway

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"parley/bus"
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
