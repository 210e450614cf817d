package rig

import (
	"encoding/json"
	"os"
	"sync"

	"parley/bus/plant/skew"
)

// Lines is a file that grows by lines of JSON, in the order of events.
type Lines struct {
	f     *os.File
	fsync bool

	mu              sync.Mutex
	turn            *sync.Cond
	written, synced uint64 // guarded by mu
	syncing         bool   // guarded by mu: somebody does
}

// OpenLines opens a file to append to it; with fsync every line is on the disk
// before Append returns.
func OpenLines(path string, fsync bool) (*Lines, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	l := &Lines{f: f, fsync: fsync}
	l.turn = sync.NewCond(&l.mu)
	return l, err
}

// Append appends what line makes of the right time, by one write. Those who append
// while somebody syncs share the sync after it.
func (l *Lines) Append(line func(now int64) any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := json.Marshal(line(skew.Now().UnixNano()))
	if err == nil {
		_, err = l.f.Write(append(data, '\n'))
	}
	l.written++
	for mine := l.written; err == nil && l.fsync && l.synced < mine; {
		if l.syncing {
			l.turn.Wait()
			continue
		}
		all := l.written
		l.syncing = true
		l.mu.Unlock()
		err = l.f.Sync()
		l.mu.Lock()
		l.syncing, l.synced = false, all
		l.turn.Broadcast()
	}
	if err != nil {
		panic(err) // who keeps no journal proves nothing
	}
}
