package e2e_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	upgradeData    = "testdata/upgrade"
	upgradeWorkers = "registry,sessions,audit,router,mesh,runs,webhooks,escalation"
)

// TestUpgrade opens the data that earlier builds have left, each with all
// workers, sees that its audit is unbroken, and works on. What expires with
// time is not asked for. -e2e.fixture NAME writes such data with this build:
// do that with every release.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	if *fixtureFlag != "" {
		leaveData(t, filepath.Join(upgradeData, *fixtureFlag+".tar.gz"))
	}
	kept, err := filepath.Glob(filepath.Join(upgradeData, "*.tar.gz"))
	if err != nil || len(kept) == 0 {
		t.Fatalf("no data of earlier builds in %s: %v", upgradeData, err)
	}
	for _, path := range kept {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			f := &testFleet{tb: t, dir: t.TempDir()}
			unpack(t, path, filepath.Join(f.dir, "jetstream"))
			f.startBroker(upgradeWorkers, "-1")
			f.connect()
			f.agents("agent-a", cast{Heartbeat: quick, Agents: []actor{{ID: "a", Instance: "main", MaxParallel: 2}}})
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			if _, err := (boss{NC: f.nc, Name: "boss"}).Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: "after"}, Brief: "do it"}); err != nil {
				t.Fatal(err)
			}
			all := newReader(t, f.nc).Until(t, "the outcomes", patience, func(h history) bool { return len(h["after"]) > 0 && h.Ended() == len(h) })
			if got := all.Last("after").State; got != "done" {
				t.Errorf("a task that was dispatched to the old data is %s", got)
			}
			p := start(t, f.dir, program{name: "verify", path: parleyBinary(t), args: []string{"audit", "verify", "--server", f.url}})
			if !p.ended(patience) || p.cmd.ProcessState.ExitCode() != 0 {
				out, _ := p.printed()
				t.Errorf("audit verify: %s\n%s\n%s", p.ending(), out, tail(p.log, 4000))
			}
		})
	}
}

// leaveData makes a fleet with tasks that have ended and one that waits, and
// keeps its data.
func leaveData(t *testing.T, path string) {
	t.Helper()
	f := newFleet(t, upgradeWorkers)
	a := f.agents("agent-a", cast{Heartbeat: quick, Agents: []actor{{ID: "a", Instance: "main", MaxParallel: 2}}})
	f.awaitAgents("a")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	b := boss{NC: f.nc, Name: "boss"}
	for id, brief := range map[string]string{"good": play(step{Do: doDone}), "second": play(step{Do: doError}, step{Do: doDone})} {
		if _, err := b.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: id}, Brief: brief}); err != nil {
			t.Fatal(err)
		}
	}
	newReader(t, f.nc).Until(t, "the outcomes", patience, func(h history) bool { return h.Ended() == 2 })
	a.kill()
	if _, err := b.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: "waiting"}, Brief: "do it"}); err != nil {
		t.Fatal(err)
	}
	f.broker.signal(syscall.SIGTERM)
	if !f.broker.ended(patience) {
		t.Fatal("the broker does not stop")
	}
	pack(t, filepath.Join(f.dir, "jetstream"), path)
}

// pack keeps the files below dir.
func pack(t *testing.T, dir, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	err = errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), z.Close(), f.Close())
	if err != nil {
		t.Fatal(err)
	}
}

// unpack lays what pack kept out in dir.
func unpack(t *testing.T, path, dir string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !fs.ValidPath(strings.TrimSuffix(h.Name, "/")) {
			t.Fatalf("%s holds %q", path, h.Name)
		}
		to := filepath.Join(dir, h.Name)
		if h.FileInfo().IsDir() {
			if err := os.MkdirAll(to, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, data, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
