package router_test

import (
	"fmt"
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

// Where nobody has routed for days, the next router ends what is out of time,
// and what is not waits on, also for an agent that is not back yet.
func TestNobodyRoutesForDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		laptop := &fleet.Announce{Header: fleet.Header{Type: fleet.TypeAnnounce, ProtocolVersion: fleet.Version}, Worker: fleet.Worker{AgentID: "laptop", Epoch: 1}}
		if _, err := w.bus.Store(t.Context(), subjects.Announce("laptop", "main"), fleet.MustEncode(laptop), "", nil); err != nil {
			t.Fatal(err)
		}
		stop := w.router("first")
		in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
		overdue := w.send(fmt.Sprintf(`{"task":{"agent":"laptop"},"deadline":%q,"brief":"x"}`, in(time.Hour)))
		waits := w.send(fmt.Sprintf(`{"task":{"agent":"laptop"},"deadline":%q,"brief":"x"}`, in(14*24*time.Hour)))
		stop()
		time.Sleep(50 * time.Hour)
		w.router("second")
		if v := w.outcome(overdue); v.State != fleet.StateExpired {
			t.Errorf("the task whose deadline has passed is %s (%+v), want expired", v.State, v.Reason)
		}
		time.Sleep(time.Minute)
		if v := w.view(waits); v.State != fleet.StateQueued {
			t.Errorf("the task for the agent that is gone is %s (%+v), want queued", v.State, v.Reason)
		}
	})
}

// Ended tasks go a day after their end, and sooner where there are too many of
// them: the oldest first, and none that lives.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		serve := func() (stop func()) {
			r, err := router.New(router.Config{Bus: srv.Connect(t), KeepEnded: 3})
			if err != nil {
				t.Fatal(err)
			}
			return w.run(r)
		}
		var all []subjects.TaskID
		send := func(id string) subjects.TaskID {
			all = append(all, w.send(fmt.Sprintf(`{"task":{"task_id":%q,"on_blocked":"wait"},"brief":"x"}`, id)))
			return all[len(all)-1]
		}
		kept := func(want string) {
			t.Helper()
			time.Sleep(time.Minute) // sweeps
			var got []string
			for _, id := range all {
				if _, err := w.bus.Last(t.Context(), subjects.StreamTasks, subjects.Task(id)); err == nil {
					got = append(got, string(id))
				}
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("kept are %q, want %q", s, want)
			}
		}
		stop := serve()
		send("live")
		for i := range 5 {
			if _, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: send(fmt.Sprint("ended-", i))}); err != nil {
				t.Fatal(err)
			}
		}
		kept("live ended-2 ended-3 ended-4")
		stop()
		time.Sleep(23 * time.Hour)
		stop = serve()
		kept("live ended-2 ended-3 ended-4")
		stop()
		time.Sleep(time.Hour)
		serve()
		send("later") // the last record of all is never looked at
		kept("live later")
	})
}

// While the task store is four fifths full, no task comes in; those that were
// accepted end, and what waits at the raw door comes in once there is room.
func TestAStoreThatIsNearlyFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		b := srv.Connect(t)
		const size = 2 << 20
		if err := b.Provision(t.Context(), bus.Provisioning{MaxBytes: size}); err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, srv: srv, bus: b}
		w.router("r0")
		a := w.join("a", nil)
		accepted := w.send(dispatchJSON("x", ""))
		a.offered()
		var fill []subjects.TaskID
		for range 9 { // not for a
			fill = append(fill, w.send(fmt.Sprintf(`{"task":{"agent":"b","on_blocked":"wait"},"brief":%q}`, strings.Repeat("x", size/10))))
		}
		time.Sleep(time.Minute) // it looks at the disk
		_, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("x", "")))
		if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeRateLimited || e.RetryAfterSeconds <= 0 || !strings.Contains(e.Remedy, "--max-store") {
			t.Errorf("a dispatch = %v, want rate_limited with retry-after, and the setting that makes room", err)
		}
		raw := w.send2(dispatchJSON("x", `"task_id":"waits-outside"`))
		if _, err := a.result(accepted, fleet.Result{}); err != nil {
			t.Fatal(err)
		}
		if v := w.outcome(accepted); v.State != fleet.StateDone {
			t.Errorf("the task that was accepted before is %s", v.State)
		}
		time.Sleep(time.Minute)
		if _, err := call[fleet.TaskView](w, "boss", "task", "get", fleet.TaskRef{TaskID: raw}); subjects.CodeOf(err) != subjects.CodeNotFound {
			t.Errorf("the task at the raw door = %v, want not_found", err)
		}
		for _, id := range fill {
			if _, err := call[fleet.TaskView](w, "boss", "task", "cancel", fleet.TaskCancel{TaskID: id}); err != nil {
				t.Fatal(err)
			}
			if err := b.Purge(t.Context(), subjects.StreamTasks, subjects.Task(id)); err != nil {
				t.Fatal(err)
			}
		}
		if d := a.offered(); d.Task.TaskID != raw {
			t.Errorf("offered %s once there is room, want %s", d.Task.TaskID, raw)
		}
	})
}
