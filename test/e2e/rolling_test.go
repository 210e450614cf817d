package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"parley/test/deploy"
)

// unitEnv is deploy/systemd/parley.env, as systemd reads it, on this site.
func (s siteUnderTest) unitEnv(t *testing.T, more ...string) []string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/systemd/parley.env")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer(
		"tls://n1:4222", s.URL("cluster-1"), "tls://n2:4222", s.URL("cluster-2"), "tls://n3:4222", s.URL("cluster-3"),
		"/etc/parley/ca.crt", s.CA, "PARLEY_PASSWORD=", "PARLEY_PASSWORD="+deploy.Password(deploy.Worker),
	)
	var env []string
	for line := range strings.Lines(here.Replace(string(data))) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			env = append(env, line)
		}
	}
	return append(env, more...)
}

// unit starts what parley.service does, and waits until it serves.
func (s siteUnderTest) unit(t *testing.T, name string) *process {
	t.Helper()
	page, dir := deploy.FreeAddress(t), filepath.Join(s.dir, name)
	p := s.parley(name, s.unitEnv(t, "PARLEY_HTTP="+page, "PARLEY_MAX_STORE=512MiB", "HOME="+dir, "PARLEY_DATA="+dir), "serve")
	s.well("http://" + page + "/readyz")
	return p
}

// stops has a process stop by a signal, and wants it to finish and end well.
func stops(t *testing.T, p *process, by syscall.Signal) {
	t.Helper()
	p.signal(by)
	if !p.ended(2 * patience) {
		t.Fatalf("%s does not end", p.name)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%s ends with %s\n%s", p.name, p.ending(), tail(p.log, 4000))
	}
}

// TestRollingUpgrade replaces everything that a fleet runs on, as the guide on
// operating says: workers, an agent, and a NATS server. Meanwhile somebody sends one
// task after the other, and each is done.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes, brokers := s.cluster()
	old := []*process{s.unit(t, "old-1"), s.unit(t, "old-2")}
	ci := append(s.env(deploy.CI, nodes...), "PARLEY_AS=ci")
	agent := func(name string) *process {
		return s.parley(name, s.env(deploy.Claude, nodes...), "agent", "run", "--id", "claude", "--instance", name, "--driver", "echo", "--max-parallel", "4", "--heartbeat", "500ms", "--data", filepath.Join(s.dir, name))
	}
	live := func(name string) {
		s.until(name, func(context.Context) bool { return strings.Contains(s.does(ci, "agent", "ls", "--live"), name) })
	}
	before := agent("before")
	live("before")

	var done atomic.Int64
	var longest atomic.Int64
	stop, failed := make(chan struct{}), make(chan string, 1)
	go func() { // ends when stop is closed, or with the first task that is not done
		defer close(failed)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			begin, brief := time.Now(), fmt.Sprint("task-", i)
			p := s.parley("sender", ci, "task", "send", "--wait", brief)
			if !p.ended(3 * patience) {
				failed <- brief + " does not end"
				return
			}
			out, _ := p.printed()
			if p.cmd.ProcessState.ExitCode() != 0 || !strings.Contains(out, brief) {
				failed <- fmt.Sprintf("%s: %s: %s\n%s", brief, p.ending(), out, tail(p.log, 4000))
				return
			}
			done.Add(1)
			longest.Store(max(longest.Load(), int64(time.Since(begin))))
		}
	}()
	more := func(what string) { // tasks that were sent since are done
		t.Helper()
		from := done.Load()
		s.until("tasks "+what, func(context.Context) bool { return done.Load() >= from+3 || len(failed) > 0 })
	}
	more("before anything is replaced")
	for i, p := range old {
		s.unit(t, fmt.Sprint("new-", i+1))
		stops(t, p, syscall.SIGTERM)
		more("by the new workers")
	}
	agent("after")
	live("after")
	stops(t, before, syscall.SIGTERM)
	more("by the new agent")
	stops(t, brokers[nodes[0]], syscall.SIGUSR2) // lame duck: clients and leaders leave first
	more("without a server")
	s.broker(nodes[0])
	s.well(s.Monitor(nodes[0]) + "/healthz")
	more("by the new server")
	close(stop)
	if what, bad := <-failed; bad {
		t.Fatal(what)
	}
	if out := s.does(ci, "task", "ls", "-n", "1000", "-o", "jsonl"); int64(strings.Count(out, `"state":"done"`)) != done.Load() {
		t.Errorf("%d tasks were done by then, and are listed as: %s", done.Load(), out)
	}
	fmt.Printf("e2e: %d tasks while everything was replaced, the longest took %s\n", done.Load(), time.Duration(longest.Load()).Round(time.Millisecond))
}
