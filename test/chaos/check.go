//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"parley/test/rig"
)

// violation is an invariant that does not hold.
type violation struct{ invariant, about, what string }

func (v violation) String() string { return v.invariant + ": " + v.about + ": " + v.what }

// findings is what a run left behind, and what is wrong with it.
type findings struct {
	dir     string
	ops     []*op  // of the clients
	calls   []line // of people
	said    []*op  // by them
	faults  []*op
	wounds  []*op             // what happened to the agents of pools
	casts   map[string]string // processes, by agent and instance
	away    spans             // when the machine had no time for us
	records rig.History
	notes   [][]rig.Entry // of the agents
	dumps   map[string][]message
	agents  []rig.Actor
	sums    map[string]map[string]string // what each server holds, by stream
	rest    *rest                        // what is held at last; nil where nobody looked
	strange []violation                  // what processes said or did that they never should

	found  []violation
	counts map[string]int // what was looked at
}

func (f *findings) fault(invariant, about, format string, args ...any) {
	f.found = append(f.found, violation{invariant, about, fmt.Sprintf(format, args...)})
}

// readFindings reads journals and streams in dir.
func readFindings(dir string) (*findings, error) {
	f := &findings{dir: dir, records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}}
	clients, err := readLines(filepath.Join(dir, "clients.jsonl"))
	if err != nil {
		return nil, err
	}
	f.ops = operations(clients)
	people, err := readLines(filepath.Join(dir, "calls.jsonl"))
	if err != nil {
		return nil, err
	}
	said := slices.DeleteFunc(slices.Clone(people), func(l line) bool { return l.Op == "call" })
	f.calls = slices.DeleteFunc(people, func(l line) bool { return l.Op != "call" })
	f.said = operations(said)
	done, err := readLines(filepath.Join(dir, "faults.jsonl"))
	if err != nil {
		return nil, err
	}
	f.faults = operations(done)
	hurt, err := readLines(filepath.Join(dir, "wounds.jsonl"))
	if err != nil {
		return nil, err
	}
	f.wounds = operations(hurt)
	if f.away, err = readKept[spans](dir, machineFile); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil {
		return nil, err
	}
	if f.notes, err = rig.ReadJournals(paths...); err != nil {
		return nil, err
	}
	if f.agents, f.casts, err = readCasts(dir); err != nil {
		return nil, err
	}
	if f.rest, err = readKept[*rest](dir, restFile); err != nil {
		return nil, err
	}
	if f.sums, err = readKept[map[string]map[string]string](dir, sumsFile); err != nil {
		return nil, err
	}
	for _, s := range dumped {
		keep := func(m *message) { f.dumps[s] = append(f.dumps[s], *m) }
		if s == "FLEET_TASKS" {
			keep = f.record // they are the most, and long
		}
		if err := eachDumped(dir, s, keep); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// record takes in a record of a task.
func (f *findings) record(m *message) {
	r := rig.Record{StreamSeq: m.Seq, Stored: m.Time, Subject: strings.TrimPrefix(m.Subject, "fleet.task.")}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		f.fault("1 one outcome", r.Subject, "record %d cannot be read: %v", m.Seq, err)
		return
	}
	f.records[r.Subject] = append(f.records[r.Subject], r)
}

// readCasts reads who the agents were, and in which process.
func readCasts(dir string) (agents []rig.Actor, casts map[string]string, err error) {
	casts = map[string]string{}
	paths, err := filepath.Glob(filepath.Join(dir, "cast-*.json"))
	if err != nil {
		return nil, nil, err
	}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, nil, err
		}
		var c rig.Cast
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p, err)
		}
		agents = append(agents, c.Agents...)
		for _, a := range c.Agents {
			casts[a.ID+"/"+a.Instance] = strings.TrimSuffix(filepath.Base(p), ".json")
		}
	}
	return agents, casts, nil
}

// check holds everything against the invariants.
func (f *findings) check() []violation {
	f.checkTasks()
	f.checkOrigin()
	f.checkTold()
	f.checkStreams()
	f.checkLimits()
	f.checkReplays()
	f.checkKeys()
	f.checkDeadlines()
	f.checkTerms()
	f.checkSilent()
	f.checkBudgets()
	f.checkCancels()
	f.checkReads()
	f.checkEligible()
	f.checkHumans()
	f.checkSessions()
	f.checkSecrets()
	f.checkAudit()
	f.checkMesh()
	f.checkRuns()
	f.checkClocks()
	f.checkReplicas()
	f.checkRest()
	f.checkHistories()
	f.checkGaps()
	f.checkPools()
	f.checkProcesses()
	return f.found
}

// checkProcesses takes in what was seen of processes while they ran.
func (f *findings) checkProcesses() { f.found = append(f.found, f.strange...) }

// checkTasks is the end-to-end tests' checker: one outcome, no gaps, no two
// leases, only what was offered counts, attempts as the policy allows.
func (f *findings) checkTasks() {
	e := rig.Evidence{Records: f.records, Journals: f.notes, Slots: map[string]int{}}
	for _, a := range f.agents {
		e.Slots[a.ID] = a.MaxParallel
	}
	for _, o := range f.ops {
		if o.Op == "dispatch" && o.ok() {
			e.Acked = append(e.Acked, o.end.ID)
		}
	}
	f.counts["acknowledged dispatches"] = len(e.Acked)
	f.counts["tasks"] = len(f.records)
	for _, list := range f.records {
		f.counts["task records"] += len(list)
	}
	for _, x := range e.Faults() {
		f.found = append(f.found, violation{"1-5 tasks", x.Task, x.What + f.lossClass(x.Task, x.What)})
	}
}

// lossClass says where in the run of its client a lost task was: before all
// that was kept (a log that started anew), after it, or in the middle.
func (f *findings) lossClass(task, what string) string {
	who, n, counted := strings.Cut(task, "-")
	if !counted || !strings.Contains(what, "there is no record") {
		return ""
	}
	var lost, least, most int
	least = 1 << 60
	_, _ = fmt.Sscan(n, &lost)
	for id := range f.records {
		if w, m, _ := strings.Cut(id, "-"); w == who {
			var k int
			_, _ = fmt.Sscan(m, &k)
			least, most = min(least, k), max(most, k)
		}
	}
	switch {
	case lost < least:
		return " (lost prefix)"
	case lost > most:
		return " (lost postfix)"
	}
	return " (lost middle)"
}

// checkOrigin checks that nothing comes from nowhere, and that nobody's task
// is another's.
func (f *findings) checkOrigin() {
	owner := map[string]string{}
	for _, o := range f.ops {
		switch o.Op {
		case "dispatch", "again":
			if o.ID != "" {
				owner[o.ID] = o.Client
			}
			if o.end.ID != "" {
				owner[o.end.ID] = o.Client
			}
		case "stream":
			if o.end.ID != "" {
				owner[o.end.ID] = ""
			}
		}
	}
	for id := range f.records {
		from := f.records[id][0].Facts.From
		who, known := owner[id]
		if known && who != "" {
			f.counts["senders"]++
		}
		switch {
		case known && who != "" && who != from:
			f.fault("12 sender", id, "%s dispatched it, the record says %s", who, from)
		case known, f.records[id][0].Facts.RunID != "", from == forger, strings.HasPrefix(from, "clock"), strings.HasPrefix(from, "a2a"), from == "anonymous", from == "operator", from == "":
		case slices.ContainsFunc(f.ops, func(o *op) bool { return o.Client == from && o.Key != "" && o.Op == "dispatch" && !o.ok() }):
			// by a key, and the answer never came
		default:
			f.fault("2 from nowhere", id, "nobody dispatched it; its record says %s", from)
		}
	}
}

// checkTold checks what clients were told of ends: it is what is stored.
func (f *findings) checkTold() {
	for _, o := range f.ops {
		if !o.ok() || o.end.State == "" {
			continue
		}
		if o.Op != "wait" && o.Op != "cancel" {
			continue
		}
		f.counts["ends told"]++
		if last := f.records.Last(o.end.ID); last.State != o.end.State {
			f.fault("1 one outcome", o.end.ID, "%s was told %s by %s; the record says %s", o.Client, o.end.State, o.Op, last.State)
		}
	}
}

// checkKeys checks idempotency: one key, one task; another payload, an error.
func (f *findings) checkKeys() {
	ids := map[string]string{}
	for _, o := range f.ops {
		if o.Key == "" || o.Op != "dispatch" && o.Op != "again" && o.Op != "misuse" {
			continue
		}
		k := o.Client + " " + o.Key
		if o.Op == "misuse" && o.end.What != wasInfo {
			f.counts["keys misused"]++
		}
		switch {
		case o.Op == "misuse" && o.ok():
			f.fault("13 idempotency", o.end.ID, "the key %s was taken for another payload", k)
		case o.Op == "misuse" && o.end.What == wasFail && o.end.Code != "idempotency_conflict":
			f.fault("13 idempotency", o.Key, "another payload under the key was answered %s", o.end.Code)
		case o.Op != "misuse" && o.ok():
			f.counts["dispatches by key"]++
			if was, again := ids[k]; again && was != o.end.ID {
				f.fault("13 idempotency", k, "is task %s, and task %s", was, o.end.ID)
			}
			ids[k] = o.end.ID
		}
	}
}

// checkEligible checks that nobody was offered what it may not have.
func (f *findings) checkEligible() {
	kind, only := map[string]string{}, map[string]string{}
	for _, o := range f.ops {
		if o.Op == "dispatch" && o.ID != "" {
			kind[o.ID], only[o.ID] = o.Kind, o.To
		}
	}
	label := map[string]string{}
	for _, a := range f.agents {
		label[a.ID] = a.Labels["kind"]
	}
	for _, list := range f.notes {
		for i := range list {
			e := &list[i]
			if e.What != rig.WasOffered {
				continue
			}
			f.counts["offers"]++
			if kind[e.Task] != "" || only[e.Task] != "" {
				f.counts["offers that ask for somebody"]++
			}
			if k := kind[e.Task]; k != "" && k != label[e.Agent] {
				f.fault("6 eligible", e.Task, "it asks for %s and was offered to %s, which is %s", k, e.Agent, label[e.Agent])
			}
			if to := only[e.Task]; to != "" && to != e.Agent {
				f.fault("6 eligible", e.Task, "it is for %s and was offered to %s", to, e.Agent)
			}
		}
	}
}

// checkReplicas checks that all servers hold the same.
func (f *findings) checkReplicas() {
	for stream, sums := range f.sums {
		for n, s := range sums {
			f.counts["replicas"]++
			if s != sums[nodeNames[0]] {
				f.fault("R replicas", stream, "%s holds %s, and %s %s", nodeNames[0], sums[nodeNames[0]], n, s)
			}
		}
	}
}
