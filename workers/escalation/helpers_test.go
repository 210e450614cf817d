package escalation_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	policy "parley/escalation"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/workers/escalation"
)

// world is a server on which the test itself is the router, and the webhooks
// worker that delivers every call at once.
type world struct {
	t   *testing.T
	srv *bustest.Server
	bus *bus.Bus

	records bus.RecordWriter
	asked   sync.WaitGroup // answers to task resume

	mu       sync.Mutex
	last     map[subjects.TaskID]stored // the latest records
	away     bool                       // the contacts cannot be reached
	late     []*fleet.Delivery
	resumes  []fleet.TaskResume
	refusing *subjects.Error // what task resume is answered with
	silent   bool            // task resume is not answered
	causes   fleet.TaskWaitingReply
}

// stored is a record and where it is.
type stored struct {
	event fleet.Event
	seq   uint64
}

func newWorld(t *testing.T, srv *bustest.Server) *world {
	t.Helper()
	w := &world{t: t, srv: srv, bus: srv.Bus(t), last: make(map[subjects.TaskID]stored)}
	var stop func()
	w.records, stop = w.bus.Records(subjects.StreamTasks, bus.CommitDirect)
	t.Cleanup(stop)
	sub, err := w.bus.Subscribe(subjects.API(escalation.Self, "task", "resume"), "routers", func(m bus.Msg) {
		w.asked.Go(func() { w.resume(m) })
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe(); w.asked.Wait() })
	if sub, err = w.bus.Subscribe(subjects.API(escalation.Self, "task", "waiting"), "routers", func(m bus.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = m.Respond(fleet.MustEncode(w.causes), nil)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if sub, err = w.bus.Subscribe(subjects.WebhookPattern, "", w.onDelivery); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return w
}

// onDelivery is the webhooks worker.
func (w *world) onDelivery(m bus.Msg) {
	d, err := fleet.DecodeDelivery(m.Data)
	if err != nil {
		w.t.Error(err)
		return
	}
	w.mu.Lock()
	away := w.away
	if away {
		w.late = append(w.late, d)
	}
	w.mu.Unlock()
	if !away {
		w.became(d, fleet.DeliveryDelivered)
	}
}

// became stores what has become of a delivery.
func (w *world) became(d *fleet.Delivery, state string) {
	now := time.Now().UTC()
	s := fleet.DeliveryState{
		Header:     fleet.Header{Type: fleet.TypeDeliveryState, ProtocolVersion: fleet.Version},
		DeliveryID: d.DeliveryID, State: state, Endpoint: d.Target(), Order: d.Order,
		Schedule: fleet.ScheduleHuman, Queued: now, Updated: now, NotAfter: now.Add(24 * time.Hour),
	}
	if _, err := w.bus.Store(context.Background(), subjects.WebhookEvent(d.DeliveryID), fleet.MustEncode(&s), "", nil); err != nil {
		w.t.Errorf("store the state of %s: %v", d.DeliveryID, err)
	}
}

// reach says whether the contacts can be reached; what waited is delivered then.
func (w *world) reach(can bool) {
	w.mu.Lock()
	w.away = !can
	late := w.late
	w.late = nil
	w.mu.Unlock()
	for _, d := range late {
		w.became(d, fleet.DeliveryDelivered)
	}
}

// waits says why tasks wait, as a router that knows.
func (w *world) waits(causes ...fleet.WaitingCause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.causes = fleet.TaskWaitingReply{Causes: causes, Ready: true}
}

// worker starts an escalation worker; the function stops it.
func (w *world) worker(cfg escalation.Config) (worker *escalation.Worker, stop func()) {
	w.t.Helper()
	cfg.Bus = w.srv.Connect(w.t)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	e, err := escalation.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return e, bustest.Serve(w.t, e)
}

// record stores the next record of a task, as a router does.
func (w *world) record(id subjects.TaskID, level string, change func(*fleet.Event)) *fleet.Event {
	w.t.Helper()
	e := &fleet.Event{
		Header: fleet.Header{Type: fleet.TypeEvent, ProtocolVersion: fleet.Version}, TaskID: id,
		Kind: fleet.KindQueued, State: fleet.StateQueued,
		Facts: fleet.Facts{From: "boss", Deadline: time.Now().UTC().Add(72 * time.Hour), Policy: fleet.Policy{AlertRepeat: 1800, GiveUpAfter: 86400}},
	}
	w.mu.Lock()
	last, known := w.last[id]
	w.mu.Unlock()
	if known {
		*e = last.event
		e.Facts.Attempts = slices.Clone(e.Facts.Attempts)
		e.Facts.DispatchSeq = cmp.Or(e.Facts.DispatchSeq, last.seq)
	}
	e.Seq++
	e.Time = time.Now().UTC()
	change(e)
	h := bus.Header{subjects.HeaderKind: {e.Kind}}
	if level != "" {
		h[subjects.HeaderLevel] = []string{level}
	}
	seq, err := w.records.Write(context.Background(), bus.Record{
		Subject: subjects.Task(id), Expected: last.seq, WriteID: fmt.Sprintf("%s-%d", id, e.Seq), Data: fleet.MustEncode(e), Header: h,
	})
	if err != nil {
		w.t.Errorf("store record %d of task %s: %v", e.Seq, id, err)
		return e
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[id] = stored{*e, seq}
	return e
}

// wait has a task wait for a human after agent failed it with code.
func (w *world) wait(id subjects.TaskID, agent subjects.AgentID, code subjects.Code) *fleet.Event {
	w.t.Helper()
	return w.record(id, "3", func(e *fleet.Event) {
		e.Kind, e.State = fleet.KindHuman, fleet.StateInputRequired
		e.Facts.SessionID, e.Facts.RunID = "a2a-20251122T120000Z-7f3a9c21", "nightly"
		e.Facts.Await = fleet.AwaitHuman
		e.Reason = &fleet.Reason{Code: code, Message: "it broke <b>here</b>"}
		until := e.Time.Add(24 * time.Hour)
		e.Facts.GiveUpAt = &until
		e.Facts.Attempts = append(e.Facts.Attempts, fleet.Attempt{Attempt: 1, AgentID: agent, Code: code, Message: "it broke", Ended: e.Time, Level: 3})
	})
}

// goOn ends a task's wait.
func (w *world) goOn(id subjects.TaskID) {
	w.t.Helper()
	w.record(id, "0", func(e *fleet.Event) {
		e.Kind, e.State, e.Facts.Await = fleet.KindResumed, fleet.StateQueued, ""
	})
}

// resume answers task resume.
func (w *world) resume(m bus.Msg) {
	req, err := fleet.DecodeRequest[fleet.TaskResume](m.Data)
	w.mu.Lock()
	refusing, silent := w.refusing, w.silent
	if err == nil {
		w.resumes = append(w.resumes, req)
	}
	w.mu.Unlock()
	if silent {
		return
	}
	if refusing != nil {
		_ = m.Respond(fleet.MustEncode(fleet.ErrorReply{Error: refusing}), nil)
		return
	}
	if err != nil {
		_ = m.Respond(fleet.MustEncode(fleet.ErrorReply{Error: subjects.AsError(err)}), nil)
		return
	}
	w.mu.Lock()
	last, known := w.last[req.TaskID]
	w.mu.Unlock()
	switch e := &last.event; {
	case !known:
		_ = m.Respond(fleet.MustEncode(fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeNotFound, "no such task")}), nil)
		return
	case slices.ContainsFunc(e.Facts.Decisions, func(d fleet.Decision) bool { return d.AnswerID == req.AnswerID && d.By == req.By }):
		_ = m.Respond(fleet.MustEncode(fleet.TaskView{TaskID: req.TaskID, State: e.State, Duplicate: true}), nil)
		return
	case e.Facts.Await != fleet.AwaitHuman || req.Seq != 0 && req.Seq != e.Seq:
		_ = m.Respond(fleet.MustEncode(fleet.ErrorReply{Error: subjects.Errorf(subjects.CodeLateResult, "too late")}), nil)
		return
	}
	w.record(req.TaskID, "0", func(e *fleet.Event) {
		e.Kind, e.State, e.Facts.Await = fleet.KindResumed, fleet.StateQueued, ""
		e.Facts.Human = &fleet.HumanAnswer{Verb: req.Verb, By: req.By, AnswerID: req.AnswerID}
		e.Facts.Decisions = append(slices.Clip(e.Facts.Decisions), fleet.Decision{AnswerID: req.AnswerID, By: req.By})
	})
	_ = m.Respond(fleet.MustEncode(fleet.TaskView{TaskID: req.TaskID, State: fleet.StateQueued}), nil)
}

func (w *world) resumed() []fleet.TaskResume {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]fleet.TaskResume{}, w.resumes...)
}

func (w *world) refuse(e *subjects.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusing = e
}

// call asks the API as an operator.
func call[T any](w *world, verb string, req any) (T, error) {
	w.t.Helper()
	return callAs[T](w, "operator", verb, req)
}

func callAs[T any](w *world, from subjects.AgentID, verb string, req any) (T, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), bustest.Patience)
	defer cancel()
	m, err := w.bus.Request(ctx, subjects.API(from, "escalation", verb), fleet.MustEncode(req), nil)
	if err != nil {
		w.t.Fatalf("escalation %s: %v", verb, err)
	}
	return fleet.DecodeReply[T](m.Data)
}

func (w *world) list() []fleet.Alert {
	w.t.Helper()
	l, err := fleet.AllAlerts(fleet.EscalationList{All: true}, func(q fleet.EscalationList) (fleet.EscalationListReply, error) {
		return call[fleet.EscalationListReply](w, "list", q)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Alerts
}

// only waits until there is one alert, with n tasks, called at least calls times.
func (w *world) only(n, calls int) fleet.Alert {
	w.t.Helper()
	var got []fleet.Alert
	bustest.Eventually(w.t, fmt.Sprintf("one alert of %d tasks after %d calls", n, calls), func() bool {
		got = w.list()
		return len(got) == 1 && got[0].Count == n && got[0].Calls >= calls
	})
	return got[0]
}

// delivery is a call with its body.
type delivery struct {
	fleet.Delivery
	message escalation.Message
	at      time.Time
}

// deliveries are all calls so far.
func (w *world) deliveries() []delivery {
	w.t.Helper()
	return history(w, subjects.StreamWebhooks, subjects.WebhookPattern, func(m bus.Msg) delivery {
		d, err := fleet.DecodeDelivery(m.Data)
		if err != nil {
			w.t.Fatal(err)
		}
		out := delivery{Delivery: *d, at: m.Time}
		if err := json.Unmarshal(d.Body, &out.message); err != nil {
			w.t.Fatal(err)
		}
		return out
	})
}

func (w *world) escalations() []fleet.Escalation {
	w.t.Helper()
	return history(w, subjects.StreamEscalations, subjects.EscalationPattern, func(m bus.Msg) fleet.Escalation {
		e, err := fleet.DecodeEscalation(m.Data)
		if err != nil {
			w.t.Fatal(err)
		}
		return *e
	})
}

// events are what happened to alerts.
func (w *world) events() []fleet.AlertEvent {
	w.t.Helper()
	return history(w, subjects.StreamEscalations, subjects.AlertPattern, func(m bus.Msg) fleet.AlertEvent {
		var e fleet.AlertEvent
		if err := json.NewDecoder(bytes.NewReader(m.Data)).Decode(&e); err != nil {
			w.t.Fatal(err)
		}
		return e
	})
}

func history[T any](w *world, stream, subject string, read func(bus.Msg) T) []T {
	w.t.Helper()
	msgs, _, err := w.bus.History(w.t.Context(), stream, subject, 0, 100_000)
	if err != nil {
		w.t.Fatal(err)
	}
	out := make([]T, 0, len(msgs))
	for _, m := range msgs {
		out = append(out, read(m))
	}
	return out
}

// quick is a chain that a test need not wait for.
func quick(contacts ...string) policy.Chain {
	return policy.Chain{Contacts: contacts, GroupWait: 50 * time.Millisecond, GroupInterval: time.Hour}
}
