//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/test/rig"
)

var morning = time.Date(2026, 5, 31, 9, 0, 0, 0, time.UTC)

// good is what a short run without faults leaves behind.
func good() *findings {
	body := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return data
	}
	f := &findings{records: rig.History{}, dumps: map[string][]message{}, counts: map[string]int{}}
	record := func(task string, seq int, kind, state string, attempt int) rig.Record {
		r := rig.Record{
			StreamSeq: uint64(seq), Stored: morning.Add(time.Duration(seq) * time.Second), Time: morning.Add(time.Duration(seq) * time.Second),
			Subject: task, TaskID: task, Seq: seq, Kind: kind, State: state, Attempt: attempt, WriteID: task + kind,
		}
		r.Facts.From, r.Facts.TokenBudget = "boss", 8
		return r
	}
	f.records["t"] = []rig.Record{record("t", 1, "queued", "queued", 0), record("t", 2, "working", "working", 1), record("t", 3, "retry", "queued", 1), record("t", 4, "working", "working", 2)}
	for i := range f.records["t"][2:] {
		f.records["t"][2+i].Facts.TokensSpent = rig.Tokens
		f.records["t"][2+i].Facts.Attempts = []rig.PastAttempt{{Attempt: 1, Level: 1}, {Attempt: 2, Level: 2}}[:1+i]
	}
	f.records["t"][2].Facts.NotBefore = new(morning.Add(4 * time.Second))
	f.records["t"][1].Facts.AttemptEnds = new(morning.Add(10 * time.Second))
	// An attempt by each of two, one of them again, and then the end of it.
	f.agents = []rig.Actor{{ID: "a"}, {ID: "b"}, {ID: "c", Labels: map[string]string{"kind": "odd"}}}
	f.records["l"] = []rig.Record{record("l", 1, "queued", "queued", 0), record("l", 2, "outcome", "error", 3)}
	for i := range f.records["l"] {
		facts := &f.records["l"][i].Facts
		facts.Policy.MaxRetries, facts.Deadline = 1, morning.Add(time.Hour)
	}
	f.records["l"][1].Facts.Attempts = []rig.PastAttempt{
		{Attempt: 1, AgentID: "a", Code: "agent_error", Retryable: true, Level: 1},
		{Attempt: 2, AgentID: "a", Code: "agent_error", Retryable: true, Level: 2},
		{Attempt: 3, AgentID: "b", Code: "agent_error", Retryable: true, Level: 2},
		{Attempt: 4, AgentID: "c", Code: "agent_lost", Level: 3},
	}
	f.records["late"] = []rig.Record{record("late", 1, "queued", "queued", 0), record("late", 2, "outcome", "expired", 0)}
	for i := range f.records["late"] {
		f.records["late"][i].Facts.Deadline = morning.Add(time.Minute)
	}
	f.records["late"][1].Stored = morning.Add(62 * time.Second)
	f.ops = []*op{
		{line: line{Client: "pen", Op: "letter", ID: "m", To: "a"}, end: line{What: wasOK, ID: "m"}, from: at(1), to: at(2)},
		{line: line{Client: "planner", Op: "run", ID: "r"}, end: line{What: wasOK, ID: "r"}, from: at(1), to: at(2)},
		{line: line{Client: "planner", Op: "document", ID: "r"}, end: line{What: wasOK, ID: "r", Body: []byte("x")}, from: at(4), to: at(5)},
		{line: line{Client: "planner", Op: "document", ID: "r"}, end: line{What: wasOK, ID: "r", Body: []byte("x")}, from: at(5), to: at(6)},
		{line: line{Client: "clock0", Op: "schedule", ID: "s", Body: body(clockwork{Every: 10})}, end: line{What: wasOK, ID: "s"}, from: at(0), to: at(1)},
		{line: line{Client: "boss", Op: "dispatch", ID: "t"}, end: line{What: wasOK, ID: "t"}, from: at(1), to: at(2)},
		{line: line{Client: "vault", Op: "vault", Key: "v"}, end: line{What: wasOK, ID: "a2a-1"}, from: at(1), to: at(2)},
		{line: line{Client: "vault", Op: "dispatch", ID: "u", Session: "a2a-1"}, end: line{What: wasOK, ID: "u"}, from: at(1), to: at(2)},
		{line: line{Client: "team0", Op: "create"}, end: line{What: wasOK, ID: "a2a-2"}, from: at(1), to: at(2)},
		{line: line{Client: "curious", Op: "pry", ID: "t", Text: "task get"}, end: line{What: wasFail, ID: "t", Code: "not_found"}, from: at(3), to: at(4)},
		{line: line{Client: "curious", Op: "pry", ID: "t", Text: "task list"}, end: line{What: wasOK, ID: "t", Body: []byte(`{"tasks":[]}`)}, from: at(3), to: at(4)},
	}
	// One that is told nothing, and a schedule that was stored after all.
	f.ops = slices.Insert(f.ops, 4,
		&op{line: line{Client: "curious", Op: "pry", ID: "t", Text: "task get"}, end: line{What: wasFail, ID: "t", Code: "unavailable"}, from: at(4), to: at(5)},
		&op{line: line{Client: "clock0", Op: "schedule", ID: "o", Body: body(clockwork{At: new(morning)})}, end: line{What: "info", ID: "o"}, from: at(0), to: at(1)},
	)
	once := clockRecord{From: "clock0", Generation: 1, Created: morning, State: "ended", Reckoned: morning, Begun: 1}
	f.records[once.id("o", morning)] = []rig.Record{record(once.id("o", morning), 1, "queued", "queued", 0)}
	f.records[once.id("o", morning)][0].Facts.From = "clock0"
	f.dumps["FLEET_MESH_STATE"] = []message{{Subject: "fleet.meshstate.pen.m", Data: []byte(`{"state":"processed"}`)}}
	f.dumps["FLEET_RUNS"] = []message{{Subject: "fleet.run.r", Data: []byte(`{"state":"done"}`)}}
	clock := clockRecord{From: "clock0", Generation: 1, Created: morning, State: "paused", Reckoned: morning.Add(20 * time.Second), Begun: 2}
	f.dumps["KV_FLEET_SCHEDULES"] = []message{
		{Subject: "$KV.FLEET_SCHEDULES.clock0.s", Data: body(clock)}, {Subject: "$KV.FLEET_SCHEDULES.clock0.o", Data: body(once)},
	}
	for i := range 2 {
		id := clock.id("s", morning.Add(time.Duration(10*(i+1))*time.Second))
		r := record(id, 1, "queued", "queued", 0)
		r.Facts.From, r.Stored = "clock0", morning.Add(time.Duration(10*(i+1))*time.Second)
		f.records[id] = []rig.Record{r}
	}
	f.notes = [][]rig.Entry{{
		{What: rig.WasLetter, Task: "m", From: "pen", Attempt: 1, Agent: "a", Instance: "1"},
		{What: rig.WasOffered, Task: "u", Attempt: 1, Agent: "a", Instance: "1", Words: []string{"canary-u", "canary-v"}},
	}}
	f.sums = map[string]map[string]string{"FLEET_TASKS": {"n1": "x", "n2": "x", "n3": "x"}}
	f.dumps["FLEET_CONTEXT"] = []message{{Subject: "fleet.context.a2a-2", Data: []byte(`{"version":1}`)}}
	const ended = `{"session_id":"","event_type":"run","data":{"run_id":"r","kind":"end","message":"<"}}`
	f.dumps["FLEET_RUNS"] = append(f.dumps["FLEET_RUNS"], message{Subject: "fleet.told.FLEET_RUNS.w", Data: []byte(ended + "\n")})
	lines := []string{
		`{"event_type":"run","data":{"kind":"end","message":"\u003c","run_id":"r"},"session_id":""}`,
		`{"event_type":"run","data":{"run_id":"r","kind":"start"}}`,
		`{"event_type":"schedule","data":{"from":"clock0","schedule":"s","kind":"create"}}`,
		`{"event_type":"session_create","session_id":"a2a-2","data":{}}`,
		`{"event_type":"context_append","session_id":"a2a-2","data":{"version":1}}`,
	}
	for id, list := range f.records {
		for _, r := range list {
			lines = append(lines, fmt.Sprintf(`{"event_type":"task","data":{"task_id":%q,"seq":%d}}`, id, r.Seq))
		}
	}
	f.dumps["FLEET_AUDIT"] = []message{{Seq: 1, Subject: "fleet.audit", Data: sealed(lines)}}
	return f
}

// sealed is the first block of an audit.
func sealed(lines []string) []byte {
	block := map[string]any{"first": 1, "day": "2026-05-31", "prev": "", "positions": map[string]int{}, "lines": lines}
	block["hash"] = chainSum(append([]string{"parley/audit/v1", "", "2026-05-31", "1", "{}"}, lines...))
	data, err := json.Marshal(block)
	if err != nil {
		panic(err)
	}
	return data
}

// audit changes the lines of the audit, and seals them anew.
func audit(f *findings, change func(lines []string) []string) {
	var block struct {
		Lines []string `json:"lines"`
	}
	m := &f.dumps["FLEET_AUDIT"][0]
	if err := json.Unmarshal(m.Data, &block); err != nil {
		panic(err)
	}
	m.Data = sealed(change(block.Lines))
}

// judgeFleet is what of the checks the evidence here is good for.
func judgeFleet(f *findings) {
	f.checkDeadlines()
	f.checkTerms()
	f.checkSilent()
	f.checkSecrets()
	f.checkAudit()
	f.checkMesh()
	f.checkRuns()
	f.checkClocks()
	f.checkReplicas()
	f.judge("L tasks", taskModel, taskHistories(f.ops, f.records))
}

// plantedInFleet are what no bug in the program makes easily.
func plantedInFleet() []planting {
	return []planting{
		{"a message to two", "was dealt with by", func(f *findings) {
			f.notes = append(f.notes, []rig.Entry{{What: rig.WasLetter, Task: "m", From: "pen", Attempt: 1, Agent: "a", Instance: "2"}})
		}},
		{"a message that nobody had", "nobody had it", func(f *findings) { f.notes = nil }},
		{"two documents", "it has two documents", func(f *findings) { f.ops[3].end.Body = []byte("y") }},
		{"a run that goes on", `is "running"`, func(f *findings) { f.dumps["FLEET_RUNS"][0].Data = []byte(`{"state":"running"}`) }},
		{"replicas differ", "R replicas", func(f *findings) { f.sums["FLEET_TASKS"]["n2"] = "y" }},
		{"a level back", "5 levels", func(f *findings) {
			f.records["t"][3].Facts.Attempts = []rig.PastAttempt{{Attempt: 1, Level: 2}, {Attempt: 2, Level: 1}}
		}},
		{"a budget overdrawn", "of 7 tokens spent", func(f *findings) {
			for i := range f.records["t"] {
				f.records["t"][i].Facts.TokenBudget = rig.Tokens
			}
		}},
		{"counted twice", "tokens are counted", func(f *findings) { f.records["t"][3].Facts.TokensSpent = 3 * rig.Tokens }},
		{"a level left out", "and its agent might have tried again", func(f *findings) { f.records["l"][1].Facts.Attempts[0].Level = 2 }},
		{"a human too early", "was answered on level 3, and [c] had not tried", func(f *findings) {
			l := &f.records["l"][1].Facts
			l.Attempts = l.Attempts[:3]
			l.Attempts[2].Level = 3
		}},
		{"nobody is asked", "says that nobody can do it, and [c] had not tried", func(f *findings) {
			r := &f.records["l"][1]
			r.Facts.Attempts, r.Reason.Code = nil, "no_capable_agent"
			r.Facts.Requirements.Labels = map[string]string{"kind": "odd"}
		}},
		{"no patience", "before the time that its retry was put off to", func(f *findings) {
			f.records["t"][3].Time = morning.Add(3900 * time.Millisecond)
		}},
		{"a retry at once", "is put off by 0s", func(f *findings) { *f.records["t"][2].Facts.NotBefore = morning.Add(3 * time.Second) }},
		{"a retry put off", "is put off by 1.3s", func(f *findings) {
			*f.records["t"][2].Facts.NotBefore = morning.Add(4300 * time.Millisecond)
			f.records["t"][3].Time = morning.Add(5 * time.Second)
		}},
		{"handed back for long", "puts it off by 1m13s", func(f *findings) {
			f.records["t"][2].Kind = "returned"
			*f.records["t"][2].Facts.NotBefore = morning.Add(76 * time.Second)
			f.records["t"][3].Time = morning.Add(80 * time.Second)
		}},
		{"a loss at once", "loss 2 in a row puts it off by 1s, want 10s", func(f *findings) {
			f.records["t"][2].Kind, f.records["t"][2].Facts.Counters.Losses = "lost", 2
		}},
		{"a deadline forgotten", "came 25s later, with nothing wrong for 25s", func(f *findings) { f.records["late"][1].Stored = morning.Add(85 * time.Second) }},
		{"a deadline forgotten after a fault", "came 55s later, with nothing wrong for 15s", func(f *findings) {
			f.records["late"][1].Stored = morning.Add(115 * time.Second)
			fault := func(kind string, from, to int) {
				f.faults = append(f.faults, &op{line: line{Op: kind}, from: at(from), to: at(to)})
			}
			fault(killAgents, 0, 100)
			fault(powerAll, 50, 70) // and their 20 s
			fault(killWorker, 60, 80)
		}},
		{"an attempt without end", "came 11s later, with nothing wrong for 11s", func(f *findings) {
			for i := range f.records["t"][2:] {
				f.records["t"][2+i].Stored = morning.Add(21 * time.Second)
			}
		}},
		{"done too late", "it is done, 1s after the deadline", func(f *findings) {
			f.records["late"][1].State, f.records["late"][1].Time = "done", morning.Add(61*time.Second)
		}},
		{"an offer to one who is silent", "24 silence", func(f *findings) {
			at := morning.UnixNano()
			f.faults = append(f.faults, &op{line: line{Op: muteAgents, ID: "cast-1"}, from: at, to: at + int64(9*time.Second)})
			f.notes = append(f.notes, []rig.Entry{{At: at + int64(5*time.Second), What: rig.WasOffered, Task: "t", Agent: "agent-1-0"}})
		}},
		{"a word of another session", "16 secrets", func(f *findings) { f.notes[0][1].Words = append(f.notes[0][1].Words, "canary-w") }},
		{"a list of what is another's", "16 secrets", func(f *findings) { f.ops[len(f.ops)-1].end.Body = []byte(`{"tasks":[{"task_id":"t"}]}`) }},
		{"a refusal that tells", "16 secrets", func(f *findings) { f.ops[len(f.ops)-2].end.Code = "forbidden" }},
		{"a run that ends before its time is over", `is "expired"`, func(f *findings) {
			f.dumps["FLEET_RUNS"][0].Data, f.dumps["FLEET_RUNS"][0].Time = []byte(`{"state":"expired"}`), morning.Add(time.Minute)
		}},
		{"a version that nobody is told of", "no line tells of version 2", func(f *findings) {
			f.dumps["FLEET_CONTEXT"] = append(f.dumps["FLEET_CONTEXT"], message{Subject: "fleet.context.a2a-2", Data: []byte(`{"version":2}`)})
		}},
		{"a change that nobody is told of", "it is not in the audit", func(f *findings) {
			f.dumps["KV_FLEET_SCHEDULES"] = append(f.dumps["KV_FLEET_SCHEDULES"], message{
				Subject: "fleet.told.KV_FLEET_SCHEDULES.w", Data: []byte(`{"event_type":"schedule","data":{"from":"clock0","schedule":"s","kind":"pause"}}`),
			})
		}},
		{"a session that nobody is told of", "session_create a2a-3", func(f *findings) { f.ops[len(f.ops)-3].end.ID = "a2a-3" }},
		{"a time missed", "was missed, and nothing explains", func(f *findings) { delete(f.records, tickOf(f)) }},
		{"begun too early", "was begun", func(f *findings) { f.records[tickOf(f)][0].Stored = morning }},
		{"a time of nobody", "no time of a schedule is this task", func(f *findings) {
			r := f.records[tickOf(f)][0]
			f.records["sch-x"] = []rig.Record{r}
		}},
		{"told before it was", "L tasks", func(f *findings) {
			f.ops = append(f.ops, &op{line: line{Client: "boss", Op: "wait", ID: "t"}, end: line{What: wasOK, ID: "t", State: "done"}, from: 1, to: 2})
		}},
		{"a message that goes on", `14 mesh: pen.m: it was acknowledged, and is "accepted"`, func(f *findings) {
			f.dumps["FLEET_MESH_STATE"][0].Data = []byte(`{"state":"accepted"}`)
		}},
		{"a message to nobody", `14 mesh: pen.m: there is nobody to have it, and it is "processed"`, func(f *findings) { f.ops[0].To = "nobody" }},
		{"a run of nonsense", "15 runs: r: its record cannot be read", func(f *findings) { f.dumps["FLEET_RUNS"][0].Data = []byte("{") }},
		{"a run that begins again", "15 runs: r: it was done, and then running", func(f *findings) {
			f.dumps["FLEET_RUNS"] = append(f.dumps["FLEET_RUNS"], message{Subject: "fleet.run.r", Data: []byte(`{"state":"running"}`)})
		}},
		{"a node before the one that it depends on", "15 runs: r: b was begun before a had ended", func(f *findings) {
			f.dumps["FLEET_RUNS"][0].Data = []byte(`{"state":"done","definition":{"agents":[{"id":"a"},{"id":"b","dependencies":["a"]}]},"nodes":{"a":{"task_id":"t"},"b":{"task_id":"l"}}}`)
		}},
		{"begun after the deadline", "7 deadline: t: attempt 1 was begun 1s after the deadline", func(f *findings) {
			f.records["t"][0].Facts.Deadline = morning.Add(time.Second)
		}},
		{"expired too early", "7 deadline: late: it expired 10s before its deadline", func(f *findings) { f.records["late"][1].Stored = morning.Add(50 * time.Second) }},
		{"tokens that come back", "7 budget: t: seq 4 says that 6 tokens are spent, earlier it was 7", func(f *findings) {
			f.records["t"][3].Facts.TokensSpent = rig.Tokens - 1
		}},
		{"an answer to who has no right", "16 secrets: t: curious, whose it is not, was answered task get", func(f *findings) { f.ops[len(f.ops)-2].end.What = wasOK }},
		{"a schedule that is lost", "S schedules: clock0.s: it was acknowledged, and has no record", func(f *findings) {
			f.dumps["KV_FLEET_SCHEDULES"] = f.dumps["KV_FLEET_SCHEDULES"][1:]
		}},
		{"a time that waited is lost", "S schedules: clock0.s: 1 times after 2026-05-31T09:00:10Z were missed", func(f *findings) {
			f.ops[slices.IndexFunc(f.ops, func(o *op) bool { return o.ID == "s" })].Body = []byte(`{"every_seconds":10,"overlap":"queue"}`)
			maps.DeleteFunc(f.records, func(id string, l []rig.Record) bool {
				return strings.HasPrefix(id, "sch-") && l[0].Stored.Equal(morning.Add(20*time.Second))
			})
		}},
		{"times that nobody reckoned", "S schedules: clock0.s: of 2 times 2 were begun; its record says 3", func(f *findings) {
			m := &f.dumps["KV_FLEET_SCHEDULES"][0]
			m.Data = []byte(strings.Replace(string(m.Data), `"begun":2`, `"begun":3`, 1))
		}},
		{"a message of no schedule", "S schedules: clock0.x: no time of a schedule is this message", func(f *findings) {
			f.dumps["FLEET_MESH_STATE"] = append(f.dumps["FLEET_MESH_STATE"], message{Subject: "fleet.meshstate.clock0.x", Data: []byte(`{"state":"processed"}`)})
		}},
		{"a line that is lost", "no line tells of record 4 (working)", func(f *findings) {
			audit(f, func(lines []string) []string {
				return slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, `"task_id":"t","seq":4`) })
			})
		}},
		{"a line twice", "11 audit: line: it is there twice", func(f *findings) {
			audit(f, func(lines []string) []string { return append(lines, lines[0]) })
		}},
		{"a line of nonsense", "11 audit: line: it cannot be read", func(f *findings) {
			audit(f, func(lines []string) []string { return append(lines, "{") })
		}},
		{"a block of nonsense", "11 audit: 1: the block cannot be read", func(f *findings) { f.dumps["FLEET_AUDIT"][0].Data = []byte("{") }},
		{"a line that is edited", "11 audit: 1: the hash is ", func(f *findings) {
			m := &f.dumps["FLEET_AUDIT"][0]
			m.Data = []byte(strings.Replace(string(m.Data), "session_create", "session_Create", 1))
		}},
		{"a block that is lost", "11 audit: 2: the block does not follow the one before it", func(f *findings) {
			again := f.dumps["FLEET_AUDIT"][0]
			again.Seq = 2
			f.dumps["FLEET_AUDIT"] = append(f.dumps["FLEET_AUDIT"], again)
		}},
	}
}

// tickOf is the task that the first time of the schedule became.
func tickOf(f *findings) string {
	for id := range maps.Keys(f.records) {
		if strings.HasPrefix(id, "sch-") && f.records[id][0].Stored.Equal(morning.Add(10*time.Second)) {
			return id
		}
	}
	return ""
}

// What is found of one invariant does not hide what is found of another.
func TestInTurn(t *testing.T) {
	t.Parallel()
	v := func(invariant, about string) violation { return violation{invariant, about, ""} }
	got := inTurn([]violation{v("2", "a"), v("2", "b"), v("2", "c"), v("13", "d"), v("13", "e")})
	want := []violation{v("2", "a"), v("13", "d"), v("2", "b"), v("13", "e"), v("2", "c")}
	if !slices.Equal(got, want) {
		t.Errorf("in turn: %v, want %v", got, want)
	}
}

// What is in order is not called a violation: a run whose time is over, and who
// is told of an agent that is down, and not of what else it failed.
func TestCheckerExcuses(t *testing.T) {
	t.Parallel()
	f := good()
	f.dumps["FLEET_RUNS"][0].Data, f.dumps["FLEET_RUNS"][0].Time = []byte(`{"state":"expired"}`), morning.Add(runTimeout+time.Minute)
	if found := verdict(f, judgeFleet); found != "" {
		t.Errorf("a run whose time is over:\n%s", found)
	}
	minute := func(n int) time.Time { return morning.Add(time.Duration(n) * time.Minute) }
	waits := rig.Record{Kind: "human", State: "input_required", Stored: minute(1)}
	waits.Facts.Await, waits.Reason.Code = "human", "agent_lost"
	waits.Facts.Attempts = []rig.PastAttempt{{AgentID: "a", Code: "agent_lost"}}
	f.records = rig.History{"t": {waits, {Kind: "outcome", Stored: minute(3)}}}
	for _, tt := range []struct {
		agent    string
		from, to int
		want     bool
	}{{"a", 2, 5, true}, {"a", 0, 2, true}, {"a", 4, 5, false}, {"b", 2, 5, false}} {
		if got := agentsDown(f.waits(time.Time{}))[tt.agent].meet(minute(tt.from), minute(tt.to)); got != tt.want {
			t.Errorf("%s is down in minutes %d to %d: %v, want %v", tt.agent, tt.from, tt.to, got, tt.want)
		}
	}
}
