//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// rest is what is held once everything has come to rest.
type rest struct {
	At        time.Time         `json:"at,omitzero"` // it was looked at
	Processes map[string]held   `json:"processes"`
	Streams   map[string]stored `json:"streams"`
	Disks     map[string]int64  `json:"disks"` // bytes, by server
}

// held is what a process holds. Goroutines are those of workers alone: their
// page says how many; Before, those before there was anything to do.
type held struct {
	Files      int   `json:"files"`
	Memory     int64 `json:"memory"` // bytes
	Goroutines int   `json:"goroutines,omitzero"`
	Before     int   `json:"before,omitzero"`
}

// stored is how much a stream keeps.
type stored struct {
	Messages uint64    `json:"messages"`
	Bytes    uint64    `json:"bytes"`
	First    time.Time `json:"first,omitzero"` // message was stored
}

// restEvery is how often it is looked at until it is little enough.
const restEvery = time.Second

// awaitRest waits until no more is held than should be, or until time is over,
// and keeps what there was at last for the checker.
func (st *stage) awaitRest(ctx context.Context, within time.Duration) error {
	ctx, cancel := st.w.machine.patient(ctx, within)
	defer cancel()
	for {
		r, err := st.lookAtRest(ctx)
		over := pause(ctx, restEvery) != nil
		if err == nil && (over || len(r.excess()) == 0) {
			return keep(st.w.dir, restFile, r)
		}
		if over {
			return fmt.Errorf("what is held at last cannot be told: %w", err)
		}
	}
}

func (st *stage) lookAtRest(ctx context.Context) (*rest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	r := &rest{At: time.Now(), Processes: map[string]held{}, Streams: map[string]stored{}, Disks: map[string]int64{}}
	for _, p := range st.f.all() {
		h, err := p.holds()
		if err != nil {
			return nil, err
		}
		if page := st.f.pages[p.name]; page != "" {
			if h.Goroutines, err = goroutines(ctx, page); err != nil {
				return nil, err
			}
			h.Before = st.f.before[p.name]
		}
		r.Processes[p.name] = h
	}
	list := st.c.js.ListStreams(ctx)
	for s := range list.Info() {
		r.Streams[s.Config.Name] = stored{s.State.Msgs, s.State.Bytes, s.State.FirstTime}
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	for _, n := range nodeNames {
		used, err := diskUsed(filepath.Join(st.w.disk(n), "jetstream"))
		if err != nil {
			return nil, err
		}
		r.Disks[n] = used
	}
	return r, nil
}

// holds is what a process holds now.
func (p *process) holds() (h held, err error) {
	p.mu.Lock()
	pid := 0
	if p.runsLocked() {
		pid = p.cmd.Process.Pid
	}
	p.mu.Unlock()
	if pid == 0 {
		return h, fmt.Errorf("%s does not run", p.name)
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return h, err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return h, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		return h, err
	}
	return held{Files: len(files), Memory: resident * int64(os.Getpagesize())}, nil
}

// goroutines is how many a worker's page of metrics tells of.
func goroutines(ctx context.Context, page string) (n int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, page+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for scan := bufio.NewScanner(answer.Body); scan.Scan(); {
		if text, ok := strings.CutPrefix(scan.Text(), "go_goroutines "); ok {
			_, err = fmt.Sscan(text, &n)
			return n, err
		}
	}
	return 0, fmt.Errorf("%s does not tell how many goroutines there are", page)
}

// diskUsed is what the files of a directory take of the disk, not what they say
// that they are long: some have holes.
func diskUsed(dir string) (used int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the server has just removed it
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			used += s.Blocks * 512
		}
		return nil
	})
	return used, err
}
