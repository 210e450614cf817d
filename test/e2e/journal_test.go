package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"sync"
	"testing"
	"time"
)

// entry is one line of a journal: what one agent instance saw or did. It is
// written with one write before (or as) it happens, so SIGKILL loses nothing
// that others may know of.
type entry struct {
	At       int64  `json:"at"` // ns
	What     string `json:"what"`
	Agent    string `json:"agent"`
	Instance string `json:"instance"`
	Epoch    int64  `json:"epoch"`
	Task     string `json:"task,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	Nonce    string `json:"nonce,omitempty"`  // of one execution
	Status   string `json:"status,omitempty"` // of the result
	Code     string `json:"code,omitempty"`   // of the answer, "ok" when it counted
	State    string `json:"state,omitempty"`  // of the task, by the answer
}

// What an entry says.
const (
	wasOffered  = "offered"  // an offer came in
	wasBegun    = "begun"    // an execution began
	wasEnded    = "ended"    // it returned
	wasSent     = "sent"     // a result is about to be handed in
	wasAnswered = "answered" // and was answered
	wasControl  = "control"  // a router said something; Code says what
)

// journal is a file of entries that several agents of one process write.
type journal struct {
	mu sync.Mutex
	f  *os.File // guarded by mu: lines are in the order of events
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{f: f}, err
}

func (j *journal) write(e entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.f.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // an agent without a journal proves nothing
	}
}

// readJournals reads the journals of several processes. A line that a kill cut
// short is not there.
func readJournals(tb testing.TB, paths ...string) [][]entry {
	tb.Helper()
	var all [][]entry
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			tb.Fatal(err)
		}
		var list []entry
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			var e entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				tb.Fatalf("%s: %v: %q", path, err, lines.Text())
			}
			list = append(list, e)
		}
		all = append(all, list)
	}
	return all
}
