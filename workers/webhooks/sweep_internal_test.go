package webhooks

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// However much there is that is old, all of it goes, and no call waits for that.
func TestSweepGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bustest.NewFake(t)
		b := s.Bus(t)
		for n := range 5 * sweepAtOnce / 2 {
			if err := leave(t, b, sized(fmt.Sprint("d", n), fleet.SchedulePush, 1), fleet.DeliveryDelivered, nil); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(KeepDelivered + time.Second)
		f := &fake{answer: func() outcome { return outcome{status: 200} }}
		f.begin(t, slow(t, s, 20*time.Millisecond))
		<-time.After(time.Second)
		store(t, b, "call", "t1")
		<-time.After(time.Second)
		if f.of("call") != 1 {
			t.Errorf("while what is old goes, a human was called %d times, want once", f.of("call"))
		}
		<-time.After(sweepEvery)
		state, err := b.StreamState(t.Context(), subjects.StreamWebhooks)
		if err != nil {
			t.Fatal(err)
		}
		if state.Msgs > 2 { // what became of the call, and the line of it
			t.Errorf("%d messages are there a minute later, want none that is old", state.Msgs)
		}
	})
}
