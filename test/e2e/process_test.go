package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is one program that runs. It does not outlive its test.
type process struct {
	tb   testing.TB
	name string
	cmd  *exec.Cmd
	log  string        // path of what it printed on standard error
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	stdout bytes.Buffer  // guarded by mu
	grew   chan struct{} // guarded by mu; closed and replaced when stdout grows
}

// program is what to run.
type program struct {
	name string // of the process, in messages and of its log
	path string
	args []string
	env  []string // beside a bare environment
}

// bareEnv is an environment without anything of the user's: no settings, no
// contexts, no credentials.
func bareEnv(home string, more ...string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir(), "NO_COLOR=1", "GORACE=" + os.Getenv("GORACE"),
		"XDG_CONFIG_HOME=" + filepath.Join(home, "config"), "XDG_DATA_HOME=" + filepath.Join(home, "data"),
	}
	return append(env, more...)
}

// start runs p, logging into dir.
func start(tb testing.TB, dir string, p program) *process {
	tb.Helper()
	r := &process{tb: tb, name: p.name, done: make(chan struct{}), grew: make(chan struct{})}
	r.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close() // the process has its own
	r.cmd = exec.Command(p.path, p.args...)
	r.cmd.Env = bareEnv(dir, p.env...)
	r.cmd.Stdout, r.cmd.Stderr = r, log
	r.cmd.SysProcAttr = dieWithParent()
	if err := r.cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", p.name, err)
	}
	go func() { // ends with the process, which cleanup kills
		_ = r.cmd.Wait()
		close(r.done)
	}()
	tb.Cleanup(func() {
		r.kill()
		r.inspect()
	})
	return r
}

// inspect looks into the log of a process that has ended: for what no test may
// leave behind, and, where the test failed, for a person.
func (p *process) inspect() {
	if _, again := inspected.LoadOrStore(p.log, true); again {
		return // an earlier life of the process has the same log
	}
	data, err := os.ReadFile(p.log)
	if err != nil {
		p.tb.Error(err)
		return
	}
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked"} {
		if at := bytes.Index(data, []byte(bad)); at >= 0 {
			p.tb.Errorf("%s: %s", p.name, data[at:min(at+6000, len(data))])
		}
	}
	if p.tb.Failed() {
		p.tb.Logf("warnings in %s's log:\n%s\nthe end of it:\n%s", p.name, warnings(data), tail(p.log, 2000))
	}
}

// warnings are the last warnings and errors of a NATS server's log.
func warnings(log []byte) string {
	var found []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "[WRN]") || strings.Contains(line, "[ERR]") {
			found = append(found, line)
		}
	}
	return strings.Join(found[max(len(found)-20, 0):], "")
}

// inspected are the paths of the logs that have been looked into.
var inspected sync.Map

// Write takes what the process prints on standard output.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.grew)
	p.grew = make(chan struct{})
	return p.stdout.Write(b)
}

// printed is what the process has printed so far.
func (p *process) printed() (string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdout.String(), p.grew
}

// waitOutput waits until what the process has printed satisfies ok.
func (p *process) waitOutput(what string, ok func(string) bool) string {
	p.tb.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		out, grew := p.printed()
		if ok(out) {
			return out
		}
		select {
		case <-grew:
		case <-p.done:
			if out, _ = p.printed(); ok(out) {
				return out
			}
			p.tb.Fatalf("%s ended (%s) before %s; it printed:\n%s\n%s", p.name, p.ending(), what, out, tail(p.log, 4000))
		case <-limit.C:
			p.tb.Fatalf("%s: no %s within %s; it printed:\n%s\n%s", p.name, what, patience, out, tail(p.log, 4000))
		}
	}
}

// signal sends s; a process that has ended does not mind.
func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.tb.Errorf("signal %s to %s: %v", s, p.name, err)
	}
}

// kill ends the process by SIGKILL and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// ended waits for the process's end; false when it goes on.
func (p *process) ended(within time.Duration) bool {
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-p.done:
		return true
	case <-limit.C:
	}
	return !p.runs()
}

// runs reports whether the process has not ended yet.
func (p *process) runs() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// killed reports whether a process that has ended was ended by SIGKILL.
func (p *process) killed() bool {
	s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

func (p *process) ending() string { return p.cmd.ProcessState.String() }

// tail is the end of a file, at most n bytes of it.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > n {
		return fmt.Sprintf("… (%d bytes)\n%s", len(data)-n, data[len(data)-n:])
	}
	return string(data)
}
