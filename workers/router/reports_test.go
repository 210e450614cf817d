package router_test

import (
	"fmt"
	"slices"
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
	noSuch := func(i int) subjects.TaskID { return subjects.TaskID(fmt.Sprintf("no-such-%d", i)) }
	waits := func(int) subjects.TaskID { return "waits" }
	for _, tt := range []struct {
		name  string
		about func(i int) subjects.TaskID
		said  fleet.Result
		want  []subjects.Code
	}{
		{"of tasks that are not", noSuch, fleet.Result{Status: fleet.StatusDone}, []subjects.Code{subjects.CodeNotFound}},
		{"of attempts that are not", waits, fleet.Result{Status: fleet.StatusDone}, []subjects.Code{subjects.CodeUnavailable}},
		{"failures of tasks that are not", noSuch, failed(subjects.CodeAgentError, true), []subjects.Code{subjects.CodeNotFound, subjects.CodeRateLimited}},
		{"failures of attempts that are not", waits, failed(subjects.CodeAgentError, true), []subjects.Code{subjects.CodeUnavailable, subjects.CodeRateLimited}},
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
						r := tt.said
						r.Attempt = 9
						m, err := w.bus.RequestUntil(t.Context(), subjects.Result("x", tt.about(i)), fleet.MustEncode(r), nil, time.Minute, nil)
						if err == nil {
							_, err = fleet.DecodeReply[fleet.ResultReply](m.Data)
						}
						if !slices.Contains(tt.want, subjects.CodeOf(err)) {
							t.Errorf("result %d = %v, want one of %s", i, err, tt.want)
						}
					})
				}
				synctest.Wait()
				began := time.Now()
				if _, err := y.result(id, tt.said); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("another's result is answered after %s", took)
				}
			})
		})
	}
}

// A result whose task the stream's leader has yet to learn of is taken in once it
// has: another router may have offered the task already.
func TestAResultBeforeItsTaskIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		a := w.join("a", nil)
		var sent sync.WaitGroup
		defer sent.Wait()
		sent.Go(func() {
			time.Sleep(300 * time.Millisecond)
			w.send(dispatchJSON("x", `"task_id":"later"`))
		})
		if _, err := a.result("later", fleet.Result{}); err != nil {
			t.Fatal(err)
		}
		if v := w.outcome("later"); v.State != fleet.StateDone {
			t.Errorf("it is %s, %+v", v.State, v.Reason)
		}
	})
}
