package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// shell is an Exec that runs a script.
func shell(t *testing.T, script string, c agent.ExecConfig) *agent.Exec {
	t.Helper()
	c.Command = []string{"sh", "-c", script}
	if c.Env == nil {
		c.Env = []string{"PATH=" + os.Getenv("PATH")}
	}
	if c.TempDir == "" {
		c.TempDir = t.TempDir()
	}
	e, err := agent.NewExec(c)
	if err != nil {
		t.Fatalf("NewExec: %v", err)
	}
	return e
}

func TestExec(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script    string
		brief     string
		output    string
		fails     subjects.Code
		retryable bool
		says      string // is in the failure's message
	}{
		"brief in, answer out": {script: "cat", brief: "hello", output: "hello"},
		"stdin is not read":    {script: "echo fine", brief: strings.Repeat("x", 1<<20-70<<10), output: "fine"},
		"no output":            {script: "true", output: ""},
		"exit status": {
			script: "echo one >&2; echo two >&2; exit 3", fails: subjects.CodeAgentError, retryable: true, says: "exit status 3\none\ntwo",
		},
		"signal":          {script: "kill -9 $$", fails: subjects.CodeAgentError, retryable: true, says: "killed by SIGKILL"},
		"own signal":      {script: "kill -SEGV $$", fails: subjects.CodeAgentError, retryable: true, says: "killed by SIGSEGV"},
		"too long":        {script: "head -c 1100000 /dev/zero | tr '\\0' a", fails: subjects.CodePayloadTooLarge, says: "longer than"},
		"without end":     {script: "yes", fails: subjects.CodePayloadTooLarge, says: "longer than"},
		"late last words": {script: "(sleep 0.1; echo last) & exit 0", output: "last"},
		"an exit with a TASK_RESULT": {
			script: `echo '{"type":"TASK_RESULT","status":"error","tokens_spent":4,"next_steps":[],"blocked_reason":null,"error":{"code":"budget_exhausted","message":"spent"}}'; exit 1`,
			says:   "spent",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			got, err := shell(t, c.script, agent.ExecConfig{}).Handle(ctx, agent.NewTask(dispatch("t1", c.brief), func(string, *int64) {}))
			code, retryable := fail(err)
			if code != c.fails || retryable != c.retryable || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error = %v (retryable %t), want %s (%t), %q", err, retryable, c.fails, c.retryable, c.says)
			}
			switch {
			case c.fails != "":
			case c.says != "":
				if got.Status != fleet.StatusError || got.Error.Message != c.says || got.TokensSpent != 4 {
					t.Errorf("result = %+v", got)
				}
			default:
				if out := output(t, got); out != c.output {
					t.Errorf("output = %q, want %q", clipped(out), clipped(c.output))
				}
			}
		})
	}
}

func clipped(s string) string { return agent.Clip(s, 100) }

func TestExecContract(t *testing.T) {
	t.Parallel()
	d := dispatch("t1", "x")
	d.Attempt, d.Task.TokenBudget, d.Task.Priority = 2, 4000, fleet.High
	d.Task.SessionID = "a2a-20251122T120000Z-7f3a9c21"
	d.Deadline = new(time.Date(2126, 5, 31, 21, 0, 0, 5, time.UTC))
	tmp := t.TempDir()
	e := shell(t, `env | grep -v -e ^_= -e ^PWD= -e ^SHLVL= -e ^OLDPWD= -e ^PARLEY_TASK_MARK= | sort; echo ---; cat "$PARLEY_CONTRACT"; ls -ld "${PARLEY_CONTRACT%/*}" | cut -c1-10 >&2`, agent.ExecConfig{
		Env:   []string{"PATH=" + os.Getenv("PATH"), "SECRET=x", "KEY=y", "CLAUDECODE=1", "LC_ALL=C"},
		Allow: []string{"KEY"}, Set: []string{"MINE=1"}, TempDir: tmp, Usage: agent.UsageNone,
	})
	var mode []string
	got, err := e.Handle(t.Context(), agent.NewTask(d, func(s string, _ *int64) { mode = append(mode, s) }))
	if err != nil {
		t.Fatal(err)
	}
	env, contract, _ := strings.Cut(output(t, got), "---\n")
	path := ""
	var names []string
	for line := range strings.Lines(env) {
		line = strings.TrimSpace(line)
		if p, ok := strings.CutPrefix(line, "PARLEY_CONTRACT="); ok {
			path = p
			continue
		}
		if !strings.HasPrefix(line, "PATH=") {
			names = append(names, line)
		}
	}
	want := []string{
		"KEY=y", "LC_ALL=C", "MINE=1", "PARLEY_ATTEMPT=2", "PARLEY_DEADLINE=2126-05-31T21:00:00Z", "PARLEY_FROM=alice", "PARLEY_PRIORITY=high",
		"PARLEY_REPLY_SCHEMA=prose", "PARLEY_SESSION_ID=a2a-20251122T120000Z-7f3a9c21", "PARLEY_TASK_ID=t1", "PARLEY_TOKEN_BUDGET=4000",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	var offer fleet.Dispatch
	if err := json.Unmarshal([]byte(contract), &offer); err != nil || offer.Task.TaskID != "t1" || offer.Attempt != 2 {
		t.Errorf("contract = %s, %v", contract, err)
	}
	if !strings.HasPrefix(path, tmp) || len(mode) != 1 || mode[0] != "drwx------" {
		t.Errorf("contract at %s, mode %v, want it private below %s", path, mode, tmp)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the contract is still there: %v", err)
	}
}

func TestExecProgress(t *testing.T) {
	t.Parallel()
	var got []string
	e := shell(t, `echo one >&2; echo two >&2; head -c 5000 /dev/zero | tr '\0' x >&2`, agent.ExecConfig{})
	if _, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(s string, _ *int64) { got = append(got, s) })); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"one", "two", strings.Repeat("x", 4096)}, got); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestExecUsage(t *testing.T) {
	t.Parallel()
	vectors, err := filepath.Abs("testdata/cli-agents")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	var mu sync.Mutex
	d := dispatch("t1", "x")
	e := shell(t, `test "$CLAUDE_CODE_MAX_RETRIES" = 2 || exit 9; cat "$V/claude-stream-success.jsonl"`, agent.ExecConfig{Usage: agent.UsageClaude, Set: []string{"V=" + vectors}})
	got, err := e.Handle(t.Context(), agent.NewTask(d, func(s string, _ *int64) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, s)
	}))
	if err != nil || output(t, got) != "The review is done: 2 findings." || got.TokensSpent != 54 || got.TokensSource != "measured" {
		t.Errorf("result = %+v, %v", got, err)
	}
	if len(told) == 0 || told[0] != "The review is done: 2 findings." {
		t.Errorf("progress = %q", told)
	}
	e = shell(t, `cat "$V/claude-stream-retry-529.jsonl"; exit 1`, agent.ExecConfig{Usage: agent.UsageClaude, Set: []string{"V=" + vectors}})
	_, err = e.Handle(t.Context(), agent.NewTask(d, func(string, *int64) {}))
	if f, ok := errors.AsType[*agent.Fail](err); !ok || f.HTTPStatus != 529 || !f.Retryable {
		t.Errorf("error = %v, want a retryable failure of status 529", err)
	}
}

func TestExecStall(t *testing.T) {
	t.Parallel()
	e := shell(t, "echo thinking >&2; sleep 1000", agent.ExecConfig{Stall: 200 * time.Millisecond})
	_, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
	if code, retryable := fail(err); code != subjects.CodeAgentTimeout || !retryable || !strings.Contains(err.Error(), "no output for 200ms\nthinking") {
		t.Errorf("error = %v, want agent_timeout", err)
	}
}

// What a command has spent counts although it never told its result.
func TestExecStallHasSpent(t *testing.T) {
	t.Parallel()
	vectors, err := filepath.Abs("testdata/cli-agents")
	if err != nil {
		t.Fatal(err)
	}
	e := shell(t, `head -n 2 "$V/claude-stream-success.jsonl"; sleep 1000`, agent.ExecConfig{
		Usage: agent.UsageClaude, Stall: time.Second, Set: []string{"V=" + vectors},
	})
	got, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
	if code, _ := fail(err); code != subjects.CodeAgentTimeout || got.TokensSpent != 13 || got.TokensSource != "measured" {
		t.Errorf("%d tokens %s, %v; want agent_timeout with 13 measured", got.TokensSpent, got.TokensSource, err)
	}
}

func TestNewExec(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]agent.ExecConfig{
		"nothing":      {},
		"not there":    {Command: []string{"parley-no-such-command"}},
		"not a file":   {Command: []string{"/"}},
		"not runnable": {Command: []string{"./doc.go"}},
		"stall":        {Command: []string{"/bin/sh"}, Stall: -1},
		"path":         {Command: []string{"sh"}, Env: []string{"PATH=/nowhere"}},
	} {
		if _, err := agent.NewExec(c); err == nil {
			t.Errorf("%s: NewExec = nil, want an error", name)
		}
	}
}

// fifo is a FIFO whose writers a test can watch.
type fifo struct {
	t    *testing.T
	path string
	end  chan error // closed by the last writer's death
	open chan struct{}
}

func newFIFO(t *testing.T) *fifo {
	t.Helper()
	f := &fifo{t, filepath.Join(t.TempDir(), "fifo"), make(chan error, 1), make(chan struct{})}
	if err := syscall.Mkfifo(f.path, 0o600); err != nil {
		t.Skipf("no FIFO: %v", err)
	}
	go func() {
		r, err := os.OpenFile(f.path, os.O_RDONLY, 0) // waits for a writer
		close(f.open)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			_ = r.Close()
		}
		f.end <- err
	}()
	return f
}

// held waits until somebody has it open for writing.
func (f *fifo) held() { f.t.Helper(); next(f.t, "a writer of the FIFO", f.open) }

// dead waits until nobody has.
func (f *fifo) dead() { f.t.Helper(); next(f.t, "the end of the FIFO's writers", f.end) }

// A CANCEL reaches the command and all that it started.
func TestExecCancel(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"grandchildren":                `sleep 1000 9>"$FIFO" & wait`,
		"the command waits for nobody": `(sleep 1000 9>"$FIFO") & sleep 1000`,
		"TERM is ignored":              `trap "" TERM; sleep 1000 9>"$FIFO" & wait; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t)
			r := newRouter(t)
			a := r.start(agent.Config{Handler: shell(t, script, agent.ExecConfig{Set: []string{"FIFO=" + f.path}, KillAfter: 200 * time.Millisecond})})
			a.give(dispatch("t1", "x"))
			f.held()
			a.cancel("t1", 1, subjects.CodeCanceled)
			f.dead()
			a.gone()
		})
	}
}

// What a wrapper that ends at once has started still has KillAfter to end by
// itself, if it still has the output or not.
func TestExecCancelIsPatient(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"with the output": `(trap 'sleep 2; echo clean >"$F"; exit' TERM; exec 9>"$FIFO"; while :; do sleep 0.1; done) & wait`,
		"without":         `(trap 'sleep 0.2; echo clean >"$F"; exit' TERM; exec 9>"$FIFO"; while :; do sleep 0.1; done) >/dev/null 2>&1 & wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t)
			left := filepath.Join(t.TempDir(), "left")
			e := shell(t, script, agent.ExecConfig{Set: []string{"FIFO=" + f.path, "F=" + left}, KillAfter: patience})
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() {
				_, err := e.Handle(ctx, agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
				done <- err
			}()
			f.held()
			stop()
			f.dead()
			if err := next(t, "the end", done); !errors.Is(err, context.Canceled) {
				t.Errorf("Handle = %v, want that it was canceled", err)
			}
			if got, err := os.ReadFile(left); string(got) != "clean\n" {
				t.Errorf("it left %q, %v, want clean", got, err)
			}
		})
	}
}

// What a command leaves running when it ends is ended too, if it still has the
// output or not.
func TestExecLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"with the output": `sleep 1000 9>"$FIFO" & read x <"$GO"; echo done`,
		"without":         `sleep 1000 9>"$FIFO" >/dev/null 2>&1 </dev/null & read x <"$GO"; echo done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFIFO(t)
			gate := filepath.Join(t.TempDir(), "go")
			if err := syscall.Mkfifo(gate, 0o600); err != nil {
				t.Skip(err)
			}
			done := make(chan error, 1)
			e := shell(t, script, agent.ExecConfig{Set: []string{"FIFO=" + f.path, "GO=" + gate}})
			go func() {
				_, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
				done <- err
			}()
			f.held()
			if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			f.dead()
			if err := next(t, "the result", done); err != nil {
				t.Errorf("Handle = %v", err)
			}
		})
	}
}

// On Linux a command dies with a harness that is killed outright.
func TestExecDiesWithHarness(t *testing.T) {
	t.Parallel()
	f := newFIFO(t)
	harness := exec.Command(os.Args[0], "helper", "harness", f.path)
	harness.Stderr = t.Output()
	if err := harness.Start(); err != nil {
		t.Fatal(err)
	}
	f.held()
	if err := harness.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = harness.Wait() // it was killed
	f.dead()
}

// A command lives on when threads of the harness end: what makes it die with the
// harness is bound to the thread that started it.
func TestExecOutlivesThreads(t *testing.T) {
	t.Parallel()
	f := newFIFO(t)
	gate := filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Skip(err)
	}
	done := make(chan error, 1)
	e := shell(t, `exec 9>"$FIFO"; read x <"$GO"; echo done`, agent.ExecConfig{Set: []string{"FIFO=" + f.path, "GO=" + gate}})
	go func() {
		_, err := e.Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
		done <- err
	}()
	f.held()
	for range 20 {
		var wg sync.WaitGroup
		barrier := make(chan struct{})
		for range 50 {
			wg.Go(func() {
				runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
				<-barrier
			})
		}
		close(barrier)
		wg.Wait()
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := next(t, "the result", done); err != nil {
		t.Errorf("Handle = %v", err)
	}
}

// Tasks that run at once do not disturb each other, and each is answered.
func TestExecParallel(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	a := r.start(agent.Config{Handler: shell(t, "cat", agent.ExecConfig{}), MaxParallel: 16})
	for i := range 16 {
		id := subjects.TaskID("t" + string(rune('a'+i)))
		a.give(dispatch(id, string(id)))
	}
	for range 16 {
		got := next(t, "a result", r.results)
		if out := output(t, got); out != string(got.TaskID) {
			t.Errorf("%s answered %q", got.TaskID, out)
		}
	}
}

// A command of any kind that fails at a limit says so on stderr.
func TestExecLimit(t *testing.T) {
	t.Parallel()
	vectors, err := filepath.Abs("testdata/cli-agents")
	if err != nil {
		t.Fatal(err)
	}
	set := []string{"V=" + vectors}
	many := `i=0; while [ $i -lt 60 ]; do echo "line $i" >&2; i=$((i+1)); done; `
	for script, want := range map[string]subjects.Code{
		`cat "$V/gemini-headless-fail-429.jsonl"; cat "$V/gemini-headless-fail-429.stderr" >&2; exit 173`:      subjects.CodeRateLimited,
		`echo "TerminalQuotaError: Your quota will reset after 1h49m8s." >&2; echo "    at x" >&2; exit 1`:     subjects.CodeRateLimited,
		`echo "429 Too Many Requests, retrying" >&2; ` + many + `echo "main.go:429: undefined: x" >&2; exit 1`: subjects.CodeAgentError,
		`echo "429 Too Many Requests, retrying" >&2; echo fine`:                                                "",
		`echo '{"type":"TASK_RESULT","status":"blocked","blocked_reason":"rate limit reached"}'; exit 1`:       "",
	} {
		got, err := shell(t, script, agent.ExecConfig{Set: set}).Handle(t.Context(), agent.NewTask(dispatch("t1", "x"), func(string, *int64) {}))
		if code, _ := fail(err); code != want {
			t.Errorf("%s: %+v, %v; want %q", script, got, err, want)
		}
	}
}
