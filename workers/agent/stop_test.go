package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

// When the time is over, all that is in hand is given up at once, messages with
// the tasks, and given back, however long that takes to end.
func TestStopGivesUpAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const grace, ends = 10 * time.Second, 40 * time.Second
		s := bustest.NewFake(t)
		b := s.Bus(t)
		done, results := make(chan mesh.Done, 1), make(chan *fleet.Result, 1)
		serve(t, b, subjects.API("bob", "mesh", "done"), fleet.DecodeRequest[mesh.Done], done, mesh.Ack{MessageID: "m", From: "ann"})
		serve(t, b, subjects.ResultPattern, fleet.DecodeResult, results, fleet.ResultReply{OK: true})
		began := make(chan bool, 2)
		busy := func(ctx context.Context) error {
			began <- true
			<-ctx.Done()
			<-time.After(ends)
			return context.Cause(ctx)
		}
		w, err := agent.New(agent.Config{
			ID: "bob", Instance: "one", Bus: s.Connect(t), Grace: grace,
			Handler: agent.HandlerFunc(func(ctx context.Context, _ *agent.Task) (fleet.Result, error) {
				return fleet.Result{}, busy(ctx)
			}),
			Inbox: agent.InboxFunc(func(ctx context.Context, _ *mesh.Message) (agent.LetterReply, error) {
				return agent.LetterReply{}, busy(ctx)
			}),
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := bustest.Run(t, w.Run)
		bustest.Eventually(t, "an agent", func() bool { return w.Ready() == nil })
		if _, err := b.Request(t.Context(), subjects.Offer("bob", "one"), fleet.MustEncode(dispatch("t1", "x")), nil); err != nil {
			t.Fatal(err)
		}
		m := &meshSide{t: t, b: b}
		m.hand(mesh.Message{MessageID: "m", ThreadID: "t", Text: "x", Attempt: 1})
		<-began
		<-began
		stopped := time.Now()
		stop()
		if took := time.Since(stopped); took > grace+ends+time.Second {
			t.Errorf("stopping took %s, want that all ends within %s at the same time", took, grace+ends)
		}
		select {
		case d := <-done:
			if !d.Released {
				t.Errorf("the message is reported as %+v, want that it is given back", d)
			}
		default:
			t.Error("nothing is reported of the message")
		}
		select {
		case r := <-results:
			if code(*r) != subjects.CodeAgentBusy {
				t.Errorf("the task is handed in as %s, want agent_busy", code(*r))
			}
		default:
			t.Error("the task is not handed back")
		}
	})
}

// serve answers each request and passes it on.
func serve[T any](t *testing.T, b *bus.Bus, subject string, decode func([]byte) (T, error), to chan<- T, answer any) {
	t.Helper()
	if _, err := b.Subscribe(subject, "", func(m bus.Msg) {
		v, err := decode(m.Data)
		if err != nil {
			t.Errorf("%s: %v", m.Subject, err)
			return
		}
		to <- v
		_ = m.Respond(fleet.MustEncode(answer), nil)
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The last word of an agent is that it has stopped, and that it does not come
// back if it is to be so.
func TestLastWord(t *testing.T) {
	t.Parallel()
	for _, oneOff := range []bool{false, true} {
		s := bustest.New(t)
		b := s.Bus(t)
		w, err := agent.New(agent.Config{ID: "bob", Instance: "one", Bus: s.Connect(t), OneOff: oneOff, Handler: agent.Echo{}})
		if err != nil {
			t.Fatal(err)
		}
		stop := bustest.Run(t, w.Run)
		bustest.Eventually(t, "an agent", func() bool { return w.Ready() == nil })
		last := func() *fleet.Announce {
			m, err := b.Last(t.Context(), subjects.StreamAnnounce, subjects.Announce("bob", "one"))
			if err != nil {
				t.Fatal(err)
			}
			a, err := fleet.DecodeAnnounce(m.Data)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		if a := last(); a.Stopped || a.Retired {
			t.Errorf("it announces %+v at the start", a)
		}
		stop()
		if a := last(); !a.Draining || !a.Stopped || a.Retired != oneOff {
			t.Errorf("one-off %t: its last announce has draining %t, stopped %t, retired %t", oneOff, a.Draining, a.Stopped, a.Retired)
		}
	}
}
