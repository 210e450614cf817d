package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// readReport reads what --output has written.
func readReport(t *testing.T, path string) (r validationReport) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestValidate: a fleet that is as it must be passes every check that can be
// made, and nothing is left behind.
func TestValidate(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	path := filepath.Join(t.TempDir(), "report.json")
	s.run(t, "validate", "--output", path).check(t, 0, "0 failed, 7 skipped", "")
	r := readReport(t, path)
	if len(r.Checks) != len(checks()) || r.Failed != 0 || r.Passed+r.Skipped != len(r.Checks) || len(r.Simulated) != len(simulated) {
		t.Errorf("report %+v", r)
	}
	groups := map[string]int{}
	for _, c := range r.Checks {
		groups[c.Group]++
		if c.Status == checkSkipped && c.Found == "" {
			t.Errorf("%s is skipped without a reason", c.Check)
		}
	}
	for _, g := range []string{"sessions", "handshake", "context", "authentication", "escalation", "a2e"} {
		if groups[g] == 0 {
			t.Errorf("nothing is checked of %s", g)
		}
	}
	s.run(t, "session", "ls").check(t, 0, "", "no sessions")
	left := s.run(t, "task", "ls", "-o", "json")
	for _, state := range []string{"queued", "working", "input_required"} {
		if strings.Contains(left.stdout, `"state": "`+state+`"`) {
			t.Errorf("a task is left %s:\n%s", state, left.stdout)
		}
	}
	s.run(t, "validate", "--simulate-review", "-o", "json", "--output", path).check(t, 0, `"failed": 0`, "")
	if got := readReport(t, path).Simulated; len(got) != 1 || got[0] != "validate-review" {
		t.Errorf("simulated %v", got)
	}
}

// TestValidateByIdentity: where the broker asks who connects and the workers
// take signed messages only, every check is made, twice, and nobody's identity
// counts afterwards.
func TestValidateByIdentity(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	s := liveFleet(t, "--callout", "--require-signatures", "--require-identity", "--data", data)
	operator := filepath.Join(data, "callout", "operator.identity.json")
	path := filepath.Join(t.TempDir(), "report.json")
	for range 2 {
		s.run(t, "validate", "--identity", operator, "--output", path).check(t, 0, "0 failed, 0 skipped", "")
		if r := readReport(t, path); r.Passed != len(checks()) {
			t.Errorf("report %+v", r)
		}
	}
	left := s.run(t, "identity", "ls", "--identity", operator, "-o", "json")
	if issued, revoked := strings.Count(left.stdout, `"agent_id": "validate-`), strings.Count(left.stdout, `"revoked"`); issued < 10 || revoked != issued {
		t.Errorf("%d identities are left, %d of them revoked:\n%s", issued, revoked, left.stdout)
	}
}

// TestValidateTellsWhatIsWrong: a fleet whose sessions let everybody in fails,
// by name and by exit code.
func TestValidateTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := liveFleet(t, "--workers", "router,registry")
	path := filepath.Join(t.TempDir(), "report.json")
	s.run(t, "validate", "--output", path).check(t, exitFailed, "1 failed", "1 of 2 checks failed")
	if r := readReport(t, path); r.Failed != 1 || len(r.Checks) != 2 || r.Checks[1].Status != checkFailed || !strings.Contains(r.Checks[1].Found, "sessions") {
		t.Errorf("report %+v", r)
	}
	s.run(t, "validate", "--output", filepath.Join(t.TempDir(), "no", "such", "directory")).check(t, exitFailed, "", "write the report")
}

// TestChecksFail: against a fleet that allows everything, whatever is to be
// refused is a failed check.
func TestChecksFail(t *testing.T) {
	t.Parallel()
	say := answers{
		"session.get": always(handshake.View{}), "session.update": always(handshake.Opened{}), "session.create": always(handshake.Opened{}),
		"session.handshake": always(handshake.Ack{Accepted: true}), "session.append": always(handshake.Appended{Version: 9}),
		"session.delete": always(handshake.Deleted{OK: true}), "session.context": always(handshake.ReadReply{}),
		"task.dispatch": always(fleet.Dispatched{}), "task.wait": always(fleet.TaskView{State: fleet.StateDone}),
		"task.get": always(fleet.TaskView{State: fleet.StateWorking}), "task.cancel": always(fleet.TaskView{State: fleet.StateDone}),
		"a2e.handshake": always(map[string]any{"ok": false, "reason": "server_error"}),
	}
	_, b := fakeFleet(t, say)
	stop, err := b.Serve(t.Context(), bus.Service{Name: "a2e", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	taken, err := b.Subscribe(subjects.ResultPattern, "", func(m bus.Msg) { _ = m.Respond(fleet.MustEncode(fleet.ResultReply{OK: true}), nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Unsubscribe() })
	c := &client{bus: b, from: "operator", timeout: bustest.Patience, server: "here"}
	v := &validation{
		app: &app{conf: &config{}}, c: c, stranger: &client{bus: b, from: "stranger", timeout: bustest.Patience}, id: "x",
		agents: []subjects.AgentID{"one"}, faulty: [2]subjects.AgentID{"two", "three"},
		session: handshake.Opened{Session: handshake.Session{SessionID: "a2a-20251122T120000Z-7f3a9c21", ExpiresAt: noon}, Token: "parley1.a.b.cccc"},
	}
	passes := map[string]bool{ // they want something to be allowed
		"its owner reads it": true, "a good token is let in": true,
	}
	for _, check := range checks() {
		if check.group == groupStart && check.name != "a session is opened" {
			continue
		}
		v.report = validationReport{}
		ok := v.make(t.Context(), check)
		switch d := v.report.Checks[0]; {
		case d.Status == checkSkipped:
		case ok != passes[check.name]:
			t.Errorf("%s: %s is %s (%s)", check.group, check.name, d.Status, d.Found)
		}
	}
}

func TestRefusedWith(t *testing.T) {
	t.Parallel()
	no := subjects.Errorf(subjects.CodeNotFound, "no")
	for _, tt := range []struct {
		err  error
		fine bool
	}{
		{no, true},
		{fmt.Errorf("ask: %w", no), true},
		{fmt.Errorf("publish: %w", bus.ErrDenied), true},
		{nil, false},
		{subjects.Errorf(subjects.CodeForbidden, "no"), false},
		{errors.New("broken"), false},
	} {
		if found, err := refusedWith(tt.err, subjects.CodeNotFound); (err == nil) != tt.fine || tt.fine && !strings.Contains(found, "refused") {
			t.Errorf("%v: %q, %v", tt.err, found, err)
		}
	}
}
