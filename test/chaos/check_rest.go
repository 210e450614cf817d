//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Bounds of what is held when everything has come to rest. A router keeps 256
// goroutines for what comes next, and each service of a worker 64. The inbox has
// the last ten minutes, and one more that is as much older as nobody came meanwhile;
// any other stream is in some proportion to what is done. Disks have the streams,
// and what servers remember of writes.
const (
	filesMost      = 150
	memoryMost     = 600 << 20
	goroutinesMore = 600
	inboxOldest    = 15 * time.Minute
	messagesMore   = 2000 // than recordsTimes as many as there are records
	recordsTimes   = 3
	diskRoom       = 256 << 20
	diskPerRecord  = 8 << 10 // it is a third of that
)

// excess is what is held and should not be.
func (r *rest) excess() (wrong []violation) {
	fault := func(about, format string, args ...any) {
		wrong = append(wrong, violation{"25 resources", about, fmt.Sprintf(format, args...)})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Processes)) {
		h := r.Processes[name]
		if h.Files > filesMost || h.Memory > memoryMost {
			fault(name, "it has %d files open and %d MiB of memory", h.Files, h.Memory>>20)
		}
		if h.Goroutines > h.Before+goroutinesMore {
			fault(name, "it has %d goroutines, and had %d before there was anything to do", h.Goroutines, h.Before)
		}
	}
	records := r.Streams["FLEET_TASKS"].Messages
	for _, name := range slices.Sorted(maps.Keys(r.Streams)) {
		s, most := r.Streams[name], recordsTimes*records+messagesMore
		switch {
		case name == "FLEET_TASKS", name == canaryStream:
		case name == "FLEET_INBOX" && s.Messages > 1 && r.At.Sub(s.First) > inboxOldest:
			fault(name, "it keeps %d messages, the first for %s", s.Messages, r.At.Sub(s.First).Round(time.Second))
		case s.Messages > most:
			fault(name, "it keeps %d messages, want %d at most, with %d records of tasks", s.Messages, most, records)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Disks)) {
		if most := diskRoom + diskPerRecord*int64(records); r.Disks[name] > most {
			fault(name, "%d MiB of its disk are used, want %d at most, with %d records of tasks", r.Disks[name]>>20, most>>20, records)
		}
	}
	return wrong
}

// Files of what is kept for the checker beside journals and streams.
const (
	restFile = "rest.json" // what is held at last; absent where a run did not come to rest
	sumsFile = "sums.json" // what each server holds; absent where nobody looked
)

// keep writes what is kept in a file.
func keep(dir, file string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file), data, 0o600)
}

// readKept reads it; nothing where there is no file.
func readKept[T any](dir, file string) (v T, err error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	err = json.Unmarshal(data, &v)
	return v, err
}

// checkRest checks what is held at last.
func (f *findings) checkRest() {
	if f.rest == nil {
		return
	}
	f.counts["processes at rest"] = len(f.rest.Processes)
	for _, h := range f.rest.Processes {
		f.counts["most files of a process at rest"] = max(f.counts["most files of a process at rest"], h.Files)
		f.counts["most goroutines of a worker at rest"] = max(f.counts["most goroutines of a worker at rest"], h.Goroutines)
	}
	f.found = append(f.found, f.rest.excess()...)
}
