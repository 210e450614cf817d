package bus_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// Whoever asks says where the answer goes, and it is written with the rights of
// who answers: so it goes to no subject of the fleet's or JetStream's.
func TestAnswersGoToInboxes(t *testing.T) {
	t.Parallel()
	s := bustest.New(t, bustest.NoJetStream)
	b, eve := s.Connect(t), s.Connect(t)
	raw, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	heard := make(chan string, 64)
	for _, all := range []string{"fleet.>", "$JS.API.>", "$KV.>", "mine.>"} {
		if _, err := b.Subscribe(all, "", func(m bus.Msg) { heard <- m.Subject }); err != nil {
			t.Fatal(err)
		}
	}
	serve(t, b, func(context.Context, bus.Msg) ([]byte, error) { return []byte("by the API"), nil })
	if _, err := b.Subscribe("ask", "", func(m bus.Msg) {
		if err := m.Respond([]byte("by a subscriber"), nil); err != nil {
			t.Errorf("Respond: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	const api = "fleet.api.eve.task.get"
	for _, reply := range []string{"fleet.task.t1", "fleet.audit", "$JS.API.STREAM.PURGE.FLEET_TASKS", "$KV.FLEET_WORKERS.session-keys", "mine.x"} {
		for _, subject := range []string{api, "ask"} {
			if err := raw.PublishRequest(subject, reply, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	// What was asked last is answered after them all, or nearly so: by the
	// subscriber's own order, and twice to an inbox of eve's own name.
	answered := map[string]int{}
	bustest.Eventually(t, "the answers to an inbox", func() bool {
		for len(heard) > 0 {
			answered[<-heard]++
		}
		return answered["mine.x"] == 2
	})
	for range 20 {
		if _, err := eve.Request(t.Context(), api, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := eve.Request(t.Context(), "ask", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	for len(heard) > 0 {
		answered[<-heard]++
	}
	delete(answered, api)
	delete(answered, "mine.x")
	if len(answered) > 0 {
		t.Errorf("answers went to %v", answered)
	}
}

// Whoever watches a bus hears which requests were refused, and why.
func TestRefusedIsHeard(t *testing.T) {
	t.Parallel()
	s := bustest.New(t, bustest.NoJetStream)
	heard := make(chan string, 8)
	c := s.Config()
	c.Refused = func(subject string, err *subjects.Error) { heard <- subject + " " + string(err.Code) }
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	serve(t, b, func(_ context.Context, m bus.Msg) ([]byte, error) {
		if string(m.Data) == "ok" {
			return []byte("yes"), nil
		}
		return nil, subjects.Errorf(subjects.CodeForbidden, "no")
	})
	for _, body := range []string{"ok", "no"} {
		if _, err := b.Request(t.Context(), "fleet.api.eve.task.get", []byte(body), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-heard; got != "fleet.api.eve.task.get forbidden" || len(heard) > 0 {
		t.Errorf("heard %q and %d more", got, len(heard))
	}
}
