package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

var alertOpen = fleet.Alert{
	AlertID: "c0ffee-1", Number: 1, Group: map[string]string{"code": "agent_error", "agent": "claude"}, State: fleet.AlertTriggered,
	Since: ago1(20 * time.Minute), NextAt: new(noon.Add(10 * time.Minute)), Calls: 1, Count: 2,
	Tasks: []fleet.AlertTask{{
		TaskID: "t-disk", From: "alice", Since: ago1(20 * time.Minute), Code: subjects.CodeAgentError, Message: "the disk\nis full",
		Brief: "Write the report", TokensSpent: 12345, GiveUpAt: noon.Add(23 * time.Hour),
	}, {
		TaskID: "t-disk2", From: "bob", Since: ago1(10 * time.Minute), Code: subjects.CodeAgentError, Message: "the disk is full",
		Brief: "Write another", GiveUpAt: noon.Add(24 * time.Hour),
	}},
}

// desk answers what parley escalation asks.
func desk() answers {
	acked := alertOpen
	acked.State, acked.AckBy, acked.AckUntil = fleet.AlertAcknowledged, "operator", new(noon.Add(30*time.Minute))
	known := func(v any) func([]byte) (any, error) {
		return func(data []byte) (any, error) {
			var r fleet.EscalationRef
			if err := json.Unmarshal(data, &r); err != nil {
				return nil, err
			}
			if r.ID != "c0ffee-1" {
				return nil, subjects.Errorf(subjects.CodeNotFound, "there is no alert, and no waiting task, %q", r.ID).At("/id")
			}
			return v, nil
		}
	}
	say := answers{
		"escalation.list": always(fleet.EscalationListReply{
			Alerts: []fleet.Alert{alertOpen, acked},
			Silences: []fleet.Silence{{
				SilenceID: "s1", By: "alice", Until: noon.Add(time.Hour), Reason: "being repaired", Match: map[string]string{"mcp": "git"},
			}},
		}),
		"escalation.get": known(alertOpen), "escalation.ack": known(acked),
		"escalation.silence": func(data []byte) (any, error) {
			s, err := fleet.DecodeRequest[fleet.Silence](data)
			if s.SilenceID == "" {
				s.SilenceID = "s2"
			}
			return s, err
		},
	}
	for _, verb := range fleet.HumanVerbs() {
		say["escalation."+verb] = func(data []byte) (any, error) {
			q, err := fleet.DecodeRequest[fleet.EscalationAnswer](data)
			if err == nil {
				err = q.Check(verb)
			}
			if err != nil {
				return nil, err
			}
			if q.ID == "late" {
				return nil, subjects.Errorf(subjects.CodeLateResult, "alice has answered alert late already, with %q; your answer came too late and changes nothing", "retry").
					WithRemedy("parley escalation show late tells how it goes on")
			}
			done := fleet.EscalationAnswered{ID: q.ID, Verb: verb, By: "operator", Tasks: 2, Applied: 1, Problems: []string{"t-disk2: it has gone on"}}
			return known(done)(data)
		}
	}
	return say
}

// Nobody is called about what is over.
func TestNoCallAfterTheEnd(t *testing.T) {
	t.Parallel()
	until := noon.Add(time.Hour)
	a := &app{conf: defaultConfig(func(string) string { return "" }), now: func() time.Time { return noon }}
	for _, al := range []fleet.Alert{{AckUntil: &until}, {NextAt: &until}, {Held: "agent_lost"}} {
		al.State = fleet.AlertResolved
		if got := a.nextCall(&al); got != "-" {
			t.Errorf("next call %q of %+v, want none", got, al)
		}
	}
	if got := a.nextCall(&fleet.Alert{State: fleet.AlertTriggered, NextAt: &until}); got != "in 1h" {
		t.Errorf("next call %q, want in 1h", got)
	}
	if one, many := waiting(1), waiting(1200); one != "1 task waits" || many != "1,200 tasks wait" {
		t.Errorf("%q, %q", one, many)
	}
}

func TestGoldenEscalation(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, desk())
	file := filepath.Join(t.TempDir(), "result.json")
	if err := os.WriteFile(file, []byte(`{"port":81}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		args []string
		code int
	}{
		{"ls", []string{"ls"}, 0},
		{"show", []string{"show", "c0ffee-1"}, 0},
		{"ack", []string{"ack", "c0ffee-1"}, 0},
		{"retry", []string{"retry", "c0ffee-1"}, 0},
		{"reassign", []string{"reassign", "c0ffee-1", "codex"}, 0},
		{"answer", []string{"answer", "c0ffee-1", "the", "port", "is", "81"}, 0},
		{"complete", []string{"complete", "c0ffee-1", file}, 0},
		{"cancel", []string{"cancel", "c0ffee-1", "not", "wanted"}, 0},
		{"silence", []string{"silence", "code=mcp_unhealthy", "mcp=git", "--for", "2h", "--reason", "being repaired"}, 0},
		{"silence-end", []string{"silence", "--end", "s1"}, 0},
		{"unknown", []string{"retry", "nothing"}, 19},
		{"show-unknown", []string{"show", "nothing"}, 19},
		{"ack-unknown", []string{"ack", "nothing"}, 19},
		{"late", []string{"cancel", "late"}, codeExit(subjects.CodeLateResult)},
		{"usage-reassign", []string{"reassign", "c0ffee-1"}, 2},
		{"usage-show", []string{"show"}, 2},
		{"usage-silence", []string{"silence", "git"}, 2},
		{"usage-silence-nothing", []string{"silence"}, 2},
		{"empty-answer", []string{"answer", "c0ffee-1"}, codeExit(subjects.CodeInvalidMessage)},
	}
	for _, c := range cases {
		for _, format := range []string{"", "json"} {
			name, args := "escalation-"+c.name, append([]string{"escalation"}, c.args...)
			if format != "" {
				name, args = name+"-"+format, append(args, "-o", format)
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := s.run(t, args...)
				if got.code != c.code {
					t.Errorf("exit %d, want %d; it said:\n%s", got.code, c.code, got.stderr)
				}
				if format != "" && got.code == 0 && !json.Valid([]byte(got.stdout)) {
					t.Errorf("no JSON: %s", got.stdout)
				}
				golden(t, name, strings.ReplaceAll("$ parley "+join(args)+"\n"+got.stdout+"--- stderr\n"+got.stderr, file, "result.json"))
			})
		}
	}
	pages, _ := fakeFleet(t, answers{"escalation.list": func(data []byte) (any, error) {
		q, err := fleet.DecodeRequest[fleet.EscalationList](data)
		if q.After == "" {
			return fleet.EscalationListReply{Alerts: []fleet.Alert{alertOpen}, Next: "1.c0ffee-1"}, err
		}
		return fleet.EscalationListReply{Alerts: []fleet.Alert{alertOpen}}, err
	}})
	if out := pages.run(t, "escalation", "ls", "-o", "jsonl").stdout; strings.Count(out, "\n") != 2 {
		t.Errorf("of two pages: %s", out)
	}
	none, _ := fakeFleet(t, answers{"escalation.list": always(fleet.EscalationListReply{})})
	none.run(t, "escalation", "ls").check(t, 0, "", "nothing waits for a human")
	none.run(t, "escalation", "retry", "x").check(t, 38, "", "no escalation is there to answer escalation retry")
}

// TestEscalationVerbs: every verb against a whole fleet: what waits is listed
// and shown, two humans are told of each other, and who is late is told so.
func TestEscalationVerbs(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(receiver.Close)
	s := newShell(t)
	_, url := s.up(t, "--webhook-url", receiver.URL, "--webhook-secret", webhookSecret, "--webhook-allow", "127.0.0.1",
		"--group-wait", "50ms", "--group-by", "task", "--operators", "operator,alice")
	s.environ = append(s.environ, "NATS_URL="+url)
	failingAgent(t, url)
	wait := func(id string) string {
		t.Helper()
		s.run(t, "task", "send", "--agent", "bad", "--max-retries", "0", "--id", id, "do it").check(t, 0, "", "")
		var a fleet.Alert
		bustest.Eventually(t, "task "+id+" waits", func() bool {
			got := s.run(t, "escalation", "show", id, "-o", "json")
			return got.code == 0 && json.Unmarshal([]byte(got.stdout), &a) == nil && a.AlertID != ""
		})
		return a.AlertID
	}
	state := func(id, want string) {
		t.Helper()
		bustest.Eventually(t, id+" is "+want, func() bool {
			return strings.Contains(s.run(t, "task", "get", id, "-o", "json").stdout, `"state": "`+want+`"`)
		})
	}
	alert := wait("t1")
	s.run(t, "escalation", "ls").check(t, 0, alert, "")
	s.run(t, "escalation", "ack", alert).check(t, 0, "", "operator sees to alert "+alert)
	s.run(t, "escalation", "ack", alert, "--as", "alice").check(t, codeExit(subjects.CodeLateResult), "", "operator sees to alert "+alert+" already")
	s.run(t, "escalation", "ack", alert, "--as", "mallory").check(t, codeExit(subjects.CodeForbidden), "", "mallory")
	s.pipe(t, `{"port":81}`, "escalation", "complete", alert, "-").check(t, 0, "", "complete: 1 of 1 tasks so far")
	state("t1", "done")
	s.run(t, "escalation", "cancel", alert, "--as", "alice").check(t, codeExit(subjects.CodeLateResult), "", "operator has answered alert "+alert+" already")
	s.run(t, "escalation", "retry", "t1", "--as", "alice").check(t, codeExit(subjects.CodeLateResult), "", "operator answered")
	s.run(t, "escalation", "retry", "t-nobody").check(t, 19, "", "t-nobody")

	wait("t2")
	s.run(t, "escalation", "cancel", "t2", "not", "wanted").check(t, 0, "", "cancel: 1 of 1")
	state("t2", "canceled")
	for _, c := range [][]string{{"retry", "t3"}, {"answer", "t4", "use", "the", "other", "disk"}, {"reassign", "t5", "bad"}} {
		was := wait(c[1])
		s.run(t, append([]string{"escalation"}, c...)...).check(t, 0, "", c[0]+": 1 of 1")
		// The agent fails it again: that is the human's again, as the next alert.
		bustest.Eventually(t, c[1]+" waits again", func() bool {
			got := s.run(t, "task", "get", c[1], "-o", "json").stdout
			return strings.Contains(got, `"attempt": 2`) && strings.Contains(got, `"input_required"`)
		})
		s.run(t, "escalation", "show", was).check(t, 0, was, "")
	}
	s.run(t, "escalation", "silence", "code=agent_error", "--reason", "r").check(t, codeExit(subjects.CodeInvalidMessage), "", "grouped by: task")
	got := s.run(t, "escalation", "silence", "task=t3", "--reason", "we know", "-o", "json")
	var silence fleet.Silence
	if err := json.Unmarshal([]byte(got.stdout), &silence); err != nil || silence.SilenceID == "" {
		t.Fatalf("silence = %s, %v", got.stdout, err)
	}
	bustest.Eventually(t, "an alert that is held", func() bool {
		return strings.Contains(s.run(t, "escalation", "ls").stdout, "held: silence")
	})
	s.run(t, "escalation", "ls").check(t, 0, "", "we know")
	s.run(t, "escalation", "silence", "--end", silence.SilenceID).check(t, 0, "", "silence "+silence.SilenceID+" is over")
}
