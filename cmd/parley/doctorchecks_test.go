package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestDoctorOfStorage provokes each thing that is said of servers and streams.
// junkOf are two processes that have skipped the same.
func junkOf(s bus.Skipped) []bus.ServiceInfo {
	return []bus.ServiceInfo{{Process: "a", Skipped: []bus.Skipped{s}}, {Process: "b", Skipped: []bus.Skipped{s}}}
}

func TestDoctorOfStorage(t *testing.T) {
	t.Parallel()
	well := bus.StreamFigures{Name: "FLEET_TASKS", Bytes: 10, MaxBytes: 100, Replicas: 3, Leader: "n1", Asked: noon, Msgs: 1, First: ago1(time.Hour)}
	change := func(f func(*bus.StreamFigures)) []bus.StreamFigures {
		s := well
		f(&s)
		return []bus.StreamFigures{well, s}
	}
	inbox := func(f bus.StreamFigures, c bus.ConsumerFigures) []bus.StreamFigures {
		c.Name, f.Consumers = "routers", []bus.ConsumerFigures{c}
		f.Consumers[0] = c
		return []bus.StreamFigures{f}
	}
	silent := errors.New("streams that do not answer: FLEET_RUNS")
	for _, c := range []struct {
		name  string
		got   finding
		check string
		ok    bool
		found string
	}{
		{"copies", copies([]bus.StreamFigures{well}), "copies", true, "3 of every record"},
		{"one server", copies(change(func(s *bus.StreamFigures) { s.Replicas, s.Leader = 1, "" })), "copies", true, "1 of every record"},
		{"one copy on a cluster", copies(change(func(s *bus.StreamFigures) { s.Name, s.Replicas, s.Cluster = "FLEET_RUNS", 1, "c" })), "copies", false, "1 streams have fewer than 3 copies, FLEET_RUNS has 1"},
		{"the command that makes more", copies(change(func(s *bus.StreamFigures) { s.Replicas, s.Cluster = 2, "c" })), "copies", false, "parley serve --provision create --replicas 3"},
		{"replicas", replicas([]bus.StreamFigures{well}), "replicas", true, "up to date"},
		{"a server away", replicas(change(func(s *bus.StreamFigures) { s.Behind = []string{"n3", "n2"} })), "replicas", false, "n2, n3"},
		{"no leader", replicas(change(func(s *bus.StreamFigures) { s.Leader = "" })), "replicas", false, "no leader: FLEET_TASKS: nothing is taken there"},
		{"consumers", consumers(inbox(well, bus.ConsumerFigures{Pending: behind, MaxUnacked: 5, Unacked: 4}), noon), "consumers", true, "none"},
		{"behind", consumers(inbox(well, bus.ConsumerFigures{Pending: behind + 1}), noon), "consumers", false, "10001 messages behind"},
		{"all in hand", consumers(inbox(well, bus.ConsumerFigures{MaxUnacked: 5, Unacked: 5}), noon), "consumers", false, "gets no more"},
		{"an inbox that nobody empties", consumers(inbox(bus.StreamFigures{Name: subjects.StreamInbox, First: ago1(2 * time.Minute)}, bus.ConsumerFigures{Pending: 1}), noon), "consumers", false, "2m"},
		{"an inbox that is used", consumers(inbox(bus.StreamFigures{Name: subjects.StreamInbox, First: ago1(2 * time.Hour)}, bus.ConsumerFigures{Unacked: 1, Moved: ago1(time.Second)}), noon), "consumers", true, "none"},
		{"an inbox that is empty but for the last", consumers(inbox(bus.StreamFigures{Name: subjects.StreamInbox, First: ago1(2 * time.Hour)}, bus.ConsumerFigures{Moved: ago1(2 * time.Hour)}), noon), "consumers", true, "none"},
		{"disk", disk([]bus.StreamFigures{well}), "disk", true, "FLEET_TASKS, 10 %"},
		{"a full stream", disk(change(func(s *bus.StreamFigures) { s.Name, s.Bytes = "FLEET_RUNS", 80 })), "disk", false, "FLEET_RUNS is 80 % full"},
		{"room for it", disk(change(func(s *bus.StreamFigures) { s.Name, s.Bytes = "FLEET_RUNS", 80 })), "disk", false, "nats stream edit FLEET_RUNS --max-bytes SIZE  where"},
		{"room for the records", disk(change(func(s *bus.StreamFigures) { s.Bytes = 80 })), "disk", false, "there parley serve --max-store SIZE  (PARLEY_MAX_STORE) for every worker, where"},
		{"one that drops what is old", disk(change(func(s *bus.StreamFigures) { s.Name, s.Bytes, s.DropsOld = "FLEET_LOG", 100, true })), "disk", true, "the fullest is FLEET_TASKS, 10 %"},
		{"store", store([]*varz{keeps("n1", 79, 100), keeps("n2", 1, 100)}), "store", true, "the fullest is n1, 79 %"},
		{"a full server", store([]*varz{keeps("n1", 1, 100), keeps("n2", 80, 100)}), "store", false, "n2 has used 80 % of its max_file_store"},
		{"no page", store([]*varz{keeps("n1", 1, 0)}), "store", true, "not known"},
		{"clocks", clocks([]bus.StreamFigures{well}, noon.Add(time.Second), 0), "clocks", true, "agree"},
		{"a clock that is late", clocks([]bus.StreamFigures{well}, noon.Add(3*time.Second), 0), "clocks", false, "n1"},
		{"a clock that is early", clocks(change(func(s *bus.StreamFigures) { s.Asked, s.Leader = noon.Add(time.Minute), "n2" }), noon, 0), "clocks", false, "n2"},
		{"a slow answer", clocks([]bus.StreamFigures{well}, noon.Add(3*time.Second), 2*time.Second), "clocks", true, "agree"},
		{"no junk", foreign([]bus.ServiceInfo{{Name: "audit"}}, nil, noon), "junk", true, "every message can be read"},
		{"stored junk", foreign(junkOf(bus.Skipped{Place: "FLEET_AUDIT", Count: 3, Subject: "fleet.audit", Seq: 7, Reason: "no\nJSON"}), nil, noon), "junk", false, "FLEET_AUDIT: 3 skipped, the first is message 7 on fleet.audit: no JSON"},
		{"its command", foreign(junkOf(bus.Skipped{Place: "FLEET_AUDIT", Count: 3, Subject: "fleet.audit", Seq: 7}), nil, noon), "junk", false, "nats stream rmm FLEET_AUDIT 7  removes it"},
		{"its command in a bucket", foreign(junkOf(bus.Skipped{Place: "KV_FLEET_AGENTS", Count: 1, Subject: "$KV.FLEET_AGENTS.drain.x", Seq: 7}), nil, noon), "junk", false, "nats kv del FLEET_AGENTS drain.x  removes it"},
		{"junk of now", foreign(junkOf(bus.Skipped{Place: "fleet.heartbeat", Count: 2, Subject: "fleet.heartbeat.a.b", Last: noon}), nil, noon), "junk", false, "fleet.heartbeat: 2 skipped, the first is on fleet.heartbeat.a.b"},
		{"junk of yesterday", foreign(junkOf(bus.Skipped{Place: "fleet.heartbeat", Count: 2, Last: ago1(24 * time.Hour)}), nil, noon), "junk", true, "every"},
		{"a worker's clock", workerClocks([]bus.ServiceInfo{{Name: "runs", ID: "R1"}, {Name: "fleet", ID: "F1", ClockAhead: -time.Minute}}, nil), "worker clocks", false, "that of fleet F1 is 1m behind the servers'"},
		{"one that is ahead", workerClocks([]bus.ServiceInfo{{Name: "fleet", ID: "F1", ClockAhead: 5 * time.Minute}}, nil), "worker clocks", false, "that of fleet F1 is 5m ahead of the servers'"},
		{"a worker that is right", workerClocks([]bus.ServiceInfo{{Name: "fleet", ClockAhead: time.Second}}, nil), "worker clocks", true, "agree"},
		{"doors", doors([]bus.ServiceInfo{{Name: "gateway"}}, nil), "doors", true, "no worker"},
		{"an open door", doors([]bus.ServiceInfo{{Name: "gateway", Open: ":7411"}, {Name: "a2e", Open: ":7411"}, {Name: "gateway", Open: "10.0.0.1:80"}}, nil), "doors", false, "whoever reaches 10.0.0.1:80, :7411 may use the fleet"},
		{"no word of doors", doors(nil, fmt.Errorf("ask: %w", bus.ErrDenied)), "doors", true, "not known"},
		{"other servers", serverFinding(bus.Server{Version: "2.15.2", LeastVersion: "2.15.1", APILevel: 4, LeastAPILevel: 4}, nil, 2), "server", true, "2 other addresses of servers are known, and were not asked"},
		{"server", serverFinding(bus.Server{Version: "2.15.2", LeastVersion: "2.15.1", APILevel: 4, LeastAPILevel: 4}, nil, 0), "server", true, "API level 4"},
		{"an old server", serverFinding(bus.Server{Version: "2.11.0", LeastVersion: "2.15.1", APILevel: 4, LeastAPILevel: 4}, nil, 0), "server", false, "at least 2.15.1"},
		{"an old API", serverFinding(bus.Server{Version: "2.15.2", LeastVersion: "2.15.1", APILevel: 1, LeastAPILevel: 4}, nil, 0), "server", false, "level 4 are needed"},
		{"no JetStream", serverFinding(bus.Server{}, errors.New("no JetStream"), 0), "server", false, "no JetStream"},
		{"a stream that does not answer", storage([]bus.StreamFigures{well}, silent, noon, 0)[1], "replicas", false, "do not answer: FLEET_RUNS"},
		{"nor its consumers", storage([]bus.StreamFigures{well}, silent, noon, 0)[2], "consumers", false, "do not answer: FLEET_RUNS"},
		{"beside those that do", storage([]bus.StreamFigures{well}, silent, noon, 0)[0], "copies", true, "3 of every record"},
		{"streams that may not be seen", storage([]bus.StreamFigures{well}, bus.ErrDenied, noon, 0)[2], "consumers", true, "not known"},
		{"refused", uninvited(fmt.Errorf("connect: %w", bus.ErrDenied), false, false), "access", true, "nobody without credentials"},
		{"refused by TLS", uninvited(fmt.Errorf("connect: %w", bus.ErrTLS), true, false), "access", true, "nobody without a certificate"},
		{"TLS that failed", uninvited(fmt.Errorf("connect: %w", bus.ErrTLS), false, false), "access", false, "not known"},
		{"not refused, but slow", uninvited(fmt.Errorf("connect: %w", bus.ErrTimeout), false, false), "access", false, "not known"},
		{"let in", uninvited(nil, false, false), "access", false, "whoever reaches the server"},
		{"let in on this machine", uninvited(nil, false, true), "access", true, "whoever is on this machine"},
		{"not allowed", serverFinding(bus.Server{}, fmt.Errorf("ask: %w", bus.ErrDenied), 0), "server", true, "may not look"},
	} {
		wants(t, map[string]finding{c.got.Check: c.got}, c.check, c.ok, c.found)
		if !c.ok {
			mends(t, c.got)
		}
	}
	for servers, local := range map[string]bool{
		"nats://127.0.0.1:4222,tls://[::1]:1": true, "nats://localhost:4222": true,
		"nats://127.0.0.1:4222,nats://nats.example.org": false, "nats://10.0.0.1": false, ":": false,
	} {
		if got := loopbackOnly(servers); got != local {
			t.Errorf("loopbackOnly(%s) = %t", servers, got)
		}
	}
}

// keeps is what a server says of its store.
func keeps(name string, used, most int64) *varz {
	v := &varz{Name: name}
	v.JetStream.Stats.Storage, v.JetStream.Config.MaxStorage = used, most
	return v
}

// story are the records of a task, from text: kind state attempt agent.
func story(lines ...string) []fleet.Event {
	var list []fleet.Event
	for i, line := range lines {
		var e fleet.Event
		var agent string
		if _, err := fmt.Sscan(line, &e.Kind, &e.State, &e.Attempt, &agent); err != nil {
			panic(err)
		}
		e.Seq, e.Time, e.Facts.Deadline = uint64(i)+1, noon, noon.Add(time.Hour)
		if agent != "-" {
			e.AgentID = subjects.AgentID(agent)
		}
		list = append(list, e)
	}
	return list
}

// TestDoctorOfRecords plants what must never be, and the doctor finds it.
func TestDoctorOfRecords(t *testing.T) {
	t.Parallel()
	good := []string{"queued queued 0 -", "working working 1 ann", "reroute queued 1 -", "working working 2 bob", "outcome done 2 bob"}
	with := func(f func([]fleet.Event)) []fleet.Event {
		list := story(good...)
		f(list)
		return list
	}
	for _, c := range []struct {
		name   string
		events []fleet.Event
		want   string
	}{
		{"sound", story(good...), ""},
		{"none", nil, ""},
		{"a gap", with(func(e []fleet.Event) { e[2].Seq = 4 }), "record 3 has number 4"},
		{"after the end", story(append(good, "spent done 2 -")...), "comes after its end (done)"},
		{"two outcomes", story(append(good, "outcome error 2 -")...), "comes after its end"},
		{"two leases", story("queued queued 0 -", "working working 1 ann", "working working 2 bob"), "gives it to bob while it is working"},
		{"after the deadline", with(func(e []fleet.Event) { e[3].Time = noon.Add(2 * time.Hour) }), "after the deadline"},
		{"over the budget", with(func(e []fleet.Event) { e[3].Facts.TokenBudget, e[3].Facts.TokensSpent = 5, 5 }), "budget spent"},
		{"one attempt twice", story("queued queued 0 -", "working working 1 ann", "reroute queued 1 -", "working working 1 bob"), "was given to ann and to bob"},
		{"to one that has failed it", with(func(e []fleet.Event) {
			e[3].Facts.Attempts = []fleet.Attempt{{Attempt: 1, AgentID: "bob", Level: 2, Code: subjects.CodeAgentError}}
		}), "attempt 2 is of bob, which may not have it"},
		{"to another than its pin", with(func(e []fleet.Event) { e[1].Facts.Policy.Agent = "carl" }), "attempt 1 is of ann, which may not have it"},
		{"as a human has it", with(func(e []fleet.Event) {
			e[1].Facts.Policy.Agent, e[1].Facts.Human = "carl", &fleet.HumanAnswer{AgentID: "ann"}
		}), ""},
		{"a stranger's result", story("queued queued 0 -", "working working 1 ann", "outcome done 1 eve"), "of eve, which never had it"},
	} {
		if got := unsound(c.events); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}

	say := healthy()
	say["task.list"] = always(fleet.TaskListReply{Tasks: []fleet.TaskView{{TaskID: "t1"}, {TaskID: "t2"}}})
	say["task.events"] = func(data []byte) (any, error) {
		q, err := fleet.DecodeRequest[fleet.TaskEvents](data)
		if q.TaskID == "t2" {
			return fleet.TaskEventsReply{Events: story(append(good, "outcome error 2 -")...)}, err
		}
		return fleet.TaskEventsReply{Events: story(good...)}, err
	}
	s, _ := fakeFleet(t, say)
	m := findings(t, s, exitFailed)
	wants(t, m, "records", false, "t2: record 6 comes after its end")
	wants(t, m, "clocks", false, "apart") // the test's clock stands still
	if m["records"].Bad != critical || m["router"].Bad != "" {
		t.Errorf("as bad as %+v, %+v", m["records"], m["router"])
	}
}

// TestDoctorOfVersionsAndWork provokes mixed versions and work that nobody
// takes, on services that tell so.
func TestDoctorOfVersionsAndWork(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	b := server.Bus(t)
	serve := func(name, version string, figures any) {
		t.Helper()
		stop, err := b.Serve(t.Context(), bus.Service{Name: name, Version: version, Figures: func() any { return figures }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	serve("fleet", "1.0.0", fleet.TaskFigures{Queued: 3, States: map[fleet.State]int{fleet.StateQueued: 3}, Classes: []fleet.ClassFigures{{Class: `mcp="moon"`, Depth: 3, OldestSeconds: 3600}, {Class: "limited", Depth: 1, OldestSeconds: 36000, Why: fleet.WaitLimited}, {Class: "any", Depth: 1, OldestSeconds: 5}}})
	s := newShell(t, "NATS_URL="+server.URL())
	m := findings(t, s, exitFailed)
	wants(t, m, "versions", true, "workers 1.0.0")
	wants(t, m, "stuck work", false, `nobody takes 3 tasks that need mcp="moon", for 1h`)
	if strings.Contains(m["stuck work"].Found, "limited") {
		t.Errorf("what waits for a limit is stuck: %s", m["stuck work"].Found)
	}
	wants(t, m, "clocks", true, "agree")
	wants(t, m, "access", true, "whoever is on this machine")
	wants(t, m, "server", true, "JetStream API level")
	serve("runs", "0.9.0", nil)
	var pages []string
	for _, v := range []string{"2.15.2", "2.15.1"} {
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(map[string]any{"server_name": "n" + v, "version": v})
		}))
		t.Cleanup(page.Close)
		pages = append(pages, page.URL)
	}
	m = findings(t, s, exitFailed, "--monitor", strings.Join(pages, ","))
	wants(t, m, "versions", false, "workers 0.9.0 (runs); workers 1.0.0 (fleet)")
	wants(t, m, "versions", false, "servers 2.15.1 (n2.15.1); servers 2.15.2 (n2.15.2)")
}
