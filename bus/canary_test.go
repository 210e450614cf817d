package bus_test

import (
	"errors"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

func TestCanary(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for range 2 {
		if err := b.Canary(t.Context()); err != nil {
			t.Errorf("Canary = %v", err)
		}
	}
}

// TestGetBeyondTheLast: a message that the leader does not know yet is not one
// that is gone.
func TestGetBeyondTheLast(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Get beyond the last = %v, want ErrNoResponders", err)
	}
	if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte("x")}, "not JSON"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); err != nil {
		t.Errorf("Get = %v", err)
	}
	if err := b.Purge(t.Context(), subjects.StreamDLQ, "fleet.dlq.>"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), subjects.StreamDLQ, 1); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get of what was purged = %v, want ErrNotFound", err)
	}
}

// TestLastBehindWhatWasHeard: a leader that knows less than a tail has heard
// does not know either that there is no message of a subject.
func TestLastBehindWhatWasHeard(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	last := func() error {
		_, err := b.Last(t.Context(), subjects.StreamDLQ, "fleet.dlq.none")
		return err
	}
	if err := last(); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last = %v, want ErrNotFound", err)
	}
	b.Hear(subjects.StreamDLQ, 1)
	if err := last(); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("Last = %v, want ErrNoResponders", err)
	}
	if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte("x")}, "not JSON"); err != nil {
		t.Fatal(err)
	}
	if err := last(); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last = %v, want ErrNotFound once the leader has caught up", err)
	}
}
