package subjects_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
)

func TestParseIDs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		ok       bool
	}{
		{"letters", "claude-code", true},
		{"all kinds", "aZ09_-", true},
		{"longest", strings.Repeat("x", 64), true},
		{"too long", strings.Repeat("x", 65), false},
		{"dot", "a.b", false},
		{"star", "*", false},
		{"tail", ">", false},
		{"space", "a b", false},
		{"not ASCII", "é", false},
		{"zero byte", "a\x00", false},
		{"empty", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, agent := subjects.ParseAgentID(tt.in)
			_, task := subjects.ParseTaskID(tt.in)
			_, run := subjects.ParseRunID(tt.in)
			for _, err := range []error{agent, task, run} {
				if (err == nil) != tt.ok || err != nil && subjects.CodeOf(err) != subjects.CodeInvalidID {
					t.Errorf("parse %q: %v, want ok %v", tt.in, err, tt.ok)
				}
			}
		})
	}
	if id, err := subjects.ParseInstanceID(""); id != subjects.DefaultInstance || err != nil {
		t.Errorf(`ParseInstanceID("") = %q, %v, want main`, id, err)
	}
	for _, reserved := range []string{"router", "registry"} {
		if _, err := subjects.ParseAgentID(reserved); subjects.CodeOf(err) != subjects.CodeInvalidID {
			t.Errorf("ParseAgentID(%q) = %v, want invalid_id", reserved, err)
		}
	}
}

func TestParseSessionID(t *testing.T) {
	t.Parallel()
	made := subjects.NewSessionID(time.Date(2025, 11, 22, 12, 0, 0, 0, time.FixedZone("", 3600)), []byte{0x7f, 0x3a, 0x9c, 0x21})
	if made != "a2a-20251122T110000Z-7f3a9c21" {
		t.Errorf("NewSessionID = %q", made)
	}
	for in, ok := range map[string]bool{
		string(made): true,
		"a2a-20251122T110000Z-" + strings.Repeat("a", 32): true,
		"a2a-20251122T110000Z-" + strings.Repeat("a", 33): false,
		"a2a-20251122T110000Z-7f3a9c2":                    false,
		"a2a-20251322T110000Z-7f3a9c21":                   false,
		"a2a-20251122T110000Z-7F3A9C21":                   false,
		"a2a-20251122T110000Z":                            false,
		"b2b-20251122T110000Z-7f3a9c21":                   false,
		"a2a-20251122T110000.5Z-7f3a9c21":                 false,
		"":                                                false,
	} {
		id, err := subjects.ParseSessionID(in)
		if (err == nil) != ok || ok && string(id) != in || !ok && subjects.CodeOf(err) != subjects.CodeInvalidID {
			t.Errorf("ParseSessionID(%q) = %q, %v, want ok %v", in, id, err, ok)
		}
		if ok && !subjects.ValidToken(in) {
			t.Errorf("session id %q is not one token", in)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, subject string
		want             []string
		ok               bool
	}{
		{subjects.AnnouncePattern, subjects.Announce("bob", "main"), []string{"bob", "main"}, true},
		{subjects.HeartbeatPattern, subjects.RouterHeartbeat("r1"), []string{"router", "r1"}, true},
		{subjects.RouterHeartbeatPattern, subjects.RouterHeartbeat("r1"), []string{"r1"}, true},
		{subjects.RouterHeartbeatPattern, subjects.Heartbeat("bob", "r1"), nil, false},
		{subjects.APIPattern("task", "get"), subjects.API("bob", "task", "get"), []string{"bob"}, true},
		{subjects.APIPattern("task", "get"), subjects.API("bob", "task", "wait"), nil, false},
		{subjects.DispatchPattern, subjects.Dispatch("bob"), []string{"bob"}, true},
		{subjects.TaskPattern, subjects.Task("t"), []string{"t"}, true},
		{subjects.EventPattern, subjects.Event("t"), []string{"t"}, true},
		{subjects.OutcomePattern, subjects.Outcome("bob", "t"), []string{"bob", "t"}, true},
		{subjects.OfferPattern, subjects.Offer("bob", "main"), []string{"bob", "main"}, true},
		{subjects.ControlPattern, subjects.Control("bob", "main"), []string{"bob", "main"}, true},
		{subjects.ProgressPattern, subjects.Progress("bob", "t"), []string{"bob", "t"}, true},
		{subjects.ResultPattern, subjects.Result("bob", "t"), []string{"bob", "t"}, true},
		{subjects.AgentEventPattern, subjects.AgentEvent("bob", "main"), []string{"bob", "main"}, true},
		{subjects.TaskPattern, "fleet.task", nil, false},
		{subjects.TaskPattern, "fleet.task.a.b", nil, false},
		{subjects.TaskPattern, "fleet.task.", nil, false},
		{subjects.TaskPattern, "fleet.task.*", nil, false},
		{subjects.TaskPattern, "", nil, false},
	} {
		got, ok := subjects.Tokens(tt.pattern, tt.subject)
		if !ok {
			got = nil // what was read before it failed means nothing
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
			t.Errorf("Tokens(%q, %q) = %v, want %v (-want +got):\n%s", tt.pattern, tt.subject, ok, tt.ok, diff)
		}
	}
}

// FuzzTokens: what is built from ids is read back as it was, and what is no id
// never passes for one.
func FuzzTokens(f *testing.F) {
	f.Add("bob", "task-1")
	f.Add("a.b", "*")
	f.Add("", ">")
	f.Fuzz(func(t *testing.T, a, b string) {
		got, ok := subjects.Tokens(subjects.ResultPattern, subjects.Result(subjects.AgentID(a), subjects.TaskID(b)))
		if want := subjects.ValidToken(a) && subjects.ValidToken(b); ok != want {
			t.Fatalf("Tokens of %q, %q: ok = %v, want %v", a, b, ok, want)
		}
		if ok && (got[0] != a || got[1] != b) {
			t.Fatalf("Tokens of %q, %q = %q", a, b, got)
		}
	})
}

func FuzzParseSessionID(f *testing.F) {
	f.Add("a2a-20251122T110000Z-7f3a9c21")
	f.Add("a2a--")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := subjects.ParseSessionID(s)
		if err == nil && (string(id) != s || !subjects.ValidToken(s)) {
			t.Fatalf("ParseSessionID(%q) = %q", s, id)
		}
		if err != nil && subjects.CodeOf(err) != subjects.CodeInvalidID {
			t.Fatalf("ParseSessionID(%q): %v, want invalid_id", s, err)
		}
	})
}
