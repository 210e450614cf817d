package bustest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
)

// The canary of ats.Register: without it this test hangs, because fake time
// stands still while the server's access-time ticker runs.
func TestFakeTimeMoves(t *testing.T) {
	t.Parallel()
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			b := bustest.NewFake(t).Bus(t)
			start := time.Now()
			<-time.After(24 * time.Hour)
			if passed := time.Since(start); passed != 24*time.Hour {
				t.Errorf("%v passed, want 24h", passed)
			}
			if err := b.Ping(t.Context()); err != nil || !b.Connected() {
				t.Errorf("Ping = %v, connected %t", err, b.Connected())
			}
		})
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	heard := make(chan bus.Msg, 1)
	if _, err := s.Connect(t).Subscribe("fleet.event.a", "", func(m bus.Msg) { heard <- m }); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "a record is heard", func() bool {
		if _, err := b.Store(t.Context(), "fleet.task.a", []byte("x"), "", nil); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-heard:
			return string(m.Data) == "x"
		default:
			return false
		}
	})
}
