package embedded_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/embedded"
)

func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.Port == 0 {
		o.Port = -1
	}
	s, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, c bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := start(t, embedded.Options{Dir: dir})
	if !strings.HasPrefix(s.URL(), "nats://127.0.0.1:") {
		t.Errorf("URL = %s", s.URL())
	}
	b := connect(t, bus.Config{URL: s.URL()})
	if err := b.Provision(t.Context(), bus.Provisioning{}); err != nil {
		t.Fatal(err)
	}
	seq, err := b.Store(t.Context(), "fleet.task.a", []byte("kept"), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	s.Close()
	s.Close() // twice is harmless

	s = start(t, embedded.Options{Dir: dir, DontListen: true})
	b = connect(t, bus.Config{InProcess: s})
	m, err := b.Get(t.Context(), "FLEET_TASKS", seq)
	if err != nil || string(m.Data) != "kept" {
		t.Errorf("Get after restart = %q, %v", m.Data, err)
	}
}

func TestSyncAlways(t *testing.T) {
	t.Parallel()
	for _, lazy := range []bool{false, true} {
		s := start(t, embedded.Options{Dir: t.TempDir(), NoSyncAlways: lazy})
		if s.SyncAlways() == lazy {
			t.Errorf("SyncAlways = %t with NoSyncAlways %t", s.SyncAlways(), lazy)
		}
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().(*net.TCPAddr)
	dir := t.TempDir()
	_, err = embedded.Start(embedded.Options{Dir: dir, Port: addr.Port})
	if !errors.Is(err, embedded.ErrPortTaken) || !strings.Contains(err.Error(), addr.String()) {
		t.Errorf("Start on a taken port = %v, want ErrPortTaken and %s", err, addr)
	}
	start(t, embedded.Options{Dir: dir}) // the directory is free again
}

func TestDirInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, embedded.Options{Dir: dir})
	_, err := embedded.Start(embedded.Options{Dir: dir, Port: -1})
	if !errors.Is(err, embedded.ErrDirInUse) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Start on a used directory = %v, want ErrDirInUse and %s", err, dir)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	if _, err := embedded.Start(embedded.Options{}); err == nil {
		t.Error("Start without a directory = nil")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(embedded.Options{Dir: file}); err == nil {
		t.Error("Start on a file = nil")
	}
}

func TestMonitorAndLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := start(t, embedded.Options{Dir: t.TempDir(), HTTP: -1, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if s.HTTPAddr() == "" {
		t.Error("HTTPAddr is empty")
	}
	quiet := start(t, embedded.Options{Dir: t.TempDir()})
	if quiet.HTTPAddr() != "" {
		t.Errorf("HTTPAddr = %s, want none", quiet.HTTPAddr())
	}
	s.Close()
	if !strings.Contains(log.String(), "Server is ready") {
		t.Errorf("log:\n%s", log.String())
	}
}
