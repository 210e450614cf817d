package e2e_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/escalation"
	"parley/workers/router"
	"parley/workers/webhooks"
)

// causes is of how many agents' failure a storm is made: so many alerts.
const causes = 10

// deadEnd is a webhook endpoint that is away: it hangs or fails until it is
// back, and counts what arrives from then on by delivery id.
type deadEnd struct {
	*httptest.Server
	back atomic.Bool
	away atomic.Int64 // requests while it was away

	mu   sync.Mutex
	came map[string]int // guarded by mu
}

func newDeadEnd(t *testing.T) *deadEnd {
	t.Helper()
	d := &deadEnd{came: make(map[string]int)}
	d.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		if !d.back.Load() {
			if d.away.Add(1)%2 == 1 {
				<-r.Context().Done() // hangs, until the caller's patience is over
			}
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		d.mu.Lock()
		d.came[r.Header.Get("webhook-id")]++
		d.mu.Unlock()
	}))
	t.Cleanup(d.Close)
	return d
}

func (d *deadEnd) heard() (ids, times int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.came {
		times += n
	}
	return len(d.came), times
}

// storm is a fleet whose agents all fail at once.
type storm struct {
	t      *testing.T
	bus    *bus.Bus
	end    *deadEnd
	log    string // CHANGE.log
	begun  atomic.Int64
	failed chan struct{} // closed: everything that has begun fails

	mu   sync.Mutex
	ends map[subjects.TaskID]fleet.State // guarded by mu
}

// TestStorm: all tasks of ten agents fail at once, thousands of them, while the
// one webhook endpoint is dead. They are ten alerts, nothing is lost, and what
// other agents do goes on. Once the endpoint is back every alert arrives, once
// for each delivery id; and one answer for each alert ends all its tasks.
func TestStorm(t *testing.T) {
	n := *stormFlag
	s := newStorm(t, n)
	s.dispatch(n, func(i int) fleet.Task {
		return fleet.Task{TaskID: subjects.TaskID(fmt.Sprintf("t%d", i)), Agent: bad(i), MaxRetries: new(int), AlertRepeat: 2}
	})
	s.until("every task is being worked on", func() bool { return s.begun.Load() == int64(n) })
	close(s.failed)
	s.dispatch(50, func(i int) fleet.Task {
		return fleet.Task{TaskID: subjects.TaskID(fmt.Sprintf("ok%d", i)), Agent: "good"}
	})
	s.until("every task is part of an alert that was called", func() bool {
		waits := 0
		for _, a := range s.alerts() {
			if a.Calls > 0 {
				waits += a.Count
			}
		}
		return waits == n
	})
	if got := len(s.alerts()); got != causes {
		t.Errorf("%d alerts, want %d", got, causes)
	}
	s.until("other tasks are done", func() bool { return s.count(fleet.StateDone) == 50 })
	s.kept(n)
	s.until("the endpoint was tried in vain", func() bool { return s.end.away.Load() >= 10 })
	// Repeats have been due meanwhile; nobody is to hear all of them at once.
	if l := callAPI[fleet.WebhookListReply](s, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryPending}); l.Total != causes {
		t.Errorf("%d calls wait for the endpoint, want one for each alert", l.Total)
	}

	s.end.back.Store(true)
	s.until("every call has arrived", func() bool {
		l := callAPI[fleet.WebhookListReply](s, "webhook", "list", fleet.WebhookList{})
		ids, _ := s.end.heard()
		return l.Count[fleet.DeliveryPending] == 0 && ids == l.Total && ids >= causes
	})
	if ids, times := s.end.heard(); ids != times {
		t.Errorf("%d calls arrived %d times", ids, times)
	}
	l := callAPI[fleet.WebhookListReply](s, "webhook", "list", fleet.WebhookList{State: fleet.DeliveryDead})
	if l.Total != 0 {
		t.Errorf("%d dead letters", l.Total)
	}
	var answers sync.WaitGroup
	for _, a := range s.alerts() {
		answers.Go(func() { s.cancel(a.AlertID) })
	}
	answers.Wait()
	s.until("one answer for each alert ends all tasks", func() bool { return s.count(fleet.StateCanceled) == n })
	s.until("the alerts are over", func() bool { return len(s.alerts()) == 0 })
}

func bad(i int) subjects.AgentID { return subjects.AgentID(fmt.Sprintf("bad-%d", i%causes)) }

func newStorm(t *testing.T, n int) *storm {
	t.Helper()
	srv := bustest.New(t)
	s := &storm{t: t, bus: srv.Bus(t), end: newDeadEnd(t), log: filepath.Join(t.TempDir(), "CHANGE.log"), failed: make(chan struct{}), ends: make(map[subjects.TaskID]fleet.State)}
	s.watch()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	r, err := router.New(router.Config{Bus: srv.Connect(t), HumanContact: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, r)
	e, err := escalation.New(escalation.Config{
		Bus: srv.Connect(t), ChangeLog: s.log, Log: log,
		Chain: policy.Chain{Contacts: []string{"human"}, GroupWait: 100 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, e)
	w, err := webhooks.New(webhooks.Config{
		Bus: srv.Connect(t), Log: log, Timeout: time.Second, ProbeEvery: 300 * time.Millisecond,
		Human: webhooks.Schedule{Steps: []time.Duration{200 * time.Millisecond}, Refused: true},
		Endpoints: []webhooks.Endpoint{{
			Name: "human", URL: s.end.URL, Allow: []string{"127.0.0.1"},
			Secrets: []string{"whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32))},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Serve(t, w)
	for i := range causes {
		s.agent(srv.Connect(t), bad(i), (n+causes-1)/causes, func(ctx context.Context, _ *agent.Task) (fleet.Result, error) {
			s.begun.Add(1)
			select {
			case <-s.failed:
			case <-ctx.Done():
			}
			return fleet.Result{}, &agent.Fail{Message: "the disk is full"}
		})
	}
	s.agent(srv.Connect(t), "good", 10, func(context.Context, *agent.Task) (fleet.Result, error) { return agent.Text("done"), nil })
	return s
}

func (s *storm) agent(b *bus.Bus, id subjects.AgentID, parallel int, f agent.HandlerFunc) {
	s.t.Helper()
	a, err := agent.New(agent.Config{ID: id, Bus: b, MaxParallel: parallel, Handler: f})
	if err != nil {
		s.t.Fatal(err)
	}
	bustest.Run(s.t, a.Run)
}

// dispatch dispatches n tasks and waits until all were accepted.
func (s *storm) dispatch(n int, task func(int) fleet.Task) {
	s.t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				ctx, cancel := context.WithTimeout(s.t.Context(), 2*patience)
				m, err := s.bus.Request(ctx, subjects.API("boss", "task", "dispatch"), fleet.MustEncode(&fleet.Dispatch{
					Header: fleet.Header{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version}, Task: task(i), Brief: "do it",
				}), nil)
				cancel()
				if err == nil {
					_, err = fleet.DecodeReply[fleet.Dispatched](m.Data)
				}
				if err != nil {
					s.t.Errorf("dispatch %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

// cancel answers an alert: once, and once more for each time that it is refused
// for now. No reply is none of these: there are thousands of tasks.
func (s *storm) cancel(alert string) {
	for {
		ctx, stop := context.WithTimeout(s.t.Context(), patience)
		m, err := s.bus.Request(ctx, subjects.API("operator", "escalation", "cancel"), fleet.MustEncode(fleet.EscalationAnswer{ID: alert}), nil)
		stop()
		if err == nil {
			_, err = fleet.DecodeReply[fleet.EscalationAnswered](m.Data)
		}
		if err != nil {
			s.t.Logf("answer to %s: %v", alert, err)
		}
		if subjects.CodeOf(err) != subjects.CodeUnavailable {
			return
		}
		select {
		case <-s.t.Context().Done():
			return
		case <-time.After(time.Second):
		}
	}
}

func callAPI[T any](s *storm, noun, verb string, req any) T {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	m, err := s.bus.Request(ctx, subjects.API("operator", noun, verb), fleet.MustEncode(req), nil)
	if err != nil {
		s.t.Fatalf("%s %s: %v", noun, verb, err)
	}
	v, err := fleet.DecodeReply[T](m.Data)
	if err != nil {
		s.t.Fatalf("%s %s: %v", noun, verb, err)
	}
	return v
}

func (s *storm) alerts() []fleet.Alert {
	s.t.Helper()
	all, err := fleet.AllAlerts(fleet.EscalationList{}, func(q fleet.EscalationList) (fleet.EscalationListReply, error) {
		return callAPI[fleet.EscalationListReply](s, "escalation", "list", q), nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all.Alerts
}

// each visits what a stream keeps on subject.
func (s *storm) each(stream, subject string, visit func(bus.Msg)) {
	s.t.Helper()
	msgs, _, err := s.bus.History(s.t.Context(), stream, subject, 0, 1_000_000)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range msgs {
		visit(m)
	}
}

// watch keeps how every task has ended; a task that ends twice is an error.
func (s *storm) watch() {
	bustest.Run(s.t, func(ctx context.Context) error {
		return s.bus.Tail(ctx, bus.Tail{Stream: subjects.StreamTasks, Handle: func(m bus.Msg) {
			if m.Header.Get(subjects.HeaderKind) != fleet.KindOutcome {
				return
			}
			e, err := fleet.DecodeEvent(m.Data)
			if err != nil {
				s.t.Error(err)
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if was := s.ends[e.TaskID]; was != "" {
				s.t.Errorf("task %s ends as %s, and as %s", e.TaskID, was, e.State)
			}
			s.ends[e.TaskID] = e.State
		}})
	})
}

// count counts the tasks that have ended in state.
func (s *storm) count(state fleet.State) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, end := range s.ends {
		if end == state {
			n++
		}
	}
	return n
}

// kept checks that all n escalations are in their stream and in CHANGE.log.
func (s *storm) kept(n int) {
	s.t.Helper()
	tasks := make(map[string]bool)
	s.each(subjects.StreamEscalations, "fleet.escalation.3.*", func(m bus.Msg) { tasks[m.Subject] = true })
	data, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	if lines := strings.Count(string(data), "\n"); len(tasks) != n || lines != n {
		s.t.Errorf("%d tasks in the stream of escalations, %d lines of CHANGE.log; want %d of each", len(tasks), lines, n)
	}
}

// until waits longer than usual: for thousands, on a busy machine.
func (s *storm) until(what string, ok func() bool) {
	s.t.Helper()
	limit := time.NewTimer(5 * patience)
	defer limit.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit.C:
			open, by := s.alerts(), make(map[fleet.State]int)
			s.mu.Lock()
			for _, end := range s.ends {
				by[end]++
			}
			s.mu.Unlock()
			s.t.Fatalf("%s: not in time; tasks have ended %v, and %d alerts are open: %+v", what, by, len(open), open)
		case <-tick.C:
		}
	}
	s.t.Logf("%s: %s", time.Now().Format(time.TimeOnly), what)
}
