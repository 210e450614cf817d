//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// leave puts a result of bob's into a spool.
func leave(t *testing.T, dir string, task subjects.TaskID) (path string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, string(task)+".5.1.json")
	r := &fleet.Result{
		Header: fleet.Header{Type: fleet.TypeResult, ProtocolVersion: fleet.Version}, TaskID: task, AgentID: "bob",
		Status: fleet.StatusDone, Attempt: 1, Epoch: 5, InstanceID: "old",
	}
	if err := os.WriteFile(path, fleet.MustEncode(r), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A new process hands in what any of those before it has left, wherever that is
// below --data; what a running one has there stays.
func TestSpoolsOfProcessesThatAreGone(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	heard := make(chan string, 10)
	if _, err := server.Bus(t).Subscribe("fleet.result.bob.*", "", func(m bus.Msg) {
		heard <- m.Subject
		_ = m.Respond(fleet.MustEncode(fleet.ResultReply{OK: true}), nil)
	}); err != nil {
		t.Fatal(err)
	}
	s := newShell(t, "NATS_URL="+server.URL())
	base := filepath.Join(s.home(), "data", "spool", "bob")
	gone, runs := leave(t, filepath.Join(base, "1"), "t1"), leave(t, filepath.Join(base, "2"), "t2")
	free, err := hold(filepath.Dir(runs), filepath.Dir(runs)+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	s.start(t, "agent", "run", "--id", "bob", "--driver", "echo", "--grace", "0s", "--data", filepath.Join(s.home(), "data"))
	select {
	case got := <-heard:
		if got != "fleet.result.bob.t1" {
			t.Errorf("heard %s, want the result of t1", got)
		}
	case <-time.After(bustest.Patience):
		t.Fatal("what is in spool 1 is not handed in")
	}
	bustest.Eventually(t, "an empty spool", func() bool { _, err := os.Stat(gone); return os.IsNotExist(err) })
	if _, err := os.Stat(runs); err != nil || len(heard) > 0 {
		t.Errorf("what a process that runs has in its spool: %v, %d more results", err, len(heard))
	}
}

// A directory that is named belongs to one process at a time.
func TestASpoolHasOneHolder(t *testing.T) {
	t.Parallel()
	s := newShell(t, "NATS_URL=nats://127.0.0.1:9")
	dir := filepath.Join(s.home(), "spool")
	args := []string{"agent", "run", "--id", "ann", "--driver", "echo", "--timeout", "200ms", "--spool", dir}
	free, err := hold(dir, filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	held := s.run(t, args...)
	held.check(t, exitFailed, "", dir+": another process holds it")
	held.check(t, exitFailed, "", "--spool DIR, one for each process")
	free()
	s.run(t, args...).check(t, 38, "", "cannot reach NATS")
}

// Only what another process has locked is held.
func TestLocks(t *testing.T) {
	t.Parallel()
	open := func() *os.File {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	free := open()
	if err := tryLock(free); err != nil {
		t.Errorf("a lock that nobody has = %v", err)
	}
	same, err := os.Open(free.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = same.Close() }()
	if err := tryLock(same); !errors.Is(err, errHeld) {
		t.Errorf("a lock that is held = %v", err)
	}
	none := open()
	if err := errors.Join(none.Close(), tryLock(none)); err == nil || errors.Is(err, errHeld) {
		t.Errorf("a file that cannot be locked = %v", err)
	}
}
