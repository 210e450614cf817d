package escalation_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus"
	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestEveryLevelIsKept: every escalation is a message of the session protocol,
// once, however often it is derived.
func TestEveryLevelIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	log := filepath.Join(t.TempDir(), "CHANGE.log")
	_, stop := w.worker(escalation.Config{ChangeLog: log})
	w.worker(escalation.Config{ChangeLog: log})
	w.record("t", "", func(*fleet.Event) {})
	fail := func(kind, level string, code subjects.Code) {
		w.record("t", level, func(e *fleet.Event) {
			e.Kind, e.State, e.Reason = kind, fleet.StateQueued, &fleet.Reason{Code: code, Message: "m"}
			e.Facts.Attempts = append(e.Facts.Attempts, fleet.Attempt{Attempt: int(e.Seq), AgentID: "a", Code: code})
		})
	}
	fail(fleet.KindRetry, "1", subjects.CodeAgentTimeout)
	fail(fleet.KindReroute, "2", subjects.CodeAgentLost)
	w.record("t", "3", func(e *fleet.Event) {
		e.Kind, e.State, e.Reason = fleet.KindOutcome, fleet.StateError, &fleet.Reason{Code: subjects.CodeAgentError, Message: "the end"}
	})
	bustest.Eventually(t, "three escalations", func() bool { return len(w.escalations()) == 3 })
	stop()
	if err := deletePosition(w); err != nil {
		t.Fatal(err)
	}
	w.worker(escalation.Config{ChangeLog: log}) // reads everything again
	w.record("u", "1", func(e *fleet.Event) {
		e.Kind, e.Reason = fleet.KindRetry, &fleet.Reason{Code: subjects.CodeAgentError}
	})
	bustest.Eventually(t, "the new one", func() bool { return len(w.escalations()) >= 4 })
	got := map[string]int{}
	for _, e := range w.escalations() {
		got[fmt.Sprintf("%s/%d level %d %s", e.TaskID, e.Seq, e.Level, e.Error.Code)]++
	}
	want := map[string]int{"t/2 level 1 AGENT_TIMEOUT": 1, "t/3 level 2 AGENT_LOST": 1, "t/4 level 3 AGENT_ERROR": 1, "u/1 level 1 AGENT_ERROR": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("escalations differ (-want +got):\n%s", diff)
	}
	// The task has ended, so nobody is called; its line is there all the same.
	bustest.Eventually(t, "a line of CHANGE.log", func() bool { return len(lines(t, log)) == 1 })
	var line fleet.Escalation
	if err := json.Unmarshal([]byte(lines(t, log)[0]), &line); err != nil || line.TaskID != "t" || line.Error.Message != "the end" {
		t.Errorf("line = %+v, %v", line, err)
	}
	if len(w.list()) != 0 || len(w.deliveries()) != 0 {
		t.Errorf("alerts %v, deliveries %v; want none", w.list(), w.deliveries())
	}
}

func deletePosition(w *world) error {
	kv, err := w.bus.KV(w.t.Context(), subjects.BucketScratch)
	if err != nil {
		return err
	}
	return kv.Delete(w.t.Context(), "escalation")
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// TestOneAlertForOneCause: tasks that fail alike are one call and one answer,
// with several workers as with one.
func TestOneAlertForOneCause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	chain := quick("oncall")
	chain.GroupWait = 500 * time.Millisecond
	for range 3 {
		w.worker(escalation.Config{Chain: chain})
	}
	const n = 50
	for i := range n {
		w.wait(subjects.TaskID(fmt.Sprintf("t%d", i)), "a", subjects.CodeAgentError)
	}
	w.wait("other", "b", subjects.CodeAgentError)
	bustest.Eventually(t, "two alerts, called, known to every worker", func() bool {
		for range 30 { // any of them may answer
			l := w.list()
			if len(l) != 2 || l[0].Calls != 1 || l[1].Calls != 1 || l[0].Count+l[1].Count != n+1 {
				return false
			}
		}
		return true
	})
	a := w.list()[0]
	if diff := cmp.Diff(map[string]string{"agent": "a", "code": "agent_error"}, a.Group); diff != "" || a.Count != n {
		t.Errorf("group of %d tasks (-want +got):\n%s", a.Count, diff)
	}
	ds := w.deliveries()
	if len(ds) != 2 {
		t.Fatalf("%d deliveries, want 2", len(ds))
	}
	first := ds[0]
	if first.message.AlertID != a.AlertID {
		first = ds[1]
	}
	if m := first.message; first.DeliveryID != escalation.DeliveryID(a.AlertID, 1, "oncall") || first.Endpoint != "oncall" || m.Count+0 < 1 || len(m.Tasks) > 20 || len(first.Body) > 20<<10 || m.Level != 3 || m.Type != "escalation" {
		t.Errorf("delivery = %+v with %d tasks", first.Delivery, len(m.Tasks))
	}
	done, err := call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: a.AlertID})
	if err != nil || done.Tasks != n || done.Applied == 0 || done.By != "operator" {
		t.Fatalf("retry = %+v, %v; want it to be about all %d", done, err, n)
	}
	bustest.Eventually(t, "the alert is over", func() bool { return w.list()[0].State == fleet.AlertResolved })
	byTask := map[subjects.TaskID]int{}
	for _, r := range w.resumed() {
		byTask[r.TaskID]++
		if r.Verb != fleet.VerbRetry || r.By != "operator" || r.AnswerID == "" {
			t.Errorf("resume = %+v", r)
		}
	}
	if len(byTask) != n || byTask["other"] != 0 {
		t.Errorf("%d tasks were answered, want %d", len(byTask), n)
	}
	_, err = call[fleet.EscalationAnswered](w, "cancel", fleet.EscalationAnswer{ID: a.AlertID})
	if subjects.CodeOf(err) != subjects.CodeLateResult || !strings.Contains(err.Error(), "operator has answered") {
		t.Errorf("a second answer = %v, want late_result that names the first", err)
	}
	// What fails alike later is the next alert of that group.
	w.wait("again", "a", subjects.CodeAgentError)
	bustest.Eventually(t, "a second alert", func() bool {
		return strings.HasSuffix(w.list()[len(w.list())-1].AlertID, "-2")
	})
	if _, err = call[fleet.Alert](w, "get", fleet.EscalationRef{ID: a.AlertID}); err != nil {
		t.Errorf("the alert that is over: %v", err)
	}
}

// TestOneTask: one task of an alert can be answered by itself; it leaves the
// alert, as does one that goes on without any answer.
func TestOneTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall")})
	for _, id := range []subjects.TaskID{"t1", "t2", "t3"} {
		w.wait(id, "a", subjects.CodeAgentError)
	}
	w.only(3, 1)
	if _, err := call[fleet.EscalationAnswered](w, "answer", fleet.EscalationAnswer{ID: "t1", Text: "look there"}); err != nil {
		t.Fatal(err)
	}
	w.only(2, 1)
	w.goOn("t2")
	w.only(1, 1)
	a, err := call[fleet.Alert](w, "get", fleet.EscalationRef{ID: "t3"})
	if err != nil || len(a.Tasks) != 1 || a.Tasks[0].TaskID != "t3" {
		t.Errorf("the alert of t3 = %+v, %v", a, err)
	}
	w.goOn("t3")
	bustest.Eventually(t, "the alert is over", func() bool { return w.list()[0].State == fleet.AlertResolved })
	for _, id := range []string{"t1", "nowhere"} {
		_, err := call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: id})
		if want := map[string]subjects.Code{"t1": subjects.CodeLateResult, "nowhere": subjects.CodeNotFound}[id]; subjects.CodeOf(err) != want {
			t.Errorf("an answer to %s = %v, want %s", id, err, want)
		}
	}
}

// TestAnswerRefused: an answer that no task can take is told, and the alert
// waits for another one.
func TestAnswerRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall")})
	w.wait("t", "a", subjects.CodeAgentError)
	a := w.only(1, 1)
	w.refuse(subjects.Errorf(subjects.CodeNotFound, "no agent b").At("/agent_id"))
	_, err := call[fleet.EscalationAnswered](w, "reassign", fleet.EscalationAnswer{ID: a.AlertID, AgentID: "b"})
	if e := subjects.AsError(err); e.Code != subjects.CodeNotFound || e.Pointer != "/agent_id" {
		t.Errorf("reassign = %v at %s, want what the router said", err, e.Pointer)
	}
	for verb, req := range map[string]fleet.EscalationAnswer{
		"reassign": {}, "answer": {}, "complete": {}, "retry": {ID: "a b"},
	} {
		req.ID = max(req.ID, a.AlertID)
		if verb == "retry" {
			req.ID = "a b"
		}
		if _, err := call[fleet.EscalationAnswered](w, verb, req); err == nil {
			t.Errorf("%s with nothing is taken", verb)
		}
	}
	w.refuse(nil)
	if done, err := call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: a.AlertID}); err != nil || done.Applied != 1 {
		t.Errorf("retry = %+v, %v", done, err)
	}
	if _, err := callAs[fleet.EscalationListReply](w, "boss", "list", fleet.EscalationList{}); subjects.CodeOf(err) != subjects.CodeForbidden {
		t.Errorf("somebody else lists alerts: %v", err)
	}
}

// TestTwoAnswersAtOnce: one wins, the others are told who.
func TestTwoAnswersAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall"), Operators: []subjects.AgentID{"operator", "o0", "o1", "o2", "o3"}})
	w.wait("t", "a", subjects.CodeAgentError)
	a := w.only(1, 1)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = callAs[fleet.EscalationAnswered](w, subjects.AgentID(fmt.Sprintf("o%d", i)), "retry", fleet.EscalationAnswer{ID: a.AlertID})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if code := subjects.CodeOf(err); code != subjects.CodeLateResult && code != subjects.CodeUnavailable {
			t.Errorf("a loser is told %v, want late_result", err)
		}
	}
	if won != 1 || len(w.resumed()) != 1 {
		t.Errorf("%d won, %d resumes; want one of each", won, len(w.resumed()))
	}
}

// TestAnswerWhileItsAlertChanges: what else is written of an alert at the same
// time, as that its contact was called, has no answer refused.
func TestAnswerWhileItsAlertChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("oncall"), GroupBy: []string{"task"}})
	const n = 20
	for i := range n {
		w.wait(subjects.TaskID(fmt.Sprintf("t%d", i)), "a", subjects.CodeAgentError)
	}
	bustest.Eventually(t, "an alert of each", func() bool { return len(w.list()) == n })
	kv, err := w.bus.KV(t.Context(), subjects.BucketAlerts)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.list() {
		answered := make(chan struct{})
		var rival sync.WaitGroup
		rival.Go(func() { // another worker of escalations
			key, _ := strings.CutSuffix("alert."+a.AlertID, fmt.Sprintf("-%d", a.Number))
			for {
				select {
				case <-answered:
					return
				default:
				}
				e, err := kv.Get(t.Context(), key)
				if err == nil {
					_, err = kv.Update(t.Context(), key, e.Value, e.Revision)
				}
				if err != nil && !errors.Is(err, bus.ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
		if _, err := call[fleet.EscalationAnswered](w, "cancel", fleet.EscalationAnswer{ID: a.AlertID}); err != nil {
			t.Errorf("an answer to alert %s = %v", a.AlertID, err)
		}
		close(answered)
		rival.Wait()
	}
}

// TestADay plays 24 hours of an alert that nobody answers, on the real server:
// two contacts, the second after 5 min, the whole chain each 30 min; with one
// acknowledgement that times out.
func TestADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one", "two"}}})
		began := time.Now()
		w.wait("t", "a", subjects.CodeAgentError)
		time.Sleep(6 * time.Hour)
		a := w.only(1, 1)
		acked, err := call[fleet.Alert](w, "ack", fleet.EscalationRef{ID: a.AlertID})
		if err != nil || acked.State != fleet.AlertAcknowledged || acked.AckBy != "operator" {
			t.Fatalf("ack = %+v, %v", acked, err)
		}
		time.Sleep(18*time.Hour - 10*time.Second)
		var got []string
		for _, d := range w.deliveries() {
			got = append(got, fmt.Sprintf("%s %s", d.at.Sub(began).Round(time.Second), d.Endpoint))
			if d.DeliveryID != escalation.DeliveryID(a.AlertID, d.message.Sequence, d.Endpoint) {
				t.Errorf("call %d has delivery id %s", d.message.Sequence, d.DeliveryID)
			}
		}
		var want []string
		at := 3 * time.Second
		for at < 24*time.Hour-10*time.Second {
			want = append(want, fmt.Sprintf("%s one", at), fmt.Sprintf("%s two", at+5*time.Minute))
			next := at + 30*time.Minute
			if at < 6*time.Hour && next >= 6*time.Hour {
				next = 6*time.Hour + 30*time.Minute // acknowledged meanwhile
			}
			at = next
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("calls differ (-want +got):\n%s", diff)
		}
		w.record("t", "0", func(e *fleet.Event) { // the router gives up
			e.Kind, e.State, e.Facts.Await = fleet.KindOutcome, fleet.StateError, ""
		})
		time.Sleep(2 * time.Hour)
		if n := len(w.deliveries()); n != len(want) || w.list()[0].State != fleet.AlertResolved {
			t.Errorf("%d calls, alert %s; want no more calls, and it resolved", n, w.list()[0].State)
		}
	})
}

// TestGrows: a group that grows is told again, no sooner than group_interval.
func TestGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		began := time.Now()
		for i := range 30 {
			w.wait(subjects.TaskID(fmt.Sprintf("t%02d", i)), "a", subjects.CodeAgentError)
			time.Sleep(10 * time.Second)
		}
		time.Sleep(20 * time.Minute)
		var got []string
		for _, d := range w.deliveries() {
			got = append(got, fmt.Sprintf("%s %d", d.at.Sub(began).Round(time.Second), d.message.Count))
		}
		if diff := cmp.Diff([]string{"3s 1", "5m3s 30"}, got); diff != "" {
			t.Errorf("calls differ (-want +got):\n%s", diff)
		}
	})
}

// TestOneCallOnItsWay: while a contact cannot be reached, one call waits for it
// and repeats do not pile up behind that; the next contact is called all the
// same. Once the contact can be reached it hears what waited, what has come
// since as soon as that is due, and repeats as before.
func TestOneCallOnItsWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		for range 2 {
			w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"one"}}})
		}
		began := time.Now()
		w.reach(false)
		w.wait("t0", "a", subjects.CodeAgentError)
		time.Sleep(3 * time.Hour)
		w.wait("t1", "a", subjects.CodeAgentError)
		time.Sleep(time.Hour + time.Minute)
		if n := len(w.deliveries()); n != 1 {
			t.Errorf("%d calls wait for somebody who cannot be reached, want 1", n)
		}
		w.reach(true)
		time.Sleep(time.Hour)
		var got []string
		seen := map[subjects.DeliveryID]bool{}
		for _, d := range w.deliveries() {
			got = append(got, fmt.Sprintf("%s %d", d.at.Sub(began).Round(time.Minute), d.message.Count))
			if seen[d.DeliveryID] || d.DeliveryID != escalation.DeliveryID(d.message.AlertID, d.message.Sequence, "one") {
				t.Errorf("call %d has delivery id %s, seen before: %t", d.message.Sequence, d.DeliveryID, seen[d.DeliveryID])
			}
			seen[d.DeliveryID] = true
		}
		if diff := cmp.Diff([]string{"0s 1", "4h5m0s 2", "4h30m0s 2", "5h0m0s 2"}, got); diff != "" {
			t.Errorf("calls differ (-want +got):\n%s", diff)
		}
		// What is a dead letter is not on its way.
		w.reach(false)
		time.Sleep(31 * time.Minute)
		last := w.deliveries()[4]
		w.became(&last.Delivery, fleet.DeliveryDead)
		time.Sleep(30 * time.Minute)
		if n := len(w.deliveries()); n != 6 {
			t.Errorf("%d calls, want another one after the dead letter", n)
		}
		skipped := 0
		for _, e := range w.events() {
			if e.Event == "not_called" {
				skipped++
			}
		}
		if skipped == 0 || w.list()[0].Calls != 6+skipped {
			t.Errorf("%d calls were due, %d of them not made; want that to add up to the 6 that were", w.list()[0].Calls, skipped)
		}
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		for range 2 {
			w.worker(escalation.Config{HeartbeatTo: "dead-man", Heartbeat: 10 * time.Minute})
		}
		time.Sleep(time.Hour + time.Second)
		ids := map[subjects.DeliveryID]bool{}
		for _, d := range w.deliveries() {
			ids[d.DeliveryID] = true
			if d.Endpoint != "dead-man" || d.Schedule != fleet.SchedulePush || d.message.Type != "heartbeat" {
				t.Errorf("delivery = %+v", d.Delivery)
			}
		}
		if len(ids) != 7 || len(w.deliveries()) != 7 {
			t.Errorf("%d heartbeats of %d ids in an hour, want 7", len(w.deliveries()), len(ids))
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	b := &bus.Bus{}
	for _, cfg := range []escalation.Config{
		{},
		{Bus: b, Chain: policy.Chain{Contacts: []string{"a b"}}},
		{Bus: b, GroupBy: []string{"mood"}},
		{Bus: b, Key: []byte("short")},
		{Bus: b, HeartbeatTo: "a.b"},
	} {
		if _, err := escalation.New(cfg); err == nil {
			t.Errorf("New(%+v) = nil error", cfg)
		}
	}
}

// TestEscalationBeforeItsRecord: an escalation that is heard before the leader
// knows the record that it tells of is not taken for one whose wait is over.
func TestEscalationBeforeItsRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		e := *w.record("t", "", func(*fleet.Event) {})
		e.Seq, e.Kind, e.State, e.Facts.Await = 2, fleet.KindHuman, fleet.StateInputRequired, fleet.AwaitHuman
		e.Reason = &fleet.Reason{Code: subjects.CodeAgentError, Message: "it broke"}
		if _, err := w.bus.Store(t.Context(), subjects.Escalation(3, "t"), fleet.MustEncode(fleet.NewEscalation(&e, 3)), "t/2", nil); err != nil {
			t.Fatal(err)
		}
		_, stop := w.worker(escalation.Config{})
		defer stop()
		time.Sleep(5 * time.Second) // it has heard of it, and there is no such record
		w.wait("t", "a", subjects.CodeAgentError)
		time.Sleep(5 * time.Minute)
		if l := w.list(); len(l) != 1 || l[0].Count != 1 {
			t.Errorf("alerts = %+v, want one of the task", l)
		}
	})
}
