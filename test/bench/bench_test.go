package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain makes this test what the program is: its own children.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-child" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestBench sees that a short run measures: what it comes to says nothing.
func TestBench(t *testing.T) {
	t.Parallel()
	measured := quick(t, "-only", "throughput,crowd,match", "-profiles", r1Lazy+","+r1Sync, "-tasks", "400", "-queued", "300", "-dir", t.TempDir())
	if want := 3 + 5 + 3; measured["run"] != want { // of throughput, of it with sync, and of crowd
		t.Errorf("%v, want %d runs", measured, want)
	}
}

// TestPeers sees that the others do the same work: what it comes to says nothing.
func TestPeers(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("REDIS IS NOT INSTALLED: nobody tries the part peers (apt-get install redis-server postgresql)")
	}
	if found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres"); err != nil || len(found) == 0 {
		t.Skip("POSTGRESQL IS NOT INSTALLED: nobody tries the part peers (apt-get install redis-server postgresql)")
	}
	program := filepath.Join(t.TempDir(), "peers")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../peers"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	measured := quick(t, "-only", "peers", "-peers", program, "-tasks", "200", "-queued", "100") // t.TempDir is closed to the user postgres
	if runs, latencies := 5+5+4, 4+4; measured["run"] != runs || measured["peer-latency"] != latencies {
		t.Errorf("%v, want %d runs and %d latencies", measured, runs, latencies)
	}
}

// quick measures a little, and is how many lines each part has.
func quick(t *testing.T, args ...string) map[string]int {
	t.Helper()
	var out bytes.Buffer
	if err := bench(t.Context(), append([]string{"-quick", "-json"}, args...), &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for line := range bytes.Lines(out.Bytes()) {
		var r struct {
			Part string  `json:"part"`
			Rate float64 `json:"tasks_per_second"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines[r.Part]++
		if r.Part == "run" && r.Rate <= 0 {
			t.Errorf("a run came to nothing: %s", line)
		}
	}
	return lines
}
