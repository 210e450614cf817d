//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// When the machine has no time for us: a virtual one shares processors and disks
// with others. Whoever is late then is not late by our fault.
const (
	machineFile = "machine.json" // what spans of it are kept in
	lookEach    = 500 * time.Millisecond
	stolenMost  = 0.25 // of the processors' time: others have it
	syncMost    = 500 * time.Millisecond
	lookMost    = 2 * lookEach // from one look to the next
)

// machine watches what the machine has left for us.
type machine struct {
	mu   sync.Mutex
	away spans // guarded by mu: when it was not there, or not enough
}

// watch watches until ctx ends.
func (m *machine) watch(ctx context.Context, dir string) error {
	probe, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var diskErr error
	wg.Go(func() {
		defer probe.Close()
		diskErr = m.watchDisk(ctx, probe)
	})
	err = m.watchTime(ctx)
	wg.Wait()
	return errors.Join(err, diskErr, os.Remove(probe.Name()))
}

// watchTime sees processors that are stolen, and a machine that stood still.
func (m *machine) watchTime(ctx context.Context) error {
	before, at := times{}, time.Now()
	for first := true; ; first = false {
		data, err := os.ReadFile("/proc/stat")
		if err != nil {
			return err
		}
		now, err := readTimes(string(data))
		if err != nil {
			return err
		}
		look := time.Now()
		if !first && (now.stolen(before) >= stolenMost || look.Sub(at) > lookMost) {
			m.note(at, look)
		}
		before, at = now, look
		if pause(ctx, lookEach) != nil {
			return nil
		}
	}
}

// watchDisk sees a disk that stands still.
func (m *machine) watchDisk(ctx context.Context, probe *os.File) error {
	for pause(ctx, lookEach) == nil {
		from := time.Now()
		if _, err := probe.WriteAt([]byte{'.'}, 0); err != nil {
			return err
		}
		if err := probe.Sync(); err != nil {
			return err
		}
		if to := time.Now(); to.Sub(from) > syncMost {
			m.note(from, to)
		}
	}
	return nil
}

// note notes a time at which the machine was away.
func (m *machine) note(from, to time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.away = append(m.away, [2]int64{from.UnixNano(), to.UnixNano()})
}

// spans are those that have been noted, in order.
func (m *machine) spans() spans {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(spans(nil), m.away...).inOrder()
}

// patient is a context that ends after a while in which the machine was there,
// or after three times as long.
func (m *machine) patient(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 3*while)
	go func() { // ends with ctx
		for m.spans().calm(begin, time.Now()) < while && pause(ctx, lookEach) == nil {
		}
		cancel()
	}()
	return ctx, cancel
}

// keep keeps the spans in dir, for who judges them.
func (m *machine) keep(dir string) error { return keep(dir, machineFile, m.spans()) }

// times are the processors' times since the machine began, in ticks.
type times struct{ all, steal uint64 }

// readTimes reads the first line of /proc/stat, see proc_stat(5): user, nice, system,
// idle, iowait, irq, softirq, steal; guests' time is in user's.
func readTimes(stat string) (t times, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	const steal = 8
	if len(fields) <= steal || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i := 1; i <= steal; i++ {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		t.all += n
		if i == steal {
			t.steal = n
		}
	}
	return t, nil
}

// stolen is what part of the processors' time since before others had.
func (t times) stolen(before times) float64 {
	return float64(t.steal-before.steal) / float64(max(t.all-before.all, 1))
}
