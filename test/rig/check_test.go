package rig

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// goodEvidence is of one task that agent a failed and agent b did.
func goodEvidence(t *testing.T) Evidence {
	t.Helper()
	data := `[
		{"task_id":"t","seq":1,"kind":"queued","state":"queued","write_id":"w1","facts":{"policy":{"max_retries":1}}},
		{"task_id":"t","seq":2,"kind":"working","state":"working","attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"write_id":"w2",
			"facts":{"policy":{"max_retries":1}}},
		{"task_id":"t","seq":3,"kind":"reroute","state":"queued","attempt":1,"write_id":"w3",
			"facts":{"policy":{"max_retries":1},"attempts":[{"attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"code":"agent_error","level":2}]}},
		{"task_id":"t","seq":4,"kind":"working","state":"working","attempt":2,"agent_id":"b","instance_id":"i","epoch":2,"write_id":"w4",
			"facts":{"policy":{"max_retries":1},"attempts":[{"attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"code":"agent_error","level":2}]}},
		{"task_id":"t","seq":5,"kind":"outcome","state":"done","attempt":2,"agent_id":"b","instance_id":"i","epoch":2,"write_id":"w5",
			"data":{"result":{"task_id":"t","status":"done","state":"done","attempt":2,"agent_id":"b","instance_id":"i","output":{"nonce":"n2"}}},
			"facts":{"policy":{"max_retries":1},"attempts":[{"attempt":1,"agent_id":"a","instance_id":"i","epoch":1,"code":"agent_error","level":2}]}}
	]`
	var list []Record
	if err := json.Unmarshal([]byte(data), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i].StreamSeq = uint64(10 + 2*i)
	}
	a, b := Entry{Agent: "a", Instance: "i", Epoch: 1, Task: "t", Attempt: 1}, Entry{Agent: "b", Instance: "i", Epoch: 2, Task: "t", Attempt: 2}
	note := func(e Entry, what, nonce, status, code, state string) Entry {
		e.What, e.Nonce, e.Status, e.Code, e.State = what, nonce, status, code, state
		return e
	}
	return Evidence{
		Acked: []string{"t"}, Records: History{"t": list}, Slots: map[string]int{"a": 1, "b": 1},
		Journals: [][]Entry{
			{
				note(a, WasOffered, "", "", "", ""), note(a, WasBegun, "n1", "", "", ""), note(a, WasEnded, "n1", "", "", ""),
				note(a, WasSent, "n1", "error", "", ""), note(a, WasAnswered, "n1", "error", "ok", "queued"),
			},
			{
				note(b, WasOffered, "", "", "", ""), note(b, WasBegun, "n2", "", "", ""), note(b, WasEnded, "n2", "", "", ""),
				note(b, WasSent, "n2", "done", "", ""), note(b, WasAnswered, "n2", "done", "ok", "done"),
			},
		},
	}
}

// TestCheckerFindsFaults plants one fault after the other: a checker that never
// fails proves nothing.
func TestCheckerFindsFaults(t *testing.T) {
	t.Parallel()
	if f := goodEvidence(t).Faults(); len(f) > 0 {
		t.Fatalf("faults where there are none: %v", f)
	}
	for _, tt := range []struct {
		name, want string
		plant      func(e *Evidence, list []Record) []Record
	}{
		{"lost", "there is no record of it", func(e *Evidence, _ []Record) []Record {
			e.Acked = append(e.Acked, "u")
			return e.Records["t"]
		}},
		{"not ended", "has no outcome", func(_ *Evidence, l []Record) []Record { return l[:4] }},
		{"two outcomes", "follows the outcome", func(_ *Evidence, l []Record) []Record {
			again := l[4]
			again.Seq, again.WriteID, again.StreamSeq = 6, "w6", 99
			return append(l, again)
		}},
		{"gap", "has seq 5", func(_ *Evidence, l []Record) []Record { return slices.Delete(l, 3, 4) }},
		{"repeat", "has seq 2", func(_ *Evidence, l []Record) []Record { return slices.Insert(l, 2, l[1]) }},
		{"written twice", "not unique", func(_ *Evidence, l []Record) []Record { l[3].WriteID = "w2"; return l }},
		{"out of order", "is stored before", func(_ *Evidence, l []Record) []Record { l[3].StreamSeq = 13; return l }},
		{"another task's", "is of task u", func(_ *Evidence, l []Record) []Record { l[2].TaskID = "u"; return l }},
		{"no beginning", "begins with reroute", func(_ *Evidence, l []Record) []Record { l[0].Kind = "reroute"; return l }},
		{"two leases", "two leases", func(_ *Evidence, l []Record) []Record {
			l[2].Kind, l[2].State, l[2].AgentID, l[2].Attempt = "artifact", "working", "a", 1
			l[2].InstanceID, l[2].Epoch = "i", 1
			return l
		}},
		{"attempt repeats", "attempt 1 follows attempt 1", func(_ *Evidence, l []Record) []Record { l[3].Attempt = 1; return l }},
		{"attempt falls", "after attempt 1", func(_ *Evidence, l []Record) []Record { l[2].Attempt = 0; return l }},
		{"holder changes", "names the holder", func(_ *Evidence, l []Record) []Record {
			l[2].Kind, l[2].State, l[2].AgentID = "question", "working", "b"
			return l
		}},
		{"queued and held", "names a holder", func(_ *Evidence, l []Record) []Record { l[2].AgentID = "a"; return l }},
		{"not offered", "was not offered it", func(e *Evidence, l []Record) []Record {
			e.Journals[1] = e.Journals[1][1:]
			return l
		}},
		{"back to who failed", "after it failed it for good", func(_ *Evidence, l []Record) []Record {
			l[3].AgentID = "a"
			return l
		}},
		{"forgets an attempt", "knows nothing of ended attempt 1", func(_ *Evidence, l []Record) []Record {
			l[3].Facts.Attempts = nil
			return l
		}},
		{"changes an attempt", "differently", func(_ *Evidence, l []Record) []Record {
			l[3].Facts.Attempts[0].Code = "agent_lost"
			return l
		}},
		{"too many retries", "is retry 1 of 0", func(_ *Evidence, l []Record) []Record {
			l[2].Kind, l[2].Facts.Policy.MaxRetries = "retry", 0
			return l
		}},
		{"unrecorded execution counts", "the records know", func(_ *Evidence, l []Record) []Record {
			l[4].Attempt = 3
			return l
		}},
		{"result of another", "the result is of attempt 1", func(_ *Evidence, l []Record) []Record {
			l[4].Data.Result.Attempt = 1
			return l
		}},
		{"execution of another", "counts the execution", func(_ *Evidence, l []Record) []Record {
			l[4].Data.Result.Output = json.RawMessage(`{"nonce":"n1"}`)
			return l
		}},
		{"outcome without result", "has no result of its own", func(_ *Evidence, l []Record) []Record {
			l[4].Data.Result = nil
			return l
		}},
		{"told that it counts", "was told that its execution n1 counts", func(e *Evidence, l []Record) []Record {
			last := &e.Journals[0][4]
			last.Status, last.State = "done", "done"
			return l
		}},
		{"told nonsense", "was answered internal", func(e *Evidence, l []Record) []Record {
			e.Journals[0][4].Code = "internal"
			return l
		}},
		{"more than its slots", "it has 1 slots", func(e *Evidence, l []Record) []Record {
			more := e.Journals[1][1]
			more.Nonce = "n3"
			e.Journals[1] = slices.Insert(e.Journals[1], 2, more)
			return l
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := goodEvidence(t)
			e.Records["t"] = tt.plant(&e, e.Records["t"])
			faults := e.Faults()
			if !slices.ContainsFunc(faults, func(f Fault) bool { return strings.Contains(f.What, tt.want) }) {
				t.Errorf("no fault %q among %v", tt.want, faults)
			}
		})
	}
}

// TestRowsThatAreCut: of a long row of attempts that went back to the queue the first
// may be left out, of a shorter one none.
func TestRowsThatAreCut(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{rowKept: 0, rowKept - 1: 1} {
		var row []PastAttempt
		for i := range n {
			row = append(row, PastAttempt{Attempt: i + 1, AgentID: "a", Code: "rate_limited"})
		}
		r := Record{Seq: 9}
		r.Facts.Attempts = append(slices.Clone(row[1:]), PastAttempt{Attempt: n + 1, AgentID: "a", Code: "agent_lost"})
		c := checker{}
		c.past("t", &r, row)
		if len(c.found) != want {
			t.Errorf("of %d the first is left out: %v", n, c.found)
		}
	}
}

// TestWhoMayHaveItAgain: an agent that failed it for good, where a human decided, and
// another instance of one that could not begin.
func TestWhoMayHaveItAgain(t *testing.T) {
	t.Parallel()
	r := Record{Seq: 9, AgentID: "a", InstanceID: "2", Attempt: 2}
	for code, want := range map[string]int{"setup_failed": 0, "agent_error": 1} {
		c := checker{}
		c.begins("t", &r, []PastAttempt{{Attempt: 1, AgentID: "a", InstanceID: "1", Code: code, Level: 2}})
		if len(c.found) != want {
			t.Errorf("after %s: %v", code, c.found)
		}
	}
	e := goodEvidence(t)
	l := e.Records["t"]
	l[3].AgentID, l[3].Facts.Human = "a", &Decision{}
	for _, f := range e.Faults() {
		if strings.Contains(f.What, "failed it for good") {
			t.Errorf("where a human decided: %v", f)
		}
	}
}
