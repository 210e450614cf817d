package schedules

import (
	"context"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// TestCallsEnd: no call stands until something can be stored.
func TestCallsEnd(t *testing.T) {
	t.Parallel()
	w, err := New(Config{Bus: &bus.Bus{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range w.service().Endpoints {
		if e.Timeout != bus.StoreTime {
			t.Errorf("%s may take %s, want %s", e.Name, e.Timeout, bus.StoreTime)
		}
	}
}

// TestRepeatThatCannotBeLookedUp: whoever repeats a create whose answer was lost
// is not told that its time has passed while nobody can see whether it was stored.
func TestRepeatThatCannotBeLookedUp(t *testing.T) {
	t.Parallel()
	w, err := New(Config{Bus: bustest.New(t).Bus(t)})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	past := []byte(`{"name":"s","at":"1999-12-31T00:00:00Z","dispatch":{"brief":"x"}}`)
	if _, err := w.create(t.Context(), "ann", past); subjects.CodeOf(err) != subjects.CodeDeadlineExceeded {
		t.Errorf("create = %v, want deadline_exceeded", err)
	}
	away, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.create(away, "ann", past); subjects.CodeOf(err) != subjects.CodeUnavailable {
		t.Errorf("create while the store does not answer = %v, want unavailable", err)
	}
}
