package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"parley/test/deploy"
)

const pollSite = 50 * time.Millisecond

// TestTopology is what deploy/compose.yaml describes, as processes: three
// servers by the configurations that ship, two routers, one of each other worker,
// an agent, and one behind a leaf node. Tasks get through, also while a server
// is lost and after it is back.
func TestTopology(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := []string{"cluster-1", "cluster-2", "cluster-3"}
	brokers := map[string]*process{}
	for _, n := range nodes {
		brokers[n] = s.broker(n)
	}
	s.broker("leaf")
	for _, n := range append([]string{"leaf"}, nodes...) {
		s.well(s.Monitor(n) + "/healthz")
	}
	var ready []string
	for i, workers := range []string{"router", "router", "registry", "sessions", "audit", "mesh", "runs", "schedules", "webhooks", "escalation"} {
		name := workers + strconv.Itoa(i)
		page := deploy.FreeAddress(t)
		s.parley(name, s.env(deploy.Worker, nodes...), "serve", "--workers", workers, "--replicas", "3", "--http", page, "--max-store", "512MiB", "--change-log", filepath.Join(s.dir, name+".change.log"))
		ready = append(ready, "http://"+page+"/readyz")
	}
	for _, page := range ready {
		s.well(page)
	}
	s.parley("claude", s.env(deploy.Claude, nodes...), "agent", "run", "--id", "claude", "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(s.dir, "claude"))
	s.parley("edge1", s.env("", "leaf"), "agent", "run", "--id", "edge1", "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(s.dir, "edge1"))
	ci := func(first string) []string { // who asks where
		for i, n := range nodes {
			if n == first {
				return append(s.env(deploy.CI, append(append([]string{}, nodes[i:]...), nodes[:i]...)...), "PARLEY_AS=ci")
			}
		}
		panic(first)
	}
	do := func(where, agent, brief string) {
		t.Helper()
		out := s.does(ci(where), "task", "send", "--wait", "--agent", agent, brief)
		if !strings.Contains(out, brief) {
			t.Errorf("%s did not do %q: %s", agent, brief, out)
		}
	}
	s.until("the agents", func(context.Context) bool {
		out := s.does(ci(nodes[0]), "agent", "ls", "--live")
		return strings.Contains(out, "claude") && strings.Contains(out, "edge1")
	})
	for i, n := range nodes {
		do(n, "claude", "first-"+strconv.Itoa(i))
	}
	do(nodes[0], "edge1", "at-the-edge")

	brokers[nodes[1]].kill()
	begin := time.Now()
	do(nodes[0], "claude", "with-two-of-three")
	fmt.Printf("e2e: a task took %s from the loss of a server\n", time.Since(begin).Round(time.Millisecond))
	do(nodes[2], "edge1", "at-the-edge-with-two")

	s.broker(nodes[1])
	s.well(s.Monitor(nodes[1]) + "/healthz")
	brokers[nodes[0]].kill()
	do(nodes[1], "claude", "by-the-one-that-is-back")
	for _, page := range ready {
		s.well(page)
	}
}

// TestBackup backs up a fleet with the stock command line while it works, loses
// everything, restores it, and goes on.
func TestBackup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	broker := s.broker("single")
	s.well(s.Monitor("single") + "/healthz")
	worker, ci := s.env(deploy.Worker, "single"), append(s.env(deploy.CI, "single"), "PARLEY_AS=ci")
	serve := func(name string) *process {
		page := deploy.FreeAddress(t)
		p := s.parley(name, worker, "serve", "--http", page, "--max-store", "512MiB")
		s.well("http://" + page + "/readyz")
		return p
	}
	agent := func(name string) *process {
		return s.parley(name, s.env(deploy.Claude, "single"), "agent", "run", "--id", "claude", "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(s.dir, "claude"))
	}
	workers, claude := serve("serve-1"), agent("claude-1")
	s.until("the agent", func(context.Context) bool { return strings.Contains(s.does(ci, "agent", "ls", "--live"), "claude") })
	s.does(ci, "task", "send", "--wait", "--id", "ended", "before the backup")
	claude.kill()
	s.does(ci, "task", "send", "--id", "waiting", "while nobody works")

	backup := filepath.Join(s.dir, "backup")
	stockCLI := func(args ...string) {
		t.Helper()
		p := start(t, s.dir, program{
			name: "nats-" + args[1], path: natsBinary(t),
			args: append([]string{"--server", s.URL("single"), "--user", deploy.Worker, "--password", deploy.Password(deploy.Worker)}, args...),
		})
		if !p.ended(2*patience) || p.cmd.ProcessState.ExitCode() != 0 {
			out, _ := p.printed()
			t.Fatalf("nats %q:\n%s\n%s", args, out, tail(p.log, 4000))
		}
	}
	stockCLI("account", "backup", backup, "--force")
	s.does(ci, "task", "send", "--id", "late", "after the backup")
	workers.kill()
	broker.kill()
	s.wipe("single")

	s.broker("single")
	s.well(s.Monitor("single") + "/healthz")
	stockCLI("account", "restore", backup)
	serve("serve-2")
	if out := s.does(ci, "task", "get", "ended"); !strings.Contains(out, "before the backup") || !strings.Contains(out, "done") {
		t.Errorf("the task that had ended: %s", out)
	}
	agent("claude-2")
	if out := s.does(ci, "task", "wait", "waiting"); !strings.Contains(out, "while nobody works") {
		t.Errorf("the task that waited: %s", out)
	}
	if out := s.does(ci, "task", "ls"); strings.Contains(out, "late") {
		t.Errorf("what came after the backup is there: %s", out)
	}
	s.does(ci, "task", "send", "--wait", "--agent", "claude", "after the restore")
}
