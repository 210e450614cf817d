//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// audited are the streams of whose messages the audit has lines: of every one,
// or of those that are lines themselves, stored together with what they tell of.
var audited = []struct{ stream, prefix string }{
	{"FLEET_TASKS", "fleet.task."},
	{"FLEET_CONTEXT", "fleet.context."},
	{"FLEET_RUNS", toldPrefix},
	{"FLEET_WEBHOOKS", toldPrefix},
	{"KV_FLEET_SCHEDULES", toldPrefix},
	{"KV_FLEET_SESSIONS", toldPrefix},
	{"KV_FLEET_ALERTS", toldPrefix},
}

const toldPrefix = "fleet.told."

// auditLine is a line as far as it says what it tells of.
type auditLine struct {
	Session string `json:"session_id"`
	Event   string `json:"event_type"`
	Data    struct {
		TaskID   string `json:"task_id"`
		Seq      int    `json:"seq"`
		Version  uint64 `json:"version"`
		RunID    string `json:"run_id"`
		Schedule string `json:"schedule"`
		From     string `json:"from"`
		Kind     string `json:"kind"`
	} `json:"data"`
}

// about is what a line tells of, nothing else being told by the same name.
func (l *auditLine) about() string {
	switch d := &l.Data; l.Event {
	case "context_append":
		return version(l.Session, d.Version)
	case "run":
		return "run " + d.RunID + " " + d.Kind
	case "schedule":
		return "schedule " + d.From + "." + d.Schedule + " " + d.Kind
	case "session_create", "session_delete":
		return l.Event + " " + l.Session
	default:
		return record(d.TaskID, d.Seq)
	}
}

func version(session string, n uint64) string {
	return "version " + strconv.FormatUint(n, 10) + " of " + session
}
func record(task string, seq int) string { return "record " + strconv.Itoa(seq) + " of " + task }

// checkAudit checks the chain anew, and that what has happened has its lines,
// once: records of tasks, versions of contexts, changes of runs, schedules,
// sessions, alerts and deliveries, and what clients were told of.
func (f *findings) checkAudit() {
	told, same := f.auditBlocks()
	for id, list := range f.records {
		for i := range list {
			if !told[record(id, list[i].Seq)] {
				f.fault("11 audit", id, "no line tells of record %d (%s)", list[i].Seq, list[i].Kind)
			}
		}
	}
	for i := range f.dumps["FLEET_CONTEXT"] {
		m := &f.dumps["FLEET_CONTEXT"][i]
		id := strings.TrimPrefix(m.Subject, "fleet.context.")
		var r contextRecord
		if json.Unmarshal(m.Data, &r) == nil && len(m.Data) > 0 && !told[version(id, r.Version)] {
			f.fault("11 audit", id, "no line tells of version %d", r.Version)
		}
	}
	for _, a := range audited {
		for i := range f.dumps[a.stream] {
			m := &f.dumps[a.stream][i]
			if a.prefix != toldPrefix || !strings.HasPrefix(m.Subject, toldPrefix) {
				continue
			}
			for text := range bytes.Lines(m.Data) {
				f.counts["lines stored with changes"]++
				if !same[plain(text)] {
					f.fault("11 audit", a.stream, "it is not in the audit: %s", text)
				}
			}
		}
	}
	for _, o := range f.ops {
		about := ""
		switch o.Op {
		case "create":
			about = "session_create " + o.end.ID
		case "delete":
			about = "session_delete " + o.ID
		case "run":
			about = "run " + o.ID + " start"
		case "schedule":
			about = "schedule " + o.Client + "." + o.ID + " create"
		}
		if about == "" || !o.ok() {
			continue
		}
		if f.counts["changes that clients were told of"]++; !told[about] {
			f.fault("11 audit", o.ID, "no line tells of what %s was told is done: %s", o.Client, about)
		}
	}
}

// auditBlocks checks the blocks of the audit, and gives what their lines tell of,
// and those lines that may have been stored with what they tell of.
func (f *findings) auditBlocks() (told, same map[string]bool) {
	var prev struct {
		hash string
		next uint64
	}
	told, same = map[string]bool{}, map[string]bool{}
	lines := map[string]bool{}
	for i := range f.dumps["FLEET_AUDIT"] {
		m := &f.dumps["FLEET_AUDIT"][i]
		var b struct {
			First     uint64          `json:"first"`
			Day       string          `json:"day"`
			Prev      string          `json:"prev"`
			Hash      string          `json:"hash"`
			Positions json.RawMessage `json:"positions"`
			Lines     []string        `json:"lines"`
		}
		if err := json.Unmarshal(m.Data, &b); err != nil {
			f.fault("11 audit", strconv.FormatUint(m.Seq, 10), "the block cannot be read: %v", err)
			continue
		}
		if i > 0 && (b.First != prev.next || b.Prev != prev.hash) {
			f.fault("11 audit", strconv.FormatUint(m.Seq, 10), "the block does not follow the one before it")
		}
		sum := chainSum(append([]string{"parley/audit/v1", b.Prev, b.Day, strconv.FormatUint(b.First, 10), string(b.Positions)}, b.Lines...))
		if sum != b.Hash {
			f.fault("11 audit", strconv.FormatUint(m.Seq, 10), "the hash is %s, want %s", b.Hash, sum)
		}
		prev.hash, prev.next = b.Hash, b.First+uint64(len(b.Lines))
		for _, text := range b.Lines {
			if lines[text] && !strings.Contains(text, "access_refused") {
				f.fault("11 audit", "line", "it is there twice: %s", text)
			}
			lines[text] = true
			var l auditLine
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				f.fault("11 audit", "line", "it cannot be read: %v: %s", err, text)
			}
			told[l.about()] = true
			if l.Data.Seq == 0 && l.Event != "context_append" { // of the others there are many
				same[plain([]byte(text))] = true
			}
		}
	}
	f.counts["audit lines"] = len(lines)
	return told, same
}

// plain is what JSON says, however it is written.
func plain(text []byte) string {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return string(text)
	}
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// chainSum is SHA-256 over the fields, each after its length.
func chainSum(fields []string) string {
	h := sha256.New()
	for _, f := range fields {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	return hex.EncodeToString(h.Sum(nil))
}
