package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/bus/bustest"
)

func TestScheduleFromCreateToRemove(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "linda", "--", "sh", "-c", `cat >/dev/null; echo "good morning"`)
	dir := t.TempDir()
	brief, definition := filepath.Join(dir, "brief"), filepath.Join(dir, "run.yaml")
	for path, text := range map[string]string{brief: "Say good morning.", definition: "agents: [{agent_id: linda, dependencies: [], brief: look}]"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	create := func(args ...string) []string { return append([]string{"schedule", "create"}, args...) }
	s.run(t, create("standup", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--description", "the day begins", "dispatch", brief)...).
		check(t, 0, "standup\n", "09:00:00 CE")
	s.run(t, create("standup", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--description", "the day begins", "dispatch", brief)...).
		check(t, 0, "standup\n", "it existed already")
	s.run(t, create("sweep", "--every", "1h", "--overlap", "queue", "--missed", "skip", "--grace", "10s", "run", definition)...).check(t, 0, "sweep\n", "next: ")
	s.run(t, create("once", "--at", "1h", "dispatch", brief)...).check(t, 0, "once\n", "next: ")
	s.now = func() time.Time { return time.Now().Add(time.Minute) }
	s.run(t, create("once", "--at", "1h", "dispatch", brief)...).check(t, 18, "", "where: --at 1h is another time at each call\n  next:  parley schedule get once ")
	s.now = nil
	s.run(t, create("ping", "--at", "1h", "mesh", "--to", "linda", "--action", "info", "Are you there?")...).check(t, 0, "ping\n", "next: ")

	out := s.run(t, "schedule", "ls").stdout
	for _, want := range []string{"standup", "dispatch", "0 9 * * 1-5 Europe/Berlin", "sweep", "run", "every 1h0m0s", "ping", "mesh", "active"} {
		if !strings.Contains(out, want) {
			t.Errorf("the list lacks %q:\n%s", want, out)
		}
	}
	s.run(t, "schedule", "get", "standup").check(t, 0, "missed: once (later than 1m0s)   overlap: skip", "")
	s.run(t, "schedule", "get", "sweep").check(t, 0, "missed: skip (later than 10s)   overlap: queue", "")
	for _, name := range []string{"standup", "sweep", "ping"} {
		id := strings.TrimSpace(s.run(t, "schedule", "run-now", name).stdout)
		bustest.Eventually(t, name+" has begun "+id, func() bool {
			return strings.Contains(s.run(t, "schedule", "get", name).stdout, "begun 1")
		})
		switch name {
		case "standup":
			s.run(t, "task", "wait", id).check(t, 0, "good morning", "")
		case "sweep":
			s.run(t, "run", "watch", id).check(t, 0, "good morning", "")
		case "ping":
			s.run(t, "mesh", "inbox", "--wait", "20s").check(t, 0, "good morning", "")
		}
	}
	s.run(t, "schedule", "pause", "standup", "sweep").check(t, 0, "", "schedule sweep is paused")
	s.run(t, "schedule", "resume", "standup").check(t, 0, "", "schedule standup is active")
	s.run(t, "schedule", "get", "standup", "--as", "eve").check(t, 19, "", "not_found")
	s.run(t, "schedule", "get", "standup", "--as", "eve", "--of", "operator").check(t, 19, "", "not_found")
	s.run(t, "schedule", "ls", "--all", "-o", "jsonl").check(t, 0, `"name":"standup"`, "")
	s.run(t, "schedule", "rm", "standup", "sweep", "ping").check(t, 0, "", "schedule ping is gone")
	s.run(t, "schedule", "rm", "standup").check(t, 19, "", "not_found")
}

func TestScheduleRefused(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	brief := filepath.Join(t.TempDir(), "brief")
	if err := os.WriteFile(brief, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   string
		exit   int
		stderr string
	}{
		{"s", exitUsage, "expected a name, dispatch, run or mesh"},
		{"s dance " + brief, exitUsage, "expected dispatch, run or mesh"},
		{"s dispatch " + brief + " " + brief, exitUsage, "expected one file"},
		{"s dispatch " + brief, 10, "it is due at no time"},
		{"s --every 1h --at 1h dispatch " + brief, 10, "more than one clock"},
		{"s --every 10ms dispatch " + brief, 10, "/every_seconds"},
		{"s --at yesterday dispatch " + brief, exitUsage, "--at"},
		{"s --at 2001-01-01T00:00:00Z dispatch " + brief, 34, "has passed"},
		{"s --every 1h mesh --to a,b x", exitUsage, "expected one agent"},
		{"s --every 1h --overlap cancel mesh --to a x", 10, "cannot be taken back"},
		{"a.b --every 1h dispatch " + brief, 11, "is not an identifier"},
	} {
		s.run(t, append([]string{"schedule", "create"}, strings.Fields(tt.args)...)...).check(t, tt.exit, "", tt.stderr)
	}
}
