package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	runwire "parley/subjects/run"
)

// TestDoctorOfInvariants plants what must never be into sessions, runs and
// alerts.
func TestDoctorOfInvariants(t *testing.T) {
	t.Parallel()
	versions := func(version uint64, records ...uint64) *handshake.ReadReply {
		r := &handshake.ReadReply{Version: version}
		for _, v := range records {
			r.Records = append(r.Records, handshake.Record{Version: v})
		}
		return r
	}
	more := versions(9, 1, 2)
	more.More = true
	for _, c := range []struct {
		name string
		page *handshake.ReadReply
		want string
	}{
		{"none", versions(0), ""},
		{"three", versions(3, 1, 2, 3), ""},
		{"a first page", more, ""},
		{"the first is gone", versions(3, 2, 3), "version 2 stands where version 1 must"},
		{"a gap", versions(3, 1, 3), "version 3 stands where version 2 must"},
		{"one twice", versions(2, 1, 1), "version 1 stands where version 2 must"},
		{"the last is gone", versions(3, 1, 2), "version 3 is not there"},
	} {
		if got := gap(c.page); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}

	run := func(first, second runwire.State) *runwire.Record {
		return &runwire.Record{
			RunID: "r1", State: runwire.Running,
			Definition: runwire.Definition{Agents: []runwire.Node{{ID: "a"}, {ID: "b", Dependencies: []runwire.NodeID{"a"}}}},
			Nodes:      map[runwire.NodeID]runwire.Status{"a": {State: first}, "b": {State: second}},
		}
	}
	for _, c := range []struct {
		name string
		run  *runwire.Record
		want string
	}{
		{"in order", run(runwire.Done, runwire.Dispatched), ""},
		{"a failure that may be", run(runwire.Failed, runwire.Dispatched), ""},
		{"waiting", run(runwire.Dispatched, runwire.Waiting), ""},
		{"retried", run(runwire.Waiting, runwire.Done), ""},
		{"early", run(runwire.Dispatched, runwire.Dispatched), "node b was begun while a is dispatched"},
		{"earlier", run(runwire.Waiting, runwire.Dispatched), "node b was begun while a is waiting"},
		{"no definition", &runwire.Record{Nodes: map[runwire.NodeID]runwire.Status{"b": {State: runwire.Dispatched}}}, ""},
	} {
		if got := early(c.run); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}

	waits := func(id subjects.TaskID, since time.Duration) fleet.TaskView {
		return fleet.TaskView{TaskID: id, State: fleet.StateInputRequired, Await: fleet.AwaitHuman, Updated: ago1(since)}
	}
	asks := waits("t4", time.Hour)
	asks.Await = "agent_question"
	tasks := []fleet.TaskView{waits("t1", time.Hour), waits("t2", time.Hour), waits("t3", time.Second), asks}
	for _, c := range []struct {
		name   string
		alerts []fleet.Alert
		want   string
	}{
		{"told", []fleet.Alert{{Tasks: []fleet.AlertTask{{TaskID: "t1"}}}, {Tasks: []fleet.AlertTask{{TaskID: "t2"}}}}, ""},
		{"one of them", []fleet.Alert{{Tasks: []fleet.AlertTask{{TaskID: "t1"}}}}, "t2"},
		{"none of them", nil, "t1 t2"},
	} {
		var got []string
		for _, v := range untold(tasks, c.alerts, noon) {
			got = append(got, string(v.TaskID))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestDoctorOfLiveWork: what is under way is looked at, the oldest of it first,
// and what could not be looked at is told.
func TestDoctorOfLiveWork(t *testing.T) {
	t.Parallel()
	late := fleet.TaskView{TaskID: "t1", State: fleet.StateInputRequired, Await: fleet.AwaitHuman, Seq: 3, Updated: ago1(time.Hour), Deadline: noon.Add(time.Hour), GiveUpAt: new(ago1(5 * time.Minute))}
	list := func(t1 fleet.TaskView, total int) func([]byte) (any, error) {
		return func(data []byte) (any, error) {
			q, err := fleet.DecodeRequest[fleet.TaskList](data)
			switch {
			case q.State == "":
				return fleet.TaskListReply{}, err
			case q.State == t1.State && q.OldestFirst:
				return fleet.TaskListReply{Tasks: []fleet.TaskView{t1}, Total: total}, err
			}
			return fleet.TaskListReply{}, err
		}
	}
	lists := func(t1 fleet.TaskView, n int) func([]byte) (any, error) {
		return func(data []byte) (any, error) {
			r, err := list(t1, n)(data)
			if reply, ok := r.(fleet.TaskListReply); ok && len(reply.Tasks) == 1 {
				reply.Tasks = slices.Repeat(reply.Tasks, n)
				return reply, err
			}
			return r, err
		}
	}
	in := func(alerts ...fleet.Alert) func([]byte) (any, error) {
		return always(fleet.EscalationListReply{Alerts: alerts})
	}
	named := fleet.Alert{AlertID: "a-1", State: fleet.AlertTriggered, Since: ago1(time.Minute), NextAt: new(noon.Add(time.Minute)), Tasks: []fleet.AlertTask{{TaskID: "t1"}}}
	due := named
	due.NextAt = new(ago1(10 * time.Minute))
	held := due
	held.Held = "silenced"
	for _, c := range []struct {
		name   string
		change func(answers)
		check  string
		ok     bool
		found  string
	}{
		{"a task whose wait for a human is over", func(a answers) { a["task.list"] = list(late, 1) }, "overdue", false, "input_required task t1, by 5m"},
		{"more tasks than are looked at", func(a answers) {
			young := late
			young.GiveUpAt = nil
			a["task.list"] = list(young, 901)
		}, "overdue", true, "900 more were not looked at"},
		{"a task of which nobody is told", func(a answers) {
			a["task.list"], a["task.get"] = list(late, 1), always(late)
		}, "told", false, "1 tasks wait for a human and are in no alert: t1"},
		{"one that goes on meanwhile", func(a answers) {
			on := late
			on.Seq, on.State = 4, fleet.StateQueued
			a["task.list"], a["task.get"] = list(late, 1), always(on)
		}, "told", true, "in an alert"},
		{"one that is told", func(a answers) { a["task.list"], a["escalation.list"] = list(late, 1), in(named) }, "told", true, "in an alert"},
		{"one that an alert may have left out", func(a answers) {
			many := named
			many.Tasks, many.Omitted = nil, 4
			a["task.list"], a["task.get"], a["escalation.list"] = list(late, 1), always(late), in(many)
		}, "told", true, "in an alert"},
		{"more than alerts may have left out", func(a answers) {
			many := named
			many.Tasks, many.Omitted = nil, 60
			a["task.list"], a["task.get"], a["escalation.list"] = lists(late, 61), always(late), in(many)
		}, "told", false, "1 tasks wait for a human and are in no alert: t1"},
		{"a call that is not made", func(a answers) { a["task.list"], a["escalation.list"] = list(late, 1), in(due) }, "told", false, "a-1 has its next call due for 10m"},
		{"a silence", func(a answers) { a["task.list"], a["escalation.list"] = list(late, 1), in(held) }, "told", true, "in an alert"},
		{"nobody to call", func(a answers) {
			a["task.list"], a["escalation.list"], a["escalation.status"] = list(late, 1), in(due), always(fleet.EscalationStatusReply{})
		}, "told", true, "in an alert"},

		{"records", nil, "records", true, "the latest 1 tasks are sound"},
		{"a task that is gone meanwhile", func(a answers) { a["task.events"] = refuses(subjects.CodeNotFound) }, "records", true, "there are no tasks to look at"},
		{"records that cannot be read", func(a answers) { a["task.events"] = refuses(subjects.CodeInternal) }, "records", false, "1 of 1 tasks could not be read: "},
		{"many that cannot be read", func(a answers) {
			a["task.list"] = always(fleet.TaskListReply{Tasks: slices.Repeat([]fleet.TaskView{{TaskID: "t1"}}, 50)})
			a["task.events"] = refuses(subjects.CodeInternal)
		}, "records", false, "5 of 50 tasks could not be read"},
		{"many that are gone", func(a answers) {
			a["task.list"] = always(fleet.TaskListReply{Tasks: slices.Repeat([]fleet.TaskView{{TaskID: "t1"}}, 50)})
			a["task.events"] = refuses(subjects.CodeNotFound)
		}, "records", false, "none of the latest 50 tasks has records"},
		{"the end of a long story", func(a answers) {
			a["task.events"] = func(data []byte) (any, error) {
				q, err := fleet.DecodeRequest[fleet.TaskEvents](data)
				all := story("queued queued 0 -", "working working 1 ann", "outcome done 1 ann", "outcome error 1 -")
				if q.AfterSeq == 0 {
					return fleet.TaskEventsReply{Events: all[:2], More: true}, err
				}
				return fleet.TaskEventsReply{Events: all[q.AfterSeq:]}, err
			}
		}, "records", false, "t1: record 4 comes after its end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			say := healthy()
			if c.change != nil {
				c.change(say)
			}
			s, _ := fakeFleet(t, say)
			wants(t, findings(t, s, exitFailed), c.check, c.ok, c.found)
		})
	}
}

// TestDoctorOfSessionsAndRuns: contexts are looked at where sessions are served,
// and the tasks of nodes where runs are.
func TestDoctorOfSessionsAndRuns(t *testing.T) {
	t.Parallel()
	began := ago1(time.Hour)
	run := runwire.Record{RunID: "r1", State: runwire.Running, Deadline: noon.Add(time.Hour), Nodes: map[runwire.NodeID]runwire.Status{
		"a": {State: runwire.Dispatched, TaskID: "t1", Begun: &began},
	}, Definition: runwire.Definition{Agents: []runwire.Node{{ID: "a"}}}}
	for _, c := range []struct {
		name   string
		change func(answers)
		check  string
		ok     bool
		found  string
	}{
		{"contexts", nil, "contexts", true, "those of the latest 1 sessions"},
		{"a gap", func(a answers) {
			a["session.context"] = always(handshake.ReadReply{Version: 2, Records: []handshake.Record{{Version: 2}}})
		}, "contexts", false, "s1: version 2 stands where version 1 must"},
		{"contexts that cannot be read", func(a answers) { a["session.context"] = refuses(subjects.CodeInternal) }, "contexts", false, "1 of 1 sessions could not be read"},
		{"runs", nil, "runs", true, "1 runs under way"},
		{"a task that is not there", func(a answers) { a["task.get"] = refuses(subjects.CodeNotFound) }, "runs", false, "r1: node a was begun, and its task t1 is not there"},
		{"a run that cannot be read", func(a answers) { a["run.get"] = refuses(subjects.CodeInternal) }, "overdue", true, "1 more were not looked at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			say := healthy()
			say["task.get"] = always(fleet.TaskView{TaskID: "t1", State: fleet.StateWorking})
			say["run.list"] = always(runwire.List{Runs: []runwire.Summary{{RunID: "r1", State: runwire.Running}}})
			say["run.get"] = always(run)
			say["schedule.list"] = always(map[string]any{"schedules": []any{}})
			say["session.list"] = always(handshake.ListReply{Sessions: []handshake.View{{Session: handshake.Session{SessionID: "s1"}}}, Total: 1})
			say["session.context"] = always(handshake.ReadReply{Version: 1, Records: []handshake.Record{{Version: 1}}})
			if c.change != nil {
				c.change(say)
			}
			s, b := fakeFleet(t, say)
			for _, name := range []string{"runs", "sessions"} {
				stop, err := b.Serve(t.Context(), bus.Service{Name: name, Version: "1.0.0"})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(stop)
			}
			wants(t, findings(t, s, exitFailed), c.check, c.ok, c.found)
		})
	}
}

// mends checks that what is to be done has a command in it, and that each of
// parley's exists, with its flags.
func mends(t *testing.T, f finding) {
	t.Helper()
	if !regexp.MustCompile(`(^|[ ;:(])(parley|nats|systemctl|journalctl|chronyc) [a-z]`).MatchString(f.Then) {
		t.Errorf("%s: no command mends it: %q", f.Check, f.Then)
	}
	a := &app{conf: defaultConfig(func(string) string { return "" }), now: time.Now}
	for _, line := range regexp.MustCompile(`\bparley [a-z][^;:,()]*`).FindAllString(f.Then, -1) {
		line, _, _ = strings.Cut(line, "  ") // a command ends where two spaces are
		words := strings.Fields(line)[1:]
		cmd, rest, err := a.rootCommand().Find(words)
		if err != nil || cmd == nil || !cmd.Runnable() {
			t.Errorf("%s: there is no %q: %v", f.Check, line, err)
			continue
		}
		for _, word := range rest {
			if name, flag := strings.CutPrefix(word, "--"); flag && !known(cmd, name) {
				t.Errorf("%s: %q has no flag %s", f.Check, line, word)
			}
		}
	}
}

func known(cmd *cobra.Command, flag string) bool {
	name, _, _ := strings.Cut(flag, "=")
	return cmd.Flags().Lookup(name) != nil || cmd.InheritedFlags().Lookup(name) != nil
}

// TestEveryMend holds each finding that a sick fleet could have against the
// commands that there are.
func TestEveryMend(t *testing.T) {
	t.Parallel()
	old := bus.Server{Version: "2.11.0", LeastVersion: "2.15.1"}
	two := []bus.ServiceInfo{{Name: "fleet", Version: "1.0.0"}, {Name: "runs", Version: "0.9.0", Open: "0.0.0.0:7411", ClockAhead: time.Hour}}
	gone := bus.ErrTimeout
	list := []finding{
		judge("connection", gone, "", seeServers), serverFinding(old, nil, 0), serverFinding(old, gone, 0),
		versions(two, nil, nil), versions(nil, gone, nil), versions(nil, nil, []*varz{{Name: "n1", Version: "1"}, {Name: "n2", Version: "2"}}),
		doors(two, nil), doors(nil, gone), workerClocks(two, nil), workerClocks(nil, gone), missing(nil, gone, nil), missing(nil, nil, []bus.StreamFigures{{Name: subjects.StreamRuns, Msgs: 1}}),
		taken("writes", gone), taken("writes", bus.ErrConflict),
		replicas([]bus.StreamFigures{{Name: "FLEET_TASKS", Replicas: 3}}), replicas([]bus.StreamFigures{{Name: "FLEET_TASKS", Behind: []string{"n1"}}}),
		store([]*varz{keeps("n1", 99, 100)}),
		contacts(&fleet.EscalationStatusReply{Waiting: 1}), changeLog(&fleet.EscalationStatusReply{ChangeLog: "/var/log/parley/CHANGE.log", LogError: "permission denied"}),
		past(&work{tasks: []fleet.TaskView{{TaskID: "t", State: fleet.StateQueued}}}, noon),
		uninvited(nil, false, false), uninvited(gone, false, false),
	}
	list = append(list, storage(nil, nil, noon, 0)...)
	list = append(list, storage(nil, gone, noon, 0)...)
	for _, f := range list {
		if f.OK {
			t.Errorf("%s is ok: %+v", f.Check, f)
		}
		mends(t, f)
	}
}

// TestOpenDoor: only an address that others reach, with something behind it that
// asks nobody, is an open door.
func TestOpenDoor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*config)
		want   string
	}{
		{"open", func(*config) {}, ":7411"},
		{"not open", func(c *config) { c.A2AOpen = false }, ""},
		{"on this machine", func(c *config) { c.HTTP = "127.0.0.1:7411" }, ""},
		{"with tokens", func(c *config) { c.A2ATokens = "tokens" }, ""},
		{"with a provider", func(c *config) { c.A2AIssuer = "https://x" }, ""},
		{"with certificates", func(c *config) { c.HTTPCA = "ca.crt" }, ""},
		{"nothing behind it", func(c *config) { c.Workers = []string{"router"} }, ""},
		{"MCP behind it", func(c *config) { c.Workers, c.MCP = []string{"router"}, true }, ":7411"},
	} {
		conf := defaultConfig(func(string) string { return "" })
		conf.HTTP, conf.A2AOpen = ":7411", true
		c.change(conf)
		if got := conf.open(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
