//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"parley/test/rig"
)

// How an operation goes on after its invocation.
const (
	invoked = "invoke"
	wasOK   = "ok"
	wasFail = "fail" // refused: it did not happen
	wasInfo = "info" // nobody knows
)

// line is one line of a journal of ours: what a client asked and was told,
// whom a webhook called, what was done to whom. It is on the disk before it
// happens, or before anybody acts on it.
type line struct {
	At      int64   `json:"at"` // ns
	N       uint64  `json:"n"`  // of the operation, the same in its lines
	Client  string  `json:"client,omitempty"`
	Op      string  `json:"op"`
	What    string  `json:"what"`
	ID      string  `json:"id,omitempty"`  // of the task, session, run, message
	Key     string  `json:"key,omitempty"` // idempotency key
	Text    string  `json:"text,omitempty"`
	After   *uint64 `json:"after,omitempty"`   // the version that an append must follow
	Version uint64  `json:"version,omitempty"` // that it got
	State   string  `json:"state,omitempty"`   // of the task, run, message
	Code    string  `json:"code,omitempty"`    // of a refusal
	To      string  `json:"to,omitempty"`      // agent that alone may have it, or whoever is called
	Kind    string  `json:"kind,omitempty"`    // label that its agent must have
	Session string  `json:"session,omitempty"` // of a task
	Tokens  *int64  `json:"tokens,omitempty"`  // that its shared budget has spent
	Body    []byte  `json:"body,omitempty"`    // of a webhook, of a document, and of what nobody should have been told
}

func (l *line) at() time.Time { return time.Unix(0, l.At) }

// scribe writes a journal.
type scribe struct {
	n     atomic.Uint64
	lines *rig.Lines
}

func newScribe(path string) (*scribe, error) {
	l, err := rig.OpenLines(path, true)
	return &scribe{lines: l}, err
}

func (s *scribe) write(l line) {
	s.lines.Append(func(now int64) any {
		if l.At == 0 { // else it was taken down a moment later
			l.At = now
		}
		return l
	})
}

// begin notes that an operation begins, and returns how to note its end.
func (s *scribe) begin(l line) func(what string, end line) {
	l.N, l.What = s.n.Add(1), invoked
	s.write(l)
	return func(what string, end line) {
		end.N, end.Client, end.Op, end.What = l.N, l.Client, l.Op, what
		if end.ID == "" {
			end.ID = l.ID
		}
		s.write(end)
	}
}

// op is an operation as the journal has it.
type op struct {
	line           // the invocation
	end      line  // End.What is info when nobody knows
	from, to int64 // ns; to is the end of time where nobody knows
}

func (o *op) ok() bool { return o.end.What == wasOK }

// readLines reads a journal. A line that a kill cut short is not there.
func readLines(path string) (lines []line, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	scan := bufio.NewScanner(bytes.NewReader(data))
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		var l line
		if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s: %w: %q", path, err, scan.Text())
		}
		lines = append(lines, l)
	}
	return lines, scan.Err()
}

// operations joins invocations and ends, in the order of the invocations.
func operations(lines []line) (ops []*op) {
	open := map[uint64]*op{}
	for _, l := range lines {
		if l.What == invoked {
			o := &op{line: l, end: line{What: wasInfo}, from: l.At, to: math.MaxInt64}
			open[l.N] = o
			ops = append(ops, o)
			continue
		}
		if o := open[l.N]; o != nil {
			o.end = l
			if l.What != wasInfo {
				o.to = l.At
			}
		}
	}
	return ops
}
