package escalation_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// browser visits a worker's pages.
func browser(w *escalation.Worker, method, link string, form url.Values, header ...string) (int, string) {
	r := httptest.NewRequest(method, link, strings.NewReader(form.Encode()))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, r)
	return rec.Code, rec.Body.String()
}

// called is a worker that has called somebody about task t, and the link.
func called(t *testing.T) (*world, *escalation.Worker, string) {
	t.Helper()
	w := newWorld(t, bustest.New(t))
	e, _ := w.worker(escalation.Config{Chain: quick("ann"), URL: "http://parley.example/"})
	w.wait("t", "a", subjects.CodeAgentError)
	w.only(1, 1)
	link := w.deliveries()[0].message.Link
	if !strings.HasPrefix(link, "http://parley.example/escalation/") {
		t.Fatalf("link = %q", link)
	}
	return w, e, link
}

// TestLinkWhileStarting: a worker that has not read the key yet judges no link.
func TestLinkWhileStarting(t *testing.T) {
	t.Parallel()
	_, _, link := called(t)
	e, err := escalation.New(escalation.Config{Bus: bustest.New(t).Bus(t), URL: "http://parley.example/"})
	if err != nil {
		t.Fatal(err)
	}
	if status, page := browser(e, http.MethodGet, link, nil); status != http.StatusServiceUnavailable {
		t.Errorf("the page of a worker that starts = %d: %s", status, page)
	}
}

// TestLinkWhileNoRouterListens: an answer that is kept is no failure of the page, and
// is carried out as soon as it can be.
func TestLinkWhileNoRouterListens(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	w.refuse(subjects.Errorf(subjects.CodeInternal, "no router can do it now"))
	if status, page := browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}}); status != http.StatusAccepted || !strings.Contains(page, "is kept") {
		t.Errorf("POST = %d %s, want 202 and that the answer is kept", status, page)
	}
	w.refuse(nil)
	bustest.Eventually(t, "the answer is carried out", func() bool { return w.list()[0].State == fleet.AlertResolved })
}

// TestLink: looking changes nothing, posting acts, once; who it was is kept.
func TestLink(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	for range 3 {
		status, page := browser(e, http.MethodGet, link, nil)
		if status != http.StatusOK || !strings.Contains(page, "task t waits for a human") || strings.Contains(page, "<b>here</b>") || !strings.Contains(page, "&lt;b&gt;here") {
			t.Fatalf("GET = %d %s; want the alert, with what agents wrote escaped", status, page)
		}
		for _, asset := range []string{"http://", "https://", "<script", "src="} {
			if strings.Contains(page, asset) {
				t.Errorf("the page loads something: %q", asset)
			}
		}
	}
	if len(w.resumed()) != 0 {
		t.Fatal("looking has answered")
	}
	if status, _ := browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}}, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("a page of another site may post: %d", status)
	}
	if status, page := browser(e, http.MethodPost, link, url.Values{"verb": {"ack"}}); status != http.StatusOK || !strings.Contains(page, "30m") {
		t.Errorf("ack = %d %s", status, page)
	}
	if a := w.list()[0]; a.AckBy != "ann by link" || a.State != fleet.AlertAcknowledged {
		t.Errorf("alert = %+v, want it acknowledged by ann", a)
	}
	for verb, form := range map[string]url.Values{"": {}, "hack": {}, "reassign": {}, "answer": {}, "complete": {}} {
		form.Set("verb", verb)
		if status, _ := browser(e, http.MethodPost, link, form); status != http.StatusBadRequest {
			t.Errorf("POST %q with nothing = %d, want 400", verb, status)
		}
	}
	status, page := browser(e, http.MethodPost, link, url.Values{"verb": {"complete"}, "result": {`{"port":81}`}})
	if status != http.StatusOK {
		t.Fatalf("complete = %d %s", status, page)
	}
	rs := w.resumed()
	r, err := fleet.DecodeResult(rs[0].Result)
	if len(rs) != 1 || rs[0].By != "ann by link" || rs[0].Verb != "complete" || err != nil || string(r.Output) != `{"port":81}` {
		t.Errorf("resume = %+v, %v", rs, err)
	}
	// The link has been used.
	status, page = browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}})
	if status != http.StatusConflict || !strings.Contains(page, "ann by link has answered") {
		t.Errorf("a second POST = %d %s, want 409 that tells who", status, page)
	}
	if status, page = browser(e, http.MethodGet, link, nil); status != http.StatusOK || strings.Contains(page, "<form") {
		t.Errorf("GET afterwards = %d, with a form: %t", status, strings.Contains(page, "<form"))
	}
	kinds := map[string]int{}
	for _, ev := range w.events() {
		kinds[ev.Event]++
	}
	if kinds["refused"] == 0 || kinds["answered"] != 1 || kinds["acknowledged"] != 1 || kinds["called"] != 1 {
		t.Errorf("events = %v", kinds)
	}
}

// TestForgedLinks are refused, and kept.
func TestForgedLinks(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	base, token, _ := strings.Cut(link, "/escalation/")
	payload, mac, _ := strings.Cut(token, ".")
	claims, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	other := base64.RawURLEncoding.EncodeToString([]byte(strings.Replace(string(claims), "ann", "bob", 1)))
	for name, forged := range map[string]string{
		"nothing": "x", "no signature": payload, "an empty signature": payload + ".", "another signature": payload + "." + strings.Repeat("A", len(mac)),
		"another name": other + "." + mac, "not base64": payload + ".~", "a longer signature": token + "AA",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			status, page := browser(e, method, base+"/escalation/"+forged, url.Values{"verb": {"retry"}})
			if status != http.StatusUnauthorized || strings.Contains(page, "<form") {
				t.Errorf("%s with %s = %d", method, name, status)
			}
		}
	}
	if len(w.resumed()) != 0 {
		t.Error("a forged link has answered")
	}
	refused := len(refusals(w))
	s, err := call[fleet.EscalationStatusReply](w, "status", fleet.EscalationStatus{})
	if err != nil || refused != 14 || s.Refused != 14 {
		t.Errorf("%d refusals kept, %d counted, %v; want 14", refused, s.Refused, err)
	}
	log, _, err := w.bus.History(t.Context(), subjects.StreamLog, subjects.Log("", "human"), 1, 100)
	if err != nil || len(log) != 14 || !strings.Contains(string(log[0].Data), `"event_type":"auth_refused"`) {
		t.Errorf("the audit is told of %d, %v, want 14", len(log), err)
	}
	// Whoever does so by the thousand fills no stream.
	for range 1000 {
		browser(e, http.MethodGet, base+"/escalation/x", nil)
	}
	s, err = call[fleet.EscalationStatusReply](w, "status", fleet.EscalationStatus{})
	if kept := len(refusals(w)); err != nil || kept < 100 || kept > 500 || s.Refused != 1014 {
		t.Errorf("%d refusals kept, %d counted, %v; want a little more than 100 of 1014", kept, s.Refused, err)
	}
}

// refusals are the events of what was refused.
func refusals(w *world) (list []fleet.AlertEvent) {
	for _, e := range w.events() {
		if e.Event == "refused" {
			list = append(list, e)
		}
	}
	return list
}

// TestUsedLinks: a link that is used again, for an answer or to acknowledge, is
// refused, and so is a page of another site. Each is kept, with who it was.
func TestUsedLinks(t *testing.T) {
	t.Parallel()
	w, e, link := called(t)
	alert := w.list()[0].AlertID
	if status, _ := browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}}, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("a page of another site = %d, want 403", status)
	}
	if status, page := browser(e, http.MethodPost, link, url.Values{"verb": {"retry"}}); status != http.StatusOK {
		t.Fatalf("retry = %d %s", status, page)
	}
	for _, verb := range []string{"retry", "cancel", "ack"} {
		if status, page := browser(e, http.MethodPost, link, url.Values{"verb": {verb}}); status != http.StatusConflict {
			t.Errorf("%s with the used link = %d %s, want 409", verb, status, page)
		}
	}
	var got []string
	for _, r := range refusals(w) {
		by := r.By
		if by != "ann by link" {
			by = "an address"
		}
		got = append(got, r.AlertID+" "+by)
	}
	want := []string{"none an address", alert + " ann by link", alert + " ann by link", alert + " ann by link"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
	if len(w.resumed()) != 1 {
		t.Errorf("%d answers were carried out, want 1", len(w.resumed()))
	}
}

// TestLinkTimes: a link expires, by clocks that may be 5 min apart; and every
// replica takes the links of every other.
func TestLinkTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, bustest.NewFake(t))
		w.worker(escalation.Config{Chain: policy.Chain{Contacts: []string{"ann"}}, URL: "http://p", LinkTTL: time.Hour})
		other, _ := w.worker(escalation.Config{})
		w.wait("t", "a", subjects.CodeAgentError)
		time.Sleep(time.Minute)
		link := w.deliveries()[0].message.Link
		for _, tt := range []struct {
			pass time.Duration
			want int
		}{{0, 200}, {59 * time.Minute, 200}, {4 * time.Minute, 200}, {2 * time.Minute, 401}} {
			time.Sleep(tt.pass)
			if status, page := browser(other, http.MethodGet, link, nil); status != tt.want {
				t.Errorf("after %s more: %d %s, want %d", tt.pass, status, page, tt.want)
			}
		}
		if got := refusals(w); len(got) != 1 || got[0].AlertID != w.list()[0].AlertID || !strings.Contains(got[0].Message, "expired") {
			t.Errorf("refused: %+v, want the link that has expired, with its alert", got)
		}
	})
}
