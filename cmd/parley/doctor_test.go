package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// findings are the lines of parley doctor, by check.
func findings(t *testing.T, s *shell, code int, flags ...string) map[string]finding {
	t.Helper()
	got := s.run(t, append([]string{"doctor", "-o", "json"}, flags...)...)
	if got.code != code {
		t.Errorf("doctor: exit %d, want %d:\n%s%s", got.code, code, got.stdout, got.stderr)
	}
	var list []finding
	if err := json.Unmarshal([]byte(got.stdout), &list); err != nil {
		t.Fatalf("%v in:\n%s", err, got.stdout)
	}
	m := make(map[string]finding)
	for _, f := range list {
		if _, twice := m[f.Check]; twice {
			t.Errorf("check %s is there twice", f.Check)
		}
		if m[f.Check] = f; !f.OK {
			mends(t, f)
		}
	}
	return m
}

// wants compares one line.
func wants(t *testing.T, m map[string]finding, check string, ok bool, found string) {
	t.Helper()
	if f, there := m[check]; !there || f.OK != ok || !strings.Contains(f.Found+" "+f.Then, found) {
		t.Errorf("%s: %+v, want ok=%t and %q", check, f, ok, found)
	}
}

// healthy answers all that the doctor asks.
func healthy() answers {
	return answers{
		"task.list": func(data []byte) (any, error) {
			q, err := fleet.DecodeRequest[fleet.TaskList](data)
			if q.State != "" {
				return fleet.TaskListReply{}, err
			}
			return fleet.TaskListReply{Tasks: []fleet.TaskView{{TaskID: "t1", State: fleet.StateDone}}, Total: 1}, err
		},
		"task.events":       always(fleet.TaskEventsReply{Events: story("queued queued 0 -", "working working 1 ann", "outcome done 1 ann")}),
		"escalation.status": always(fleet.EscalationStatusReply{Contacts: []string{"oncall"}, Open: 1, Waiting: 2, ChangeLog: "/var/CHANGE.log", LogLines: 3}),
		"escalation.list":   always(fleet.EscalationListReply{Alerts: []fleet.Alert{{AlertID: "a-1", Since: ago1(time.Minute)}}}),
		"webhook.list":      always(fleet.WebhookListReply{}),
		"task.waiting":      always(fleet.TaskWaitingReply{Ready: true}),
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	pending := fleet.WebhookListReply{Total: 2, Deliveries: []fleet.DeliveryState{
		{DeliveryID: "d1", Schedule: fleet.ScheduleHuman, Error: &fleet.Reason{Code: subjects.CodeUnavailable}},
		{DeliveryID: "d2", Schedule: fleet.ScheduleHuman},
	}}
	byState := func(data []byte) (any, error) {
		q, err := fleet.DecodeRequest[fleet.WebhookList](data)
		if q.State == fleet.DeliveryPending {
			return pending, err
		}
		return fleet.WebhookListReply{Total: 4}, err
	}
	for _, c := range []struct {
		name   string
		change func(answers)
		check  string
		ok     bool
		found  string
	}{
		{"connection", nil, "connection", true, "127.0.0.1"},
		{"streams", nil, "streams", true, "as they must be"},
		{"copies", nil, "copies", true, "--replicas 3"},
		{"a server that syncs lazily", nil, "sync", false, "a power cut loses"},
		{"router", nil, "router", true, "answers"},
		{"no router", func(a answers) { delete(a, "task.list") }, "router", false, "parley serve --workers router"},
		{"alerts", nil, "escalation", true, "1 alerts, 2 tasks"},
		{"no escalation", func(a answers) { delete(a, "escalation.status") }, "escalation", false, "parley serve --workers escalation"},
		{"young alerts", nil, "alerts", true, "none"},
		{"an old alert", func(a answers) {
			a["escalation.list"] = always(fleet.EscalationListReply{Alerts: []fleet.Alert{{Since: ago1(61 * time.Minute)}, {Since: ago1(59 * time.Minute)}}})
		}, "alerts", false, "1 open for longer than an hour"},
		{"contacts", nil, "contacts", true, "oncall"},
		{"no contacts", func(a answers) { a["escalation.status"] = always(fleet.EscalationStatusReply{}) }, "contacts", true, "nobody is called"},
		{"nobody to call, and a task waits", func(a answers) { a["escalation.status"] = always(fleet.EscalationStatusReply{Waiting: 2}) }, "contacts", false, "2 tasks wait for a human"},
		{"CHANGE.log", nil, "CHANGE.log", true, "3 lines"},
		{"no CHANGE.log", func(a answers) { a["escalation.status"] = always(fleet.EscalationStatusReply{}) }, "CHANGE.log", true, "off"},
		{"a broken CHANGE.log", func(a answers) {
			a["escalation.status"] = always(fleet.EscalationStatusReply{ChangeLog: "/x", LogError: "read-only", LogFailures: 7})
		}, "CHANGE.log", false, "read-only; 7 lines not written"},
		{"what mends it", func(a answers) {
			a["escalation.status"] = always(fleet.EscalationStatusReply{ChangeLog: "/var/x/CHANGE.log", LogError: "read-only"})
		}, "CHANGE.log", false, "nats stream view FLEET_ESCALATIONS"},
		{"what waits unnoticed", nil, "waits", true, "no task waits for longer than 10m"},
		{"what is silent", func(a answers) {
			a["task.waiting"] = always(fleet.TaskWaitingReply{Causes: []fleet.WaitingCause{{
				Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: "bob"}, Tasks: 5, Silent: 2, Oldest: ago1(time.Hour), OldestSilent: ago1(20 * time.Minute),
			}, {
				Waiting: fleet.Waiting{Why: fleet.WaitBusy}, Tasks: 5, Silent: 5, OldestSilent: ago1(20 * time.Minute),
			}}})
		}, "waits", false, "of what waits nobody is notified: 2 tasks: agent bob is away, for 20m"},
		{"nobody to notify", func(a answers) {
			a["escalation.status"] = always(fleet.EscalationStatusReply{})
			a["task.waiting"] = always(fleet.TaskWaitingReply{Causes: []fleet.WaitingCause{{
				Waiting: fleet.Waiting{Why: fleet.WaitNoAgentYet, Who: "eve"}, Tasks: 5, Silent: 2, Oldest: ago1(time.Hour), OldestSilent: ago1(20 * time.Minute),
			}}})
		}, "waits", false, "5 tasks: no agent eve has announced itself yet, for 1h"},
		{"silent, but for a moment", func(a answers) {
			a["task.waiting"] = always(fleet.TaskWaitingReply{Causes: []fleet.WaitingCause{{
				Waiting: fleet.Waiting{Why: fleet.WaitAway, Who: "bob", Since: ago1(time.Minute)}, Tasks: 2, Silent: 2, OldestSilent: ago1(20 * time.Minute),
			}}})
		}, "waits", true, "no task waits"},
		{"dead letters", nil, "dead letters", true, "none"},
		{"webhooks", nil, "webhooks", true, "nothing undelivered"},
		{"no webhooks", func(a answers) { delete(a, "webhook.list") }, "webhooks", false, "parley serve --workers webhooks"},
		{"dead webhooks", func(a answers) { a["webhook.list"] = byState }, "webhooks", false, "4 dead letters"},
		{"late calls", func(a answers) { a["webhook.list"] = byState }, "calls", false, "1 calls have failed"},
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

// TestDoctorOfServers: what is known of servers' disks, what is not, and dead
// letters; and the exit code of a fleet that is well.
func TestDoctorOfServers(t *testing.T) {
	t.Parallel()
	server := bustest.New(t, bustest.SyncAlways)
	b := server.Bus(t)
	s := newShell(t, "NATS_URL="+server.URL())
	wants(t, findings(t, s, exitFailed), "sync", false, "no worker says")
	j := s.start(t, "serve", "--http", "off")
	j.stderr.waitFor(t, `"msg":"ready"`)
	m := findings(t, s, 0)
	wants(t, m, "sync", true, "what the servers really do is not known")
	wants(t, m, "dead letters", true, "none")
	wants(t, m, "writes", true, "read again from the leader; the task stream commits")
	wants(t, m, "audit", true, "are as they were written")
	wants(t, m, "workers", true, "")
	wants(t, m, "overdue", true, "nothing")
	s.run(t, "doctor").check(t, 0, "nobody is called", "")
	open := s.start(t, "serve", "--http", "0.0.0.0:0", "--a2a-open", "--workers", "gateway")
	open.stderr.waitFor(t, `"msg":"ready"`)
	wants(t, findings(t, s, exitFailed), "doors", false, "whoever reaches 0.0.0.0:0 may use the fleet")
	open.end(t)
	if err := b.BuryDeadLetter(t.Context(), bus.Msg{Subject: "poison.x", Data: []byte("x")}, "not JSON"); err != nil {
		t.Fatal(err)
	}
	wants(t, findings(t, s, exitFailed), "dead letters", false, "parley dlq ls")
	s.run(t, "doctor").check(t, exitFailed, "1 messages that nobody could handle", "1 of ")
	s.run(t, "doctor", "--server", "nats://127.0.0.1:1").check(t, 38, "", "cannot reach NATS")

	own := newShell(t)
	_, url := own.up(t, "--sync=always")
	own.environ = append(own.environ, "NATS_URL="+url)
	wants(t, findings(t, own, 0), "sync", true, "every write is on the disk before it is acknowledged")

	empty := newShell(t, "NATS_URL="+bustest.New(t).URL())
	m = findings(t, empty, exitFailed)
	wants(t, m, "streams", false, "--provision create")
	wants(t, m, "copies", false, "--provision create")
}

// TestDoctorAsOperator: that an operator may not look into the store is no fault
// of the fleet, and known at once.
func TestDoctorAsOperator(t *testing.T) {
	t.Parallel()
	s, dir := identities(t)
	_, url := s.up(t, "--auth", dir, "--sync=always")
	m := findings(t, s, 0, "--server", url, "--creds", filepath.Join(dir, "creds", "default", "operator.creds"))
	for _, check := range []string{"server", "streams", "copies", "replicas", "consumers", "disk", "clocks", "audit", "dead letters"} {
		wants(t, m, check, true, "these credentials may not look")
	}
	wants(t, m, "writes", true, "not tried")
	wants(t, m, "router", true, "answers")
}

// TestChangeLogBroken: where CHANGE.log cannot be written, from the start or
// since somebody removed its folder, people are called all the same, and the
// failure is an event, a counter and a line of the doctor.
func TestChangeLogBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		prepare func(path string) error // before the fleet starts
		spoil   func(path string) error // while it runs
	}{
		{"its folder is a file", func(path string) error { return os.WriteFile(filepath.Dir(path), nil, 0o600) }, nil},
		{"it is a folder", func(path string) error { return os.MkdirAll(path, 0o700) }, nil},
		{"its folder is removed", nil, func(path string) error { return os.RemoveAll(filepath.Dir(path)) }},
		{"it is read-only", func(path string) error {
			if os.Geteuid() == 0 {
				return os.MkdirAll(path, 0o700) // root may write what is read-only
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			return os.WriteFile(path, nil, 0o400)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			breakChangeLog(t, c.prepare, c.spoil)
		})
	}
}

func breakChangeLog(t *testing.T, prepare, spoil func(string) error) {
	calls := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { calls <- r.Header.Get("webhook-id") }))
	t.Cleanup(receiver.Close)
	s := newShell(t)
	path := filepath.Join(s.home(), "logs", "CHANGE.log")
	if prepare != nil {
		if err := prepare(path); err != nil {
			t.Fatal(err)
		}
	}
	_, url := s.up(t, "--change-log", path, "--webhook-url", receiver.URL, "--webhook-secret", webhookSecret, "--webhook-allow", "127.0.0.1", "--group-wait", "50ms")
	s.environ = append(s.environ, "NATS_URL="+url)
	if spoil != nil {
		wants(t, findings(t, s, exitFailed), "CHANGE.log", true, path) // exit 1: it syncs lazily
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
	}
	b := failingAgent(t, url)
	events := make(chan fleet.AlertEvent, 100)
	sub, err := b.Subscribe(subjects.AlertPattern, "", func(m bus.Msg) {
		if e, err := fleet.DecodeReply[fleet.AlertEvent](m.Data); err == nil && e.Event == "change_log_failed" {
			events <- e
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	s.run(t, "task", "send", "--agent", "bad", "--max-retries", "0", "--id", "t1", "do it").check(t, 0, "", "")
	select {
	case id := <-calls:
		if !strings.HasPrefix(id, "esc_") {
			t.Errorf("call %q", id)
		}
	case <-time.After(bustest.Patience):
		t.Fatal("nobody is called")
	}
	select {
	case e := <-events:
		if e.TaskID != "t1" || e.Message == "" {
			t.Errorf("event %+v", e)
		}
	case <-time.After(bustest.Patience):
		t.Fatal("no event tells that CHANGE.log cannot be written")
	}
	m := findings(t, s, exitFailed)
	wants(t, m, "CHANGE.log", false, "1 lines not written")
	wants(t, m, "sync", false, "a power cut")
	wants(t, m, "records", true, "the latest 1 tasks are sound")
	wants(t, m, "told", true, "in an alert")
	wants(t, m, "overdue", true, "nothing is past its time")
}

// failingAgent runs an agent whose tasks fail for good.
func failingAgent(t *testing.T, url string) *bus.Bus {
	t.Helper()
	return works(t, url, agent.Config{ID: "bad", Handler: agent.HandlerFunc(func(context.Context, *agent.Task) (fleet.Result, error) {
		return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
	})})
}

// A server whose page does not answer is named as what is down.
func TestMonitorNamesTheServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	l.Close()
	c := config{Monitor: []string{address}}
	_, err = c.pages(t.Context())
	if want := "the server whose page is " + address + " does not answer: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("pages: %v, want %s…", err, want)
	}
}
