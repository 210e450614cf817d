package e2e_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// goodEvidence is of one task that agent a failed and agent b did.
func goodEvidence(t *testing.T) evidence {
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
	var list []record
	if err := json.Unmarshal([]byte(data), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i].StreamSeq = uint64(10 + 2*i)
	}
	a, b := entry{Agent: "a", Instance: "i", Epoch: 1, Task: "t", Attempt: 1}, entry{Agent: "b", Instance: "i", Epoch: 2, Task: "t", Attempt: 2}
	note := func(e entry, what, nonce, status, code, state string) entry {
		e.What, e.Nonce, e.Status, e.Code, e.State = what, nonce, status, code, state
		return e
	}
	return evidence{
		acked: []string{"t"}, records: history{"t": list}, slots: map[string]int{"a": 1, "b": 1},
		journals: [][]entry{
			{
				note(a, wasOffered, "", "", "", ""), note(a, wasBegun, "n1", "", "", ""), note(a, wasEnded, "n1", "", "", ""),
				note(a, wasSent, "n1", "error", "", ""), note(a, wasAnswered, "n1", "error", "ok", "queued"),
			},
			{
				note(b, wasOffered, "", "", "", ""), note(b, wasBegun, "n2", "", "", ""), note(b, wasEnded, "n2", "", "", ""),
				note(b, wasSent, "n2", "done", "", ""), note(b, wasAnswered, "n2", "done", "ok", "done"),
			},
		},
	}
}

// TestCheckerFindsFaults plants one fault after the other: a checker that never
// fails proves nothing.
func TestCheckerFindsFaults(t *testing.T) {
	t.Parallel()
	if f := goodEvidence(t).faults(); len(f) > 0 {
		t.Fatalf("faults where there are none: %v", f)
	}
	for _, tt := range []struct {
		name, want string
		plant      func(e *evidence, list []record) []record
	}{
		{"lost", "there is no record of it", func(e *evidence, _ []record) []record {
			e.acked = append(e.acked, "u")
			return e.records["t"]
		}},
		{"not ended", "has no outcome", func(_ *evidence, l []record) []record { return l[:4] }},
		{"two outcomes", "follows the outcome", func(_ *evidence, l []record) []record {
			again := l[4]
			again.Seq, again.WriteID, again.StreamSeq = 6, "w6", 99
			return append(l, again)
		}},
		{"gap", "has seq 5", func(_ *evidence, l []record) []record { return slices.Delete(l, 3, 4) }},
		{"repeat", "has seq 2", func(_ *evidence, l []record) []record { return slices.Insert(l, 2, l[1]) }},
		{"written twice", "not unique", func(_ *evidence, l []record) []record { l[3].WriteID = "w2"; return l }},
		{"out of order", "is stored before", func(_ *evidence, l []record) []record { l[3].StreamSeq = 13; return l }},
		{"another task's", "is of task u", func(_ *evidence, l []record) []record { l[2].TaskID = "u"; return l }},
		{"no beginning", "begins with reroute", func(_ *evidence, l []record) []record { l[0].Kind = "reroute"; return l }},
		{"two leases", "two leases", func(_ *evidence, l []record) []record {
			l[2].Kind, l[2].State, l[2].AgentID, l[2].Attempt = "artifact", "working", "a", 1
			l[2].InstanceID, l[2].Epoch = "i", 1
			return l
		}},
		{"attempt repeats", "attempt 1 follows attempt 1", func(_ *evidence, l []record) []record { l[3].Attempt = 1; return l }},
		{"attempt falls", "after attempt 1", func(_ *evidence, l []record) []record { l[2].Attempt = 0; return l }},
		{"holder changes", "names the holder", func(_ *evidence, l []record) []record {
			l[2].Kind, l[2].State, l[2].AgentID = "question", "working", "b"
			return l
		}},
		{"queued and held", "names a holder", func(_ *evidence, l []record) []record { l[2].AgentID = "a"; return l }},
		{"not offered", "was not offered it", func(e *evidence, l []record) []record {
			e.journals[1] = e.journals[1][1:]
			return l
		}},
		{"back to who failed", "after it failed it for good", func(_ *evidence, l []record) []record {
			l[3].AgentID = "a"
			return l
		}},
		{"forgets an attempt", "knows of 0 ended attempts", func(_ *evidence, l []record) []record {
			l[3].Facts.Attempts = nil
			return l
		}},
		{"changes an attempt", "differently", func(_ *evidence, l []record) []record {
			l[3].Facts.Attempts[0].Code = "agent_lost"
			return l
		}},
		{"too many retries", "is retry 1 of 0", func(_ *evidence, l []record) []record {
			l[2].Kind, l[2].Facts.Policy.MaxRetries = "retry", 0
			return l
		}},
		{"unrecorded execution counts", "the records know", func(_ *evidence, l []record) []record {
			l[4].Attempt = 3
			return l
		}},
		{"result of another", "the result is of attempt 1", func(_ *evidence, l []record) []record {
			l[4].Data.Result.Attempt = 1
			return l
		}},
		{"execution of another", "counts the execution", func(_ *evidence, l []record) []record {
			l[4].Data.Result.Output = json.RawMessage(`{"nonce":"n1"}`)
			return l
		}},
		{"outcome without result", "has no result of its own", func(_ *evidence, l []record) []record {
			l[4].Data.Result = nil
			return l
		}},
		{"told that it counts", "was told that its execution n1 counts", func(e *evidence, l []record) []record {
			last := &e.journals[0][4]
			last.Status, last.State = "done", "done"
			return l
		}},
		{"told nonsense", "was answered internal", func(e *evidence, l []record) []record {
			e.journals[0][4].Code = "internal"
			return l
		}},
		{"more than its slots", "it has 1 slots", func(e *evidence, l []record) []record {
			more := e.journals[1][1]
			more.Nonce = "n3"
			e.journals[1] = slices.Insert(e.journals[1], 2, more)
			return l
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := goodEvidence(t)
			e.records["t"] = tt.plant(&e, e.records["t"])
			faults := e.faults()
			if !slices.ContainsFunc(faults, func(f fault) bool { return strings.Contains(f.what, tt.want) }) {
				t.Errorf("no fault %q among %v", tt.want, faults)
			}
		})
	}
}
