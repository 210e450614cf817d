package telemetry_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/telemetry"
)

// start runs a telemetry worker until the test ends.
func start(t *testing.T, cfg telemetry.Config) *telemetry.Worker {
	t.Helper()
	w, err := telemetry.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	if err := cfg.Bus.Ping(t.Context()); err != nil { // its subscription is there
		t.Fatal(err)
	}
	return w
}

// page is what a scrape reads. Labels of a closed set have none but its values there.
func page(t *testing.T, w *telemetry.Worker) string {
	t.Helper()
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, telemetry.Path, nil))
	if rec.Code != 200 {
		t.Fatalf("GET %s = %d: %s", telemetry.Path, rec.Code, rec.Body)
	}
	for _, series := range selectors.FindAllStringSubmatch(rec.Body.String(), -1) {
		if series[2] != "" {
			checkSelector(t, "the page", series[1], series[2], nil, "stream", "le")
		}
	}
	return rec.Body.String()
}

// tell lets everybody hear a record.
func tell(t *testing.T, b *bus.Bus, e *fleet.Event, level string) {
	t.Helper()
	h := bus.Header{subjects.HeaderKind: {e.Kind}}
	if level != "" {
		h.Set(subjects.HeaderLevel, level)
	}
	if err := b.Publish(subjects.Event(e.TaskID), fleet.MustEncode(e), h); err != nil {
		t.Fatal(err)
	}
}

func record(id subjects.TaskID, seq uint64, kind string, state fleet.State, at time.Time) *fleet.Event {
	e := &fleet.Event{TaskID: id, Seq: seq, Kind: kind, State: state, Time: at}
	e.Type, e.ProtocolVersion = fleet.TypeEvent, fleet.Version
	e.Facts = fleet.Facts{From: "lead", Created: began, Priority: fleet.High, SessionID: "s1"}
	return e
}

var began = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return began.Add(d) }

// TestRecordsCountOnce: two workers share the records, and together they count
// each once.
func TestRecordsCountOnce(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	one, two := start(t, telemetry.Config{Bus: b}), start(t, telemetry.Config{Bus: b})
	failed := fleet.Attempt{Attempt: 1, AgentID: "ann", Ended: after(3 * time.Second), Code: subjects.CodeAgentError, Tokens: 5, Level: 2}
	const n = 20
	for i := range n {
		id := subjects.TaskID(fmt.Sprintf("t%d", i))
		tell(t, b, record(id, 1, fleet.KindQueued, fleet.StateQueued, began), "")
		tell(t, b, record(id, 2, fleet.KindWorking, fleet.StateWorking, after(2*time.Second)), "")
		e := record(id, 3, fleet.KindReroute, fleet.StateQueued, failed.Ended)
		e.Facts.Attempts, e.Facts.TokensSpent = []fleet.Attempt{failed}, 5
		tell(t, b, e, "2")
		e = record(id, 4, fleet.KindWorking, fleet.StateWorking, after(4*time.Second))
		e.AgentID, e.Facts.Attempts, e.Facts.TokensSpent = "bob", []fleet.Attempt{failed}, 5
		tell(t, b, e, "")
		e = record(id, 5, fleet.KindSpent, fleet.StateWorking, after(5*time.Second))
		e.Data.Spent = &fleet.Spent{AgentID: "cleo", Attempt: 1, Tokens: 3} // told late
		e.AgentID, e.Facts.Attempts, e.Facts.TokensSpent = "bob", []fleet.Attempt{failed}, 8
		tell(t, b, e, "")
		e = record(id, 6, fleet.KindOutcome, fleet.StateDone, after(10*time.Second))
		e.AgentID, e.Facts.Attempts, e.Facts.TokensSpent = "bob", []fleet.Attempt{failed}, 12
		tell(t, b, e, "")
	}
	suspect := record("suspect", 3, fleet.KindHuman, fleet.StateInputRequired, after(3*time.Second))
	suspect.Facts.Attempts = []fleet.Attempt{
		{Attempt: 1, AgentID: "dan", Ended: began, Code: subjects.CodeAgentLost},
		{Attempt: 2, AgentID: "dan", Ended: after(3 * time.Second), Code: subjects.CodeAgentLost, Level: 3},
	}
	tell(t, b, suspect, "3")
	if err := b.Publish(subjects.Event("bad"), []byte("{"), bus.Header{subjects.HeaderKind: {fleet.KindOutcome}}); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]float64{
		`parley_tasks_received_total{priority="high"}`:                               n,
		`parley_tasks_total{outcome="done",priority="high"}`:                         n,
		`parley_attempts_total{class="agent",code="agent_error",level="2"}`:          n,
		`parley_attempts_total{class="ok",code="ok",level="0"}`:                      n,
		`parley_escalations_total{level="2"}`:                                        n,
		`parley_attempts_total{class="loss",code="agent_lost",level="3"}`:            1,
		`parley_suspects_total`:                                                      1,
		`parley_tokens_spent_total{agent="ann"}`:                                     5 * n,
		`parley_tokens_spent_total{agent="bob"}`:                                     7 * n,
		`parley_tokens_spent_total{agent="cleo"}`:                                    3 * n,
		`parley_session_tokens{session="s1"}`:                                        15 * n,
		`parley_task_duration_seconds_sum{outcome="done",priority="high"}`:           10 * n,
		`parley_task_wait_seconds_sum{priority="high"}`:                              (2 + 1) * n,
		`parley_task_wait_seconds_bucket{priority="high",le="1"}`:                    n,
		`parley_records_undecoded_total`:                                             1,
		`parley_task_duration_seconds_count{outcome="done",priority="high"}`:         n,
		`parley_task_duration_seconds_bucket{outcome="done",priority="high",le="5"}`: 0,
	} {
		var got float64
		bustest.Eventually(t, line, func() bool {
			got = value(page(t, one), line) + value(page(t, two), line)
			return got >= want
		})
		if got != want {
			t.Errorf("%s = %v, want %v", line, got, want)
		}
	}
}

// value is that of a series; 0 when it is not there.
func value(page, series string) float64 {
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			var v float64
			_, _ = fmt.Sscan(rest, &v)
			return v
		}
	}
	return 0
}

// TestGaugesAreAsked: the page shows what the other workers and JetStream tell,
// and says which of them do not answer.
func TestGaugesAreAsked(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	serve := func(name, kind string, figures any) {
		stop, err := b.Serve(t.Context(), bus.Service{
			Name: name, Version: "1.0.0", Metadata: map[string]string{"kind": kind}, Figures: func() any { return figures },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	tasks := fleet.TaskFigures{
		Queued: 4, States: map[fleet.State]int{fleet.StateQueued: 4, fleet.StateWorking: 2}, Leases: 2,
		Classes: []fleet.ClassFigures{{Class: "mcp=\"a\"", Depth: 3, OldestSeconds: 7.5}},
		Waiting: []fleet.WaitingFigures{{Why: fleet.WaitLimited, Tasks: 3, OldestSeconds: 7.5}},
		Limits: []fleet.LimitFigures{
			{Account: "pro", Reset: time.Unix(1_700_000_000, 0), Tasks: 3, Late: 2},
			{Account: "free\xff", Reset: time.Unix(1_700_000_000, 0), Guessed: true},
			{Account: "free\xfe", Guessed: true},
		},
	}
	serve("fleet", "router", tasks)
	serve("fleet", "router", fleet.TaskFigures{Queued: 1, States: map[fleet.State]int{fleet.StateQueued: 1}})
	serve("webhooks", "webhooks", fleet.WebhookFigures{Succeeded: 3, Failed: 1})
	serve("webhooks", "webhooks", fleet.WebhookFigures{Succeeded: 5})
	serve("registry", "registry", fleet.AgentFigures{
		Agents: []fleet.AgentCount{{State: fleet.AgentIdle, Tier: "opus", N: 2}},
		MCP:    []fleet.MCPCount{{Name: "git\xff", Health: "ok", N: 2}},
	})
	b.Skip(bus.Msg{Stream: subjects.StreamAudit, Subject: subjects.Audit, Seq: 1}, errors.New("junk"))
	text := page(t, start(t, telemetry.Config{
		Bus: b, Version: "1.2.3",
		Unsafe: func() map[string]bool { return map[string]bool{"copies": true, "sync": false} },
	}))
	for _, want := range []string{
		`parley_tasks{state="queued"} 4`, `parley_tasks{state="working"} 2`, `parley_leases 2`,
		`parley_queue_depth{class="mcp=\"a\""} 3`, `parley_queue_oldest_seconds{class="mcp=\"a\""} 7.5`,
		`parley_waiting_tasks{why="limited"} 3`, `parley_waiting_tasks{why="away"} 0`, `parley_waiting_oldest_seconds{why="limited"} 7.5`,
		`parley_account_limit_reset_timestamp_seconds{account="pro"} 1.7e+09`, `parley_account_limit_late_tasks{account="pro"} 2`,
		`parley_account_limit_reset_timestamp_seconds{account="free�"} 0`,
		`parley_workers{worker="router"} 2`, `parley_workers{worker="escalation"} 0`, `parley_workers{worker="webhooks"} 2`,
		`parley_workers{worker="telemetry"} 1`, `parley_workers{worker="gateway"} 0`, `parley_source_up{source="workers"} 1`,
		`parley_source_up{source="router"} 1`, `parley_source_up{source="escalation"} 0`, `parley_source_up{source="jetstream"} 1`,
		`result="success"} 3`, `result="success"} 5`, `result="failure"} 1`,
		`parley_agents{state="idle",tier="opus"} 2`, `parley_mcp_servers{health="ok",name="git�"} 2`,
		`parley_stream_messages{stream="FLEET_TASKS"} 0`, `parley_consumer_pending{consumer="routers",stream="FLEET_INBOX"} 0`,
		`place="FLEET_AUDIT",process="`,
		`parley_unsafe{about="copies"} 1`, `parley_unsafe{about="sync"} 0`,
		`parley_build_info{goversion="go1.`, `version="1.2.3"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if n := strings.Count(text, "parley_messages_skipped_total{"); n != 1 {
		t.Errorf("%d metrics of one process that skipped in one place, want one", n)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestWhoHangsIsNotThere: a router whose process is stopped is still known to the
// server, and does not answer.
func TestWhoHangsIsNotThere(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	for _, verb := range []string{"$SRV.INFO", "$SRV.STATS.fleet"} {
		if _, err := b.Subscribe(verb, "", func(bus.Msg) {}); err != nil {
			t.Fatal(err)
		}
	}
	text := page(t, start(t, telemetry.Config{Bus: b}))
	for _, want := range []string{
		`parley_workers{worker="router"} 0`, `parley_workers{worker="telemetry"} 1`, `parley_source_up{source="router"} 0`, `parley_source_up{source="workers"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s:\n%s", want, onlyOurs(text))
		}
	}
}

// TestLabelsAreBounded: whatever agents are called and whatever codes they
// make up, the page does not grow without end.
func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	w := start(t, telemetry.Config{Bus: b})
	const n = 3000
	for i := range n {
		e := record(subjects.TaskID(fmt.Sprintf("t%d", i)), 3, fleet.KindOutcome, fleet.StateError, began)
		e.Facts.Priority = fleet.Priority(fmt.Sprintf("p%d", i))
		e.Facts.SessionID = subjects.SessionID(fmt.Sprintf("s%d", i))
		e.Facts.Attempts = []fleet.Attempt{{
			AgentID: subjects.AgentID(fmt.Sprintf("a%d", i)), Ended: began, Tokens: int64(i + 1),
			Code: subjects.Code(fmt.Sprintf("c%d", i)), Level: i,
		}}
		tell(t, b, e, strconv.Itoa(i+1))
	}
	var text string
	bustest.Eventually(t, "all are counted", func() bool {
		text = page(t, w)
		return value(text, `parley_tasks_total{outcome="error",priority="other"}`) == n
	})
	for series, most := range map[string]int{
		"parley_tokens_spent_total{": 501, "parley_attempts_total{": 65 * 5, "parley_escalations_total{": 4,
		"parley_session_tokens{": 20, "parley_task_duration_seconds_bucket{": 14,
	} {
		if got := strings.Count(text, "\n"+series); got == 0 || got > most {
			t.Errorf("%d series %s, want 1 to %d", got, series, most)
		}
	}
	if want := fmt.Sprintf(`parley_session_tokens{session="s%d"} %d`, n-1, n); !strings.Contains(text, want) {
		t.Errorf("the page lacks the session that spent most: %s", want)
	}
}

// TestThePageIsTheTable: every metric of the page is in the table, under its
// type and with its labels.
func TestThePageIsTheTable(t *testing.T) {
	t.Parallel()
	b := bustest.New(t).Bus(t)
	text := page(t, start(t, telemetry.Config{Bus: b}))
	types := map[string]string{}
	for _, m := range telemetry.Metrics() {
		if _, twice := types[m.Name]; twice {
			t.Errorf("%s is there twice", m.Name)
		}
		types[m.Name] = m.Type
		if (m.Type == "counter") != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Type)
		}
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 4 && f[1] == "TYPE" && strings.HasPrefix(f[2], "parley_") && types[f[2]] != f[3] {
			t.Errorf("the page has %s as %s, the table as %q", f[2], f[3], types[f[2]])
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(fleet.MustEncode(record("t", 1, fleet.KindQueued, fleet.StateQueued, began)))
	f.Add([]byte(`{"facts":{"attempts":[{}]}}`))
	f.Fuzz(func(_ *testing.T, data []byte) { telemetry.CountForTest(data) })
}

// lintable is a page on which something has happened.
func lintable(t *testing.T) string {
	t.Helper()
	b := bustest.New(t).Bus(t)
	w := start(t, telemetry.Config{Bus: b})
	e := record("t", 3, fleet.KindOutcome, fleet.StateDone, after(time.Second))
	e.AgentID, e.Facts.TokensSpent = "bob", 3
	tell(t, b, e, "1")
	tell(t, b, record("t", 1, fleet.KindQueued, fleet.StateQueued, began), "")
	tell(t, b, record("t", 2, fleet.KindWorking, fleet.StateWorking, began), "")
	var text string
	bustest.Eventually(t, "all is counted", func() bool {
		text = page(t, w)
		return strings.Contains(text, "parley_task_wait_seconds_count") && strings.Contains(text, "parley_tasks_total{")
	})
	return text
}

// onlyOurs leaves out the metrics that libraries name.
func onlyOurs(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "parley_") {
			b.WriteString(line)
		}
	}
	return b.String()
}
