package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/schedule"
	"parley/test/rig"
	"parley/workers/agent"
)

// schedulePoints are the crash points of the schedules worker.
var schedulePoints = []string{
	"before_store_schedule", "after_store_schedule", "after_begin_schedule", "before_store_schedule:2", "after_store_schedule:2",
	"after_schedule_create", "after_timer", "after_timer:2", "after_schedule_remove", "after_timer_drop",
}

// sleeper is an agent that is woken by schedules.
type sleeper struct {
	mu      sync.Mutex
	done    map[string]int // by task: how often it was finished
	context int            // the most entries of a session's context that it woke with
}

func (s *sleeper) Handle(_ context.Context, t *agent.Task) (fleet.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[string(t.Dispatch.Task.TaskID)]++
	if len(t.Dispatch.Context) > 0 {
		c, err := fleet.DecodeStored[handshake.ContextView](t.Dispatch.Context)
		if err != nil {
			return fleet.Result{}, err
		}
		s.context = max(s.context, len(c.Context.PreviousAgents))
	}
	return agent.Text("awake"), nil
}

func (s *sleeper) count() (tasks, context int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done), s.context
}

// says runs the command line as boss, until it succeeds.
func (f *testFleet) says(t *testing.T, args ...string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		cmd := exec.CommandContext(t.Context(), parleyBinary(t), append(args, "--as", "boss", "--server", f.url)...)
		cmd.Env = bareEnv(f.dir)
		out, err := cmd.Output()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
		if time.Now().After(deadline) {
			t.Fatalf("parley %v: %v, %s", args, err, out)
		}
	}
}

// schedule is a schedule of boss's as it stands.
func (f *testFleet) schedule(t *testing.T, name string) *schedule.View {
	t.Helper()
	v, err := fleet.DecodeStored[schedule.View]([]byte(f.says(t, "schedule", "get", name, "-o", "json")))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// until waits for something that takes its time.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, 2*patience)
		}
	}
}

// Schedules of a second go on while workers and the broker die: each time is
// one task at most, and each is accounted for; an agent that is woken in a
// session has the session's context.
func TestSchedule(t *testing.T) {
	t.Parallel()
	const aside = "registry,sessions"
	f := newFleet(t, aside)
	isa := &sleeper{done: map[string]int{}}
	f.man(t, isa)
	n := 0
	serve := func(kind string) *process {
		n++
		return f.serve(fmt.Sprintf("%s-%d", kind, n), parleyBinary(t), kind, nil)
	}
	kinds := []string{"router", "schedules", "schedules"}
	var all []*process
	for _, kind := range kinds {
		all = append(all, serve(kind))
	}
	opened := f.says(t, "session", "create", "-o", "json")
	o, err := fleet.DecodeReply[handshake.Opened]([]byte(opened))
	if err != nil {
		t.Fatal(err)
	}
	brief := writeFile(t, f.dir, "brief.json", `{"task":{"agent":"isa","session_id":"`+string(o.Session.SessionID)+`"},"brief":"look again"}`)
	plain := writeFile(t, f.dir, "plain.txt", "look")
	f.says(t, "schedule", "create", "once", "--every", "1s", "--overlap", "queue", "dispatch", brief)
	f.says(t, "schedule", "create", "skip", "--cron", "* * * * * *", "--missed", "skip", "--grace", "1s", "dispatch", plain)
	for kills := range 6 {
		was, _ := isa.count()
		until(t, "more tasks", func() bool { now, _ := isa.count(); return now > was+1 })
		if kills == 2 {
			f.restartBroker(aside)
			continue
		}
		k := kills % len(all)
		all[k].kill()
		all[k] = serve(kinds[k])
	}
	until(t, "a context of its own tasks", func() bool { _, entries := isa.count(); return entries > 2 })
	ids := map[string]bool{}
	for _, name := range []string{"once", "skip"} {
		f.says(t, "schedule", "pause", name)
		var v *schedule.View
		until(t, "nothing is being begun", func() bool {
			v = f.schedule(t, name)
			return len(v.Waiting) == 0 && (v.Last.Begun != nil || v.Last.Reason != nil)
		})
		c, err := v.Definition.Clock(v.Created)
		if err != nil {
			t.Fatal(err)
		}
		_, passed := c.Passed(v.Created, v.Reckoned)
		if sum := v.Begun + v.Missed + v.Skipped + v.Refused; sum != passed {
			t.Errorf("%s: %d times have passed, %d are accounted for: %+v", name, passed, sum, v.Record)
		}
		t.Logf("%s: %d times: begun %d, missed %d, skipped %d, refused %d", name, passed, v.Begun, v.Missed, v.Skipped, v.Refused)
		for at := c.Next(v.Created); !at.After(v.Reckoned); at = c.Next(at) {
			ids[v.Due(at).ID] = true
		}
	}
	isa.mu.Lock()
	defer isa.mu.Unlock()
	for id := range isa.done {
		if !ids[id] {
			t.Errorf("task %s is of no time of a schedule", id)
		}
	}
}

// A schedule wakes nobody without the context of its session: once that is gone
// it begins nothing, and says why.
func TestScheduleWithoutItsSession(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "registry,sessions,router,schedules")
	isa := &sleeper{done: map[string]int{}}
	f.man(t, isa)
	o, err := fleet.DecodeReply[handshake.Opened]([]byte(f.says(t, "session", "create", "-o", "json")))
	if err != nil {
		t.Fatal(err)
	}
	id := string(o.Session.SessionID)
	f.says(t, "schedule", "create", "wake", "--every", "1s", "dispatch",
		writeFile(t, f.dir, "wake.json", `{"task":{"agent":"isa","session_id":"`+id+`"},"brief":"look again"}`))
	until(t, "a context of its own tasks", func() bool { _, entries := isa.count(); return entries > 0 })
	f.says(t, "session", "delete", id)
	refused := func(times int) *schedule.View {
		var v *schedule.View
		until(t, "the refusals", func() bool { v = f.schedule(t, "wake"); return v.Refused >= times })
		return v
	}
	first := refused(1)
	last := refused(3)
	if last.Begun != first.Begun || last.Last.Reason == nil || last.Last.Reason.Code != subjects.CodeNotFound || last.State != schedule.Active {
		t.Errorf("after %d were begun it stands at %+v", first.Begun, last.Record)
	}
}

// TestScheduleCrash has the schedules worker die at every one of its steps, and
// another one take over, or lose acknowledgements: there is one task, and it is
// done; a schedule that was removed in time begins none.
func TestScheduleCrash(t *testing.T) {
	sweep(t, schedulePoints, func(t *testing.T, point string) {
		f := newFleet(t, "registry,router")
		isa := &sleeper{done: map[string]int{}}
		f.man(t, isa)
		first := f.serve("schedules-1", crashBinary(t), "schedules", nil, crashEnv(point))
		acted := make(chan error, 1)
		go func() { acted <- f.removesOne(t) }()
		if dies(t, first, point) {
			f.serve("schedules-2", parleyBinary(t), "schedules", nil)
		}
		switch err := <-acted; {
		case errors.Is(err, errTooLate):
			t.Skip(err)
		case err != nil:
			t.Fatal(err)
		}
		var v *schedule.View
		until(t, "the end of the schedule", func() bool {
			v = f.schedule(t, "s")
			return v.State == schedule.Ended && v.Last.Begun != nil
		})
		if v.Begun != 1 || v.Missed != 0 || v.Last.ID != v.Due(*v.Definition.At).ID {
			t.Errorf("it stands at %+v", v.Record)
		}
		f.says(t, "task", "wait", v.Last.ID)
		if tasks, _ := isa.count(); tasks != 1 {
			t.Errorf("%d tasks were done, want 1", tasks)
		}
		if list := f.says(t, "task", "ls", "-o", "json"); strings.Count(list, `"`+string(subjects.TaskID(v.Last.ID))+`"`) != 1 || strings.Count(list, `"task_id"`) != 1 {
			t.Errorf("the tasks are %s", list)
		}
		until(t, "no timer of what was removed", func() bool {
			return len(f.subjects(t, "FLEET_TIMERS", subjects.Timer("boss", "r")))+len(f.subjects(t, "FLEET_TIMERS", subjects.Tick("boss", "r"))) == 0
		})
		checkLost(t, first, point, "$KV.FLEET_SCHEDULES.")
	})
}

var errTooLate = errors.New("this machine took so long that the time of r had come before it was removed")

// removesOne creates the schedule r, removes it, and creates s, whose time is
// not before that of r.
func (f *testFleet) removesOne(t *testing.T) error {
	t.Helper()
	sender := boss{NC: f.nc, Name: "boss"}
	create := func(name string, at time.Time) error {
		def := map[string]any{"name": name, "at": at.UTC(), "dispatch": map[string]any{"brief": "look"}}
		_, err := sender.Call(t.Context(), "schedule", "create", def)
		return err
	}
	at := time.Now().Add(5 * time.Second)
	if err := create("r", at); err != nil {
		return err
	}
	armed := func() bool {
		return len(f.subjects(t, "FLEET_TIMERS", subjects.Timer("boss", "r"))) > 0 || time.Now().After(at)
	}
	if err := waitFor(t.Context(), armed); err != nil {
		return err
	}
	_, err := sender.Call(t.Context(), "schedule", "remove", map[string]string{"name": "r"})
	if refused, ok := errors.AsType[*rig.Refusal](err); err != nil && (!ok || refused.Code != "not_found") { // it was removed, and nobody said so
		return err
	}
	if time.Now().After(at) {
		return errTooLate
	}
	return inTime(2*time.Second, func(soon time.Time) error {
		if soon.Before(at) {
			soon = at
		}
		return create("s", soon)
	})
}

// subjects are those of a stream that filter matches.
func (f *testFleet) subjects(t *testing.T, stream, filter string) map[string]uint64 {
	t.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(filter))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects
}

func writeFile(tb testing.TB, dir, name, text string) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}
