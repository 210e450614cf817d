package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"parley/subjects/fleet"
)

// demoCall is a call as the human of the demo gets it.
type demoCall struct {
	signed  bool
	Summary string `json:"summary"`
	Link    string `json:"link"`
}

// callsHere starts the receiver of a human, and has the fleet call it.
func (d *demo) callsHere(ctx context.Context, c *config) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for calls: %w", err)
	}
	d.calls = make(chan demoCall, 16)
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, fleet.MaxMessage))
		call := demoCall{signed: signedBy(key, r.Header, body)}
		if err != nil || json.Unmarshal(body, &call) != nil || !call.signed {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		select {
		case d.calls <- call:
		default: // it is being repeated; one is enough
		}
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }() // ends with Close
	d.stops = append(d.stops, func() error {
		err := server.Close()
		if serr := <-done; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	})
	c.WebhookURL = "http://" + l.Addr().String()
	c.WebhookSecret = "whsec_" + base64.StdEncoding.EncodeToString(key)
	c.WebhookAllow = []string{"127.0.0.1"}
	c.Escalate = fleet.EscalateNever // but for the task that says otherwise
	c.GroupWait, c.ChangeLog = span(100*time.Millisecond), d.path("CHANGE.log")
	return nil
}

// signedBy reports whether a call has the signature of key, by the Standard
// Webhooks scheme.
func signedBy(key []byte, h http.Header, body []byte) bool {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", h.Get("webhook-id"), h.Get("webhook-timestamp"), body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for got := range strings.FieldsSeq(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), []byte(want)) {
			return true
		}
	}
	return false
}

// asks: act 7.
func (d *demo) asks(ctx context.Context) error {
	const id = "deploy"
	if err := d.hireTwo(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := d.parley(ctx, exitOK, "task", "send", "--id", id, "--agent", "fern", "--alt", "moss", "--max-retries", "1", "--escalate", "always", "Deploy it. (fails 3 times)"); err != nil {
		return err
	}
	var heard demoCall
	if err := d.until(ctx, "a call", func() (bool, error) {
		select {
		case heard = <-d.calls:
			return true, nil
		default:
			return false, nil
		}
	}); err != nil {
		return err
	}
	v, err := d.task(ctx, id)
	if err != nil {
		return err
	}
	pause := time.Duration(0)
	if len(v.Attempts) == 3 {
		pause = v.Attempts[1].Ended.Sub(v.Attempts[0].Ended)
	}
	for _, claim := range []struct {
		ok   bool
		text string
	}{
		{len(v.Attempts) == 3 && v.Attempts[1].AgentID == "fern" && pause > 700*time.Millisecond, "fern failed, waited a second, and failed again (" + roughly(pause) + ")"},
		{len(v.Attempts) == 3 && v.Attempts[2].AgentID == "moss", "then moss took over, and failed"},
		{v.Await == fleet.AwaitHuman && heard.signed, "a human was called by webhook after " + roughly(time.Since(begin)) + ", and the signature is right"},
	} {
		if err := d.check(claim.ok, "%s", claim.text); err != nil {
			return err
		}
	}
	d.say("The call says: %s", heard.Summary)
	if err := d.until(ctx, "the alert", func() (bool, error) {
		open, listErr := d.alerts(ctx)
		return len(open.Alerts) == 1 && open.Alerts[0].Calls == 1, listErr
	}); err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "escalation", "ls"); err != nil {
		return err
	}
	if err := d.answers(ctx, heard.Link); err != nil {
		return err
	}
	if err := d.parley(ctx, exitOK, "task", "wait", id); err != nil {
		return err
	}
	if v, err = d.task(ctx, id); err != nil {
		return err
	}
	if err := d.until(ctx, "two free slots", func() (bool, error) {
		list, err := d.list(ctx)
		busy := 0
		for i := range list {
			if list[i].Live { // what the dead one held it does not tell any more
				busy += list[i].Active
			}
		}
		return busy == 0, err
	}); err != nil {
		return err
	}
	return d.check(v.State == fleet.StateDone && v.Attempt == 4 && v.Human != nil, "the task went on and is done, in attempt %d; who let it go on is kept: %s", v.Attempt, by(v.Human))
}

// hireTwo starts two agents more.
func (d *demo) hireTwo(ctx context.Context) error {
	work := []string{d.exe, "demo", "work"}
	for _, agent := range []string{"fern", "moss"} {
		if err := d.hire(agent, nil, work); err != nil {
			return err
		}
	}
	return d.until(ctx, "two more agents", func() (bool, error) {
		list, err := d.list(ctx)
		live := map[string]bool{}
		for i := range list {
			live[string(list[i].Announce.Worker.AgentID)] = list[i].Live
		}
		return live["fern"] && live["moss"], err
	})
}

// alerts are those that are open.
func (d *demo) alerts(ctx context.Context) (fleet.EscalationListReply, error) {
	r, err := d.client.alerts(ctx, fleet.EscalationList{})
	return r.value, err
}

func by(h *fleet.HumanAnswer) string {
	if h == nil {
		return "nobody"
	}
	return h.By
}

// answers posts what the human's page would.
func (d *demo) answers(ctx context.Context, link string) error {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	form := url.Values{"verb": {fleet.VerbAnswer}, "text": {"Port 81 is free."}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, link, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("answer by the link: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // it is only read
	return d.check(res.StatusCode == http.StatusOK, "the human opens the signed link and answers: %s", form.Get("text"))
}
