package schedules_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	"parley/subjects/schedule"
)

// clocks are the schedules of TestSchedule. due says, on its own terms, whether
// a minute is one at which it is due.
var clocks = []struct {
	name, when string
	due        func(t, created time.Time) bool
}{
	{"hourly", `"cron":"0 * * * *"`, func(t, _ time.Time) bool { return t.Minute() == 0 }},
	{"hourly-skip", `"cron":"0 0 * * * *","missed":"skip"`, func(t, _ time.Time) bool { return t.Minute() == 0 }},
	// What the clocks skip comes right after, and what they repeat comes twice.
	{"berlin-night", `"cron":"30 2 * * *","time_zone":"Europe/Berlin"`, berlin(func(h, m int) bool { return h == 2 && m == 30 })},
	{"berlin-day", `"cron":"15 9 * * *","time_zone":"Europe/Berlin"`, berlin(func(h, m int) bool { return h == 9 && m == 15 })},
	{"berlin-quarters", `"cron":"*/15 1-3 * * *","time_zone":"Europe/Berlin"`, berlin(func(h, m int) bool { return h >= 1 && h <= 3 && m%15 == 0 })},
	{"every", `"every_seconds":5400`, func(t, created time.Time) bool {
		return t.Sub(created)%(90*time.Minute) == 0 && t.After(created)
	}},
}

func berlin(f func(hour, minute int) bool) func(t, _ time.Time) bool {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	return func(t, _ time.Time) bool {
		local, before := t.In(zone), t.Add(-time.Hour).In(zone)
		skipped := local.Hour() == before.Hour()+2 && f(before.Hour()+1, local.Minute())
		return f(local.Hour(), local.Minute()) || skipped
	}
}

// TestSchedule has two days pass, with a change of the clocks in the middle and
// with five hours in which neither broker nor worker runs: everything is begun
// once, at its time, and what was missed as its schedule says.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		days(t, span{
			begin: time.Date(2000, 3, 25, 0, 0, 0, 0, time.UTC), // the clocks go forward on the 26th at 01:00
			end:   48*time.Hour + 10*time.Minute, down: 30*time.Hour + 20*time.Minute, up: 35*time.Hour + 20*time.Minute,
			at: 40*time.Hour + 30*time.Minute, times: 130,
		})
	})
}

// TestClocksGoBack has an hour come twice.
func TestClocksGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		days(t, span{
			begin: time.Date(2000, 10, 28, 23, 0, 0, 0, time.UTC), // they go back on the 29th at 01:00
			end:   5*time.Hour + 50*time.Minute, down: 4*time.Hour + 20*time.Minute, up: 4*time.Hour + 21*time.Minute, at: 90 * time.Minute, times: 25,
		})
	})
}

// span is what a test lets pass.
type span struct {
	begin             time.Time
	down, up, at, end time.Duration // since then
	times             int           // at least, at which something is due
}

func days(t *testing.T, s span) {
	pass(time.Until(s.begin))
	server := bustest.NewFake(t)
	f := newFleet()
	f.instant = true
	b := server.Bus(t)
	stopFleet, stop := f.serve(t, b), start(t, b, 20*time.Second)
	created := time.Now()
	for _, c := range clocks {
		create(t, b, c.name, c.when)
	}
	create(t, b, "once", fmt.Sprintf(`"at":%q`, created.Add(s.at).UTC().Format(time.RFC3339)))

	down, up, end, at := s.down, s.up, s.end, s.at
	until := func(d time.Duration) { pass(time.Until(created.Add(d))) }
	until(down)
	stop()
	stopFleet()
	b.Close()
	server.Stop(0)
	until(up)
	server.Start(t, 0)
	b = server.Connect(t)
	f.serve(t, b)
	start(t, b, 20*time.Second)
	until(end)

	want := map[string]string{} // id: what it is
	got := map[string]string{}
	for _, c := range clocks {
		v := get(t, b, c.name)
		missed := 0
		var last time.Time
		say := func(m, at time.Time) {
			want[v.Record.Due(m).ID] = fmt.Sprintf("%s of %s at %s", c.name, m.Format(time.DateTime), at.Format(time.DateTime))
		}
		begin := created.Truncate(time.Minute)
		if v.Definition.EverySeconds > 0 {
			begin = v.Created
		}
		for m := begin; !m.After(created.Add(end)); m = m.Add(time.Minute) {
			switch since := m.Sub(created); {
			case since <= 0 || !c.due(m.UTC(), v.Created):
			case since > down && since < up:
				missed++
				last = m.UTC()
			default:
				say(m.UTC(), m.UTC())
			}
		}
		if v.Definition.Missed == schedule.Once && missed > 0 {
			say(last, created.Add(up).UTC())
			missed--
		}
		if v.Missed != missed || v.Skipped != 0 || v.Refused != 0 || len(v.Waiting) != 0 || v.Next == nil {
			t.Errorf("%s: missed %d, want %d; in all %+v", c.name, v.Missed, missed, v.Record)
		}
		if next := v.Upcoming; len(next) != 5 || next[0] != *v.Next || !slices.IsSortedFunc(next, time.Time.Compare) {
			t.Errorf("%s: next %v, upcoming %v", c.name, v.Next, next)
		}
	}
	v := get(t, b, "once")
	want[v.Last.ID] = "once of " + created.Add(at).UTC().Format(time.DateTime) + " at " + created.Add(at).UTC().Format(time.DateTime)
	if v.State != schedule.Ended || v.Next != nil {
		t.Errorf("once is %s, next %v, want ended", v.State, v.Next)
	}
	for _, what := range f.all() {
		was := want[what.id]
		// What is begun late after the downtime is begun within seconds.
		about := what.at.Truncate(10 * time.Second).Format(time.DateTime)
		got[what.id] = cmp.Or(was[:max(len(was)-len(about), 0)], "unknown ") + about
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("what was begun (-want +got):\n%s", diff)
	}
	if len(want) < s.times {
		t.Errorf("%d times, want %d: the test has lost its point", len(want), s.times)
	}
	for id, n := range f.calls {
		if n != 1 {
			t.Errorf("%s was begun %d times", id, n)
		}
	}
}
