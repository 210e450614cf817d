package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/subjects"
	"parley/workers/agent"
)

// detached is a script whose child is in a session, and so in a process group,
// of its own, as the shells of Claude Code and opencode are; it holds a FIFO.
const detached = `setsid sh -c 'exec sleep 1000 9>"$FIFO"' & `

func needSetsid(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip(err)
	}
}

// A cancel, and the end of a command by itself or by a signal, reach what has
// left its process group.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	needSetsid(t)
	for name, script := range map[string]string{
		"canceled":          detached + `wait; sleep 1000`,
		"canceled, at once": detached + `trap "" TERM; sleep 1000`,
		"ended by itself":   detached + `read x <"$GO"; echo done`,
		"killed":            detached + `read x <"$GO"; kill -9 -$$; sleep 1000`,
		"twice detached":    `setsid sh -c 'setsid sh -c "exec sleep 1000 9>\"$FIFO\"" & sleep 1000' & read x <"$GO"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, gate := newFIFO(t), filepath.Join(t.TempDir(), "go")
			if out, err := exec.Command("mkfifo", gate).CombinedOutput(); err != nil {
				t.Skipf("%s", out)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			e := shell(t, script, agent.ExecConfig{Set: []string{"FIFO=" + f.path, "GO=" + gate}, KillAfter: 200 * time.Millisecond})
			go func() {
				_, err := e.Handle(ctx, agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
				ended <- err
			}()
			f.held()
			if strings.HasPrefix(name, "canceled") {
				cancel()
			} else if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			f.dead()
			next(t, "the end", ended)
		})
	}
}

// What has left the group still has the time to end by itself.
func TestDetachedEndsByItself(t *testing.T) {
	t.Parallel()
	needSetsid(t)
	f, left := newFIFO(t), filepath.Join(t.TempDir(), "left")
	e := shell(t, `setsid sh -c 'trap "sleep 0.2; echo clean >\"$F\"; exit" TERM; exec 9>"$FIFO"; while :; do sleep 0.05; done' & wait`,
		agent.ExecConfig{Set: []string{"FIFO=" + f.path, "F=" + left}, KillAfter: patience})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := e.Handle(ctx, agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
		ended <- err
	}()
	f.held()
	cancel()
	f.dead()
	next(t, "the end", ended)
	if got, err := os.ReadFile(left); string(got) != "clean\n" {
		t.Errorf("it left %q, %v, want clean", got, err)
	}
}

// killedAgent runs an agent as a process of its own until its command holds the
// FIFO, and kills it outright.
func killedAgent(t *testing.T, mode, tmp string, f *fifo) {
	t.Helper()
	harness := exec.Command(os.Args[0], "helper", mode, f.path, tmp)
	harness.Stderr = t.Output()
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	f.held()
	if err := harness.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = harness.Wait() // it was killed
}

// When an agent is killed its guard ends what its commands have left behind.
func TestGuard(t *testing.T) {
	t.Parallel()
	needSetsid(t)
	f := newFIFO(t)
	killedAgent(t, "guarded", t.TempDir(), f)
	f.dead()
}

// Where there was no guard the next agent ends it, and removes its contracts;
// those of an agent that lives, and of others, stay.
func TestSweepOfDeadAgents(t *testing.T) {
	t.Parallel()
	needSetsid(t)
	f, tmp := newFIFO(t), t.TempDir()
	killedAgent(t, "detached", tmp, f)
	dirs := func() (names []string) {
		list, err := os.ReadDir(tmp)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			names = append(names, e.Name())
		}
		return names
	}
	if len(dirs()) != 1 {
		t.Fatalf("the killed agent left %q, want one directory", dirs())
	}
	for _, other := range []string{"parley-123", "else", "parley-1-1-1-9"} { // the last is of another namespace
		if err := os.Mkdir(filepath.Join(tmp, other), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own := newFIFO(t)
	r := newRouter(t)
	a := r.start(agent.Config{Handler: shell(t, detached+"wait; sleep 1000", agent.ExecConfig{Set: []string{"FIFO=" + own.path}, TempDir: tmp})})
	a.give(dispatch("t1", "x"))
	own.held()
	f.dead()
	await(t, "the directories of the dead agent", tick(t), func(time.Time) bool { return len(dirs()) == 4 })
	for _, d := range dirs() {
		if o, ok := strings.CutPrefix(d, "parley-"); ok && !strings.HasPrefix(o, agent.ThisProcess()) && o != "123" && o != "1-1-1-9" {
			t.Errorf("%s is still there", d)
		}
	}
	a.cancel("t1", 1, subjects.CodeCanceled)
	own.dead()
}

// tick is how often something that comes with time is looked at.
func tick(t *testing.T) <-chan time.Time {
	t.Helper()
	c := time.NewTicker(10 * time.Millisecond)
	t.Cleanup(c.Stop)
	return c.C
}
