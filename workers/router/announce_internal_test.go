package router

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Where announces are late, what nobody could ever do waits for them, for a
// while; deadlines do not, those of tasks that are to go to others neither.
func TestWhatIsHopelessHoldsNoDeadlineUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Bus(t)
		w, _ := serving(t, srv, "r1")
		a := announceOf("a")
		a.Header = fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version}
		if _, err := b.Store(t.Context(), subjects.Announce("a", "main"), fleet.MustEncode(a), "", nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second) // it has listened
		w.announced.Store(0)
		send := func(dispatch string) subjects.TaskID {
			t.Helper()
			m, err := b.Request(t.Context(), subjects.API("boss", "task", "dispatch"), []byte(dispatch), nil)
			if err != nil {
				t.Fatal(err)
			}
			d, err := fleet.DecodeReply[fleet.Dispatched](m.Data)
			if err != nil {
				t.Fatal(err)
			}
			return d.TaskID
		}
		for i := range 2 * maxDoing {
			send(fmt.Sprintf(`{"task":{"task_id":"hopeless-%d","on_blocked":"fail"},"requirements":{"required_capabilities":["fly"]},"brief":"x"}`, i))
		}
		id := send(fmt.Sprintf(`{"task":{"agent":"a"},"deadline":%q,"brief":"x"}`, w.now().Add(time.Second).Format(time.RFC3339Nano)))
		w.with(func(c *core, _ time.Time) {
			s := c.x.find(id)
			c.x.at(s).flags |= wider
			c.widenTask(s)
		})
		time.Sleep(2 * time.Second)
		if v, err := w.reread(t.Context(), id); err != nil || v.ev.State != fleet.StateExpired {
			t.Errorf("a second after its deadline it is %s, %v", v.ev.State, err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if err := w.hearAnnounces(ctx, w.now()); subjects.CodeOf(err) != subjects.CodeUnavailable || time.Since(began) > 3*time.Second {
			t.Errorf("announces that are late: %v after %s", err, time.Since(began))
		}
		w.announced.Store(1)
		time.Sleep(15 * time.Second)
		for _, name := range []subjects.TaskID{"hopeless-0", "hopeless-39"} {
			if v, err := w.reread(t.Context(), name); err != nil || v.ev.State != fleet.StateBlocked {
				t.Errorf("once announces have come, %s is %s, %v", name, v.ev.State, err)
			}
		}
	})
}
