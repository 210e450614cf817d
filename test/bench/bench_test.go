package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
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
	var out bytes.Buffer
	err := bench(t.Context(), []string{
		"-quick", "-json", "-only", "throughput,crowd,match", "-profiles", r1Lazy + "," + r1Sync, "-tasks", "400", "-queued", "300", "-dir", t.TempDir(),
	}, &out, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]int{}
	for line := range bytes.Lines(out.Bytes()) {
		var r struct {
			Part string  `json:"part"`
			Rate float64 `json:"tasks_per_second"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		measured[r.Part]++
		if r.Part == "run" && r.Rate <= 0 {
			t.Errorf("a run came to nothing: %s", line)
		}
	}
	if want := 3 + 5 + 3; measured["run"] != want { // of throughput, of it with sync, and of crowd
		t.Errorf("%s, want %d runs", fmt.Sprint(measured), want)
	}
}
