package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

func kinds(events []fleet.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Kind)
	}
	return strings.Join(out, " ")
}

func failed(code subjects.Code, retryable bool) fleet.Result {
	return fleet.Result{Status: fleet.StatusError, TokensSpent: 10, Error: &fleet.ResultError{Code: code, Message: "it broke", Retryable: retryable}}
}

func TestFailuresClimbTheLadder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFailuresClimbTheLadder)
}

func testFailuresClimbTheLadder(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"max_retries":1,"agent":"a","alternatives":["b"]`))
	a.offered()
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	if d := a.offered(); d.Attempt != 2 || len(d.Tried) != 1 || d.Tried[0].Code != subjects.CodeAgentError {
		t.Errorf("level 1 offers attempt %d, tried %+v", d.Attempt, d.Tried)
	}
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	b := w.join("b", nil)
	if d := b.offered(); d.Attempt != 3 || len(d.Tried) != 2 {
		t.Errorf("level 2 offers attempt %d, tried %+v", d.Attempt, d.Tried)
	}
	if _, err := b.result(id, failed(subjects.CodeAgentError, false)); err != nil {
		t.Fatal(err)
	}
	v := w.outcome(id)
	if v.State != fleet.StateError || v.Reason == nil || v.Reason.Code != subjects.CodeAgentError || v.TokensSpent != 30 {
		t.Errorf("outcome = %+v, reason %+v; want error agent_error, 30 tokens", v, v.Reason)
	}
	if got, want := kinds(w.events(id)), "queued working retry working reroute working outcome"; got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
	var levels []int
	for _, at := range v.Attempts {
		levels = append(levels, at.Level)
	}
	if diff := cmp.Diff([]int{1, 2, 3}, levels); diff != "" {
		t.Errorf("levels differ (-want +got):\n%s", diff)
	}
}

func TestNobodyCouldEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNobodyCouldEver)
}

func testNobodyCouldEver(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	w.join("small", func(a *fleet.Announce) { a.Worker.ModelTier = "haiku" })
	w.join("sick", func(a *fleet.Announce) { a.MCPHealth["git"] = fleet.HealthTimeout })
	id := w.send(`{"task":{},"requirements":{"required_mcp":["no-such-server"]},"brief":"x"}`)
	v := w.outcome(id)
	if v.State != fleet.StateBlocked || v.TokensSpent != 0 || v.Result == nil || v.Result.BlockedReason == nil ||
		!strings.Contains(*v.Result.BlockedReason, "no-such-server") {
		t.Errorf("outcome = %+v, result %+v; want blocked, naming the server", v, v.Result)
	}
	if got := kinds(w.events(id)); got != "queued outcome" {
		t.Errorf("records = %s", got)
	}
	waits := w.send(`{"task":{"on_blocked":"wait"},"requirements":{"required_mcp":["later"]},"brief":"x"}`)
	sick := w.send(`{"requirements":{"required_mcp":["git"],"model_tier":"sonnet"},"brief":"x"}`)
	later := w.join("later", func(a *fleet.Announce) {
		a.Capabilities.MCPServers = append(a.Capabilities.MCPServers, "later")
		a.MCPHealth["later"] = fleet.HealthOK
		a.MCPHealth["git"] = fleet.HealthError
	})
	if d := later.offered(); d.Task.TaskID != waits {
		t.Errorf("later was offered %s, want %s", d.Task.TaskID, waits)
	}
	if v := w.view(sick); v.State != fleet.StateQueued {
		t.Errorf("a task that a sick agent could do is %s, want queued", v.State)
	}
	x, err := call[fleet.TaskExplanation](w, "boss", "task", "explain", fleet.TaskRef{TaskID: sick})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range x.Agents {
		for _, r := range a.Reasons {
			got[string(a.AgentID)] += string(r.Code) + " "
		}
	}
	if !strings.Contains(got["small"], "no_capable_agent") || !strings.Contains(got["sick"], "mcp_unhealthy") || !strings.Contains(got["later"], "mcp_unhealthy") {
		t.Errorf("explain = %v", got)
	}
}

func TestRefusalGoesToAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRefusalGoesToAnother)
}

func testRefusalGoesToAnother(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	why := "server git does not answer"
	a.answers(func(fleet.Dispatch) any {
		return fleet.Result{
			Header: fleet.Header{Type: fleet.TypeResult}, Status: fleet.StatusBlocked, BlockedReason: &why,
			Error: &fleet.ResultError{Code: subjects.CodeMCPUnhealthy, Message: why},
		}
	})
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	b := w.join("b", nil)
	if d := b.offered(); d.Attempt != 2 || len(d.Tried) != 1 || d.Tried[0].AgentID != "a" {
		t.Errorf("offer = %+v", d)
	}
	if _, err := b.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	if v := w.outcome(id); v.State != fleet.StateDone || v.AgentID != "b" {
		t.Errorf("outcome = %s by %s", v.State, v.AgentID)
	}
}

func TestBusyIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBusyIsNotAnAttempt)
}

func testBusyIsNotAnAttempt(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	refusals := 2
	a.answers(func(fleet.Dispatch) any {
		if refusals--; refusals >= 0 {
			return fleet.Ack{}
		}
		return fleet.Ack{Accepted: true, Epoch: a.epoch}
	})
	id := w.send(dispatchJSON("x", ""))
	for range 3 {
		if d := a.offered(); d.Attempt != 1 {
			t.Errorf("offered attempt %d, want 1", d.Attempt)
		}
	}
	if _, err := a.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	if got := kinds(w.events(id)); got != "queued working outcome" {
		t.Errorf("records = %s", got)
	}
}

func TestTimersEndAttemptsAndTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTimersEndAttemptsAndTasks)
}

func testTimersEndAttemptsAndTasks(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	slow := w.send(dispatchJSON("x", `"timeout_seconds":0.3,"max_retries":0`))
	a.offered()
	v := w.outcome(slow)
	if v.State != fleet.StateError || v.Reason.Code != subjects.CodeAgentTimeout {
		t.Errorf("outcome = %s %+v, want error agent_timeout", v.State, v.Reason)
	}
	if c := a.told(); c.Action != fleet.ActionCancel || c.TaskID != slow {
		t.Errorf("told %+v", c)
	}
	d := time.Now().Add(700 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	w.join("b", func(ann *fleet.Announce) { ann.Capabilities.Tools = []string{"browser"}; ann.Draining = true })
	late := w.send(fmt.Sprintf(`{"task":{},"requirements":{"required_capabilities":["browser"]},"deadline":%q,"brief":"x"}`, d))
	if v := w.outcome(late); v.State != fleet.StateExpired || v.Result.Error.Code != subjects.CodeDeadlineExceeded {
		t.Errorf("outcome = %s %+v, want expired", v.State, v.Result)
	}
	past := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	_, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", fmt.Appendf(nil, `{"deadline":%q,"brief":"x"}`, past))
	if subjects.CodeOf(err) != subjects.CodeDeadlineExceeded {
		t.Errorf("dispatch past its deadline = %v", err)
	}
}

func TestResultsAreChecked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testResultsAreChecked)
}

func testResultsAreChecked(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"result_schema":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`))
	a.offered()
	_, err := a.result(id, fleet.Result{Output: json.RawMessage(`{"n":"three"}`)})
	e := subjects.AsError(err)
	if e == nil || e.Code != subjects.CodeResultInvalid || e.Pointer != "/output/n" {
		t.Fatalf("result = %v, want result_invalid at /output/n", err)
	}
	d := a.offered()
	if d.Attempt != 2 || d.Tried[0].Code != subjects.CodeResultInvalid || !strings.HasPrefix(d.Tried[0].Message, "at /output/n: ") {
		t.Errorf("retry = %+v", d)
	}
	fenced, _ := json.Marshal("```json\n{\"n\":3}\n```")
	if _, err := a.result(id, fleet.Result{Output: fenced}); err != nil {
		t.Errorf("a fenced answer = %v", err)
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("x", `"result_schema":{"type":"no-such-type"}`)))
	if e := subjects.AsError(err); e == nil || e.Pointer != "/task/result_schema" {
		t.Errorf("a bad schema = %v", err)
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("x", `"result_schema":{"$ref":"file:///etc/passwd"}`)))
	if e := subjects.AsError(err); e == nil || e.Code != subjects.CodeInvalidMessage {
		t.Errorf("a schema that refers outside = %v", err)
	}
}

// A result that breaks the schema ends its attempt once, however often it comes.
func TestAnInvalidResultCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnInvalidResultCountsOnce)
}

func testAnInvalidResultCountsOnce(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"result_schema":{"type":"integer"}`))
	a.offered()
	if _, err := call[fleet.AgentListReply](w, "operator", "agent", "drain", fleet.AgentDrain{AgentID: "a"}); err != nil { // no second attempt
		t.Fatal(err)
	}
	for range 2 { // the first answer was lost
		_, err := a.result(id, fleet.Result{Attempt: 1, TokensSpent: 7, Output: json.RawMessage(`"three"`)})
		if subjects.CodeOf(err) != subjects.CodeResultInvalid {
			t.Errorf("result = %v, want result_invalid", err)
		}
	}
	if v := w.view(id); len(v.Attempts) != 1 || v.TokensSpent != 7 {
		t.Errorf("%d attempts, %d tokens; want one, 7", len(v.Attempts), v.TokensSpent)
	}
}

func TestTheRawDoor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTheRawDoor)
}

func testTheRawDoor(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	outcomes := make(chan bus.Msg, 10)
	if _, err := w.bus.Subscribe("fleet.outcome.boss.*", "", func(m bus.Msg) { outcomes <- m }); err != nil {
		t.Fatal(err)
	}
	put := func(s string) {
		if _, err := w.bus.Store(t.Context(), "fleet.dispatch.boss", []byte(s), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	put("TASK DISPATCH (inline)\npriority: high\nrequired_mcp: [git]\n\nBrief: tidy up")
	d := a.offered()
	if d.Brief != "tidy up" || d.Task.Priority != fleet.High {
		t.Errorf("offer = %+v", d)
	}
	if _, err := a.result(d.Task.TaskID, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	<-outcomes
	put("")
	r, err := fleet.DecodeResult((<-outcomes).Data)
	if err != nil || r.State != fleet.StateError || r.Error.Code != subjects.CodeInvalidMessage || !strings.Contains(r.Error.Message, "--force-stdin") {
		t.Errorf("outcome of an empty dispatch = %+v, %v", r, err)
	}
	if v := w.outcome(r.TaskID); v.State != fleet.StateError {
		t.Errorf("the record of it says %s", v.State)
	}
	bustest.Eventually(t, "it is in the dead letters", func() bool {
		dl, err := w.bus.DeadLetters(t.Context(), 10)
		return err == nil && len(dl) == 1
	})
}

func TestSameDispatchSameTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSameDispatchSameTask)
}

func testSameDispatchSameTask(t *testing.T) {
	t.Helper()
	w := newWorld(t, 2)
	one := dispatchJSON("x", `"task_id":"same"`)
	w.send(one)
	d, err := call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(one))
	if err != nil || !d.Duplicate {
		t.Errorf("the same again = %+v, %v", d, err)
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("y", `"task_id":"same"`)))
	if subjects.CodeOf(err) != subjects.CodeIdempotencyConflict {
		t.Errorf("another payload = %v", err)
	}
	_, err = call[fleet.Dispatched](w, "other", "task", "dispatch", []byte(one))
	if subjects.CodeOf(err) != subjects.CodeIdempotencyConflict {
		t.Errorf("another sender = %v", err)
	}
	<-time.After(time.Millisecond) // or neither is older
	key := dispatchJSON("x", `"idempotency_key":"k 1"`)
	first := w.send(key)
	if again := w.send(key); again != first {
		t.Errorf("the same key = %s, want %s", again, first)
	}
	_, err = call[fleet.Dispatched](w, "boss", "task", "dispatch", []byte(dispatchJSON("z", `"idempotency_key":"k 1"`)))
	if subjects.CodeOf(err) != subjects.CodeIdempotencyConflict {
		t.Errorf("the same key, another payload = %v", err)
	}
	_, err = call[fleet.TaskView](w, "other", "task", "get", fleet.TaskRef{TaskID: first})
	if subjects.CodeOf(err) != subjects.CodeNotFound {
		t.Errorf("another's task = %v, want not_found", err)
	}
	l, err := call[fleet.TaskListReply](w, "operator", "task", "list", fleet.TaskList{})
	if err != nil || l.Total != 2 || len(l.Tasks) != 2 || l.Tasks[0].TaskID != first {
		t.Errorf("list = %+v, %v", l, err)
	}
	l, err = call[fleet.TaskListReply](w, "operator", "task", "list", fleet.TaskList{State: fleet.StateQueued, Limit: 1, OldestFirst: true})
	if err != nil || l.Total != 2 || len(l.Tasks) != 1 || l.Tasks[0].TaskID != "same" {
		t.Errorf("the oldest = %+v, %v", l, err)
	}
	l, err = call[fleet.TaskListReply](w, "other", "task", "list", fleet.TaskList{})
	if err != nil || l.Total != 0 {
		t.Errorf("another's list = %+v, %v", l, err)
	}
}

func TestDrainAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDrainAndResume)
}

func testDrainAndResume(t *testing.T) {
	t.Helper()
	w := newWorld(t, 2)
	a := w.join("a", nil)
	if _, err := call[fleet.AgentListReply](w, "boss", "agent", "drain", fleet.AgentDrain{AgentID: "a"}); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("drain by a stranger = %v", err)
	}
	if _, err := call[fleet.AgentListReply](w, "operator", "agent", "drain", fleet.AgentDrain{AgentID: "a"}); err != nil {
		t.Fatal(err)
	}
	if c := a.told(); c.Action != fleet.ActionDrain {
		t.Errorf("told %+v", c)
	}
	a.answers(func(fleet.Dispatch) any { return fleet.Ack{} }) // as an agent that drains does
	id := w.send(dispatchJSON("x", ""))
	bustest.Eventually(t, "the routers know", func() bool {
		x, err := call[fleet.TaskExplanation](w, "boss", "task", "explain", fleet.TaskRef{TaskID: id})
		return err == nil && len(x.Agents) == 1 && !x.Agents[0].Eligible
	})
	if v := w.view(id); v.State != fleet.StateQueued {
		t.Errorf("state = %s while its only agent drains", v.State)
	}
	if _, err := call[fleet.AgentListReply](w, "operator", "agent", "resume", fleet.AgentDrain{AgentID: "a"}); err != nil {
		t.Fatal(err)
	}
	a.answers(nil)
	bustest.Eventually(t, "the agent has the task", func() bool { return w.view(id).State == fleet.StateWorking })
}

func TestHandedBackIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testHandedBackIsNotAnAttempt)
}

func testHandedBackIsNotAnAttempt(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", `"max_retries":0,"agent":"a"`))
	a.offered()
	if _, err := a.result(id, failed(subjects.CodeAgentBusy, true)); err != nil {
		t.Fatal(err)
	}
	if d := a.offered(); d.Attempt != 2 {
		t.Errorf("offered attempt %d, want 2", d.Attempt)
	}
	if _, err := a.result(id, fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	if v := w.outcome(id); v.State != fleet.StateDone {
		t.Errorf("outcome = %+v", v)
	}
}

func TestARetryTowardsAnAgentThatIsGoneGoesToAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testARetryTowardsAnAgentThatIsGoneGoesToAnother)
}

func testARetryTowardsAnAgentThatIsGoneGoesToAnother(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	a := w.join("a", nil)
	id := w.send(dispatchJSON("x", ""))
	a.offered()
	fail := failed(subjects.CodeAgentError, true)
	fail.Error.RetryAfterSeconds = 2.5 // time to die in
	if _, err := a.result(id, fail); err != nil {
		t.Fatal(err)
	}
	a.stop()
	b := w.join("b", nil)
	if d := b.offered(); d.Task.TaskID != id {
		t.Errorf("offered %s", d.Task.TaskID)
	}
	if got, want := kinds(w.events(id)), "queued working retry widened"; !strings.HasPrefix(got, want) {
		t.Errorf("records = %s, want %s first", got, want)
	}
}

func TestAlternativesThatAreGoneArePassedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAlternativesThatAreGoneArePassedOver)
}

func testAlternativesThatAreGoneArePassedOver(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	gone := w.join("gone", nil)
	gone.stop()
	bustest.Eventually(t, "it is missed", func() bool {
		x, err := call[fleet.TaskExplanation](w, "boss", "task", "explain", fleet.TaskRef{TaskID: w.send(dispatchJSON("x", `"task_id":"probe"`))})
		return err == nil && len(x.Agents) == 1 && !x.Agents[0].Eligible
	})
	a := w.join("a", nil)
	if d := a.offered(); d.Task.TaskID != "probe" {
		t.Errorf("offered %s", d.Task.TaskID)
	}
	if _, err := a.result("probe", fleet.Result{}); err != nil {
		t.Fatal(err)
	}
	id := w.send(dispatchJSON("x", `"alternatives":["gone"],"max_retries":0`))
	a.offered()
	if _, err := a.result(id, failed(subjects.CodeAgentError, true)); err != nil {
		t.Fatal(err)
	}
	b := w.join("b", nil)
	if d := b.offered(); d.Task.TaskID != id {
		t.Errorf("offered %s", d.Task.TaskID)
	}
}

// TestTooLateAtTheRawDoor puts a dispatch into the inbox whose deadline has
// passed by the time a router looks: it ends under the name that its sender
// knows, once, and not as another's task.
func TestTooLateAtTheRawDoor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testTooLateAtTheRawDoor)
}

func testTooLateAtTheRawDoor(t *testing.T) {
	t.Helper()
	w := newWorld(t, 1)
	late := dispatchJSON("x", `"task_id":"late"`)
	late = strings.TrimSuffix(late, "}") + `,"deadline":"1999-12-31T00:00:00Z"}`
	put := func(from string, buried, records int) {
		t.Helper()
		if _, err := w.bus.Store(t.Context(), "fleet.dispatch."+from, []byte(late), "", nil); err != nil {
			t.Fatal(err)
		}
		bustest.Eventually(t, "it is refused", func() bool {
			dl, err := w.bus.DeadLetters(t.Context(), 10)
			s, serr := w.bus.StreamState(t.Context(), subjects.StreamTasks)
			return err == nil && serr == nil && len(dl) == buried && s.Msgs == uint64(records)
		})
	}
	put("boss", 1, 1)
	put("boss", 2, 1)
	put("somebody", 3, 2)
	if v := w.outcome("late"); v.State != fleet.StateError || v.Reason == nil || v.Reason.Code != subjects.CodeDeadlineExceeded || v.Seq != 1 {
		t.Errorf("it ended as %+v", v)
	}
}
