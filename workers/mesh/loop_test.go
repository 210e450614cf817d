package mesh_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	wire "parley/subjects/mesh"
	"parley/workers/mesh"
)

// Agents that answer each other for ever are stopped, whatever they say of
// hops, and whoever began it hears of it.
func TestLoopsEnd(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b, mesh.Limits{MaxHops: 4})
	ping, pong := join(t, b, "ping", "one", 1), join(t, b, "pong", "one", 1)
	heard := make(chan wire.Ack, 100)
	if _, err := b.Subscribe(subjects.MeshAck("boss", "loop4"), "", func(m bus.Msg) {
		if a, err := wire.DecodeAck(m.Data); err == nil {
			heard <- *a
		}
	}); err != nil {
		t.Fatal(err)
	}
	first := send(t, b, "boss", "ping", "begin", nil)
	turn, other := ping, pong
	var texts []string
	for i := range 20 {
		var m wire.Message
		select {
		case m = <-turn.got:
		case <-time.After(time.Second):
		}
		if m.MessageID == "" {
			break
		}
		texts = append(texts, m.Text)
		send(t, b, turn.agent, other.agent, strconv.Itoa(i), func(n *wire.Message) {
			n.ThreadID, n.Hops, n.MessageID = m.ThreadID, 0, wire.MessageID(fmt.Sprintf("loop%d", i))
			if i%2 == 0 {
				n.Ref = m.MessageID
			}
		})
		if err := turn.done(m, nil); err != nil {
			t.Fatal(err)
		}
		turn, other = other, turn
	}
	if len(texts) != 5 { // the first, and four that it led to
		t.Errorf("%d messages went round: %v", len(texts), texts)
	}
	if a := await(t, b, "ping", "loop4", wire.Refused); a.Reason.Code != subjects.CodeHopLimit {
		t.Errorf("refused for %+v, want hop_limit", a.Reason)
	}
	select {
	case a := <-heard:
		if a.From != "ping" || a.State != wire.Refused || a.ThreadID != wire.ThreadID(first) || a.Reason.Code != subjects.CodeHopLimit {
			t.Errorf("who began it hears %+v", a)
		}
	case <-time.After(time.Minute):
		t.Error("who began it hears nothing")
	}
	// A message of his own, under the id that another's had, comes to its end.
	pong.say(wire.Delivery{OK: true, Done: true}, false)
	send(t, b, "boss", "pong", "enough", func(m *wire.Message) { m.MessageID = "loop4" })
	await(t, b, "boss", "loop4", wire.Processed)
}

// conflicts counts how often a worker logs that another one was first.
type conflicts struct{ n atomic.Int64 }

func (c *conflicts) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("another worker was first")) {
		c.n.Add(1)
	}
	return len(line), nil
}

// A record that cannot be written is tried again now and then, not all the time.
func TestConflictsRest(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	var seen conflicts
	w, err := mesh.New(mesh.Config{Bus: b, Log: slog.New(slog.NewTextHandler(&seen, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	foreign := wire.Ack{MessageID: "m", From: "eve", To: "bob", State: wire.Refused} // in the place of ann's record
	if _, err := b.Store(t.Context(), subjects.MeshState("ann", "m"), fleet.MustEncode(&foreign), "", nil); err != nil {
		t.Fatal(err)
	}
	bob := join(t, b, "bob", "one", 1)
	send(t, b, "ann", "bob", "x", func(m *wire.Message) { m.MessageID = "m" })
	bustest.Eventually(t, "a conflict", func() bool { return seen.n.Load() > 0 })
	bob.nothing(1500 * time.Millisecond)
	if n := seen.n.Load(); n > 4 {
		t.Errorf("%d conflicts in a second and a half, want about two", n)
	}
}
