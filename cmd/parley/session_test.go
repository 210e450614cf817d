package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"parley/bus/bustest"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// TestSession goes through a session's life with the commands, and through a
// task that gets its context and leaves its result there.
func TestSession(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "reader", "--driver", "exec", "--", "sh", "-c", `cat`)
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	out := s.run(t, "session", "create", "--as", "boss", "--type", "single-agent", "--token-file", tokenFile)
	out.check(t, 0, "a2a-", "its token lasts until")
	id := strings.TrimSpace(out.stdout)
	token, err := os.ReadFile(tokenFile)
	if err != nil || strings.Contains(out.stdout+out.stderr, strings.TrimSpace(string(token))) {
		t.Errorf("read the token: %v; printed %s", err, out.stderr)
	}
	if info, err := os.Stat(tokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token's file has mode %v", info.Mode())
	}
	s.run(t, "session", "get", id, "--as", "boss").check(t, 0, "version 0", "")
	s.run(t, "session", "ls", "--as", "boss").check(t, 0, id, "")
	s.run(t, "session", "ls", "--as", "eve").check(t, 0, "", "no sessions")
	s.run(t, "session", "get", id, "--as", "eve").check(t, 19, "", "not_found")

	s.run(t, "session", "append", id, "--as", "boss", "--share", "env=production", "--findings", `{"services":15}`, "first", "words").check(t, 0, "1\n", "")
	s.run(t, "session", "append", id, "--as", "eve", "--session-token", strings.TrimSpace(string(token)), "--status", "failed", "second").check(t, 0, "2\n", "")
	s.run(t, "session", "append", id, "--as", "boss", "--after", "1", "x").check(t, 21, "", "context_conflict")
	const leak = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
	refused := s.run(t, "session", "append", id, "--as", "boss", leak)
	refused.check(t, 22, "", "secret_in_context")
	if strings.Contains(refused.stderr, leak) {
		t.Errorf("the error shows the secret:\n%s", refused.stderr)
	}
	s.run(t, "session", "append", id, "--as", "boss", "--redact", leak).check(t, 0, "3\n", "masked: github-pat at /entry/output")
	large := strings.Repeat("0123456789", 100_000)
	file := filepath.Join(dir, "large.txt")
	if err := os.WriteFile(file, []byte("x"+large), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "session", "append", id, "--as", "boss", "-f", file).check(t, 0, "4\n", "")
	shown := s.run(t, "session", "context", id, "--as", "boss", "-o", "json")
	shown.check(t, 0, `"version": 4`, "")
	view, err := handshake.DecodeContext([]byte(shown.stdout))
	if err != nil || len(view.Context.PreviousAgents) != 4 || string(view.Context.SharedData["env"]) != `"production"` {
		t.Fatalf("context %v, %v", shown.stdout, err)
	}
	back := filepath.Join(dir, "back.txt")
	s.run(t, "session", "fetch", id, view.Context.PreviousAgents[3].Stored.Digest, "--as", "boss", "--out", back).check(t, 0, "", "")
	if data, err := os.ReadFile(back); err != nil || string(data) != "x"+large {
		t.Errorf("fetched %d bytes, %v", len(data), err)
	}
	s.run(t, "session", "context", id, "--as", "boss").check(t, 0, "first words", "")
	s.run(t, "session", "context", id, "--as", "boss", "--after", "3", "-o", "jsonl").check(t, 0, `"version":4`, "")

	result := filepath.Join(dir, "result.json")
	context := filepath.Join(dir, "context.json")
	if err := os.WriteFile(context, []byte(shown.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "invoke", "reader", result, "--as", "boss", "--session", id, "say hello").check(t, 0, "say hello", "done by reader")
	data, err := os.ReadFile(result)
	var r fleet.Result
	if err != nil || json.Unmarshal(data, &r) != nil || r.Status != fleet.StatusDone || !strings.Contains(string(r.Output), "first words") {
		t.Errorf("result %s, %v, want what was in the context", data, err)
	}
	if strings.Contains(string(data), "Unknown") {
		t.Errorf("the file has a member that no message has:\n%s", data)
	}
	s.run(t, "invoke", "reader", result, "--as", "boss", "--context-file", context, "say hello").check(t, 0, "production", "")
	bustest.Eventually(t, "the task's result", func() bool {
		return strings.Contains(s.run(t, "session", "context", id, "--as", "boss", "-o", "jsonl").stdout, string(r.TaskID))
	})
	s.run(t, "session", "update", id, "--as", "boss", "--priority", "high").check(t, 0, id, "its token lasts until")
	watch := s.start(t, "session", "context", id, "--as", "boss", "--watch", "--after", "5")
	s.run(t, "session", "append", id, "--as", "boss", "news").check(t, 0, "6\n", "")
	watch.stdout.waitFor(t, "news")
	watch.end(t)
	testAudit(t, s, id)
	s.run(t, "session", "delete", id, "--as", "boss").check(t, 0, "", "is gone")
	s.run(t, "session", "context", id, "--as", "boss").check(t, 19, "", "not_found")
	s.run(t, "session", "get", "x").check(t, 11, "", "invalid_id")
	s.run(t, "invoke", "reader").check(t, 2, "", "expected an agent id and a file")
}

// testAudit reads what the session's life has left in the audit.
func testAudit(t *testing.T, s *shell, id string) {
	t.Helper()
	s.run(t, "agent", "drain", "reader", "--reason", "bell\aand\u2028line").check(t, 0, "", "")
	var lines string
	for _, event := range []string{
		"agent_drain", "session_create", "session_update", "context_append", "access_refused", "task",
		"handshake_init", "handshake_ack", "execution_start", "execution_complete",
	} {
		bustest.Eventually(t, event+" in the audit", func() bool {
			lines = s.run(t, "audit", "export").stdout
			return strings.Contains(lines, `"event_type":"`+event+`"`)
		})
	}
	for _, no := range []string{"\a", "\u2028", "first words", "say hello", "ghp_", "parley1."} {
		if strings.Contains(lines, no) {
			t.Errorf("the audit has %q", no)
		}
	}
	dir := t.TempDir()
	s.run(t, "audit", "export", "--session", id, "--since", "1h", "--dir", dir).check(t, 0, "", "")
	whole, err := os.ReadFile(filepath.Join(dir, id+".log"))
	if err != nil || strings.Count(string(whole), "\n") < 8 || strings.Contains(string(whole), "agent_drain") {
		t.Errorf("the session's log, %v:\n%s", err, whole)
	}
	part, err := os.ReadFile(filepath.Join(dir, id+"-reader.log"))
	if err != nil || !strings.Contains(string(part), "execution_complete") || strings.Contains(string(part), "session_create") {
		t.Errorf("the agent's log, %v:\n%s", err, part)
	}
	s.run(t, "audit", "export", "--agent", "nobody").check(t, 0, "", "")
	s.run(t, "audit", "export", "--since", "soon").check(t, 2, "", "--since")
	s.run(t, "audit", "export", "--as", "eve").check(t, 16, "", "forbidden")
	out := s.run(t, "audit", "verify")
	out.check(t, 0, "nothing was changed", "")
	_, hash, _ := strings.Cut(strings.TrimSpace(out.stdout), "hash ")
	s.run(t, "audit", "verify", "--expect", hash, "-o", "json").check(t, 0, `"hash"`, "")
	s.run(t, "audit", "verify", "--expect", "beef").check(t, 1, "", "not part of it")
	follow := s.start(t, "audit", "export", "--follow", "--since", "1h")
	follow.stdout.waitFor(t, "agent_drain")
	s.run(t, "agent", "resume", "reader").check(t, 0, "", "")
	follow.stdout.waitFor(t, "agent_resume")
	follow.end(t)
}
