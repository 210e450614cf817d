package runs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/run"
	"parley/workers/runs"
)

// serve runs a worker until stop is called or the test ends, and waits until
// it serves.
func serve(t *testing.T, c runs.Config) (stop func()) {
	t.Helper()
	w, err := runs.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return bustest.Serve(t, w)
}

// desk plays routers and agents: it answers the API of tasks, and works on them.
type desk struct {
	t *testing.T
	b *bus.Bus

	mu       sync.Mutex
	tasks    map[subjects.TaskID]*job
	order    []subjects.TaskID
	work     func(d *fleet.Dispatch) (*fleet.Result, bool) // false: it is held
	deaf     bool                                          // nobody hears of ends
	busy     int
	mostBusy int
	refuse   func(d *fleet.Dispatch) error
	lose     func(d *fleet.Dispatch) bool // the answer to what was taken
	asked    map[subjects.TaskID]bool     // how far they are
	before   func(d *fleet.Dispatch)      // is called before it is taken
	sought   func(id subjects.TaskID)     // is called before a cancel of what is not there is answered
}

type job struct {
	dispatch *fleet.Dispatch
	raw      []byte
	view     fleet.TaskView
	canceled bool
}

func newDesk(t *testing.T, b *bus.Bus) *desk {
	t.Helper()
	k := &desk{t: t, b: b, tasks: map[subjects.TaskID]*job{}, asked: map[subjects.TaskID]bool{}}
	k.work = func(d *fleet.Dispatch) (*fleet.Result, bool) { return said("did " + d.Brief), true }
	stop, err := b.Serve(t.Context(), bus.Service{Name: "tasks", Version: "0.0.0", Queue: "q", Endpoints: []bus.Endpoint{
		{Name: "dispatch", Subject: subjects.APIPattern("task", "dispatch"), Handle: k.dispatch},
		{Name: "get", Subject: subjects.APIPattern("task", "get"), Handle: k.get},
		{Name: "cancel", Subject: subjects.APIPattern("task", "cancel"), Handle: k.cancel},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return k
}

func said(text string) *fleet.Result {
	return &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode(text), AgentID: "w", TokensSpent: 2}
}

func broke(why string) *fleet.Result {
	return &fleet.Result{Status: fleet.StatusError, AgentID: "w", Error: &fleet.ResultError{Code: subjects.CodeAgentError, Message: why}}
}

func (k *desk) dispatch(_ context.Context, m bus.Msg) ([]byte, error) {
	d, err := fleet.DecodeDispatch(m.Data)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	before := k.before
	k.mu.Unlock()
	if before != nil {
		before(d)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	id := d.Task.TaskID
	if was := k.tasks[id]; was != nil {
		if !bytes.Equal(was.raw, m.Data) {
			return nil, subjects.Errorf(subjects.CodeIdempotencyConflict, "another one")
		}
		return fleet.Encode(&fleet.Dispatched{TaskID: id, State: was.view.State, Duplicate: true})
	}
	if k.refuse != nil {
		if err := k.refuse(d); err != nil {
			return nil, err
		}
	}
	k.tasks[id] = &job{dispatch: d, raw: slices.Clone(m.Data), view: fleet.TaskView{TaskID: id, State: fleet.StateWorking, Created: time.Now()}}
	k.order = append(k.order, id)
	k.busy++
	k.mostBusy = max(k.mostBusy, k.busy)
	work := k.work
	go func() {
		if r, over := work(d); over {
			k.end(id, r)
		}
	}()
	if k.lose != nil && k.lose(d) {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "the answer is lost")
	}
	return fleet.Encode(&fleet.Dispatched{TaskID: id, State: fleet.StateQueued})
}

// end ends a task, if it has not ended.
func (k *desk) end(id subjects.TaskID, r *fleet.Result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	j := k.tasks[id]
	if j == nil || j.view.State.Terminal() {
		return
	}
	k.busy--
	r.Type, r.ProtocolVersion, r.TaskID, r.Attempt = fleet.TypeResult, fleet.Version, id, 1
	j.view.State, j.view.Result, j.view.Attempt, j.view.TokensSpent, j.view.Updated = fleet.State(r.Status), r, 1, r.TokensSpent, time.Now()
	if j.canceled {
		j.view.State = fleet.StateCanceled
	}
	if k.deaf {
		return
	}
	e := fleet.Event{
		Header: fleet.Header{Type: fleet.TypeEvent, ProtocolVersion: fleet.Version}, TaskID: id, Seq: 3, Kind: fleet.KindOutcome,
		State: j.view.State, Attempt: 1, Time: j.view.Updated, Data: fleet.Data{Result: fleet.MustEncode(r)},
		Facts: fleet.Facts{From: "boss", TokensSpent: r.TokensSpent, Created: j.view.Created}, WriteID: "w",
	}
	if err := k.b.Publish(subjects.Event(id), fleet.MustEncode(&e), bus.Header{subjects.HeaderKind: {fleet.KindOutcome}}); err != nil {
		k.t.Error(err)
	}
}

func (k *desk) get(_ context.Context, m bus.Msg) ([]byte, error) {
	q, err := fleet.DecodeRequest[fleet.TaskRef](m.Data)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked[q.TaskID] = true
	j := k.tasks[q.TaskID]
	if j == nil {
		return nil, subjects.Errorf(subjects.CodeNotFound, "no such task")
	}
	return fleet.Encode(&j.view)
}

func (k *desk) cancel(_ context.Context, m bus.Msg) ([]byte, error) {
	q, err := fleet.DecodeRequest[fleet.TaskCancel](m.Data)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	j := k.tasks[q.TaskID]
	if j != nil {
		j.canceled = true
	}
	sought := k.sought
	k.mu.Unlock()
	if j == nil {
		if sought != nil {
			sought(q.TaskID)
		}
		return nil, subjects.Errorf(subjects.CodeNotFound, "no such task")
	}
	k.end(q.TaskID, broke("canceled"))
	return k.get(context.Background(), bus.Msg{Data: fleet.MustEncode(&fleet.TaskRef{TaskID: q.TaskID})})
}

// briefs are those of all tasks, in the order in which they came, up to the
// first blank line.
func (k *desk) briefs() (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range k.order {
		brief, _, _ := bytes.Cut([]byte(k.tasks[id].dispatch.Brief), []byte("\n\n"))
		list = append(list, string(brief))
	}
	return list
}

func (k *desk) count(ok func(j *job) bool) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, j := range k.tasks {
		if ok(j) {
			n++
		}
	}
	return n
}

// change sets something of the desk.
func (k *desk) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// ask calls the API of runs until it answers.
func ask[T any](t *testing.T, b *bus.Bus, verb string, req any) (T, error) {
	t.Helper()
	var zero T
	var last error
	data, ok := req.([]byte)
	if !ok {
		data = fleet.MustEncode(req)
	}
	var v T
	bustest.Eventually(t, "an answer to run "+verb, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		m, err := b.Request(ctx, subjects.API("boss", "run", verb), data, nil)
		if err != nil {
			return false
		}
		v, last = fleet.DecodeReply[T](m.Data)
		return true
	})
	if last != nil {
		return zero, last
	}
	return v, nil
}

func start(t *testing.T, b *bus.Bus, definition string) subjects.RunID {
	t.Helper()
	s, err := ask[run.Started](t, b, "start", []byte(definition))
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return s.RunID
}

func get(t *testing.T, b *bus.Bus, id subjects.RunID) *run.Record {
	t.Helper()
	r, err := ask[run.Record](t, b, "get", &run.Ref{RunID: id})
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

// until waits for a state of a run.
func until(t *testing.T, b *bus.Bus, id subjects.RunID, s run.State) *run.Record {
	t.Helper()
	var r *run.Record
	bustest.Eventually(t, "run "+string(id)+" is "+string(s), func() bool {
		if r = get(t, b, id); r.State.Ended() && r.State != s {
			t.Fatalf("the run is %s: %+v", r.State, r.Reason)
		}
		return r.State == s
	})
	return r
}

// rewrite changes the record of a run, as a worker would.
func rewrite(t *testing.T, b *bus.Bus, id subjects.RunID, change func(r *run.Record)) {
	t.Helper()
	records, stop := b.Records(subjects.StreamRuns, bus.CommitDirect)
	defer stop()
	m, err := b.Last(t.Context(), subjects.StreamRuns, subjects.Run(id))
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.DecodeRecord(m.Data)
	if err != nil {
		t.Fatal(err)
	}
	change(r)
	_, err = records.Write(t.Context(), bus.Record{
		Subject: m.Subject, Expected: m.Seq, WriteID: fmt.Sprint("rewrite-", m.Seq), Data: r.Encode(fleet.MustEncode(&r.Definition)),
		Header: bus.Header{subjects.HeaderWriter: {"other"}, subjects.HeaderKind: {string(r.State)}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// document reads a run's document part by part.
func document(t *testing.T, b *bus.Bus, id subjects.RunID) []byte {
	t.Helper()
	var all []byte
	for {
		p, err := ask[run.Part](t, b, "part", &run.PartRef{RunID: id, Offset: int64(len(all))})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p.Data...)
		if int64(len(all)) >= p.Size {
			return all
		}
		if len(p.Data) == 0 {
			t.Fatalf("a part without bytes at %d of %d", len(all), p.Size)
		}
	}
}

func output(t *testing.T, b *bus.Bus, id subjects.RunID) *run.Output {
	t.Helper()
	var o run.Output
	if err := json.Unmarshal(document(t, b, id), &o); err != nil {
		t.Fatal(err)
	}
	return &o
}

// sessions plays the sessions worker with one session.
type sessions struct {
	mu      sync.Mutex
	appends []handshake.Append
	created int
}

const theSession subjects.SessionID = "a2a-20260301T120000Z-0123456789abcdef"

func newSessions(t *testing.T, b *bus.Bus) *sessions {
	t.Helper()
	s := &sessions{}
	on := func(verb string, f func(data []byte) (any, error)) bus.Endpoint {
		return bus.Endpoint{Name: "session_" + verb, Subject: subjects.APIPattern("session", verb), Handle: func(_ context.Context, m bus.Msg) ([]byte, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			v, err := f(m.Data)
			if err != nil {
				return nil, err
			}
			return fleet.Encode(v)
		}}
	}
	opened := &handshake.Opened{Session: handshake.Session{SessionID: theSession, Orchestrator: "boss"}}
	stop, err := b.Serve(t.Context(), bus.Service{Name: "sessions", Version: "0.0.0", Queue: "q", Endpoints: []bus.Endpoint{
		on("create", func([]byte) (any, error) { s.created++; return opened, nil }),
		on("update", func([]byte) (any, error) { return opened, nil }),
		on("append", func(data []byte) (any, error) {
			var a handshake.Append
			err := json.Unmarshal(data, &a)
			s.appends = append(s.appends, a)
			return &handshake.Appended{SessionID: theSession, Version: 1}, err
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return s
}
