//go:build linux

package main

import (
	"encoding/json"
	"slices"

	"parley/test/rig"
)

// clients is what clients and agents leave of a task that agent a failed and agent
// b did, of one that was given by key and canceled, and of two sessions, one of
// which is deleted.
func clients() *findings {
	f := &findings{records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}}
	f.agents = []rig.Actor{{ID: "a", MaxParallel: 1, Labels: map[string]string{"kind": "even"}}, {ID: "b", MaxParallel: 1, Labels: map[string]string{"kind": "even"}}}
	var list []rig.Record
	if err := json.Unmarshal([]byte(`[
		{"task_id":"t","seq":1,"kind":"queued","state":"queued","write_id":"w1"},
		{"task_id":"t","seq":2,"kind":"working","state":"working","attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"write_id":"w2"},
		{"task_id":"t","seq":3,"kind":"reroute","state":"queued","attempt":1,"write_id":"w3"},
		{"task_id":"t","seq":4,"kind":"working","state":"working","attempt":2,"agent_id":"b","instance_id":"i","epoch":1,"write_id":"w4"},
		{"task_id":"t","seq":5,"kind":"outcome","state":"done","attempt":2,"agent_id":"b","instance_id":"i","epoch":1,"write_id":"w5",
			"data":{"result":{"task_id":"t","status":"done","state":"done","attempt":2,"agent_id":"b","instance_id":"i","output":{"nonce":"n2"}}}},
		{"task_id":"k","seq":1,"kind":"queued","state":"queued","write_id":"w1"},
		{"task_id":"k","seq":2,"kind":"outcome","state":"canceled","write_id":"w2","data":{"result":{"task_id":"k","state":"canceled"}}}]`), &list); err != nil {
		panic(err)
	}
	for i, r := range list {
		r.StreamSeq, r.Facts.From = uint64(10+2*i), "boss0"
		if r.TaskID == "t" && r.Seq > 2 {
			r.Facts.Attempts = []rig.PastAttempt{{Attempt: 1, AgentID: "a", InstanceID: "i", Epoch: 1, Code: "agent_error", Level: 2}}
		}
		f.records[r.TaskID] = append(f.records[r.TaskID], r)
	}
	for n, agent := range []string{"a", "b"} {
		nonce, status, state := []string{"n1", "n2"}[n], []string{"error", "done"}[n], []string{"queued", "done"}[n]
		e := rig.Entry{Agent: agent, Instance: "i", Epoch: 1, Task: "t", Attempt: n + 1}
		var notes []rig.Entry
		for i, what := range []string{rig.WasOffered, rig.WasBegun, rig.WasEnded, rig.WasSent, rig.WasAnswered} {
			if e.What, e.At = what, at(10+10*n+i); what != rig.WasOffered {
				e.Nonce = nonce
			}
			notes = append(notes, e)
		}
		notes[3].Status, notes[4].Status, notes[4].Code, notes[4].State = status, status, "ok", state
		f.notes = append(f.notes, notes)
	}
	f.dumps["FLEET_CONTEXT"] = []message{
		{Subject: "fleet.context.a2a-1", Data: []byte(`{"version":1,"entry":{"findings":{"key":"0-0"}}}`)},
		{Subject: "fleet.context.a2a-1", Data: []byte(`{"version":2,"entry":{"findings":{"key":"1-0"}}}`)},
	}
	f.ops = []*op{
		{line: line{Client: "boss0", Op: "dispatch", ID: "t", Kind: "even"}, end: line{What: wasOK, ID: "t", State: "queued"}, from: at(1), to: at(2)},
		{line: line{Client: "boss0", Op: "wait", ID: "t"}, end: line{What: wasOK, ID: "t", State: "done"}, from: at(3), to: at(40)},
		{line: line{Client: "boss0", Op: "dispatch", Key: "by"}, end: line{What: wasOK, ID: "k", State: "queued"}, from: at(1), to: at(2)},
		{line: line{Client: "boss0", Op: "again", Key: "by"}, end: line{What: wasOK, ID: "k", State: "queued"}, from: at(3), to: at(4)},
		{line: line{Client: "boss0", Op: "misuse", Key: "by"}, end: line{What: wasFail, Code: "idempotency_conflict"}, from: at(5), to: at(6)},
		{line: line{Client: "boss0", Op: "cancel", ID: "k"}, end: line{What: wasOK, ID: "k", State: "canceled"}, from: at(7), to: at(8)},
		{line: line{Client: "team0", Op: "append", ID: "a2a-1", Key: "0-0"}, end: line{What: wasOK, ID: "a2a-1", Version: 1}, from: at(1), to: at(2)},
		{line: line{Client: "team0", Op: "append", ID: "a2a-1", Key: "1-0"}, end: line{What: wasOK, ID: "a2a-1", Version: 2}, from: at(3), to: at(4)},
		{line: line{Client: "team0", Op: "read", ID: "a2a-1"}, end: line{What: wasOK, ID: "a2a-1", Version: 2}, from: at(5), to: at(6)},
		{line: line{Client: "team0", Op: "delete", ID: "a2a-2"}, end: line{What: wasOK, ID: "a2a-2"}, from: at(1), to: at(2)},
		{line: line{Client: "team0", Op: "append", ID: "a2a-2", Key: "late"}, end: line{What: wasFail, ID: "a2a-2", Code: "not_found"}, from: at(3), to: at(4)},
	}
	return f
}

func judgeClients(f *findings) {
	f.checkTasks()
	f.checkOrigin()
	f.checkTold()
	f.checkKeys()
	f.checkEligible()
	f.checkSessions()
	f.checkProcesses()
	f.checkHistories()
}

// asked is the first operation of a kind.
func asked(f *findings, kind string) *op {
	return f.ops[slices.IndexFunc(f.ops, func(o *op) bool { return o.Op == kind })]
}

// plantedInClients are what may be wrong with what clients and agents are told.
func plantedInClients() []planting {
	return []planting{
		{"a task that is lost", "1-5 tasks: boss0-2: was acknowledged, and there is no record of it (lost prefix)", func(f *findings) {
			f.records["boss0-3"] = f.records["k"]
			f.ops = append(f.ops, &op{line: line{Client: "boss0", Op: "dispatch", ID: "boss0-2"}, end: line{What: wasOK, ID: "boss0-2"}, from: at(1), to: at(2)})
		}},
		{"no end", "1-5 tasks: t: has no outcome", func(f *findings) { f.records["t"] = f.records["t"][:4] }},
		{"two ends", "1-5 tasks: t: seq 6 (outcome) follows the outcome", func(f *findings) {
			again := f.records["t"][4]
			again.Seq = 6
			f.records["t"] = append(f.records["t"], again)
		}},
		{"a gap", "1-5 tasks: t: record 4 has seq 5", func(f *findings) { f.records["t"] = slices.Delete(f.records["t"], 3, 4) }},
		{"two leases", "1-5 tasks: t: seq 4: b/i/1 takes it while a/i/1 holds it: two leases", func(f *findings) {
			l := f.records["t"]
			l[2] = l[1]
			l[2].Seq, l[2].Kind = 3, "artifact"
		}},
		{"a stranger's result", "the records know", func(f *findings) { f.records["t"][4].Attempt = 3 }},
		{"a result that is lost", "was taken in, and the task is queued", func(f *findings) { f.notes[1][4].State = "queued" }},
		{"one retry too many", "1-5 tasks: t: seq 3 is retry 1 of 0", func(f *findings) { f.records["t"][2].Kind = "retry" }},
		{"back to who failed", "after it failed it for good", func(f *findings) { f.records["t"][3].AgentID = "a" }},
		{"a record of nonsense", "1 one outcome: x: record 7 cannot be read", func(f *findings) { f.record(&message{Seq: 7, Subject: "fleet.task.x", Data: []byte("{")}) }},
		{"another end is told", "1 one outcome: t: boss0 was told error by wait; the record says done", func(f *findings) { asked(f, "wait").end.State = "error" }},
		{"canceled, and done", "1 one outcome: k: boss0 was told canceled by cancel; the record says done", func(f *findings) {
			last := &f.records["k"][1]
			last.State, last.Data.Result.State = "done", "done"
		}},
		{"a task of another", "12 sender: t: boss0 dispatched it, the record says boss1", func(f *findings) { f.records["t"][0].Facts.From = "boss1" }},
		{"a task of nobody", "2 from nowhere: u: nobody dispatched it; its record says boss0", func(f *findings) { f.records["u"] = f.records["k"] }},
		{"a key for another payload", "13 idempotency: k: the key boss0 by was taken for another payload", func(f *findings) {
			asked(f, "misuse").end = line{What: wasOK, ID: "k"}
		}},
		{"a key that is misused, and something else", "another payload under the key was answered internal", func(f *findings) { asked(f, "misuse").end.Code = "internal" }},
		{"a key for two tasks", "13 idempotency: boss0 by: is task k, and task t", func(f *findings) { asked(f, "again").end.ID = "t" }},
		{"offered to another kind", "6 eligible: t: it asks for odd and was offered to a, which is even", func(f *findings) { f.ops[0].Kind = "odd" }},
		{"offered to another", "6 eligible: t: it is for b and was offered to a", func(f *findings) { f.ops[0].To = "b" }},
		{"a version is missing", "10 context: a2a-1: version 3 is the 2th", func(f *findings) {
			f.dumps["FLEET_CONTEXT"][1].Data = []byte(`{"version":3,"entry":{"findings":{"key":"1-0"}}}`)
		}},
		{"an append twice", "10 context: a2a-1: the append 0-0 is there as version 1 and as version 2", func(f *findings) {
			f.dumps["FLEET_CONTEXT"][1].Data = []byte(`{"version":2,"entry":{"findings":{"key":"0-0"}}}`)
		}},
		{"an append is lost", "10 context: a2a-1: the append 1-0 of team0 was acknowledged as version 2, which is not there", func(f *findings) {
			f.dumps["FLEET_CONTEXT"] = f.dumps["FLEET_CONTEXT"][:1]
		}},
		{"an append after the end", "9 session: a2a-2: append of team0 succeeded after the session was deleted", func(f *findings) {
			f.ops[len(f.ops)-1].end = line{What: wasOK, ID: "a2a-2", Version: 1}
		}},
		{"a read of what is no more", "L contexts: a2a-1: the history of 3 operations is Illegal", func(f *findings) { asked(f, "read").end.Version = 1 }},
		{"a lease that is over counts", "L leases: t: the history of 4 operations is Illegal", func(f *findings) {
			f.notes[0][3].At, f.notes[0][4].At = at(30), at(31) // b has had it, and ended it
		}},
		{"a panic", "0 processes: router-1: panic: no more", func(f *findings) { f.strange = oddWords("router-1", []byte("all is well\npanic: no more\n")) }},
		{"a race", "0 processes: door-1: DATA RACE", func(f *findings) { f.strange = oddWords("door-1", []byte("WARNING: DATA RACE\nat")) }},
		{"a run that does not come to rest", "23 liveness: fleet: tasks", func(f *findings) {
			f.strange = []violation{{"23 liveness", "fleet", "tasks"}}
		}},
	}
}
