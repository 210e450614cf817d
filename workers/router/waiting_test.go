package router_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/router"
)

// TestCausesOfWaiting: operators see why tasks wait, cause by cause: one for an
// account, one for an agent that is missing, one for what nobody offers, however
// many tasks and classes there are. The figures and the listing say the same.
func TestCausesOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := bustest.NewFake(t)
		w := &world{t: t, srv: srv, bus: srv.Bus(t)}
		r, err := router.New(router.Config{Bus: srv.Connect(t)})
		if err != nil {
			t.Fatal(err)
		}
		w.run(r)
		began := time.Now()
		a := w.join("a", nil)
		first := w.send(dispatchJSON("x", `"agent":"a"`))
		a.offered()
		if _, err := a.result(first, fleet.Result{Status: fleet.StatusError, Error: &fleet.ResultError{
			Code: subjects.CodeRateLimited, Message: "limit reached", RetryAfterSeconds: 3600,
		}}); err != nil {
			t.Fatal(err)
		}
		send := func(id, more, deadline string) {
			w.send(fmt.Sprintf(`{"task":{"task_id":%q%s},"brief":"x"%s}`, id, more, deadline))
		}
		soon := fmt.Sprintf(`,"deadline":%q`, began.Add(30*time.Minute).UTC().Format(time.RFC3339))
		send("late", `,"agent":"a"`, soon)
		send("silent", `,"agent":"a","escalate":"never"`, soon)
		send("pinned", `,"agent":"bob","on_blocked":"wait"`, "")
		for i := range 5 { // classes of their own
			w.send(fmt.Sprintf(`{"task":{"task_id":"gpu%d","on_blocked":"wait"},"requirements":{"required_mcp":[],"required_capabilities":["gpu%d"]},"brief":"x"}`, i, i))
		}
		time.Sleep(5 * time.Second)
		got, err := call[fleet.TaskWaitingReply](w, "operator", "task", "waiting", struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		want := fleet.TaskWaitingReply{Causes: []fleet.WaitingCause{
			{Waiting: fleet.Waiting{Why: fleet.WaitLimited, Who: "a", Message: "limit reached"}, Tasks: 3, Silent: 1, Late: 1, TaskID: first},
			{Waiting: fleet.Waiting{Why: fleet.WaitNoAgentYet}, Tasks: 5, TaskID: "gpu0"},
			{Waiting: fleet.Waiting{Why: fleet.WaitNoAgentYet, Who: "bob"}, Tasks: 1, TaskID: "pinned"},
		}, Ready: got.Ready}
		ignore := cmp.Options{
			cmpopts.IgnoreFields(fleet.Waiting{}, "Since", "Until"),
			cmpopts.IgnoreFields(fleet.WaitingCause{}, "Class", "Oldest", "Deadline", "OldestSilent"),
		}
		if diff := cmp.Diff(want, got, ignore); diff != "" {
			t.Errorf("causes (-want +got):\n%s", diff)
		}
		if k := got.Causes[0]; k.Until == nil || k.Guessed || k.Until.Sub(began) < 59*time.Minute || k.Deadline.Sub(began) > 31*time.Minute || k.OldestSilent.IsZero() {
			t.Errorf("the limit is %+v", k)
		}
		if _, err := call[fleet.TaskWaitingReply](w, "boss", "task", "waiting", struct{}{}); subjects.CodeOf(err) != subjects.CodeForbidden {
			t.Errorf("boss is told %v, want forbidden", err)
		}
		if _, err := call[fleet.TaskWaitingReply](w, "escalation", "task", "waiting", struct{}{}); err != nil {
			t.Errorf("the escalation worker is told %v", err)
		}
		f := r.Figures()
		wait := []fleet.WaitingFigures{{Why: fleet.WaitLimited, Tasks: 3}, {Why: fleet.WaitNoAgentYet, Tasks: 6}}
		if diff := cmp.Diff(wait, f.Waiting, cmpopts.IgnoreFields(fleet.WaitingFigures{}, "OldestSeconds")); diff != "" {
			t.Errorf("figures (-want +got):\n%s", diff)
		}
		if len(f.Limits) != 1 || f.Limits[0].Account != "a" || f.Limits[0].Tasks != 3 || f.Limits[0].Late != 1 || f.Limits[0].Guessed {
			t.Errorf("limits = %+v", f.Limits)
		}
		for _, c := range f.Classes {
			if want := map[bool]string{true: fleet.WaitLimited, false: fleet.WaitNoAgentYet}[strings.Contains(c.Class, `only="a"`)]; c.Why != want {
				t.Errorf("class %s waits, why: %q; want %q", c.Class, c.Why, want)
			}
		}
		list, err := call[fleet.TaskListReply](w, "operator", "task", "list", fleet.TaskList{Waiting: true})
		if err != nil || list.Total != 9 {
			t.Errorf("%d tasks wait, %v; want 9", list.Total, err)
		}
		b := w.join("bob", nil)
		b.offered()
		time.Sleep(time.Second)
		if list, err = call[fleet.TaskListReply](w, "operator", "task", "list", fleet.TaskList{Waiting: true}); err != nil || list.Total != 8 {
			t.Errorf("%d tasks wait once bob has his, %v; want 8", list.Total, err)
		}
	})
}
