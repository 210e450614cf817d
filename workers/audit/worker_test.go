package audit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	auditlog "parley/subjects/audit"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers"
	"parley/workers/audit"
)

const session subjects.SessionID = "a2a-20251122T120000Z-7f3a9c21"

// start runs a worker until the returned function ends it, or the test does.
func start(t *testing.T, b *bus.Bus) (stop func()) {
	t.Helper()
	w, err := audit.New(audit.Config{Bus: b, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return bustest.Serve(t, w)
}

// read gives a whole audit, block by block, each checked.
func read(t *testing.T, b *bus.Bus) []handshake.LogLine {
	t.Helper()
	var lines []handshake.LogLine
	chain := new(auditlog.Chain)
	req := auditlog.Read{Limit: 3}
	for {
		m, err := b.Request(t.Context(), subjects.API("operator", "audit", "read"), fleet.MustEncode(req), nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := fleet.DecodeReply[auditlog.ReadReply](m.Data)
		if err != nil {
			t.Fatal(err)
		}
		for i, raw := range r.Blocks {
			block, err := auditlog.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			if chain.Add(block, auditlog.Foreign{Seq: r.Places[i].Seq}) != auditlog.Follows {
				continue
			}
			for _, text := range block.Lines {
				l, err := handshake.DecodeLogLine([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, *l)
			}
		}
		if err := chain.Broken(); err != nil {
			t.Fatal(err)
		}
		req.AfterSeq = r.Seq
		if !r.More {
			return lines
		}
	}
}

// eventually reads until there are n lines, and then once more.
func eventually(t *testing.T, b *bus.Bus, n int) []handshake.LogLine {
	t.Helper()
	var lines []handshake.LogLine
	bustest.Eventually(t, fmt.Sprintf("%d lines", n), func() bool {
		lines = read(t, b)
		return len(lines) >= n
	})
	if len(lines) != n {
		t.Errorf("%d lines, want %d", len(lines), n)
	}
	return lines
}

// store writes the records of a task, as a router does.
func store(t *testing.T, b *bus.Bus, task subjects.TaskID, events ...fleet.Event) {
	t.Helper()
	records, stop := b.Records(subjects.StreamTasks, bus.CommitDirect)
	defer stop()
	var seq uint64
	for i, e := range events {
		e.TaskID, e.Seq, e.WriteID = task, uint64(i+1), fmt.Sprint(task, i)
		e.Facts.From = "boss"
		if e.Time.IsZero() {
			e.Time = time.Now().UTC()
		}
		var err error
		seq, err = records.Write(t.Context(), bus.Record{
			Subject: subjects.Task(task), Expected: seq, WriteID: e.WriteID, Data: fleet.MustEncode(&e),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A write that was repeated after its subject had been purged is there twice,
// and is told of once.
func TestARepeatAfterAPurge(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	queued := fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued}
	store(t, b, "t", queued)
	if err := b.Purge(t.Context(), subjects.StreamTasks, subjects.Task("t")); err != nil {
		t.Fatal(err)
	}
	store(t, b, "t", queued) // by the same write ids
	store(t, b, "u", queued)
	if lines := eventually(t, b, 2); string(lines[len(lines)-1].Data) == string(lines[0].Data) {
		t.Errorf("the same line twice: %s", lines[0].Data)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := audit.New(audit.Config{}); err == nil {
		t.Error("New without a bus = nil, want an error")
	}
}

// told is a line in short.
func told(l *handshake.LogLine) string {
	var d struct {
		Kind   string        `json:"kind"`
		Code   subjects.Code `json:"code"`
		Level  int           `json:"escalation_level"`
		Status string        `json:"status"`
		Verb   string        `json:"verb"`
		By     string        `json:"by"`
	}
	_ = json.Unmarshal(l.Data, &d)
	if d.By != "" {
		d.By = "by " + d.By
	}
	return strings.TrimSpace(strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %s %s %s %s", l.EventType, l.AgentID, d.Kind, d.Code, d.Status, d.Verb, d.By, strings.Repeat("^", d.Level))), " "))
}

func TestLinesOfATask(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	attempts := []fleet.Attempt{{Attempt: 1, AgentID: "a", Code: subjects.CodeAgentError, Message: strings.Repeat("secret ", 100), Level: 1}}
	again := append(slices.Clone(attempts), fleet.Attempt{Attempt: 2, AgentID: "a", Code: subjects.CodeAgentLost, Level: 2})
	handed := []fleet.Attempt{{Attempt: 1, AgentID: "a", Code: subjects.CodeAgentLost}}
	store(t, b, "t1",
		fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued, Facts: fleet.Facts{SessionID: session}, Data: fleet.Data{Dispatch: []byte(`{"brief":"BRIEF"}`)}},
		fleet.Event{Kind: fleet.KindWorking, State: fleet.StateWorking, AgentID: "a", Attempt: 1},
		fleet.Event{Kind: fleet.KindRetry, State: fleet.StateQueued, Facts: fleet.Facts{Attempts: attempts}},
		fleet.Event{Kind: fleet.KindWorking, State: fleet.StateWorking, AgentID: "a", Attempt: 2},
		fleet.Event{Kind: fleet.KindReroute, State: fleet.StateQueued, Facts: fleet.Facts{Attempts: again}},
		fleet.Event{Kind: fleet.KindReturned, State: fleet.StateQueued, Facts: fleet.Facts{Attempts: handed}},
		fleet.Event{Kind: fleet.KindQuestion, State: fleet.StateInputRequired, AgentID: "b"},
		fleet.Event{Kind: fleet.KindAnswer, State: fleet.StateWorking, AgentID: "b", Data: fleet.Data{Answer: &fleet.Answer{From: "human"}}},
		fleet.Event{Kind: fleet.KindOutcome, State: fleet.StateDone, AgentID: "b", Data: fleet.Data{Result: []byte(`{"output":"OUTPUT"}`)}},
	)
	human := func(verb string) fleet.Data {
		return fleet.Data{Human: &fleet.HumanAnswer{Verb: verb, By: "ann", Text: "BRIEF"}}
	}
	store(t, b, "t3",
		fleet.Event{Kind: fleet.KindResumed, State: fleet.StateQueued, Data: human(fleet.VerbRetry)},
		fleet.Event{Kind: fleet.KindOutcome, State: fleet.StateDone, Data: human(fleet.VerbComplete)})
	store(t, b, "t2",
		fleet.Event{Kind: fleet.KindOutcome, State: fleet.StateCanceled, Reason: &fleet.Reason{Code: subjects.CodeCanceled}},
		fleet.Event{Kind: fleet.KindOutcome, State: fleet.StateError, AgentID: "b"})
	want := []string{
		"task boss queued",
		"handshake_init boss", "handshake_ack a", "execution_start a working",
		"execution_complete a retry agent_error failed", "escalation a retry ^",
		"handshake_init boss", "handshake_ack a", "execution_start a working",
		"execution_complete a reroute agent_lost failed", "escalation a reroute ^^",
		"execution_complete a returned agent_lost failed",
		"task b question", "task human answer", "execution_complete b outcome completed",
		"task boss resumed retry by ann", "task boss outcome complete by ann", "task boss outcome canceled", "execution_complete b outcome failed",
	}
	lines := eventually(t, b, len(want))
	var got []string
	for i := range lines {
		got = append(got, told(&lines[i]))
		if text := string(lines[i].Data); len(text) > 600 || strings.Contains(text, "BRIEF") || strings.Contains(text, "OUTPUT") {
			t.Errorf("a line says %s", text)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if lines[0].SessionID != session {
		t.Errorf("the first line is of session %q", lines[0].SessionID)
	}
}

func TestLinesOfOthers(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	note := func(subject string, l handshake.LogLine) {
		t.Helper()
		l.Timestamp, l.Data = time.Now(), []byte(`{}`)
		if _, err := b.Store(t.Context(), subject, fleet.MustEncode(&l), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	note(subjects.Log(session, "a"), handshake.LogLine{SessionID: session, AgentID: "a", EventType: "x"})
	eventually(t, b, 1)
	note(subjects.Log(session, "a"), handshake.LogLine{SessionID: session, AgentID: "forged", EventType: "x"})
	note(subjects.Log("", "a"), handshake.LogLine{AgentID: "a", EventType: "y"})
	eventually(t, b, 2)
	kv, err := b.KV(t.Context(), subjects.BucketAgents)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), fleet.CoolKey("b"), fleet.MustEncode(fleet.AgentCooling{})); err != nil {
		t.Fatal(err)
	}
	rev, err := kv.Telling(workers.Line("", "operator", handshake.EventAgentDrain, struct{}{})).Create(t.Context(), fleet.DrainKey("a"), []byte(`{}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, b, 3)
	if err := kv.Telling(workers.Line("", "a", handshake.EventAgentResume, struct{}{})).DeleteRevision(t.Context(), fleet.DrainKey("a"), rev); err != nil {
		t.Fatal(err)
	}
	eventually(t, b, 4)
	r := handshake.Record{SessionID: session, Version: 1, Time: time.Now(), Entry: handshake.Entry{AgentID: "a", Status: "completed", Output: []byte(`"OUTPUT"`)}}
	if _, err := b.Store(t.Context(), subjects.Context(session), fleet.MustEncode(&r), "", nil); err != nil {
		t.Fatal(err)
	}
	lines := eventually(t, b, 5)
	var got []string
	for i := range lines {
		got = append(got, told(&lines[i]))
	}
	want := []string{"x a", "y a", "agent_drain operator", "agent_resume a", "context_append a completed"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSeveralWorkers: three follow, one after the other ends, others come; every
// record has its line, once, and the chain holds.
func TestSeveralWorkers(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	b := server.Bus(t)
	doomed := server.Connect(t)
	stops := []func(){start(t, server.Connect(t)), start(t, doomed), start(t, server.Connect(t))}
	const tasks = 300
	for i := range tasks {
		store(t, b, subjects.TaskID(fmt.Sprintf("t%d", i)), fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued})
		switch i {
		case 50:
			stops[0]()
		case 100:
			doomed.Close() // it cannot say goodbye
			stops[1]()
		case 150:
			start(t, server.Connect(t))
		case 200:
			stops[2]()
		}
	}
	seen := map[string]bool{}
	for _, l := range eventually(t, b, tasks) {
		var d struct {
			TaskID string `json:"task_id"`
		}
		if err := json.Unmarshal(l.Data, &d); err != nil || seen[d.TaskID] {
			t.Errorf("%s is there twice, or is none: %v", d.TaskID, err)
		}
		seen[d.TaskID] = true
	}
	// One more reads nothing again.
	start(t, server.Connect(t))
	store(t, b, "last", fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued})
	eventually(t, b, tasks+1)
}

func TestRead(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	ask := func(as subjects.AgentID, req auditlog.Read) (auditlog.ReadReply, error) {
		t.Helper()
		m, err := b.Request(t.Context(), subjects.API(as, "audit", "read"), fleet.MustEncode(req), nil)
		if err != nil {
			t.Fatal(err)
		}
		return fleet.DecodeReply[auditlog.ReadReply](m.Data)
	}
	if _, err := ask("eve", auditlog.Read{}); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("eve reads the audit: %v", err)
	}
	if _, err := ask("operator", auditlog.Read{Limit: 1000}); subjects.CodeOf(err) != subjects.CodeInvalidMessage {
		t.Errorf("a thousand blocks: %v", err)
	}
	got := make(chan int, 1)
	go func() {
		r, err := ask("operator", auditlog.Read{WaitSeconds: 4})
		if err != nil {
			t.Error(err)
		}
		got <- len(r.Blocks)
	}()
	store(t, b, "t1", fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued})
	if n := <-got; n != 1 {
		t.Errorf("who waits hears of %d blocks, want 1", n)
	}
	if r, err := ask("operator", auditlog.Read{Since: time.Now().Add(48 * time.Hour)}); err != nil || len(r.Blocks) != 0 || r.Seq == 0 {
		t.Errorf("since the day after tomorrow: %+v, %v", r, err)
	}
}

// TestToldOnce: what is told beside changes in each of the streams is a line,
// once, while workers come and go; what is no line of the audit is passed over.
func TestToldOnce(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	b := server.Bus(t)
	stops := []func(){start(t, server.Connect(t)), start(t, server.Connect(t))}
	two := func(n int) []byte {
		type data struct {
			N    int    `json:"n"`
			Kind string `json:"kind"`
		}
		return append(workers.Line(session, "boss", handshake.EventRun, data{n, "start"}), workers.Line("", "no agent", handshake.EventRun, data{n, "end"})...)
	}
	n := 0
	for _, bucket := range []string{subjects.BucketSchedules, subjects.BucketAlerts, subjects.BucketIdentities, subjects.BucketAgents, subjects.BucketSessions} {
		kv, err := b.KV(t.Context(), bucket)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := kv.Telling(two(n)).Create(t.Context(), fmt.Sprint("k", n), []byte(`{}`), 0); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	stops[0]()
	for _, stream := range []string{subjects.StreamRuns, subjects.StreamWebhooks} {
		subject := map[string]string{subjects.StreamRuns: "fleet.run.", subjects.StreamWebhooks: "fleet.webhookevent."}[stream]
		w, stop := b.Records(stream, bus.CommitDirect)
		defer stop()
		for range 5 {
			id := fmt.Sprint("w", n)
			if _, err := w.Write(t.Context(), bus.Record{Subject: subject + id, WriteID: id, Data: []byte(`{}`), Told: two(n)}); err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	if _, err := b.Store(t.Context(), subjects.Told(subjects.StreamRuns, "forged"), []byte("no line"), "", nil); err != nil {
		t.Fatal(err)
	}
	start(t, server.Connect(t))
	stops[1]()
	seen := map[string]bool{}
	for _, l := range eventually(t, b, 2*n) {
		key := l.EventType + string(l.Data) + string(l.AgentID)
		if seen[key] || l.AgentID != "boss" && l.AgentID != "unknown" || (l.AgentID == "boss") != (l.SessionID == session) {
			t.Errorf("the line %+v is there twice, or is another's", l)
		}
		seen[key] = true
	}
}

// TestSessionEnds: a session that is gone by its time has a line; one that was
// deleted has the line of that alone.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	kv, err := b.KV(t.Context(), subjects.BucketSessions)
	if err != nil {
		t.Fatal(err)
	}
	other := session[:len(session)-1] + "2"
	create := func(id subjects.SessionID, ttl time.Duration) uint64 {
		t.Helper()
		rev, err := kv.Telling(workers.Line(id, "boss", handshake.EventSessionCreate, struct{}{})).Create(t.Context(), string(id), []byte(`{}`), ttl)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	rev := create(other, 0)
	if err := kv.Telling(workers.Line(other, "boss", handshake.EventSessionDelete, struct{}{})).DeleteRevision(t.Context(), string(other), rev); err != nil {
		t.Fatal(err)
	}
	create(session, time.Second)
	var got []string
	for _, l := range eventually(t, b, 4) {
		got = append(got, l.EventType+" "+string(l.SessionID)+" "+string(l.AgentID))
	}
	want := []string{
		"session_create " + string(other) + " boss", "session_delete " + string(other) + " boss",
		"session_create " + string(session) + " boss", "session_expire " + string(session) + " sessions",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// junkBlocks are entries that somebody else puts into the audit; old is a block
// of it.
func junkBlocks(old []byte) [][]byte {
	long := auditlog.Seal(nil, "2026-11-21", nil, []string{"{}"})
	long.First = 1 << 60
	return [][]byte{
		[]byte("junk"), nil, []byte("{}"), []byte("null"), []byte("[]"), []byte("\x00\xff"), []byte(`{"first":`), []byte(`{"lines":[1]}`),
		[]byte(`{"first":-1}`), []byte(`{"first":1,"first":2}`), []byte(strings.Repeat("[", 100_000)), fleet.MustEncode(long),
		[]byte(`{"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}"), bytes.Repeat([]byte("a"), 1<<20), old, old,
	}
}

// TestForeignEntries: what others put into the audit's stream is passed over
// while the worker runs and after it starts again, whatever it is and wherever;
// it is named, and no line is lost.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	b := server.Bus(t)
	junk := func(data []byte) {
		t.Helper()
		if _, err := b.Store(t.Context(), subjects.Audit, data, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	tasks := 0
	lines := func() {
		t.Helper()
		store(t, b, subjects.TaskID(fmt.Sprint("t", tasks)), fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued})
		tasks++
		eventually(t, b, tasks)
	}
	junk([]byte("before all")) // the audit begins behind it
	stop := start(t, b)
	lines()
	first, err := b.Get(t.Context(), subjects.StreamAudit, 2)
	if err != nil {
		t.Fatal(err)
	}
	entries := 1
	for _, data := range junkBlocks(first.Data) {
		junk(data)
		entries++
		lines()
	}
	if list := b.Skipped(); len(list) != 1 || list[0].Place != subjects.StreamAudit || list[0].Count < uint64(entries) {
		t.Errorf("skipped %+v, want %d in the audit", list, entries)
	}
	stop()
	for range 100 { // more than is read at once at the start
		for _, data := range junkBlocks(first.Data)[:6] {
			junk(data)
		}
	}
	start(t, server.Connect(t))
	lines()
	lines()
}

// TestLongLines: a line that would not fit into a block is replaced by its
// digest, and what is no log line is skipped; those behind them are kept.
func TestLongLines(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	start(t, b)
	long := handshake.LogLine{Timestamp: time.Now(), AgentID: "a", EventType: "x", Data: fleet.MustEncode(map[string]string{"note": strings.Repeat("\x7f", 900_000)})}
	if _, err := b.Store(t.Context(), subjects.Log("", "a"), fleet.MustEncode(&long), "", nil); err != nil {
		t.Fatal(err)
	}
	many := bytes.Repeat(append(fleet.MustEncode(&handshake.LogLine{Timestamp: time.Now(), AgentID: "a", EventType: "x", Data: []byte("{}")}), '\n'), 9000)
	if _, err := b.Store(t.Context(), subjects.Told(subjects.StreamRuns, "w"), many, "", nil); err != nil {
		t.Fatal(err)
	}
	bustest.Eventually(t, "the lines of one message to be too many", func() bool { return len(b.Skipped()) == 1 })
	store(t, b, "t", fleet.Event{Kind: fleet.KindQueued, State: fleet.StateQueued})
	got := eventually(t, b, 2)
	for _, l := range got {
		if l.AgentID == "a" && (!strings.Contains(string(l.Data), `"omitted_bytes"`) || len(l.Data) > 200) {
			t.Errorf("the long line is %.300s", l.Data)
		}
	}
}
