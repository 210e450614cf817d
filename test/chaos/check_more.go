//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"parley/test/rig"
)

// contextRecord is a version of a context.
type contextRecord struct {
	Version uint64 `json:"version"`
	Entry   struct {
		Findings struct {
			Key string `json:"key"` // what its client calls it
		} `json:"findings"`
	} `json:"entry"`
}

func (r *contextRecord) key() string { return r.Entry.Findings.Key }

// checkSessions checks that versions are 1, 2, 3 …, that what was acknowledged
// is there at its version, and that what is deleted is over.
func (f *findings) checkSessions() {
	contexts := map[string][]contextRecord{}
	for i := range f.dumps["FLEET_CONTEXT"] {
		m := &f.dumps["FLEET_CONTEXT"][i]
		var r contextRecord
		if err := json.Unmarshal(m.Data, &r); err != nil || len(m.Data) == 0 {
			continue // a marker of the end
		}
		id := strings.TrimPrefix(m.Subject, "fleet.context.")
		contexts[id] = append(contexts[id], r)
	}
	gone := map[string]int64{} // since when
	for _, o := range f.ops {
		if o.Op == "delete" {
			gone[o.ID] = o.to
		}
	}
	for id, list := range contexts {
		f.counts["contexts"]++
		keys := map[string]uint64{}
		for i, r := range list {
			if _, deleted := gone[id]; !deleted && r.Version != uint64(i+1) {
				f.fault("10 context", id, "version %d is the %dth", r.Version, i+1)
			}
			if was, twice := keys[r.key()]; twice && r.key() != "" {
				f.fault("10 context", id, "the append %s is there as version %d and as version %d", r.key(), was, r.Version)
			}
			keys[r.key()] = r.Version
		}
	}
	for _, o := range f.ops {
		since, deleted := gone[o.ID]
		if (o.Op == "append" || o.Op == "read") && deleted && o.from > since && o.end.What != wasInfo {
			f.counts["tries after the end of a session"]++
		}
		switch {
		case o.Op != "append" && o.Op != "read" || !o.ok():
		case deleted && o.from > since:
			f.fault("9 session", o.ID, "%s of %s succeeded after the session was deleted", o.Op, o.Client)
		case o.Op == "append" && !deleted:
			f.counts["appends"]++
			list := contexts[o.ID]
			if v := o.end.Version; v == 0 || v > uint64(len(list)) || list[v-1].key() != o.Key {
				f.fault("10 context", o.ID, "the append %s of %s was acknowledged as version %d, which is not there", o.Key, o.Client, v)
			}
		}
	}
}

// letterEnds are the states after which nothing happens to a letter that wants
// no answer.
var letterEnds = map[string]bool{"processed": true, "answered": true, "failed": true, "expired": true, "refused": true}

// letterStates are the last states of all letters, by sender and id.
func letterStates(dump []message) map[string]string {
	states := map[string]string{}
	for i := range dump {
		var a struct {
			State string `json:"state"`
		}
		if id, ok := strings.CutPrefix(dump[i].Subject, "fleet.meshstate."); ok && json.Unmarshal(dump[i].Data, &a) == nil {
			states[id] = a.State
		}
	}
	return states
}

// checkMesh checks that a letter was dealt with or reported, and never handed
// to two as two.
func (f *findings) checkMesh() {
	states := letterStates(f.dumps["FLEET_MESH_STATE"])
	handed := map[string]map[int]string{} // by letter and attempt: to whom
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			if e.What != rig.WasLetter {
				continue
			}
			id := e.From + "." + e.Task
			if handed[id] == nil {
				handed[id] = map[int]string{}
			}
			who := fmt.Sprintf("%s/%s/%d", e.Agent, e.Instance, e.Epoch)
			if was := handed[id][e.Attempt]; was != "" {
				f.fault("14 mesh", id, "attempt %d was dealt with by %s, and by %s", e.Attempt, was, who)
			}
			handed[id][e.Attempt] = who
		}
	}
	for _, o := range f.ops {
		if o.Op != "letter" || !o.ok() {
			continue
		}
		f.counts["letters"]++
		id := o.Client + "." + o.ID
		state := states[id]
		if o.To == "nobody" {
			f.counts["letters to nobody"]++
		}
		switch {
		case !letterEnds[state]:
			f.fault("14 mesh", id, "it was acknowledged, and is %q", state)
		case state == "processed" && len(handed[id]) == 0:
			f.fault("14 mesh", id, "it is processed, and nobody had it")
		case o.To == "nobody" && state != "expired":
			f.fault("14 mesh", id, "there is nobody to have it, and it is %q", state)
		}
	}
}

// checkRuns checks that nodes begin after those that they depend on, and that
// a run ends with one document.
func (f *findings) checkRuns() {
	type node struct {
		TaskID string `json:"task_id"`
		State  string `json:"state"`
	}
	type run struct {
		State      string `json:"state"`
		Definition struct {
			Agents []planNode `json:"agents"`
		} `json:"definition"`
		Nodes map[string]node `json:"nodes"`
		at    time.Time
	}
	last := map[string]run{}
	for i := range f.dumps["FLEET_RUNS"] {
		m := &f.dumps["FLEET_RUNS"][i]
		id, ok := strings.CutPrefix(m.Subject, "fleet.run.")
		if !ok {
			continue
		}
		var r run
		if err := json.Unmarshal(m.Data, &r); err != nil {
			f.fault("15 runs", id, "its record cannot be read: %v", err)
		}
		if was := last[id].State; was == "done" || was == "failed" {
			f.fault("15 runs", id, "it was %s, and then %s", was, r.State)
		}
		r.at = m.Time
		last[id] = r
	}
	for id, r := range last {
		for _, n := range r.Definition.Agents {
			own := f.records[r.Nodes[n.ID].TaskID]
			for _, dep := range n.Dependencies {
				if len(own) == 0 {
					continue
				}
				f.counts["nodes after others"]++
				if before := f.records.Last(r.Nodes[dep].TaskID); !before.Terminal() || own[0].StreamSeq < before.StreamSeq {
					f.fault("15 runs", id, "%s was begun before %s had ended", n.ID, dep)
				}
			}
		}
	}
	documents := map[string][]byte{}
	for _, o := range f.ops {
		switch {
		case o.Op == "run" && o.ok():
			f.counts["runs"]++
			switch s := last[o.ID].State; {
			case s == "done", s == "failed":
			case s == "expired" && last[o.ID].at.Sub(time.Unix(0, o.from)) > runTimeout-clockSlack:
				f.counts["runs out of time"]++
			default:
				f.fault("15 runs", o.ID, "it was acknowledged, and is %q", s)
			}
		case o.Op == "document" && o.ok():
			if was, again := documents[o.ID]; again {
				f.counts["documents read again"]++
				if !bytes.Equal(was, o.end.Body) {
					f.fault("15 runs", o.ID, "it has two documents")
				}
			}
			documents[o.ID] = o.end.Body
		}
	}
}
