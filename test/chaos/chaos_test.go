//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	timeFlag = flag.Duration("chaos.time", 40*time.Second, "how long TestChaos lets faults happen; 0 skips it")
	seedFlag = flag.Uint64("chaos.seed", 0, "its seed; 0 takes a new one")
	rateFlag = flag.Float64("chaos.rate", 0, "its plain tasks a second; 0 for 80, and 40 where it is longer than ten minutes")
	planted  = flag.Bool("chaos.planted", false, "plant every bug in turn, and see that it is found")
)

// programs builds this program and the one under test, without the race
// detector: a run of theirs is about time.
func programs(t *testing.T) (chaos, parley string) {
	t.Helper()
	dir := t.TempDir()
	chaos, parley = filepath.Join(dir, "chaos"), filepath.Join(dir, "parley")
	for _, args := range [][]string{{"-o", chaos, "./test/chaos"}, {"-tags=crashpoints,planted", "-o", parley, "./cmd/parley"}} {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-buildvcs=false"}, args...)...)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	return chaos, parley
}

// run runs the program to its end; ^C first, so that it cleans up, when the
// test is out of time.
func run(t *testing.T, chaos string, limit time.Duration, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, chaos, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// What a run must have seen to prove anything: the targets of five minutes are
// for a machine of its own, by hand.
const (
	leastKinds   = 6
	tasksASecond = 25
)

// TestChaos is a short run with all kinds of faults that the machine can do. It
// fails where something is violated. How much happens in so short a time depends on
// the machine: where it was too little to prove anything, the test is skipped with a
// note, and the longer run of .ci/run counts. A long one is made by hand: make chaos.
func TestChaos(t *testing.T) {
	if *timeFlag == 0 || testing.Short() {
		t.Skip("not asked for")
	}
	chaos, parley := programs(t)
	out, err := run(t, chaos, 2**timeFlag+15*time.Minute, "-parley", parley, "-time", timeFlag.String(),
		"-seed", strconv.FormatUint(*seedFlag, 10), "-rate", strconv.FormatFloat(*rateFlag, 'f', -1, 64),
		"-kinds", strconv.Itoa(leastKinds), "-tasks", strconv.Itoa(int(timeFlag.Seconds()*tasksASecond)))
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitLittle {
		t.Skipf("NOTE: the chaos suite found nothing wrong, and saw too little to prove anything on a machine as slow or busy as this:\n%s", lastLine(out))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, _ = os.Stdout.WriteString(out)
}

// lastLine is the last line of what a program has said.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}

// TestSeed: whatever a machine cannot do, there is a plan of 40 s that is good
// for TestChaos.
func TestSeed(t *testing.T) {
	t.Parallel()
	for _, w := range []*world{{}, {nets: true}, {disks: true}, {nets: true, disks: true}} {
		s := settings{time: 40 * time.Second, kinds: leastKinds}
		s.choose(w)
		if got := kindsIn(plan(s.seed, s.time, w, "")); got < leastKinds+kindsMore {
			t.Errorf("with networks %t and disks %t the plan of seed %d has %d kinds of faults", w.nets, w.disks, s.seed, got)
		}
	}
}
