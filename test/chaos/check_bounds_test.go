//go:build linux

package main

import (
	"fmt"
	"testing"
	"time"

	"parley/test/rig"
)

// frugal is what a short run without faults leaves of budgets, cancels and reads:
// a session whose first two tasks spend what its third one then lacks, a task that
// is canceled while an agent has it, and what is held at last.
func frugal() *findings {
	sec := func(s float64) time.Time { return morning.Add(time.Duration(s * float64(time.Second))) }
	at := func(s float64) int64 { return sec(s).UnixNano() }
	f := &findings{records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}, notes: [][]rig.Entry{nil}}
	record := func(task, kind, state string, attempt int, s float64) *rig.Record {
		r := rig.Record{TaskID: task, Kind: kind, State: state, Attempt: attempt, Stored: sec(s), AgentID: "a", InstanceID: "i", Epoch: 1}
		r.Facts.SessionID, r.Facts.SessionBudget = "s", 2*rig.Tokens
		f.records[task] = append(f.records[task], r)
		return &f.records[task][len(f.records[task])-1]
	}
	note := func(what, task string, s float64) *rig.Entry {
		f.notes[0] = append(f.notes[0], rig.Entry{What: what, Task: task, Attempt: 1, Agent: "a", Instance: "i", Epoch: 1, At: at(s), Nonce: task})
		return &f.notes[0][len(f.notes[0])-1]
	}
	for i, task := range []string{"p1", "p2"} {
		s := float64(i)
		record(task, "queued", "queued", 0, s)
		record(task, "working", "working", 1, s+0.1)
		record(task, "outcome", "done", 1, s+0.3)
		note(rig.WasSent, task, s+0.2)
		note(rig.WasAnswered, task, s+0.3).Code = "ok"
		f.dumps["KV_FLEET_LEDGER"] = append(f.dumps["KV_FLEET_LEDGER"], message{
			Subject: "$KV.FLEET_LEDGER.session.s." + task + ".1", Data: fmt.Append(nil, rig.Tokens), Time: sec(s + 0.25),
		})
	}
	record("p3", "queued", "queued", 0, 20)
	record("p3", "outcome", "error", 0, 20.1).Reason.Code = "budget_exhausted"
	for _, state := range []string{"queued", "working", "canceled"} {
		f.records["c"] = append(f.records["c"], rig.Record{TaskID: "c", Kind: state, State: state})
	}
	note(rig.WasBegun, "c", 30)
	note(rig.WasEnded, "c", 31.2)
	note(rig.WasSent, "late", 60)
	look := func(s float64, id, state string, seq uint64, tokens int64) {
		f.ops = append(f.ops, &op{line: line{Client: "boss", Op: "look", ID: id}, end: line{What: wasOK, ID: id, State: state, Version: seq, Tokens: &tokens}, from: at(s), to: at(s + 0.1)})
	}
	f.ops = append(f.ops,
		&op{line: line{Client: "boss", Op: "cancel", ID: "c"}, end: line{What: wasOK, ID: "c", State: "canceled"}, from: at(30.9), to: at(31)},
		&op{line: line{Client: "boss", Op: "dispatch", ID: "p3"}, end: line{What: wasOK, ID: "p3", State: "queued"}, from: at(19), to: at(19.5)})
	look(20, "p3", "queued", 1, 2*rig.Tokens)
	look(21, "p3", "error", 2, 2*rig.Tokens)
	f.rest = &rest{
		Processes: map[string]held{"router-1": {Files: 40, Memory: 100 << 20, Goroutines: 150, Before: 100}, "cast-0": {Files: 20}},
		Streams:   map[string]stored{"FLEET_TASKS": {Messages: 10_000}, "FLEET_INBOX": {Messages: 1}, "FLEET_RUNS": {Messages: 2000}},
		Disks:     map[string]int64{"n1": 100 << 20},
	}
	return f
}

func judgeBounds(f *findings) {
	f.checkBudgets()
	f.checkCancels()
	f.checkReads()
	f.checkRest()
}

// planFault notes that something was wrong from one second of the morning to another.
func planFault(f *findings, kind string, from, to int) {
	at := func(s int) int64 { return morning.Add(time.Duration(s) * time.Second).UnixNano() }
	f.faults = append(f.faults, &op{line: line{Op: kind}, from: at(from), to: at(to)})
}

// begins has p3 begun at a second, and done.
func begins(f *findings, s int) {
	l := f.records["p3"]
	l[1].Kind, l[1].State, l[1].Attempt, l[1].Stored = "working", "working", 1, morning.Add(time.Duration(s)*time.Second)
	f.ops = nil
}

// noted is the first that an agent noted of a kind.
func noted(f *findings, what string) *rig.Entry {
	for i := range f.notes[0] {
		if f.notes[0][i].What == what {
			return &f.notes[0][i]
		}
	}
	return nil
}

// excesses are what goes beyond a bound.
func excesses() []planting {
	return []planting{
		{"begun with nothing left", "attempt 1 was begun 8.75s after 14 tokens of session.s were spent", func(f *findings) { begins(f, 10) }},
		{"begun long after a fault", "with nothing wrong for 8.75s", func(f *findings) {
			begins(f, 40)
			planFault(f, killWorker, 10, 20)
		}},
		{"spent and not charged", "which is not charged to session.s", func(f *findings) { f.dumps["KV_FLEET_LEDGER"] = f.dumps["KV_FLEET_LEDGER"][:1] }},
		{"charged twice", "is charged to session.s twice", func(f *findings) {
			f.dumps["KV_FLEET_LEDGER"] = append(f.dumps["KV_FLEET_LEDGER"], f.dumps["KV_FLEET_LEDGER"][0])
		}},
		{"charged and not spent", "p2.2: 7 tokens of it are charged", func(f *findings) {
			f.dumps["KV_FLEET_LEDGER"] = append(f.dumps["KV_FLEET_LEDGER"], message{Subject: "$KV.FLEET_LEDGER.session.s.p2.2", Data: []byte("7"), Time: morning})
		}},
		{"another charge", "p2.1: 8 tokens of it", func(f *findings) { f.dumps["KV_FLEET_LEDGER"][1].Data = []byte("8") }},
		{"a charge of nonsense", `19 budgets: session.s.p9.1: the charge cannot be read: "x"`, func(f *findings) {
			f.dumps["KV_FLEET_LEDGER"] = append(f.dumps["KV_FLEET_LEDGER"], message{Subject: "$KV.FLEET_LEDGER.session.s.p9.1", Data: []byte("x")})
		}},
		{"refused for nothing", "none of those that it has is", func(f *findings) { f.records["p3"][1].Facts.SessionBudget = 15 }},
		{"refused without a word", "its end says no_capable_agent", func(f *findings) { f.records["p3"][1].Reason.Code = "no_capable_agent" }},
		{"told too much", "has spent 21, and 14 were charged", func(f *findings) { *f.ops[3].end.Tokens = 21 }},
		{"told too little", "has spent 7, and 14 were charged", func(f *findings) { *f.ops[3].end.Tokens = 7 }},
		{"canceled and begun", "a began it 9s after its client knew", func(f *findings) {
			noted(f, rig.WasBegun).At = morning.Add(40 * time.Second).UnixNano()
			noted(f, rig.WasEnded).At = morning.Add(41 * time.Second).UnixNano()
		}},
		{"nobody is told of a cancel", "went on with attempt 1 for 19s", func(f *findings) { noted(f, rig.WasEnded).At = morning.Add(50 * time.Second).UnixNano() }},
		{"nobody is ever told", "went on with attempt 1 for 29s", func(f *findings) { noted(f, rig.WasEnded).Task = "other" }},
		{"a read that goes back", "was told of record 2, and then of record 1", func(f *findings) {
			f.ops[2], f.ops[3] = f.ops[3], f.ops[2]
			f.ops[2].from, f.ops[3].from = f.ops[3].from, f.ops[2].from
			f.ops[2].to, f.ops[3].to = f.ops[3].to, f.ops[2].to
		}},
		{"a read of what is not there", "was told that record 2 says queued", func(f *findings) { f.ops[3].end.State = "queued" }},
		{"a read that finds nothing", "was told later that it does not exist", func(f *findings) { f.ops[2].end = line{What: wasFail, Code: "not_found"} }},
		{"goroutines", "it has 701 goroutines, and had 100", func(f *findings) { f.rest.Processes["router-1"] = held{Goroutines: 701, Before: 100} }},
		{"files", "it has 151 files open", func(f *findings) { f.rest.Processes["cast-0"] = held{Files: 151} }},
		{"memory", "601 MiB of memory", func(f *findings) { f.rest.Processes["cast-0"] = held{Memory: 601 << 20} }},
		{"an inbox that is kept", "FLEET_INBOX: it keeps 2 messages, the first for 16m", func(f *findings) {
			f.rest.Streams["FLEET_INBOX"] = stored{Messages: 2, First: f.rest.At.Add(-16 * time.Minute)}
		}},
		{"a stream that grows", "FLEET_RUNS: it keeps 32001 messages", func(f *findings) { f.rest.Streams["FLEET_RUNS"] = stored{Messages: 32_001} }},
		{"a disk that fills", "n1: 335 MiB of its disk are used, want 334", func(f *findings) { f.rest.Disks["n1"] = 335 << 20 }},
	}
}

// What a fault explains is not called a violation, nor what was under way.
func TestCheckerExcusesExcess(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(f *findings){
		"side by side": func(f *findings) { begins(f, 5) },
		"a router that did not know": func(f *findings) {
			begins(f, 32)
			planFault(f, pauseWorker, 3, 8)
		},
		"by a human's word": func(f *findings) {
			begins(f, 15)
			f.records["p3"][1].Facts.Human = &rig.Decision{}
		},
		"an agent that was killed before it was told": func(f *findings) {
			f.notes[0] = f.notes[0][:len(f.notes[0])-2] // it never ended
			f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasSent, Task: "late", At: morning.Add(time.Hour).UnixNano()})
			planFault(f, killAgents, 32, 34)
		},
		"a result that came too late, of who never had it": func(f *findings) {
			e := f.notes[0][1]
			e.Epoch, e.Code = 2, "late_result"
			f.notes[0] = append(f.notes[0], e)
		},
		"a read while a leader is replaced": func(f *findings) {
			f.ops[2].end = line{What: wasFail, Code: "not_found"}
			planFault(f, killLeader, 10, 12)
		},
		"a run that nobody looked at": func(f *findings) { f.rest = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := frugal()
			plant(f)
			if found := verdict(f, judgeBounds); found != "" {
				t.Errorf("called a violation:\n%s", found)
			}
		})
	}
}
