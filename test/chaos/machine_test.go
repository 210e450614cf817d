//go:build linux

package main

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"parley/test/rig"
)

// TestReadTimes: what others had of the processors is counted, guests' time once.
func TestReadTimes(t *testing.T) {
	t.Parallel()
	before, err := readTimes("cpu  100 0 50 800 10 5 5 30 70 0\ncpu0 1 2 3\n")
	if want := (times{all: 1000, steal: 30}); err != nil || before != want {
		t.Errorf("got %+v, %v, want %+v", before, err, want)
	}
	if got := (times{all: 1100, steal: 55}).stolen(before); got != 0.25 {
		t.Errorf("%v is stolen of 100 ticks, want 0.25", got)
	}
	if got := before.stolen(before); got != 0 {
		t.Errorf("%v is stolen in no time, want 0", got)
	}
	for _, bad := range []string{"", "cpu 1 2 3 4 5 6 7", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		if _, err := readTimes(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// TestPatient: waiting lasts as long as the machine is there, and three times as
// long at most.
func TestPatient(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ away, want time.Duration }{
		"there":      {0, 10 * time.Second},
		"a while":    {7 * time.Second, 17 * time.Second},
		"never":      {time.Hour, 30 * time.Second},
		"for longer": {20 * time.Second, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var m machine
				begin := time.Now()
				if tt.away > 0 {
					m.note(begin, begin.Add(tt.away))
				}
				ctx, cancel := m.patient(t.Context(), 10*time.Second)
				defer cancel()
				<-ctx.Done()
				if got := time.Since(begin); got < tt.want || got > tt.want+lookEach {
					t.Errorf("it waits %s, want %s", got, tt.want)
				}
			})
		})
	}
}

// TestWatch: a watch keeps what it has seen, and leaves nothing else behind.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := &world{dir: t.TempDir()}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- w.machine.watch(ctx, w.dir) }()
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.machine.note(morning, morning.Add(time.Second))
	if err := w.machine.keep(w.dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(w.dir)
	if err != nil || len(files) != 1 {
		t.Errorf("it leaves %v, %v, want %s", files, err, machineFile)
	}
	got, err := readKept[spans](w.dir, machineFile)
	if err != nil || len(got) != 1 || !got.meet(morning, morning.Add(time.Second)) {
		t.Errorf("%v is kept, %v, want one second", got, err)
	}
}

// TestAwayExcuses: who is late while the machine is away is not called so, nor who
// offers something to an agent that nobody could miss.
func TestAwayExcuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		away  bool
		found bool
	}{"there": {false, true}, "away": {true, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := good()
			at := morning.UnixNano()
			f.faults = append(f.faults, &op{line: line{Op: muteAgents, ID: "cast-1"}, from: at, to: at + int64(9*time.Second)})
			f.notes = append(f.notes, []rig.Entry{{At: at + int64(5*time.Second), What: rig.WasOffered, Task: "t", Agent: "agent-1-0"}})
			if tt.away {
				f.away = spans{{at - int64(2*time.Second), at}}
			}
			if got := verdict(f, (*findings).checkSilent) != ""; got != tt.found {
				t.Errorf("an offer to who is silent is found: %t, want %t", got, tt.found)
			}
			f = good()
			f.records["late"][1].Stored = morning.Add(85 * time.Second)
			if tt.away {
				f.away = spans{{at + int64(50*time.Second), at + int64(70*time.Second)}}
			}
			if got := verdict(f, (*findings).checkDeadlines) != ""; got != tt.found {
				t.Errorf("a deadline that is forgotten is found: %t, want %t", got, tt.found)
			}
		})
	}
}
