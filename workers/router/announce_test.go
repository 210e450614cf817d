package router_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

// An announce that is refused keeps no task waiting that nobody could ever do.
func TestARefusedAnnounceHoldsNothingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		b := srv.Connect(t)
		b.SetGuard(bus.Guard{Stored: func(m bus.Msg) error {
			if strings.HasPrefix(m.Subject, "fleet.announce.x.") {
				return subjects.Errorf(subjects.CodeForbidden, "it may not")
			}
			return nil
		}})
		r, err := router.New(router.Config{Bus: b})
		if err != nil {
			t.Fatal(err)
		}
		w.run(r)
		time.Sleep(31 * time.Second) // it has listened
		w.join("y", nil)
		w.join("x", nil)
		began := time.Now()
		v := w.outcome(w.send(`{"requirements":{"required_capabilities":["fly"]},"brief":"x"}`))
		if took := time.Since(began); v.State != fleet.StateBlocked || took > 5*time.Second {
			t.Errorf("it is %s after %s, want blocked at once", v.State, took)
		}
	})
}
