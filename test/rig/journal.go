package rig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Entry is one line of a journal: what one agent instance saw or did. It is
// written with one write before (or as) it happens, so SIGKILL loses nothing
// that others may know of.
type Entry struct {
	At       int64    `json:"at"` // ns
	What     string   `json:"what"`
	Agent    string   `json:"agent"`
	Instance string   `json:"instance"`
	Epoch    int64    `json:"epoch"`
	Task     string   `json:"task,omitempty"`
	Attempt  int      `json:"attempt,omitempty"`
	Nonce    string   `json:"nonce,omitempty"`  // of one execution
	Status   string   `json:"status,omitempty"` // of the result
	Code     string   `json:"code,omitempty"`   // of the answer, "ok" when it counted
	From     string   `json:"from,omitempty"`   // of a letter
	State    string   `json:"state,omitempty"`  // of the task, by the answer
	Time     int64    `json:"time,omitempty"`   // ns; another moment that it tells of
	Words    []string `json:"words,omitempty"`  // in an offer: the words by which its parts are known, see Mark
}

// What an entry says.
const (
	WasOffered  = "offered"  // an offer came in
	WasBegun    = "begun"    // an execution began
	WasEnded    = "ended"    // it returned
	WasSent     = "sent"     // a result is about to be handed in
	WasAnswered = "answered" // and was answered
	WasLetter   = "letter"   // a message of the mesh was dealt with; Task is its id, From its sender
	WasControl  = "control"  // a router said something; Code says what
	WasStarted  = "started"  // the instance starts
	WasSilent   = "silent"   // it sends a heartbeat, and the one before was at Time
	WasLimited  = "limited"  // its account is limited until Time; 0: it is not told until when
)

// Journal is a file of entries that several agents of one process write.
type Journal struct{ lines *Lines }

// OpenJournal opens a journal to append to it; with fsync every line is on the
// disk before Write returns.
func OpenJournal(path string, fsync bool) (*Journal, error) {
	l, err := OpenLines(path, fsync)
	return &Journal{l}, err
}

// Write appends e, as of now.
func (j *Journal) Write(e Entry) {
	j.lines.Append(func(now int64) any {
		e.At = now
		return e
	})
}

// ReadJournals reads the journals of several processes. A line that a kill cut
// short is not there.
func ReadJournals(paths ...string) (all [][]Entry, err error) {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var list []Entry
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			var e Entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, fmt.Errorf("%s: %w: %q", path, err, lines.Text())
			}
			list = append(list, e)
		}
		all = append(all, list)
	}
	return all, nil
}
