package router

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
)

// Who is gone is remembered for a month; but of instances of an agent that can
// do the same, only the last that was heard for longer than a day.
func TestWhoIsForgotten(t *testing.T) {
	t.Parallel()
	f := NewFleet()
	join := func(agent, instance string, ago time.Duration, change ...func(*fleet.Announce)) {
		a := announceOf(agent, change...)
		a.Worker.InstanceID = subjects.InstanceID(instance)
		f.Announce(a, now0.Add(-ago), now0)
	}
	review := func(a *fleet.Announce) { a.Capabilities.Tools = append(a.Capabilities.Tools, "deploy") }
	healthy := func(a *fleet.Announce) { a.MCPHealth["trek"] = fleet.HealthOK }
	join("a", "1", 3*time.Minute, healthy) // how well it was does not tell it from the next
	join("a", "2", 2*time.Minute)
	join("a", "3", time.Minute)
	join("b", "more", 2*time.Minute, review)
	join("b", "less", time.Minute)
	join("c", "other", time.Minute, tier("opus"))
	f.Beat("d", "never-announced", &fleet.Heartbeat{}, now0)
	for _, tt := range []struct {
		after time.Duration
		want  []string
	}{
		{23 * time.Hour, []string{"a/1", "a/2", "a/3", "b/less", "b/more", "c/other", "d/never-announced"}},
		{25 * time.Hour, []string{"a/3", "b/less", "b/more", "c/other"}},
		{keepInstance - time.Hour, []string{"a/3", "b/less", "b/more", "c/other"}},
		{keepInstance + time.Hour, nil},
	} {
		f.Expire(now0.Add(tt.after))
		var got []string
		for in := range f.All() {
			got = append(got, fmt.Sprintf("%s/%s", in.Agent, in.ID))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", tt.after, diff)
		}
	}
}

// Instances that come with a new id each time are not remembered one by one: not
// those of a router's own time, and not those that it reads about at its start.
func TestInstancesOfADayAreNotKeptForAMonth(t *testing.T) {
	t.Parallel()
	const days = 10
	live, late := NewFleet(), NewFleet()
	for day := range days {
		for i := range 100 {
			a := announceOf("a")
			a.Worker.InstanceID = subjects.InstanceID(fmt.Sprintf("%d-%d", day, i))
			at := now0.Add(time.Duration(day)*24*time.Hour + time.Duration(i)*time.Second)
			live.Announce(a, at, at)
			late.Announce(a, at, now0.Add(days*24*time.Hour))
		}
	}
	if n := len(late.order); n > 101 { // those of the last day, and of the one before the last
		t.Errorf("one that starts has %d instances in mind", n)
	}
	for name, f := range map[string]*Fleet{"one that was there": live, "one that starts": late} {
		f.Expire(now0.Add(days*24*time.Hour + 2*forgetEvery))
		if n := len(f.order); n != 1 {
			t.Errorf("%s remembers %d instances, want the last", name, n)
		}
	}
}

// A task waits for an agent that is gone until its deadline, however long that
// is: routers that were there know it all the time, and those that start read it.
func TestTasksWaitForWhoIsGone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		ago, passes time.Duration
	}{
		{"gone over the weekend", time.Minute, 71 * time.Hour},
		{"gone for a week before the router starts", 7 * 24 * time.Hour, 5 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCore("r1", 1_000_000, 100, 100)
			c.announce(announceOf("laptop"), now0.Add(-tt.ago), now0)
			c.listen(now0)
			c.goOn(now0)
			q := testRecord(t, "t", `,"agent":"laptop"`, now0)
			c.apply(q, 1, now0)
			end := now0.Add(tt.passes)
			for now := now0; now.Before(end); now = now.Add(time.Minute) {
				if givesUp(c, now) {
					t.Fatalf("it is given up %s later", now.Sub(now0))
				}
			}
			other := testRecord(t, "u", `,"agent":"nobody"`, end)
			if c.apply(other, 2, end); !givesUp(c, end) {
				t.Error("a task for an agent that never announced itself waits, too")
			}
		})
	}
}

// givesUp lets the core do what is due, as its worker does, and reports whether
// it takes a task for one that nobody could ever do.
func givesUp(c *core, now time.Time) bool {
	c.ticked = now // it has not stood still
	c.tick(now)
	c.reevaluate(now)
	return slices.ContainsFunc(c.take(), func(e effect) bool { _, ok := e.(unschedulable); return ok })
}
