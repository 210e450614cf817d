package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
	runwire "parley/subjects/run"
	"parley/subjects/schedule"
)

// TestDoctorOfWork provokes workers that are missing, work that is past its
// time, and an audit that was changed.
func TestDoctorOfWork(t *testing.T) {
	t.Parallel()
	all := func(names ...string) []bus.ServiceInfo {
		var list []bus.ServiceInfo
		for _, name := range names {
			list = append(list, bus.ServiceInfo{Name: name})
		}
		return list
	}
	holding := func(stream string, n uint64) []bus.StreamFigures {
		return []bus.StreamFigures{{Name: subjects.StreamTasks, Msgs: 1}, {Name: stream, Msgs: n}}
	}
	task := func(state fleet.State, due time.Time) []fleet.TaskView {
		return []fleet.TaskView{{TaskID: "t0", State: fleet.StateWorking, Deadline: noon.Add(time.Hour)}, {TaskID: "t1", State: state, Deadline: due}}
	}
	next := func(due time.Time) *time.Time { return &due }
	daily := schedule.Definition{Name: "daily"}
	blocks := func(change func([]*audit.Block)) (stored []bus.Msg) {
		var list []*audit.Block
		var prev *audit.Block
		for _, line := range []string{"{}", "{ }", "{  }"} {
			prev = audit.Seal(prev, audit.Day(noon), audit.Positions{}, []string{line})
			list = append(list, prev)
		}
		change(list)
		for _, b := range list[1:] { // the oldest is gone
			stored = append(stored, bus.Msg{Data: fleet.MustEncode(b)})
		}
		return stored
	}
	for _, c := range []struct {
		name  string
		got   finding
		check string
		ok    bool
		found string
	}{
		{"every service", missing(all("a2e", "audit", "callout", "mesh", "registry", "runs", "schedules", "sessions"), nil, nil), "workers", true, "every service is served"},
		{"one that nobody needs", missing(all("a2e", "audit", "callout", "registry", "runs", "schedules", "sessions"), nil, holding(subjects.StreamMesh, 0)), "workers", true, "nobody runs: mesh"},
		{"one that was in use", missing(all("audit", "sessions"), nil, holding(subjects.StreamRuns, 3)), "workers", false, "in use: runs parley serve --workers runs"},
		{"no word of services", missing(nil, fmt.Errorf("ask: %w", bus.ErrDenied), nil), "workers", true, "not known"},
		{"no server", missing(nil, errors.New("gone"), nil), "workers", false, "gone"},

		{"in time", past(&work{tasks: task(fleet.StateWorking, ago1(30*time.Second))}, noon), "overdue", true, "nothing"},
		{"a task at work", past(&work{tasks: task(fleet.StateWorking, ago1(2*time.Minute))}, noon), "overdue", false, "1 are past their time: working task t1, by 2m"},
		{"a task that waits", past(&work{tasks: task(fleet.StateQueued, ago1(2*time.Minute))}, noon), "overdue", false, "queued task t1"},
		{"a question", past(&work{tasks: task(fleet.StateInputRequired, ago1(2*time.Minute))}, noon), "overdue", false, "input_required task t1, by 2m"},
		{"some that nobody has seen", past(&work{unseen: 7}, noon), "overdue", true, "nothing is past its time; 7 more were not looked at"},
		{"one that has ended", past(&work{tasks: task(fleet.StateDone, ago1(2*time.Minute))}, noon), "overdue", true, "nothing"},
		{"a run", past(&work{runs: []runwire.Record{{RunID: "r1", State: runwire.Running, Deadline: ago1(time.Hour)}}}, noon), "overdue", false, "run r1, by 1h"},
		{"a run that is paused", past(&work{runs: []runwire.Record{{RunID: "r1", State: runwire.Paused, Deadline: ago1(time.Hour)}}}, noon), "overdue", false, "run r1, by 1h"},
		{"a run that has ended", past(&work{runs: []runwire.Record{{RunID: "r1", State: runwire.Failed, Deadline: ago1(time.Hour)}}}, noon), "overdue", true, "nothing"},
		{"a schedule", past(&work{schedules: []schedule.Record{{Definition: daily, State: schedule.Active, Next: next(ago1(time.Hour))}}}, noon), "overdue", false, "schedule daily, by 1h"},
		{"one to come", past(&work{schedules: []schedule.Record{{Definition: daily, State: schedule.Active, Next: next(noon.Add(time.Hour))}}}, noon), "overdue", true, "nothing"},
		{"one without an end", past(&work{schedules: []schedule.Record{{Definition: daily, State: schedule.Ended}}}, noon), "overdue", true, "nothing"},

		{"no audit yet", chained(nil), "audit", true, "newest 0 blocks"},
		{"an audit", chained(blocks(func([]*audit.Block) {})), "audit", true, "newest 2 blocks"},
		{"a line that was changed", chained(blocks(func(b []*audit.Block) { b[2].Lines[0] = "{0}" })), "audit", false, "has been changed"},
		{"a block that was replaced", chained(blocks(func(b []*audit.Block) { b[2].Prev = "x" })), "audit", false, "does not follow"},
		{"no block at all", chained([]bus.Msg{{Seq: 7, Data: []byte("?")}}), "audit", true, "the newest 0 blocks are as they were written; 1 entries there are not of the audit and hide nothing of it, the first is number 7: no block"},
	} {
		wants(t, map[string]finding{c.got.Check: c.got}, c.check, c.ok, c.found)
		if !c.ok {
			mends(t, c.got)
		}
		if !c.ok && badness(c.check) == minor {
			t.Errorf("%s: %s is as bad as anything", c.name, c.check)
		}
	}
}

// TestFewCopies: on servers that are a cluster workers begin with one copy, and
// say so; so does the doctor, and what it says mends it.
func TestFewCopies(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes seconds")
	}
	s := newShell(t, "NATS_URL="+bustest.NewCluster(t, 3, bustest.SyncAlways).URLs())
	const loud = `"about":"copies","found":"the servers are a cluster`
	serve := []string{"serve", "--http", "off", "--workers", "router"}
	begin := s.start(t, serve...)
	begin.stderr.waitFor(t, `"msg":"ready"`)
	begin.stderr.waitFor(t, loud)
	wants(t, findings(t, s, exitFailed), "copies", false, "parley serve --provision create --replicas 3")
	begin.end(t)
	more := s.start(t, append(serve, "--provision", "create", "--replicas", "3")...)
	if said := more.stderr.waitFor(t, `"msg":"ready"`); strings.Contains(said, loud) {
		t.Errorf("with three copies of everything workers say:\n%s", said)
	}
	wants(t, findings(t, s, exitFailed), "copies", true, "3 of every record") // escalation is not served
}
