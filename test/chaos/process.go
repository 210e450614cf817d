//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs at a place, dies, and is started again.
type process struct {
	name, place string
	args        []string // the program first
	env         []string
	dir         string // of its log

	mu      sync.Mutex
	cmd     *exec.Cmd     // guarded by mu
	done    chan struct{} // guarded by mu; closed when cmd has ended
	doomed  bool          // guarded by mu: its end is our doing
	lives   int           // guarded by mu
	orderly int           // guarded by mu: ends with an error that it told; a supervisor starts it again
	retired bool          // guarded by mu: nobody does any more
	strange []violation   // guarded by mu: ends that were not our doing
	spent   time.Duration // guarded by mu: processor time of the lives that are over
}

// start runs it, if it does not run.
func (p *process) start(w *world) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runsLocked() || p.retired {
		return nil
	}
	env := append([]string{skewEnv + "=" + p.clock()}, p.env...)
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	all := append(w.inside(p.place), p.args...)
	c := exec.Command(all[0], all[1:]...)
	c.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.dir, "TMPDIR=" + os.TempDir(), "NO_COLOR=1",
		"XDG_CONFIG_HOME=" + filepath.Join(p.dir, "config"), "XDG_DATA_HOME=" + filepath.Join(p.dir, "data", p.name),
	}, env...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // ^C is ours
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done, p.doomed = c, done, false
	p.lives++
	go func() { // ends with the process, which stop or kill ends
		_ = c.Wait()
		p.mu.Lock()
		p.spent += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
		again := !p.doomed && c.ProcessState.ExitCode() == 1
		if again {
			p.orderly++
		} else if !p.doomed {
			p.strange = append(p.strange, violation{"0 processes", p.name, fmt.Sprintf("it ended by itself (%s)", c.ProcessState)})
		}
		p.mu.Unlock()
		close(done)
		if again && pause(context.Background(), time.Second) == nil {
			_ = p.start(w) // as systemd does; if it cannot, the next fault's mending tells
		}
	}()
	return nil
}

// skewEnv names the file that says by how many seconds the clock of a process is
// wrong.
const skewEnv = "PARLEY_CLOCK"

func (p *process) clock() string { return filepath.Join(p.dir, p.name+".clock") }

// skew makes the clock of a process wrong, now and in its next lives.
func (p *process) skew(by time.Duration) error {
	temp := p.clock() + ".new"
	if err := os.WriteFile(temp, strconv.AppendInt(nil, int64(by/time.Second), 10), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, p.clock())
}

// journal is what a process of agents writes down.
func (p *process) journal() string { return filepath.Join(p.dir, p.name+".journal") }

func (p *process) log() string { return filepath.Join(p.dir, p.name+".log") }

func (p *process) runsLocked() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends s; who has ended does not mind. ends says that it may end now.
func (p *process) signal(s syscall.Signal, ends bool) (<-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runsLocked() {
		closed := make(chan struct{})
		close(closed)
		return closed, nil
	}
	p.doomed = p.doomed || ends
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return p.done, err
}

// kill ends it by SIGKILL, and waits.
func (p *process) kill() {
	done, err := p.signal(syscall.SIGKILL, true)
	if err == nil {
		<-done
	}
}

// term asks it to end, and kills it if it does not within grace.
func (p *process) term(grace time.Duration) (asked bool) {
	done, err := p.signal(syscall.SIGTERM, true)
	if err != nil {
		return false
	}
	limit := time.NewTimer(grace)
	defer limit.Stop()
	select {
	case <-done:
		return true
	case <-limit.C:
		p.kill()
		return false
	}
}

// retire ends it for good.
func (p *process) retire() {
	p.mu.Lock()
	p.retired = true
	p.mu.Unlock()
	p.kill()
}

// oddities are the ends that nobody planned.
func (p *process) oddities() []violation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.strange
}

// mayEnd says that an end of it from now on is no wonder, until it is started
// again.
func (p *process) mayEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doomed = true
}

// cpu is the processor time of all its lives.
func (p *process) cpu() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runsLocked() {
		return p.spent
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return p.spent
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name may hold blanks
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return p.spent
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return p.spent + time.Duration(user+system)*(time.Second/100)
}
