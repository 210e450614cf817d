package router_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// Whatever one agent reports, and however often, the results of the others are
// taken in at once.
func TestOneAgentHoldsUpNoResults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		about func(i int) subjects.TaskID
		want  subjects.Code
	}{
		{"of tasks that are not", func(i int) subjects.TaskID { return subjects.TaskID(fmt.Sprintf("no-such-%d", i)) }, subjects.CodeNotFound},
		{"of attempts that are not", func(int) subjects.TaskID { return "waits" }, subjects.CodeUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := bustest.NewFake(t)
				w := &world{t: t, srv: srv, bus: srv.Bus(t)}
				w.router("r0")
				y := w.join("y", nil)
				id := w.send(dispatchJSON("x", ""))
				y.offered()
				w.send(`{"task":{"task_id":"waits","agent":"nobody","on_blocked":"wait"},"brief":"x"}`)
				var flood sync.WaitGroup
				defer flood.Wait()
				for i := range 1000 {
					flood.Go(func() {
						r := fleet.MustEncode(fleet.Result{Status: fleet.StatusDone, Attempt: 9})
						m, err := w.bus.RequestUntil(t.Context(), subjects.Result("x", tt.about(i)), r, nil, time.Minute, nil)
						if err == nil {
							_, err = fleet.DecodeReply[fleet.ResultReply](m.Data)
						}
						if subjects.CodeOf(err) != tt.want {
							t.Errorf("result %d = %v, want %s", i, err, tt.want)
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				if _, err := y.result(id, fleet.Result{}); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("another's result is answered after %s", took)
				}
			})
		})
	}
}
