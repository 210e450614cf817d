package e2e_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// escalationPoints are the crash points of the escalation worker.
var escalationPoints = []string{
	"before_escalation", "after_escalation", "before_log", "after_log", "after_raise",
	"before_call", "after_call", "after_alert", "after_alert:2", "before_answer", "after_answer",
	"after_link_key", "after_waiting", "after_wait_over", "after_position",
}

// human is somebody with a webhook: who verifies the signature of a call, and
// answers by the link in it.
type human struct {
	*httptest.Server
	tb testing.TB

	mu   sync.Mutex
	ids  []string // guarded by mu; the webhook-ids of what came, in order
	link string   // guarded by mu; of the last call
	call chan struct{}
}

func newHuman(tb testing.TB) *human {
	tb.Helper()
	wh, err := standardwebhooks.NewWebhook(webhookSecret)
	if err != nil {
		tb.Fatal(err)
	}
	h := &human{tb: tb, call: make(chan struct{}, 100)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the sender died in the middle
		}
		if err := wh.Verify(body, r.Header); err != nil {
			tb.Errorf("signature: %v", err)
		}
		var call struct {
			Type  string            `json:"type"`
			Count int               `json:"count"`
			Link  string            `json:"link"`
			Group map[string]string `json:"group"`
		}
		if err := json.Unmarshal(body, &call); err != nil || call.Type != "escalation" || call.Count != 1 || call.Group["agent"] != "b" {
			tb.Errorf("call = %s, %v", body, err)
		}
		h.mu.Lock()
		h.ids = append(h.ids, r.Header.Get("webhook-id"))
		h.link = call.Link
		h.mu.Unlock()
		h.call <- struct{}{}
	}))
	tb.Cleanup(h.Close)
	return h
}

// answer waits for a call, looks at its link, and answers by it until that was
// taken in.
func (h *human) answer(ctx context.Context, verb string) error {
	select {
	case <-h.call:
	case <-ctx.Done():
		return fmt.Errorf("no call: %w", ctx.Err())
	}
	h.mu.Lock()
	link := h.link
	h.mu.Unlock()
	for {
		status, page, err := ask(ctx, http.MethodGet, link, nil)
		if err == nil && status == http.StatusOK {
			if !strings.Contains(page, "task t waits") && !strings.Contains(page, "answered") {
				return fmt.Errorf("the page says: %s", page)
			}
			status, page, err = ask(ctx, http.MethodPost, link, url.Values{"verb": {verb}})
		}
		switch {
		case err == nil && status == http.StatusOK:
			return nil
		case err == nil && status == http.StatusConflict && strings.Contains(page, "has answered"):
			return nil // it was taken in, and the worker died before it said so
		case err == nil && status != http.StatusServiceUnavailable:
			return fmt.Errorf("the link answers %d: %s", status, page)
		}
		if perr := pause(ctx, 50*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
}

func ask(ctx context.Context, method, link string, form url.Values) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, link, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, "", err
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	return res.StatusCode, string(page), err
}

// escalation starts an escalation worker of the binary given.
func (f *testFleet) escalation(name, binary, address string, env ...string) *process {
	f.tb.Helper()
	return start(f.tb, f.dir, program{
		name: name, path: binary,
		env: append(env, "PARLEY_ALERT_CONTACTS=human", "PARLEY_GROUP_WAIT=100ms", "PARLEY_CHANGE_LOG="+filepath.Join(f.dir, "CHANGE.log")),
		args: []string{
			"serve", "--workers", "escalation", "--server", f.url, "--http", address,
			"--provision", "verify", "--log-format", "text", "--log-level", "debug",
		},
	})
}

// TestEscalation plays the whole ladder with real processes: an agent fails
// twice, with a pause; another takes over and fails; a human is called, checks
// the signature and answers by the link; the task ends well. Then again, once
// for every step at which the escalation worker or the webhooks worker dies by
// SIGKILL, or loses acknowledgements: the human hears of one delivery id, and the task ends once.
func TestEscalation(t *testing.T) {
	crashBinary(t) // before the clocks run
	two := make(chan struct{}, 2)
	points := []string{""}
	for _, p := range append(escalationPoints, lostAcks) {
		points = append(points, "escalation/"+p)
	}
	for _, p := range append(webhookPoints, lostAcks) {
		if !strings.Contains(p, ":") {
			points = append(points, "webhooks/"+p)
		}
	}
	for _, p := range points {
		worker, point, _ := strings.Cut(p, "/")
		if *pointFlag != "" && point != *pointFlag {
			continue
		}
		t.Run(cmp.Or(p, "all well"), func(t *testing.T) {
			t.Parallel()
			two <- struct{}{}
			defer func() { <-two }()
			escalate(t, worker, point)
		})
	}
}

func escalate(t *testing.T, worker, point string) {
	f := newFleet(t, "registry")
	h := newHuman(t)
	for _, a := range []string{"a", "b"} {
		f.agents("agent-"+a, cast{Heartbeat: quick, Agents: []actor{{ID: a, Instance: "main", MaxParallel: 2}}})
	}
	f.awaitAgents("a", "b")
	f.router("router", parleyBinary(t), "PARLEY_ALERT_CONTACTS=human")
	address := freeAddress(t)
	hook := &hook{Server: h.Server}
	crashAt := func(w string) (binary string, env []string) {
		if w == worker {
			return crashBinary(t), []string{crashEnv(point)}
		}
		return parleyBinary(t), nil
	}
	binary, env := crashAt("webhooks")
	wh := f.webhooks("webhooks-1", binary, hook, env...)
	binary, env = crashAt("escalation")
	es := f.escalation("escalation-1", binary, address, env...)

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	one := 1
	sender := boss{NC: f.nc, Name: "boss"}
	brief := play(step{Do: doError, MS: 20}, step{Do: doError, MS: 20}, step{Do: doFatal, MS: 20}, step{Do: doDone})
	if _, err := sender.Call(ctx, "task", "dispatch", map[string]any{
		"task": map[string]any{"task_id": theTask, "max_retries": one, "agent": "a", "alternatives": []string{"b"}}, "brief": brief,
	}); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- h.answer(ctx, "retry") }()
	if worker != "" {
		victim, writes := es, "fleet.escalation."
		if worker == "webhooks" {
			victim, writes = wh, "fleet.webhookevent."
		}
		switch {
		case !dies(t, victim, point):
			defer checkLost(t, victim, point, writes)
		case worker == "webhooks":
			f.webhooks("webhooks-2", parleyBinary(t), hook)
		default:
			f.escalation("escalation-2", parleyBinary(t), address)
		}
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	all := newReader(t, f.nc).Until(t, "the outcome", patience, func(hs history) bool { return len(hs) > 0 && hs.Ended() == len(hs) })
	if got := all.Last(theTask).State; got != "done" {
		t.Errorf("the task is %s, want done", got)
	}
	f.checkEscalation(ctx, h)
}

// checkEscalation checks what the story has left behind.
func (f *testFleet) checkEscalation(ctx context.Context, h *human) {
	f.tb.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		f.tb.Fatal(err)
	}
	// What is still on its way arrives before an alert is over. That its end is told,
	// too, is not promised: whoever stored it may have died.
	for state := ""; state != "resolved"; {
		if state, err = f.alertState(ctx, js); err != nil {
			f.tb.Fatal(err)
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			f.tb.Fatalf("the alert is %q, and not over", state)
		}
	}
	h.mu.Lock()
	ids := slices.Compact(slices.Clone(h.ids))
	h.mu.Unlock()
	if len(ids) != 1 || !strings.HasPrefix(ids[0], "esc_") {
		f.tb.Errorf("the human heard of deliveries %v, want exactly one", ids)
	}
	levels, err := f.levels(ctx, js)
	if err != nil || !slices.Equal(levels, []string{"1", "2", "3"}) {
		f.tb.Errorf("escalations = %v, %v; want one of each level", levels, err)
	}
	file, err := os.Open(filepath.Join(f.dir, "CHANGE.log"))
	if err != nil {
		f.tb.Fatal(err)
	}
	defer file.Close()
	lines := 0
	for s := bufio.NewScanner(file); s.Scan(); lines++ {
		var line struct {
			TaskID string `json:"task_id"`
			Level  int    `json:"escalation_level"`
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil || line.TaskID != theTask || line.Level != 3 {
			f.tb.Errorf("line %q: %v", s.Text(), err)
		}
	}
	if lines != 1 {
		f.tb.Errorf("CHANGE.log has %d lines, want 1", lines)
	}
}

// alertState is how the only alert is.
func (f *testFleet) alertState(ctx context.Context, js jetstream.JetStream) (state string, err error) {
	err = f.eachOf(ctx, js, "KV_FLEET_ALERTS", "$KV.FLEET_ALERTS.alert.*", func(m *jetstream.RawStreamMsg) error {
		var a struct {
			State string `json:"state"`
		}
		defer func() { state = a.State }()
		return json.Unmarshal(m.Data, &a)
	})
	return state, err
}

// levels are those of the escalations that were kept, in order.
func (f *testFleet) levels(ctx context.Context, js jetstream.JetStream) ([]string, error) {
	var levels []string
	err := f.eachOf(ctx, js, "FLEET_ESCALATIONS", "fleet.escalation.*.*", func(m *jetstream.RawStreamMsg) error {
		levels = append(levels, strings.Split(m.Subject, ".")[2])
		return nil
	})
	slices.Sort(levels)
	return levels, err
}

// eachOf visits the messages of a stream on subject.
func (f *testFleet) eachOf(ctx context.Context, js jetstream.JetStream, stream, subject string, visit func(*jetstream.RawStreamMsg) error) error {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	for seq := uint64(1); ; {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := visit(m); err != nil {
			return err
		}
		seq = m.Sequence + 1
	}
}

// freeAddress is an address of the loopback that nobody listens on.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// asksHuman is the users' part of a scenario in which an agent fails for good
// and an operator lets another try.
func asksHuman(ctx context.Context, s *stage) error {
	none := 0
	d := dispatch{
		Task:  dispatchTask{TaskID: theTask, Agent: "a", MaxRetries: &none, Escalate: "always"},
		Brief: play(step{Do: doFatal, MS: 20}, step{Do: doDone}),
	}
	if _, err := s.boss.Dispatch(ctx, d); err != nil {
		return err
	}
	for {
		v, err := s.boss.Call(ctx, "task", "get", map[string]string{"task_id": theTask})
		if err != nil {
			return err
		}
		if v.State == "input_required" {
			break
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	operator := boss{NC: s.nc, Name: "operator"}
	_, err := operator.Call(ctx, "task", "resume", map[string]string{"task_id": theTask, "verb": "retry", "answer_id": "x"})
	return err
}
