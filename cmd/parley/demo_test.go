package main_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
)

var updateDemo = flag.Bool("update-demo", false, "write the story as it is told into testdata")

// The demo is run as a person runs it, however it ends: it leaves nothing behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "parley")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", exe, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build parley: %v\n%s", err, out)
	}
	for name, test := range map[string]func(*testing.T, *exec.Cmd, string){
		"told": testTold, "interrupted": testInterrupted, "killed": testKilled, "team": testTeam,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, dir := demo(t, exe)
			test(t, cmd, dir)
			left(t, dir)
		})
	}
}

// testTold hears the story to its end: it is the same every time.
func testTold(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("parley demo: %v\n%s%s", err, out, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("it complains:\n%s", stderr.String())
	}
	empty(t, dir)

	got := masked(string(out))
	golden := filepath.Join("testdata", "demo.golden")
	if *updateDemo {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the story (-want +got):\n%s", diff)
	}
}

// testTeam hears the other story: four nodes, two at a time, a reroute and a
// question in the middle of a node.
func testTeam(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	cmd.Args = append(cmd.Args, "--story", "team")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("parley demo --story team: %v\n%s%s", err, out, stderr.String())
	}
	empty(t, dir)
	story := string(out)
	for _, said := range []string{
		"survey  atlas works on it", "fern failed: ", "build   moss works on it", "notes   quill works on it",
		"quill asks atlas: What must the notes mention?", "atlas answers quill: Mention the new port", "review  atlas works on it",
		"✓ all four have announced themselves", "✓ the run is done", "✓ build and notes were worked on at the same time",
		"✓ fern failed at build, and moss took over", "✓ quill asked atlas in the middle of its notes", "✓ one document has what all four nodes came to",
	} {
		if !strings.Contains(story, said) {
			t.Errorf("it never said %q:\n%s", said, story)
		}
	}
}

// testInterrupted presses Ctrl-C in the middle of the story.
func testInterrupted(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	rest := until(t, cmd, "5. An agent is killed")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-rest
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 130 {
		t.Errorf("it ended with %v, want exit status 130", err)
	}
	empty(t, dir)
}

// testKilled ends the demo as nobody should. Its files stay, but no process.
func testKilled(t *testing.T, cmd *exec.Cmd, _ string) {
	t.Helper()
	rest := until(t, cmd, "✓ the MCP server answers")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-rest
	_ = cmd.Wait() // killed
}

// demo is a performance that keeps everything below dir. It is given settings
// of another fleet, which it must not touch.
func demo(t *testing.T, exe string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), exe, "demo")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + dir,
		"PARLEY_SERVER=nats://127.0.0.1:1", "PARLEY_AS=nobody", "NATS_URL=nats://127.0.0.1:1",
	}
	return cmd, dir
}

// until starts cmd and waits until it says text. rest is closed when it has
// ended.
func until(t *testing.T, cmd *exec.Cmd, text string) (rest <-chan struct{}) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), text) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, out)
			}()
			return done
		}
	}
	t.Fatalf("it never said %q: %v", text, lines.Err())
	return nil
}

// left waits until no process is left that keeps its files below dir, and
// fails if one stays.
func left(t *testing.T, dir string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Log("cannot look for processes here")
		return
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var pids []string
	for over := time.Now().Add(bustest.Patience); time.Now().Before(over); {
		if pids = processes(t, dir); len(pids) == 0 {
			return
		}
		<-tick.C
	}
	for _, pid := range pids {
		line, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline")) // it may have ended by now
		t.Errorf("process %s is left: %s", pid, strings.ReplaceAll(string(line), "\x00", " "))
	}
}

// processes lists those whose environment names dir.
func processes(t *testing.T, dir string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.ESRCH) {
			t.Fatal(err)
		}
		if bytes.Contains(env, []byte("TMPDIR="+dir)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in the temporary directory", e.Name())
	}
}

// masked is the story without what differs from one performance to the next:
// times, processes, ports, and how wide the tables are.
func masked(story string) string {
	var b strings.Builder
	border := regexp.MustCompile(`^[╭├╰]`)
	progress := regexp.MustCompile(`^\d\d:\d\d:\d\d +process \d+`) // is heard live, if at all
	masks := []struct{ find, put string }{
		{`  +`, " "},
		{`\d\d:\d\d:\d\d`, "TIME"},
		{`\b\d+(\.\d+)?(µs|ms|s)\b`, "DURATION"},
		{`(process|kill -9) \d+`, "$1 PID"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`Data: \S+`, "Data: DIR"},
	}
	for line := range strings.Lines(story) {
		if border.MatchString(line) || progress.MatchString(line) {
			continue
		}
		for _, m := range masks {
			line = regexp.MustCompile(m.find).ReplaceAllString(line, m.put)
		}
		b.WriteString(line)
	}
	return b.String()
}
