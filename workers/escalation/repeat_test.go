package escalation_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// TestTaskAnswerComesAgain: an answer to a task counts once, also if its repeat
// comes when the task waits again. It is known by its request id, or by the
// record that it answers.
func TestTaskAnswerComesAgain(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]fleet.EscalationAnswer{
		"by its request id":            {ID: "t", RequestID: "r1"},
		"by the record":                {ID: "t", Seq: 1},
		"by its request id and record": {ID: "t", Seq: 1, RequestID: "r1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bustest.New(t))
			w.worker(escalation.Config{Chain: quick("ann")})
			w.wait("t", "a", subjects.CodeAgentError)
			w.only(1, 1)
			done, err := call[fleet.EscalationAnswered](w, "retry", answer)
			if err != nil || done.Applied != 1 || done.Duplicate {
				t.Fatalf("retry = %+v, %v; want it applied", done, err)
			}
			again := w.wait("t", "a", subjects.CodeAgentError)
			bustest.Eventually(t, "it is known to wait again", func() bool {
				for _, a := range w.list() {
					if a.Count == 1 && a.Tasks[0].Seq == again.Seq {
						return true
					}
				}
				return false
			})
			for range 3 {
				done, err = call[fleet.EscalationAnswered](w, "retry", answer)
				if err != nil || done.Applied != 1 || !done.Duplicate {
					t.Errorf("retry = %+v, %v; want the first answer again", done, err)
				}
			}
			w.mu.Lock()
			if e := w.last["t"].event; e.Seq != again.Seq || e.Facts.Await != fleet.AwaitHuman {
				t.Errorf("record %d, %s; want the task to wait still", e.Seq, e.State)
			}
			w.mu.Unlock()
			// Another answer to what is over is too late, one to what waits is not.
			if _, err = call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: "t", Seq: 1, RequestID: "r2"}); subjects.CodeOf(err) != subjects.CodeLateResult {
				t.Errorf("an answer to record 1 = %v, want late_result", err)
			}
			if _, err = call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: "t", Seq: again.Seq, RequestID: "r3"}); err != nil {
				t.Errorf("an answer to record %d: %v", again.Seq, err)
			}
			if n := answered(w); n != 2 {
				t.Errorf("%d answers were told, want 2", n)
			}
		})
	}
}

// answered counts the answers that were told as events.
func answered(w *world) (n int) {
	for _, e := range w.events() {
		if e.Event == "answered" {
			n++
		}
	}
	return n
}

// TestAlertAnswerComesAgain: an answer to an alert that is repeated when the next
// alert of the group has come is still that answer.
func TestAlertAnswerComesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bustest.New(t))
	w.worker(escalation.Config{Chain: quick("ann")})
	w.wait("t", "a", subjects.CodeAgentError)
	answer := fleet.EscalationAnswer{ID: w.only(1, 1).AlertID, RequestID: "r1"}
	if done, err := call[fleet.EscalationAnswered](w, "retry", answer); err != nil || done.Duplicate {
		t.Fatalf("retry = %+v, %v", done, err)
	}
	nextAlert(w)
	if done, err := call[fleet.EscalationAnswered](w, "retry", answer); err != nil || !done.Duplicate || done.ID != answer.ID {
		t.Errorf("the repeat = %+v, %v; want the first answer", done, err)
	}
	answer.RequestID = "r2"
	if _, err := call[fleet.EscalationAnswered](w, "cancel", answer); subjects.CodeOf(err) != subjects.CodeLateResult {
		t.Errorf("another answer = %v, want late_result", err)
	}
	if n := len(w.resumed()); n != 1 {
		t.Errorf("%d answers were carried out, want 1", n)
	}
}

// nextAlert waits until the alert that was answered is over, and has another one
// of its group come.
func nextAlert(w *world) {
	w.t.Helper()
	bustest.Eventually(w.t, "the alert is over", func() bool { return w.list()[0].State == fleet.AlertResolved })
	w.wait("again", "a", subjects.CodeAgentError)
	bustest.Eventually(w.t, "the next alert", func() bool { return strings.HasSuffix(w.list()[0].AlertID, "-2") })
}

// requestID is that of the forms of a page.
func requestID(t *testing.T, page string) string {
	t.Helper()
	ids := regexp.MustCompile(`name="request" value="([a-z0-9]+)"`).FindAllStringSubmatch(page, -1)
	if len(ids) != 4 || ids[0][1] != ids[3][1] {
		t.Fatalf("the page has forms with the request ids %q, want one id in all four", ids)
	}
	return ids[0][1]
}

// TestLinkPressedTwice: who presses a button twice hears that the answer was
// taken, also when the next alert has come; it counts once.
func TestLinkPressedTwice(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	_, page := browser(e, http.MethodGet, link, nil)
	form := url.Values{"verb": {"retry"}, "request": {requestID(t, page)}}
	if status, page := browser(e, http.MethodPost, link, form); status != http.StatusOK || !strings.Contains(page, "is on its way") {
		t.Fatalf("POST = %d %s", status, page)
	}
	pressAgain := func(when string) {
		t.Helper()
		if status, page := browser(e, http.MethodPost, link, form); status != http.StatusOK || !strings.Contains(page, "was taken before") {
			t.Errorf("the same button %s = %d %s, want 200 and that the answer was taken", when, status, page)
		}
	}
	pressAgain("at once")
	nextAlert(w)
	pressAgain("after the next alert has come")
	form.Set("verb", "cancel")
	if status, page := browser(e, http.MethodPost, link, form); status != http.StatusConflict {
		t.Errorf("another button of that page = %d %s, want 409", status, page)
	}
	if n := len(w.resumed()); n != 1 {
		t.Errorf("%d answers were carried out, want 1", n)
	}
}

// TestLinkWhileTheStoreIsAway: a store that does not answer in time is no fault of
// ours that is to be reported, and the same press counts afterwards.
func TestLinkWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, verb := range []string{"retry", "ack"} {
		r := httptest.NewRequestWithContext(late, http.MethodPost, link, strings.NewReader("verb="+verb+"&request=r1"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		rec := httptest.NewRecorder()
		e.Handler().ServeHTTP(rec, r)
		if rec.Code != http.StatusServiceUnavailable || strings.Contains(rec.Body.String(), "worker&#39;s log") {
			t.Errorf("%s = %d %s, want 503 and to try again", verb, rec.Code, rec.Body.String())
		}
	}
	if status, page := browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}, "request": {"r1"}}); status != http.StatusOK {
		t.Errorf("the same press = %d %s", status, page)
	}
	if n := len(w.resumed()); n != 1 {
		t.Errorf("%d answers were carried out, want 1", n)
	}
}

// TestAnswerWhileRoutersAreSilent: an answer that is kept is no failure, by a link
// or by the API, and nobody waits long to hear so.
func TestAnswerWhileRoutersAreSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		e, _ := w.worker(escalation.Config{Chain: quick("ann"), URL: "http://p"})
		w.wait("t", "a", subjects.CodeAgentError)
		w.wait("u", "b", subjects.CodeAgentError)
		time.Sleep(time.Minute)
		w.mu.Lock()
		w.silent = true
		w.mu.Unlock()
		ds := w.deliveries()
		began := time.Now()
		if status, page := browser(e, http.MethodPost, ds[0].message.Link, url.Values{"verb": {"retry"}}); status != http.StatusAccepted || !strings.Contains(page, "is kept") {
			t.Errorf("POST = %d %s, want 202 and that the answer is kept", status, page)
		}
		done, err := call[fleet.EscalationAnswered](w, "retry", fleet.EscalationAnswer{ID: ds[1].message.AlertID})
		if err != nil || done.Applied != 0 || done.Tasks != 1 {
			t.Errorf("retry = %+v, %v; want it kept, for one task", done, err)
		}
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("they heard so after %s, want 3 s each", took)
		}
		w.mu.Lock()
		w.silent = false
		w.mu.Unlock()
		time.Sleep(time.Minute)
		for _, a := range w.list() {
			if a.State != fleet.AlertResolved {
				t.Errorf("alert %s is %s, want it resolved by the answer that was kept", a.AlertID, a.State)
			}
		}
	})
}
