//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"parley/test/rig"
)

// a2aStates are the A2A names of states.
var a2aStates = map[string]string{
	"queued": "submitted", "working": "working", "input_required": "input_required",
	"done": "completed", "partial": "completed", "error": "failed", "expired": "failed", "blocked": "rejected", "canceled": "canceled",
}

// toldOf are the events that a stream tells of a record, each with its id.
func toldOf(r *rig.Record) []string {
	state := a2aStates[r.State]
	last := func(of string) string { return fmt.Sprintf("%d %s", r.Seq, of) }
	switch {
	case r.Kind == "spent":
		return nil
	case r.Kind == "artifact":
		return []string{last("artifact")}
	case r.Terminal() && r.Data.Result != nil && len(r.Data.Result.Output) > 0 && string(r.Data.Result.Output) != "null":
		return []string{fmt.Sprintf("%d.1 artifact", r.Seq-1), last(state)}
	}
	return []string{last(state)}
}

// checkStreams checks that what streams told over all their connections is what
// the records say, in order: from the first record on, without gap or repeat, up
// to the end.
func (f *findings) checkStreams() {
	for _, o := range f.ops {
		if o.Op != "stream" && (o.Op != "replay" || o.Kind != sentAgain) || len(o.end.Body) == 0 {
			continue
		}
		var legs []leg
		if err := json.Unmarshal(o.end.Body, &legs); err != nil {
			f.fault("22 streams", o.end.ID, "what it told cannot be read: %v", err)
			continue
		}
		if o.Op == "stream" && o.ok() {
			f.counts["A2A streams"]++
			f.checkStreamEnd(o, legs)
		}
		f.checkLegs(o.end.ID, legs)
	}
}

// checkStreamEnd checks the end that a stream told.
func (f *findings) checkStreamEnd(o *op, legs []leg) {
	if state := f.records.Last(o.end.ID).State; o.end.State != a2aStates[state] {
		f.fault("1 one outcome", o.end.ID, "the stream ended with %s; the record says %s", o.end.State, state)
	}
	if told := legs[len(legs)-1].Told; len(told) > 0 && !strings.HasSuffix(told[len(told)-1], " "+o.end.State) {
		f.fault("1 one outcome", o.end.ID, "the stream told %s, and more after it: %v", o.end.State, told)
	}
}

// checkLegs holds the connections of a stream against the records of its task.
func (f *findings) checkLegs(task string, legs []leg) {
	var all []string
	for i := range f.records[task] {
		all = append(all, toldOf(&f.records[task][i])...)
	}
	next := 0 // of all
	for n, l := range legs {
		if len(l.Told) == 0 {
			continue
		}
		told := l.Told
		if n > 0 {
			f.counts["A2A streams taken up"]++
			if l.After == "" { // the task as it is, then what follows
				if next = f.picture(task, told[0], all); next < 0 {
					f.fault("22 streams", task, "by %s it was taken up with %q, which no record says", l.Door, told[0])
					return
				}
				told = told[1:]
			}
		}
		f.counts["events of A2A streams"] += len(told)
		if want := all[min(next, len(all)):min(next+len(told), len(all))]; !slices.Equal(told, want) {
			f.fault("22 streams", task, "connection %d, by %s after %q, told %q; the records say %q", n+1, l.Door, l.After, told, want)
			return
		}
		next += len(told)
	}
	if len(legs) > 0 && next < len(all) && endsIn(legs) {
		f.fault("22 streams", task, "the stream came to its end, and did not tell %q", all[next:])
	}
}

// picture is what follows, in all that is to be told, the record that a
// subscription began with; -1 where that record is no such thing.
func (f *findings) picture(task, first string, all []string) int {
	var seq int
	var state string
	if _, err := fmt.Sscanf(first, "%d %s", &seq, &state); err != nil || seq < 1 || seq > len(f.records[task]) || a2aStates[f.records[task][seq-1].State] != state {
		return -1
	}
	next := 0
	for i := range f.records[task][:seq] {
		next += len(toldOf(&f.records[task][i]))
	}
	return min(next, len(all))
}

// endsIn reports whether the last that was told is an end.
func endsIn(legs []leg) bool {
	told := legs[len(legs)-1].Told
	if len(told) == 0 {
		return false
	}
	_, state, _ := strings.Cut(told[len(told)-1], " ")
	return slices.Contains([]string{"completed", "failed", "rejected", "canceled"}, state)
}
