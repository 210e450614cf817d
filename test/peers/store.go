package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// freePort is a port of the loopback that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// store is a server process.
type store struct{ cmd *exec.Cmd }

// run starts a server that ends with this process at the latest.
func run(as *syscall.Credential, dir, name string, args ...string) (*store, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &store{cmd}, nil
}

// stop ends the server at once, and waits.
func (s *store) stop(sig os.Signal) {
	if s == nil || s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	_ = s.cmd.Wait()
}

// answers waits until ping works.
func answers(ctx context.Context, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// redis starts Redis, with an append-only file that is synced always or each
// second.
func redis(dir string, port int, lazy bool) (*store, error) {
	fsync := "always"
	if lazy {
		fsync = "everysec"
	}
	return run(nil, dir, "redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--appendonly", "yes", "--appendfsync", fsync, "--save", "")
}

// postgres makes a database cluster and starts it. PostgreSQL refuses to run as
// root; its own user does, whom Debian's package brings.
func postgres(ctx context.Context, dir string, port int, lazy bool) (*store, error) {
	as, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	bin, err := newest("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(filepath.Dir(bin), "initdb"), "-D", data, "-U", "bench", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	initdb.Dir = dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	commit := "on"
	if lazy {
		commit = "off"
	}
	return run(as, dir, bin, "-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir,
		"-c", "synchronous_commit="+commit, "-c", "fsync=on", "-c", "max_connections=200", "-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB")
}

func newest(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%s: not found; install Debian's postgresql", pattern)
	}
	return found[len(found)-1], nil
}

// unprivileged gives dir to the user postgres when this runs as root.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // as whoever this runs
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(dir, int(uid), int(gid))); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
