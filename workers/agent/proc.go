package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// linger is how long what a command leaves behind (a tee, say) may go on with
// its output, before it is killed.
const linger = time.Second

// spec is a command to run.
type spec struct {
	argv   []string
	dir    string
	env    []string
	mark   string    // its taskMark, which env has; "" for none
	stdin  io.Reader // nil: nothing to read; must end, or be closed before wait
	stdout io.Writer // nil discards; closed at the end if it is an io.Closer
	stderr io.Writer // likewise
}

// process is a running command with everything it has started: a process group
// of its own. Whoever starts it must wait for it.
type process struct {
	cmd  *exec.Cmd
	mark string        // of what it has started, in groups of their own too; "" for none
	done chan struct{} // closed when it has ended and everything is joined
	end  ending        // valid once done

	stdin  *os.File      // our end
	output []*os.File    // our ends
	copied chan struct{} // closed when the output has ended
	fed    chan struct{} // closed when nothing more is read from stdin

	mu     sync.Mutex
	mercy  time.Time // until then what got SIGTERM may end by itself; zero: nothing got it
	reaped bool      // its group's id may be anybody's
}

// ending is how a process ended.
type ending struct {
	state   *os.ProcessState
	failed  error // it could not be waited for
	stopped bool  // by us
}

// err is nil when the command ended by itself with exit status 0.
func (e ending) err() error {
	switch {
	case e.failed != nil:
		return e.failed
	case e.stopped:
		return errors.New("it was stopped")
	case !e.state.Success():
		return errors.New(e.String())
	}
	return nil
}

// String tells the exit status or the signal.
func (e ending) String() string {
	if e.state == nil {
		return fmt.Sprint(e.failed)
	}
	return describe(e.state)
}

// startProcess starts s. On Linux the command gets SIGKILL when this process
// dies, however that happens. The kernel binds that to the thread that started
// it, so one thread starts it and stays until it has ended.
func startProcess(s spec) (*process, error) {
	path, err := lookPath(s.argv[0], s.env)
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd:  &exec.Cmd{Path: path, Args: s.argv, Dir: s.dir, Env: s.env, SysProcAttr: ownGroup()},
		mark: s.mark, done: make(chan struct{}),
		copied: make(chan struct{}), fed: make(chan struct{}),
	}
	theirs, err := p.pipes()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() { // closes p.done, which wait waits for
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			p.closePipes()
			started <- err
			return
		}
		p.copy(s)
		started <- nil
		p.reap()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.argv[0], err)
	}
	return p, nil
}

// pipes makes the pipes of the command and returns its ends of them.
func (p *process) pipes() (theirs []*os.File, err error) {
	defer func() {
		if err != nil {
			p.closePipes()
			for _, f := range theirs {
				_ = f.Close()
			}
		}
	}()
	in, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	p.stdin, p.cmd.Stdin = ours, in
	theirs = append(theirs, in)
	for _, w := range []*io.Writer{&p.cmd.Stdout, &p.cmd.Stderr} {
		ours, out, err := os.Pipe()
		if err != nil {
			return theirs, fmt.Errorf("make a pipe: %w", err)
		}
		*w = out
		p.output = append(p.output, ours)
		theirs = append(theirs, out)
	}
	return theirs, nil
}

func (p *process) closePipes() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	for _, f := range p.output {
		_ = f.Close()
	}
}

// copy feeds stdin and reads the output, until the pipes are closed at either
// end.
func (p *process) copy(s spec) {
	go func() { // ends with stdin, or when reap closes the pipe
		defer close(p.fed)
		if s.stdin != nil {
			_, _ = io.Copy(p.stdin, s.stdin) // a command need not read it
		}
		_ = p.stdin.Close()
	}()
	var wg sync.WaitGroup
	for i, w := range []io.Writer{s.stdout, s.stderr} {
		wg.Go(func() {
			if w != nil {
				_, _ = io.Copy(w, p.output[i])
			}
			_, _ = io.Copy(io.Discard, p.output[i]) // a full pipe would stop the command
			if c, ok := w.(io.Closer); ok {
				_ = c.Close()
			}
		})
	}
	go func() { // ends with the pipes
		wg.Wait()
		close(p.copied)
	}()
}

// reap waits for the command and then for its output, ends what is left of its
// group, and closes done.
func (p *process) reap() {
	defer close(p.done)
	early := awaitExit(p.cmd.Process) // its id stays its own: it is not reaped yet
	if !early {
		p.end.state, p.end.failed = p.cmd.Process.Wait()
	}
	for range 2 {
		if within(p.copied, linger) {
			break
		}
		p.endGroup()
	}
	p.endGroup()   // those that wrote nothing
	p.closePipes() // whoever left the group may still hold them
	<-p.copied
	<-p.fed
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	if early {
		p.end.state, p.end.failed = p.cmd.Process.Wait()
	}
}

// endGroup kills what is left of the group once its leader has ended: at once,
// unless stop has asked it to end. Then it has the time that stop gives it.
func (p *process) endGroup() {
	for nap := 10 * time.Millisecond; p.mayEnd() && p.lives(); nap = min(2*nap, 200*time.Millisecond) {
		<-time.After(nap)
	}
	_ = signalGroup(p.cmd.Process, killSignal)
	if p.mark != "" {
		killMarked(p.isMarked)
	}
}

func (p *process) isMarked(mark string) bool { return mark == p.mark }

// lives reports whether anything of the command still runs.
func (p *process) lives() bool {
	return groupLives(p.cmd.Process) || p.mark != "" && signalMarked(p.isMarked, nil, 0) > 0
}

func (p *process) mayEnd() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.mercy)
}

// wait waits until the command has ended. When ctx ends first, the whole group
// gets SIGTERM, and after killAfter SIGKILL.
func (p *process) wait(ctx context.Context, killAfter time.Duration) ending {
	select {
	case <-p.done:
		return p.end
	case <-ctx.Done():
		if within(p.done, 0) {
			return p.end
		}
	}
	p.stop(killAfter)
	end := p.end
	end.stopped = true
	return end
}

// stop ends the command and all it started, and waits for that.
func (p *process) stop(killAfter time.Duration) {
	if killAfter > 0 {
		p.mu.Lock()
		p.mercy = time.Now().Add(killAfter)
		p.mu.Unlock()
		p.signal(termSignal)
		if within(p.done, killAfter) {
			return
		}
	}
	p.signal(killSignal)
	<-p.done
}

func (p *process) signal(sig os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = signalGroup(p.cmd.Process, sig)
		if p.mark != "" {
			signalMarked(p.isMarked, sig, p.cmd.Process.Pid)
		}
	}
}
