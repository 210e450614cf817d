//go:build linux

package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"parley/test/rig"
)

// toiling is what a short run leaves behind in whose pools one agent is killed and
// comes back, and one is limited for a while.
func toiling() *findings {
	sec := func(s float64) time.Time { return morning.Add(time.Duration(s * float64(time.Second))) }
	at := func(s float64) int64 { return sec(s).UnixNano() }
	f := &findings{
		records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}, notes: [][]rig.Entry{nil},
		agents: []rig.Actor{
			{ID: "quota-0", Instance: "main", MaxParallel: 1, Labels: map[string]string{"pool": poolLimited, "account": "acct-0"}},
			{ID: "lone", Instance: "main", MaxParallel: 2, Labels: map[string]string{"pool": poolWounded}},
			{ID: "idler", MaxParallel: 2},
		},
		casts:  map[string]string{"quota-0/main": "cast-quota", "lone/main": "cast-lone", "idler/": "cast-0"},
		wounds: []*op{{line: line{Op: woundKill, ID: "cast-lone"}, end: line{What: wasOK}, from: at(10), to: at(20)}},
	}
	lost := rig.PastAttempt{Attempt: 1, AgentID: "lone", InstanceID: "main", Epoch: 1, Code: "agent_lost"}
	limited := rig.PastAttempt{Attempt: 1, AgentID: "quota-0", InstanceID: "main", Epoch: 1, Code: "rate_limited"}
	failed := rig.PastAttempt{Attempt: 1, AgentID: "idler", InstanceID: "x", Epoch: 1, Code: "agent_error", Retryable: true}
	record := func(task, kind, state string, attempt int, s float64, who string, epoch int64, past ...rig.PastAttempt) *rig.Record {
		r := rig.Record{TaskID: task, Seq: len(f.records[task]) + 1, Kind: kind, State: state, Attempt: attempt, Stored: sec(s), Time: sec(s)}
		if who != "" {
			r.AgentID, r.InstanceID, r.Epoch = who, "main", epoch
		}
		r.Facts.Attempts, r.Facts.Priority = past, "normal"
		for _, a := range past {
			if a.Code == "agent_lost" {
				r.Facts.Counters.Losses, r.Facts.Counters.LossesTotal = 1, 1
			}
			if a.Level == 1 {
				r.Facts.Counters.Retries++
			}
		}
		f.records[task] = append(f.records[task], r)
		return &f.records[task][len(f.records[task])-1]
	}
	note := func(what, task string, attempt int, who string, epoch int64, s float64) {
		f.notes[0] = append(f.notes[0], rig.Entry{What: what, Task: task, Attempt: attempt, Agent: who, Instance: "main", Epoch: epoch, At: at(s)})
	}
	work := func(task string, attempt int, who string, epoch int64, from, to float64) {
		note(rig.WasOffered, task, attempt, who, epoch, from-0.1)
		note(rig.WasBegun, task, attempt, who, epoch, from)
		note(rig.WasEnded, task, attempt, who, epoch, to)
	}
	give := func(task string) {
		f.ops = append(f.ops, &op{line: line{Client: "toil0", Op: "dispatch", ID: task, Text: toil}, end: line{What: wasOK, ID: task}, from: at(0), to: at(1)})
	}
	pool := func(task, name string) {
		for i := range f.records[task] {
			f.records[task][i].Facts.Requirements.Labels = map[string]string{"pool": name}
		}
	}

	// One meets the limit, shows that it is over, and then the other one begins.
	record("q1", "queued", "queued", 0, 1, "", 0)
	record("q1", "working", "working", 1, 2, "quota-0", 1)
	record("q1", "returned", "queued", 1, 3, "", 0, limited)
	record("q1", "working", "working", 2, 26, "quota-0", 1, limited)
	record("q1", "outcome", "done", 2, 27, "quota-0", 1, limited)
	work("q1", 1, "quota-0", 1, 2, 2.9)
	f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasLimited, Task: "q1", Attempt: 1, Agent: "quota-0", Instance: "main", At: at(2.8), Time: at(25)})
	work("q1", 2, "quota-0", 1, 26, 26.9)
	record("q2", "queued", "queued", 0, 4, "", 0)
	record("q2", "working", "working", 1, 28, "quota-0", 1)
	record("q2", "outcome", "done", 1, 29, "quota-0", 1)
	work("q2", 1, "quota-0", 1, 28, 28.9)
	give("q1")
	give("q2")
	pool("q1", poolLimited)
	pool("q2", poolLimited)

	// One is lost, and done by the same agent once that is back; the other one may not be.
	note(rig.WasStarted, "", 0, "lone", 1, 0)
	note(rig.WasStarted, "", 0, "lone", 2, 20)
	record("p", "queued", "queued", 0, 1, "", 0)
	record("p", "working", "working", 1, 2, "lone", 1)
	record("p", "lost", "queued", 1, 12, "", 0, lost)
	record("p", "working", "working", 2, 21, "lone", 2, lost)
	record("p", "outcome", "done", 2, 26, "lone", 2, lost)
	work("p", 1, "lone", 1, 2, 2)
	work("p", 2, "lone", 2, 21, 25.9)
	give("p")
	for i := range f.records["p"] {
		f.records["p"][i].Facts.Policy.Agent = "lone"
	}
	record("s", "queued", "queued", 0, 1, "", 0)
	record("s", "working", "working", 1, 3, "lone", 1)
	record("s", "outcome", "error", 1, 12, "lone", 1, lost).Reason.Code = "agent_lost"
	for i := range f.records["s"] {
		f.records["s"][i].Facts.Policy.MaxLosses = 1
	}

	// One is tried again later, one waits for a human.
	again, asked := failed, failed
	again.Level, asked.Level = 1, 3
	for _, task := range []string{"r", "h"} {
		record(task, "queued", "queued", 0, 1, "", 0)
		record(task, "working", "working", 1, 2, "idler", 1)
	}
	record("r", "retry", "queued", 1, 3, "", 0, again).Facts.NotBefore = new(sec(40))
	record("h", "human", "input_required", 1, 3, "", 0, asked).Facts.Await = "human"
	look := func(task string, s float64, v int, state, body string) {
		f.ops = append(f.ops, &op{line: line{Client: "toil0", Op: "look", ID: task}, end: line{What: wasOK, ID: task, State: state, Version: uint64(v), Body: []byte(body)}, from: at(s), to: at(s + 0.1)})
	}
	look("q2", 10, 1, "queued", fmt.Sprintf(`{"why":"limited","until":%q,"who":"acct-0"}`, sec(25.5).Format(time.RFC3339Nano)))
	look("r", 10, 3, "queued", fmt.Sprintf(`{"why":"retry","until":%q}`, sec(40).Format(time.RFC3339Nano)))
	look("h", 10, 3, "input_required", `{"why":"human"}`)
	look("p", 16, 3, "queued", `{"why":"away","who":"lone"}`)
	look("s", 8, 2, "working", "")

	// Many of all priorities wait, and start by their weights.
	left := map[string]int{"critical": 33, "high": 17, "normal": 9, "low": 5}
	turns := map[string]float64{}
	for n, s := 0, 61.0; len(left) > 0; n, s = n+1, s+0.25 {
		best := ""
		for _, level := range priorities {
			if left[level] > 0 {
				turns[level] += shares[level]
				if best == "" || turns[level] > turns[best] {
					best = level
				}
			}
		}
		turns[best]--
		if left[best]--; left[best] == 0 {
			delete(left, best)
		}
		task := fmt.Sprintf("f%d", n)
		record(task, "queued", "queued", 0, 60, "", 0)
		record(task, "working", "working", 1, s, "quota-0", 1)
		record(task, "outcome", "done", 1, s+0.24, "quota-0", 1)
		work(task, 1, "quota-0", 1, s, s+0.2)
		give(task)
		pool(task, poolLimited)
		for i := range f.records[task] {
			f.records[task][i].Facts.Priority = best
		}
	}
	return f
}

// looked is what was told at the nth look at a task.
func looked(f *findings, task string) *op {
	return f.ops[slices.IndexFunc(f.ops, func(o *op) bool { return o.Op == "look" && o.ID == task })]
}

// shift has the records of a task from one on stored later.
func shift(f *findings, task string, from int, by time.Duration) {
	l := f.records[task]
	for i := range l[from:] {
		l[from+i].Stored = l[from+i].Stored.Add(by)
	}
	for i := range f.notes[0] {
		if e := &f.notes[0][i]; e.Task == task && e.Attempt == l[len(l)-1].Attempt {
			e.At += int64(by)
		}
	}
}

func plantedInPools() []planting {
	sec := func(s int) time.Time { return morning.Add(time.Duration(s) * time.Second) }
	return []planting{
		{"given up", "26 done: q2: it is error (agent_lost) after 1 attempts", func(f *findings) {
			f.records["q2"][2].State, f.records["q2"][2].Reason.Code = "error", "agent_lost"
		}},
		{"done late", "26 done: p: it took 16m", func(f *findings) { shift(f, "p", 4, 16*time.Minute) }},
		{"a human for a limit", "26 done: q1: a human was asked", func(f *findings) {
			l := &f.records["q1"][2]
			l.Kind, l.State = "human", "input_required"
		}},
		{"a loss that is a retry", "29 counters: p: seq 3 (lost) counts {Retries:1 Losses:1 LossesTotal:1}, want {Retries:0 Losses:1 LossesTotal:1}", func(f *findings) {
			f.records["p"][2].Facts.Counters.Retries = 1
		}},
		{"a row that nothing broke", "29 counters: p: seq 4 (working) counts {Retries:0 Losses:0 LossesTotal:1}", func(f *findings) {
			f.records["p"][3].Facts.Counters.Losses = 0
		}},
		{"too many attempts", "28 ends: q1: seq 5 is of attempt 101", func(f *findings) { f.records["q1"][4].Attempt = 101 }},
		{"lost too often", "28 ends: p: seq 3 is loss 1 in a row and 1 in all, 1 may be, and it goes on", func(f *findings) {
			f.records["p"][0].Facts.Policy.MaxLosses = 1
		}},
		{"lost too often in all", "28 ends: p: seq 3 is loss 1 in a row and 12 in all, 3 may be, and it goes on", func(f *findings) {
			l := f.records["p"]
			var past []rig.PastAttempt
			var more []rig.Record
			for n := range 11 { // each time it got somewhere before
				past = append(past, rig.PastAttempt{Attempt: n - 11, AgentID: "lone", InstanceID: "main", Epoch: 1, Code: "agent_lost"})
				r := rig.Record{Kind: "lost", State: "queued", Stored: l[0].Stored}
				r.Facts.Attempts = slices.Clone(past)
				r.Facts.Counters.Losses, r.Facts.Counters.LossesTotal = 1, n+1
				a := rig.Record{Kind: "artifact", State: "working", Stored: l[0].Stored}
				a.Facts.Attempts, a.Facts.Counters = r.Facts.Attempts, rig.Counters{LossesTotal: n + 1}
				more = append(more, r, a)
			}
			l[2].Facts.Attempts, l[2].Facts.Counters = append(past, l[2].Facts.Attempts...), rig.Counters{Losses: 1, LossesTotal: 12}
			f.records["p"] = slices.Concat(l[:2], more, l[2:])
		}},
		{"given up too early", "28 ends: s: seq 3 is loss 1 in a row and 1 in all, 3 may be, and it is given up", func(f *findings) {
			f.records["s"][0].Facts.Policy.MaxLosses = 0
		}},
		{"forgotten after a limit", "27 promptly: q2: it waits from seq 1 on for 46s, and quota-0/main had nothing to do for", func(f *findings) {
			shift(f, "q2", 1, 22*time.Second)
		}},
		{"forgotten after a loss", "27 promptly: p: it waits from seq 3 on for 48s, and lone/main had nothing to do for", func(f *findings) {
			shift(f, "p", 3, 39*time.Second)
		}},
		{"not given to another", "27 promptly: p: it waits from seq 3 on for 48s, and idler had nothing to do for", func(f *findings) {
			f.wounds[0].to = sec(58).UnixNano()
			shift(f, "p", 3, 39*time.Second)
			for i := range f.records["p"] {
				f.records["p"][i].Facts.Policy.Alternatives = []string{"idler"}
			}
		}},
		{"offered before the reset", "30 accounts: q9: it was offered to quota-0 15s before the limit of acct-0 was over", func(f *findings) {
			f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasOffered, Task: "q9", Agent: "quota-0", Instance: "main", At: sec(10).UnixNano()})
		}},
		{"a herd", "30 accounts: q2: attempt 1 began while q1 was to show whether acct-0 is open", func(f *findings) {
			f.records["q2"][1].Stored = sec(26).Add(time.Second / 2)
		}},
		{"nobody tries it", "it waits, and nobody tries acct-0 for 1m41s after its limit was over", func(f *findings) {
			for id, l := range f.records {
				switch {
				case id == "q1":
					shift(f, id, 3, 100*time.Second)
				case id == "q2":
					shift(f, id, 1, 100*time.Second)
				case id[0] == 'f':
					shift(f, id, 0, 100*time.Second)
				}
				_ = l
			}
		}},
		{"lost while it was there", "31 losses: p: seq 3 says that lone/main is lost, and nothing had happened to it", func(f *findings) {
			f.wounds = nil
			f.notes[0] = slices.DeleteFunc(f.notes[0], func(e rig.Entry) bool { return e.What == rig.WasStarted && e.Epoch == 1 })
		}},
		{"done twice", "31 losses: q2: quota-0/main works on attempt 7 without need", func(f *findings) {
			f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasBegun, Task: "q2", Attempt: 7, Agent: "quota-0", Instance: "main", At: sec(40).UnixNano()})
		}},
		{"done twice by the same", "31 losses: q2: quota-0/main works on attempt 1 without need", func(f *findings) {
			f.notes[0] = append(f.notes[0], rig.Entry{What: rig.WasBegun, Task: "q2", Attempt: 1, Agent: "quota-0", Instance: "main", Epoch: 1, At: sec(40).UnixNano()})
		}},
		{"why it waits is nonsense", "32 waits: q2: why it waits cannot be read", func(f *findings) { looked(f, "q2").end.Body = []byte("{") }},
		{"silence", `32 waits: q2: it is queued, and its client is told that it waits for ""`, func(f *findings) { looked(f, "q2").end.Body = nil }},
		{"it works", `32 waits: s: it is working, and its client is told that it waits for "busy"`, func(f *findings) {
			looked(f, "s").end.Body = []byte(`{"why":"busy"}`)
		}},
		{"a reason of yesterday", "32 waits: q2: it waits since seq 1 for limited, and its client is told busy", func(f *findings) {
			looked(f, "q2").end.Body = []byte(`{"why":"busy"}`)
		}},
		{"another time", "32 waits: r: it is tried again at 2026-05-31 09:00:40", func(f *findings) { looked(f, "r").end.Body = []byte(`{"why":"retry"}`) }},
		{"another account", `32 waits: q2: it waits until `, func(f *findings) { looked(f, "q2").end.Body = []byte(`{"why":"limited","who":"acct-9"}`) }},
		{"one that is there", "32 waits: p: its client is told that lone is away, which is there", func(f *findings) {
			f.wounds = nil
			f.notes[0] = slices.DeleteFunc(f.notes[0], func(e rig.Entry) bool { return e.What == rig.WasStarted })
		}},
		{"the low ones first", "33 fair: f", func(f *findings) {
			for id, l := range f.records {
				if id[0] == 'f' {
					other := map[string]string{"critical": "low", "low": "critical", "high": "normal", "normal": "high"}[l[0].Facts.Priority]
					for i := range l {
						l[i].Facts.Priority = other
					}
				}
			}
		}},
	}
}

// TestLimitTimes: a load of a while has limits, of which the last one ends as the load
// does, and a short one has a limit, too.
func TestLimitTimes(t *testing.T) {
	t.Parallel()
	for lasts, want := range map[time.Duration]int{20 * time.Second: 1, time.Minute: 1, 5 * time.Minute: 5} {
		list := limitTimes(morning, lasts)["acct-0"]
		if len(list) != want {
			t.Errorf("in %s: %+v", lasts, list)
		}
		if end := list[0].Until.Sub(morning); end != lasts-limitEnds {
			t.Errorf("in %s the last ends after %s", lasts, end)
		}
		for _, l := range list {
			if !l.From.Before(l.Until) || l.From.Before(morning.Add(limitAfter)) {
				t.Errorf("in %s: %+v", lasts, l)
			}
		}
	}
	if list := limitTimes(morning, 5*time.Minute)["acct-1"]; len(list) == 0 || !list[0].Untold {
		t.Errorf("nobody is limited without being told until when: %+v", list)
	}
}

// TestSpans: when one or another is, when both are, and when none is.
func TestSpans(t *testing.T) {
	t.Parallel()
	u := spans{{5, 7}, {1, 3}, {2, 4}}.union()
	if want := (spans{{1, 4}, {5, 7}}); !slices.Equal(u, want) {
		t.Errorf("union: %v, want %v", u, want)
	}
	if got, want := u.both(spans{{3, 6}}), (spans{{3, 4}, {5, 6}}); !slices.Equal(got, want) {
		t.Errorf("both: %v, want %v", got, want)
	}
	if got, want := u.not().both(spans{{0, 9}}), (spans{{0, 1}, {4, 5}, {7, 9}}); !slices.Equal(got, want) {
		t.Errorf("not: %v, want %v", got, want)
	}
	if got, want := u.later(2, 0), (spans{{3, 4}}); !slices.Equal(got, want) {
		t.Errorf("later: %v, want %v", got, want)
	}
}
