package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/mesh"
	runwire "parley/subjects/run"
	"parley/subjects/schedule"
)

// slowOnce is a worker that carries a request out and does not answer the first in
// time; the second it answers.
type slowOnce struct {
	mu   sync.Mutex
	over chan struct{}
	got  []json.RawMessage
}

func (w *slowOnce) handle(reply any) func([]byte) (any, error) {
	return func(data []byte) (any, error) {
		w.mu.Lock()
		w.got = append(w.got, data)
		first := len(w.got) == 1
		w.mu.Unlock()
		if first {
			<-w.over
		}
		return reply, nil
	}
}

// TestRepeatUnanswered: a command that was not answered in time says how it is
// repeated, and what it says makes the repeat the same request.
func TestRepeatUnanswered(t *testing.T) {
	t.Parallel()
	const session = "a2a-20251122T120000Z-7f3a9c21"
	file := filepath.Join(t.TempDir(), "run.json")
	definition := `{"task_type":"multi-agent-run","agents":[{"agent_id":"a","sequence":1,"brief":"x"}]}`
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		args  []string
		id    string // the member of the request that has the id
		reply any
	}{
		{"escalation.retry", []string{"escalation", "retry", "t", "--seq", "3"}, "request_id", fleet.EscalationAnswered{ID: "t", Verb: "retry", Tasks: 1, Applied: 1, Duplicate: true}},
		{"escalation.cancel", []string{"escalation", "cancel", "t", "not", "wanted"}, "request_id", fleet.EscalationAnswered{ID: "t", Verb: "cancel", Tasks: 1, Applied: 1, Duplicate: true}},
		{"schedule.run", []string{"schedule", "run-now", "s"}, "request_id", schedule.RunNowReply{ID: "sch-1"}},
		{"mesh.send", []string{"mesh", "send", "--to", "b", "hello"}, "message_id", mesh.Sent{MessageID: "m", Duplicate: true}},
		{"session.append", []string{"session", "append", session, "done"}, "key", handshake.Appended{Version: 1}},
		{"run.start", []string{"run", "start", file}, "task_id", runwire.Started{RunID: "run-1", Duplicate: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &slowOnce{over: make(chan struct{})}
			s, _ := fakeFleet(t, answers{tt.name: w.handle(tt.reply)})
			t.Cleanup(func() { close(w.over) })
			s.settings = func(c *config) error { c.Timeout = span(time.Second); return nil }
			out := s.run(t, tt.args...)
			out.check(t, codeExit(subjects.CodeUnavailable), "", "it may have been done all the same")
			again := regexp.MustCompile(`repeat the command with (--request-id [a-z0-9-]+)  and it counts once`).FindStringSubmatch(out.stderr)
			if again == nil || strings.Contains(out.stderr, "repeating it is safe") {
				t.Fatalf("stderr is\n%s", out.stderr)
			}
			s.run(t, append(tt.args, strings.Fields(again[1])...)...).check(t, 0, "", "")
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.got) != 2 || string(w.got[0]) != string(w.got[1]) {
				t.Errorf("asked %s, want the same twice", w.got)
			}
			var request map[string]any
			if err := json.Unmarshal(w.got[0], &request); err != nil || "--request-id "+request[tt.id].(string) != again[1] { //nolint:forcetypeassert // a test
				t.Errorf("%s is %v, %v; want that of %s", tt.id, request[tt.id], err, again[1])
			}
		})
	}
}

// TestUnansweredWithoutID: what has no id says how to see whether it was done; a
// repeat is called safe only where it is.
func TestUnansweredWithoutID(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args       []string
		want, then string
	}{
		"session.create": {[]string{"session", "create"}, "a repeat would do it again", "parley session ls  tells whether it was done"},
		"task.answer":    {[]string{"task", "answer", "t", "42"}, "a repeat would do it again", "parley task get TASK  tells whether it was done"},
		"task.cancel":    {[]string{"task", "cancel", "t"}, "repeating it is safe", "repeat the command"},
		"escalation.ack": {[]string{"escalation", "ack", "t"}, "repeating it is safe", "repeat the command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &slowOnce{over: make(chan struct{})}
			s, _ := fakeFleet(t, answers{name: w.handle(nil)})
			t.Cleanup(func() { close(w.over) })
			s.settings = func(c *config) error { c.Timeout = span(time.Second); return nil }
			out := s.run(t, tt.args...)
			out.check(t, codeExit(subjects.CodeUnavailable), "", tt.want)
			if !strings.Contains(out.stderr, tt.then) {
				t.Errorf("stderr is\n%s", out.stderr)
			}
		})
	}
}

// TestUnclearRefusal: a refusal that leaves open what was done says how to repeat,
// too.
func TestUnclearRefusal(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, answers{"mesh.send": func([]byte) (any, error) {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "the message is not stored: timed out")
	}})
	s.settings = func(c *config) error { c.Timeout = span(time.Second); return nil }
	s.run(t, "mesh", "send", "--to", "b", "hello").check(t, codeExit(subjects.CodeUnavailable), "", "--request-id")
}
