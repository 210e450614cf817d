package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

var update = flag.Bool("update", false, "rewrite testdata and the generated reference")

// TestMain takes the developer's own settings out of the tests.
func TestMain(m *testing.M) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PARLEY_") {
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// noon is when the tests' commands believe to run.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// buffer is output that may be read while it is written. grown says so.
type buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	grown chan struct{}
}

func newBuffer() *buffer { return &buffer{grown: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.grown <- struct{}{}:
	default:
	}
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// waitFor waits until the output has text, and returns all of it.
func (b *buffer) waitFor(t *testing.T, text string) string {
	t.Helper()
	over := time.After(bustest.Patience)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.grown:
		case <-over:
			t.Fatalf("no %q in the output:\n%s", text, b.String())
		}
	}
	return b.String()
}

// ran is what came of a command.
type ran struct {
	code           int
	stdout, stderr string
}

// shell runs commands in a home of its own.
type shell struct {
	environ  []string
	settings func(*config) error // nil: PARLEY_ variables are not read
	now      func() time.Time
}

func newShell(t *testing.T, environ ...string) *shell {
	t.Helper()
	home := t.TempDir()
	return &shell{environ: append([]string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}, environ...)}
}

func (s *shell) home() string { return strings.TrimPrefix(s.environ[0], "HOME=") }

// run runs a command to its end.
func (s *shell) run(t *testing.T, args ...string) ran {
	t.Helper()
	return s.pipe(t, "", args...)
}

// pipe runs a command with standard input.
func (s *shell) pipe(t *testing.T, stdin string, args ...string) ran {
	t.Helper()
	stdout, stderr := newBuffer(), newBuffer()
	code := run(t.Context(), process{
		args: args, environ: s.environ, settings: s.settings, stdin: strings.NewReader(stdin), stdout: stdout, stderr: stderr, clock: s.now,
	})
	return ran{code, stdout.String(), stderr.String()}
}

// patiently runs a command that waits for what does not come, and ends it with what
// did. On a busy machine even that takes a while: it may wait longer each time, until
// it says text.
func (s *shell) patiently(t *testing.T, text string, args ...string) ran {
	t.Helper()
	for within := time.Second; ; within *= 4 {
		r := s.run(t, append(slices.Clone(args), "--timeout", within.String())...)
		if strings.Contains(r.stderr, text) || within > bustest.Patience {
			return r
		}
	}
}

// job is a command that runs in the background.
type job struct {
	stdout, stderr *buffer
	done           chan int
	stop           context.CancelFunc
}

// start runs a command until stop, or the test's end.
func (s *shell) start(t *testing.T, args ...string) *job {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	j := &job{stdout: newBuffer(), stderr: newBuffer(), done: make(chan int, 1), stop: cancel}
	go func() {
		j.done <- run(ctx, process{args: args, environ: s.environ, settings: s.settings, stdin: strings.NewReader(""), stdout: j.stdout, stderr: j.stderr, clock: s.now})
	}()
	t.Cleanup(func() { j.end(t) })
	return j
}

// end stops the command and returns its exit code.
func (j *job) end(t *testing.T) int {
	t.Helper()
	j.stop()
	select {
	case code := <-j.done:
		j.done <- code
		return code
	case <-time.After(bustest.Patience):
		t.Errorf("the command does not end; it said:\n%s%s", j.stdout, j.stderr)
		return -1
	}
}

// up starts a fleet and returns its address.
func (s *shell) up(t *testing.T, args ...string) (*job, string) {
	t.Helper()
	j := s.start(t, append([]string{"up", "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m", "--grace=10s"}, args...)...)
	out := j.stdout.waitFor(t, "Next")
	url := regexp.MustCompile(`nats://127\.0\.0\.1:\d+`).FindString(out)
	if url == "" {
		t.Fatalf("no address in the banner:\n%s", out)
	}
	return j, url
}

// works runs an agent on a connection of its own until the test ends.
func works(t *testing.T, url string, c agent.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	c.Bus = b
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, a.Run)
	return b
}

// golden compares got with testdata/name.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	goldenFile(t, filepath.Join("testdata", name+".golden"), got)
}

func goldenFile(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./cmd/parley -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; go test ./cmd/parley -update rewrites it (-want +got):\n%s", path, diff)
	}
}

// answers is what a fake fleet says: by noun.verb, a reply or an error.
type answers map[string]func(request []byte) (any, error)

// fakeFleet serves the API with fixed answers and returns a shell that talks to
// it, at noon.
func fakeFleet(t *testing.T, say answers) (*shell, *bus.Bus) {
	t.Helper()
	server := bustest.New(t)
	b := server.Bus(t)
	service := bus.Service{Name: "fleet", Version: "1.0.0"}
	for name, f := range say {
		noun, verb, _ := strings.Cut(name, ".")
		service.Endpoints = append(service.Endpoints, bus.Endpoint{
			Name: noun + "-" + verb, Subject: subjects.APIPattern(noun, verb),
			Handle: func(_ context.Context, m bus.Msg) ([]byte, error) {
				v, err := f(m.Data)
				if err != nil {
					return nil, err
				}
				return fleet.Encode(v)
			},
		})
	}
	stop, err := b.Serve(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	s := newShell(t, "NATS_URL="+server.URL())
	s.now = func() time.Time { return noon }
	return s, b
}

// always answers every request with v.
func always(v any) func([]byte) (any, error) {
	return func([]byte) (any, error) { return v, nil }
}

// refuses answers every request with a code.
func refuses(code subjects.Code) func([]byte) (any, error) {
	return func([]byte) (any, error) {
		return nil, subjects.Errorf(code, "it is %s", code).At("/task_id")
	}
}

// check compares an exit code and looks for text in both outputs.
func (r ran) check(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit %d, want %d", r.code, code)
	}
	if !strings.Contains(r.stdout, stdout) {
		t.Errorf("stdout has no %q:\n%s", stdout, r.stdout)
	}
	if !strings.Contains(r.stderr, stderr) {
		t.Errorf("stderr has no %q:\n%s", stderr, r.stderr)
	}
}
