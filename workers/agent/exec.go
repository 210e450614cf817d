package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// ExecConfig is a command that does tasks. Command is required.
//
// The command reads the brief on stdin, and the task's contract in PARLEY_TASK_ID,
// _ATTEMPT, _FROM, _PRIORITY, _DEADLINE, _TOKEN_BUDGET, _REPLY_SCHEMA and
// _SESSION_ID; PARLEY_CONTRACT is the path of a file with the whole offer as
// JSON, which is gone afterwards. What it prints is its answer: prose, JSON, or
// either with a TASK_RESULT in it. What it writes to stderr is its progress,
// line by line. Exit status 0 says that it is done; any other, or a signal, is
// agent_error, with the last lines of stderr, unless a TASK_RESULT says better.
//
// The command leads a process group of its own. When the task is over, canceled
// or out of time, the whole group gets SIGTERM and, KillAfter later, SIGKILL;
// what it leaves running when it ends by itself is killed too. On Linux that
// reaches what has left the group, by setsid say, as well: PARLEY_TASK_MARK marks
// whatever the command starts. There the command dies with the harness even if
// that is killed, and what it has started is killed by a shell that watches the
// harness, or by the next harness on the machine. Out of reach are processes that
// drop their environment, or are of another user or PID namespace.
type ExecConfig struct {
	Command []string // the program, by path or by Env's PATH, and its arguments
	Dir     string   // where it runs; "" where the harness does
	Env     []string // NAME=value, of which it sees PATH, HOME, LANG, LC_*, TZ, TERM, USER, SHELL, TMPDIR
	Allow   []string // and these: NAME, or PREFIX*
	Set     []string // NAME=value that it sees in any case

	Usage     Usage         // what it prints, "" for anything
	KillAfter time.Duration // absent 5 s
	Stall     time.Duration // without any output for so long it is given up; absent never
	TempDir   string        // where its contract is kept; absent Env's TMPDIR, or /tmp
	// StateDir is where the totals of the tool's sessions are kept, so that a
	// session that is resumed later is not counted twice; "" in memory only.
	StateDir string
}

// Exec is the handler that runs a command per task.
type Exec struct {
	cfg     ExecConfig
	totals  *totals
	own     owner
	leaders sync.Map // pids of the commands that run
}

var _ Handler = (*Exec)(nil)

const (
	defaultKillAfter = 5 * time.Second
	maxLine          = 8 << 20 // bytes of a line of stdout that a Usage reads
	maxStderrLine    = 4 << 10
	lastLines        = 10      // of stderr, in the message of a failure
	limitLines       = 50      // of stderr that may follow the one that says that a limit is met
	maxLimitText     = 4 << 10 // bytes at the end of an answer that are searched for a limit
)

// Why a command was stopped, beside what ends its task.
var (
	// errStall: it wrote nothing for too long.
	errStall = errors.New("the command has stalled")
	// errTooLong: it wrote more than an answer may have.
	errTooLong = errors.New("the command does not come to an end")
)

// NewExec checks c and finds the command.
func NewExec(c ExecConfig) (*Exec, error) {
	if len(c.Command) == 0 || c.Command[0] == "" {
		return nil, errors.New("agent: ExecConfig.Command is empty")
	}
	if _, err := newMeter(c.Usage, nil); err != nil {
		return nil, err
	}
	if c.KillAfter < 0 || c.Stall < 0 {
		return nil, errors.New("agent: ExecConfig.KillAfter and ExecConfig.Stall must not be negative")
	}
	path, err := lookPath(c.Command[0], c.Env)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	c.Command = append([]string{path}, c.Command[1:]...)
	c.KillAfter = cmp.Or(c.KillAfter, defaultKillAfter)
	tmp, _ := lookEnv(c.Env, "TMPDIR")
	c.TempDir = cmp.Or(c.TempDir, tmp, "/tmp")
	return &Exec{cfg: c, totals: newTotals(c.StateDir), own: thisProcess()}, nil
}

// Handle runs the command for one task.
func (e *Exec) Handle(ctx context.Context, t *Task) (fleet.Result, error) {
	dir, err := os.MkdirTemp(e.cfg.TempDir, tempPrefix+e.own.String()+"-")
	if err != nil {
		return fleet.Result{}, fmt.Errorf("keep the contract: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	contract := filepath.Join(dir, "offer.json")
	data, err := fleet.Encode(t.Dispatch)
	if err != nil {
		return fleet.Result{}, fmt.Errorf("keep the contract: %w", err)
	}
	if err := os.WriteFile(contract, data, 0o600); err != nil {
		return fleet.Result{}, fmt.Errorf("keep the contract: %w", err)
	}
	r, err := e.run(ctx, t, contract)
	if err != nil {
		return fleet.Result{}, err
	}
	return r.conclude(t.Dispatch)
}

// run runs the command and collects what there is to know of it.
func (e *Exec) run(ctx context.Context, t *Task, contract string) (*ran, error) {
	r := &ran{totals: e.totals, answer: &head{max: fleet.MaxMessage}, last: &recent{max: lastLines}, limits: &recent{max: lastLines}, stall: e.cfg.Stall}
	r.meter, _ = newMeter(e.cfg.Usage, e.totals)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := func() {}
	if e.cfg.Stall > 0 {
		timer := time.AfterFunc(e.cfg.Stall, func() { cancel(errStall) })
		defer timer.Stop()
		alive = func() { timer.Reset(e.cfg.Stall) }
	}
	r.answer.over = func() { cancel(errTooLong) }
	var stdout io.Writer = r.answer
	sinceLimit := 0
	if r.meter != nil {
		stdout = &lines{max: maxLine, each: func(line []byte, cut bool) {
			note, tokens := r.meter.line(line, cut)
			if note != "" || tokens > 0 {
				t.Progress(note, -1, tokens)
			}
			if b := t.budget(); b > 0 && tokens > b {
				cancel(ErrBudget)
			}
		}}
	}
	mark := e.newMark()
	p, err := startProcess(spec{
		argv: e.cfg.Command, dir: e.cfg.Dir, mark: mark,
		env:    append(e.env(t.Dispatch, contract), taskMark+"="+mark),
		stdin:  strings.NewReader(Prompt(t.Dispatch)),
		stdout: &watched{stdout, alive},
		stderr: &watched{&lines{max: maxStderrLine, each: func(line []byte, _ bool) {
			s := strings.ToValidUTF8(string(line), "\uFFFD")
			r.last.add(s)
			if sinceLimit++; isLimit(s) {
				sinceLimit = 0
				r.limits.add(s)
			} else if sinceLimit > limitLines { // it was met, and overcome
				r.limits.clear()
			}
			t.Progress(s, -1, 0)
		}}, alive},
	})
	if err != nil {
		// It was there when NewExec looked: another machine may do better.
		return nil, &Fail{Message: "the command cannot be started: " + err.Error(), Err: err}
	}
	pid := p.cmd.Process.Pid
	e.leaders.Store(pid, nil)
	defer e.leaders.Delete(pid)
	r.end = p.wait(ctx, e.cfg.KillAfter)
	r.cause = context.Cause(ctx)
	return r, nil
}

func (e *Exec) env(d *fleet.Dispatch, contract string) []string {
	env := childEnv(e.cfg.Env, e.cfg.Allow)
	for _, kv := range e.cfg.Usage.env() {
		name, _, _ := strings.Cut(kv, "=")
		if _, set := lookEnv(env, name); !set {
			env = append(env, kv)
		}
	}
	return append(append(env, e.cfg.Set...), contractEnv(d, contract)...)
}

// watched calls alive for whatever is written.
type watched struct {
	w     io.Writer
	alive func()
}

func (w *watched) Write(p []byte) (int, error) {
	w.alive()
	return w.w.Write(p)
}

func (w *watched) Close() error {
	if c, ok := w.w.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// ran is a command that has ended.
type ran struct {
	end    ending
	cause  error // why it was stopped, if it was
	stall  time.Duration
	answer *head // stdout, unless meter reads it
	meter  meter // nil: none
	totals *totals
	last   *recent
	limits *recent // lines of stderr that say that a limit is met
}

// conclude turns what a command did into what a handler returns.
func (r *ran) conclude(d *fleet.Dispatch) (fleet.Result, error) {
	var spent fleet.Result
	var rep report
	if r.meter != nil {
		rep = r.meter.report(time.Now())
		total := rep.spent
		rep.spent = r.totals.since(total)
		_ = r.totals.keep(total) // at worst the next attempt counts it once more
		rep.fill(&spent)
	}
	exit := r.end.err()
	if errors.Is(r.cause, ErrBudget) && rep.answered && rep.fail == nil {
		exit = nil // it was over before it was stopped
	} else if r.end.stopped && !errors.Is(r.cause, errTooLong) {
		if errors.Is(r.cause, errStall) {
			return spent, &Fail{
				Code: subjects.CodeAgentTimeout, Retryable: true, Err: errStall,
				Message: r.tell(fmt.Sprintf("no output for %s", r.stall)),
			}
		}
		return spent, r.cause
	}
	if rep.fail != nil {
		return spent, rep.fail
	}
	if r.answer.cut() {
		return spent, tooLong()
	}
	text := string(r.answer.data)
	if r.meter != nil {
		text = rep.text
	}
	if err := exit; err != nil {
		// An agent that knows why it fails may say so, and exit as it likes.
		if own, ok := fleet.FindResult(text); ok && (own.Status == fleet.StatusBlocked || own.Status == fleet.StatusError) {
			rep.fill(own)
			return *own, nil
		}
		f := &Fail{Retryable: true, Err: err, Message: r.tell(err.Error())}
		if said := r.limits.String() + "\n" + text[max(0, len(text)-maxLimitText):]; isLimit(said) {
			f.limited(readLimit(said, time.Now()))
		}
		return spent, f
	}
	if r.meter != nil && !rep.answered {
		return spent, &Fail{Retryable: true, Message: r.tell("the command ended without a result")}
	}
	if len(text) > maxAnswer {
		return spent, tooLong()
	}
	res, err := ReadAnswer(text, d)
	switch {
	case err == nil:
	case rep.calls != nil && len(rep.calls.denied) > 0: // it says why it has no answer of that form
		rep.calls.list(&spent)
		return refusal(spent, rep.calls.blocked()), nil
	default:
		return spent, err
	}
	rep.fill(&res)
	if rep.calls != nil {
		rep.calls.mark(&res)
	}
	return res, nil
}

func tooLong() *Fail {
	return &Fail{
		Code:    subjects.CodePayloadTooLarge,
		Message: fmt.Sprintf("the answer is longer than %d bytes: write it to a file and print a link", maxAnswer),
	}
}

// tell adds the last lines of stderr to a message.
func (r *ran) tell(message string) string {
	last := r.last.String()
	if last == "" {
		return message
	}
	if room := maxMessage - len(message) - len("…\n\n"); len(last) > room {
		last = "…" + strings.ToValidUTF8(last[len(last)-room:], "")
	}
	return message + "\n" + last
}
