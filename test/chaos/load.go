//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"parley/test/rig"
)

// load gives work until it is told to stop, and sees what it began to its end.
type load struct {
	f       *fleet
	nc      *nats.Conn
	js      jetstream.JetStream
	journal *scribe
	wounds  *scribe // of what happens to the agents of pools
	rate    float64 // plain tasks a second
	lasts   time.Duration
	seed    uint64
	anew    time.Duration // how long after a refusal somebody asks for the next

	stop context.Context //nolint:containedctx // begins nothing more when it ends
	hard context.Context //nolint:containedctx // gives up what was begun when it ends
	wg   sync.WaitGroup

	waits chan struct{} // of calls that wait for a task: at most so many at a time
	known things
	since time.Time
	begun atomic.Int64 // tasks
}

// waitsMost bounds the calls that wait for a task's end. Where many tasks are behind,
// those who wait for each of them would keep the fleet from doing any.
const waitsMost = 200

// start begins all kinds of work.
func (l *load) start() {
	l.since = time.Now()
	for i := range bosses {
		l.wg.Go(func() { l.dispatches(client("boss", i), l.rng(1, i), l.rate/bosses) })
	}
	for i := range 2 {
		l.wg.Go(func() { l.runs(client("planner", i), l.rng(2, i)) })
		l.wg.Go(func() { l.streams(client("caller", i), l.rng(3, i)) })
		l.wg.Go(func() { l.troubles(client("unlucky", i), l.rng(4, i)) })
	}
	l.wg.Go(func() { l.clocks(client("clock", 0), l.rng(7, 0)) })
	for i := range 3 {
		l.wg.Go(func() { l.sessions(client("team", i), l.rng(5, i)) })
	}
	l.wg.Go(func() { l.errands(client("envoy", 0), l.rng(10, 0)) })
	l.wg.Go(func() { l.floods(client("greedy", 0), l.rng(11, 0)) })
	l.wg.Go(func() { l.replays(l.rng(12, 0)) })
	l.wg.Go(func() { l.vaults(client("vault", 0), l.rng(8, 0)) })
	l.wg.Go(func() { l.pries(client("curious", 0), l.rng(9, 0)) })
	for i, of := range []string{"session", "run"} {
		l.wg.Go(func() { l.purses(client("purse", i), of, l.rng(19, i)) })
	}
	l.pools()
	for i := range 4 {
		l.wg.Go(func() { l.letters(client("pen", i), l.rng(6, i)) })
	}
}

func client(kind string, i int) string { return fmt.Sprintf("%s%d", kind, i) }

func (l *load) rng(kind, i int) *rand.Rand {
	return rand.New(rand.NewPCG(l.seed, uint64(1000*kind+i)))
}

// every calls f with 0, 1, 2 … so often, until the load stops.
func (l *load) every(d time.Duration, f func(n int)) {
	begin := time.Now()
	for n := 0; ; n++ {
		if pause(l.stop, time.Until(begin.Add(time.Duration(n)*d))) != nil {
			return
		}
		f(n)
	}
}

// ask asks the API until it is answered with something final. That it is too late
// now says nothing of an earlier try that nobody answered.
func (l *load) ask(ctx context.Context, from, noun, verb string, req, reply any) error {
	data, err := json.Marshal(req)
	if err != nil {
		return err
	}
	for tries := 0; ; tries++ {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		m, err := l.nc.RequestWithContext(try, "fleet.api."+from+"."+noun+"."+verb, data)
		cancel()
		if err == nil {
			err = answered(m.Data, reply)
			switch r, refused := errors.AsType[*rig.Refusal](err); {
			case !refused:
				return err
			case r.Code == "deadline_exceeded" && tries > 0:
				return fmt.Errorf("%s %s, after a try that nobody answered: %s", noun, verb, r.Code)
			case r.Code != "unavailable" && r.Code != "rate_limited":
				return r
			}
		}
		last := err
		if perr := pause(ctx, 50*time.Millisecond); perr != nil {
			// Not wrapped: who was told that it cannot be done now knows nothing of earlier tries.
			return fmt.Errorf("%s %s: %w (last: %s)", noun, verb, perr, last.Error())
		}
	}
}

// answered reads an answer of the API; the error is the refusal that it is.
func answered(data []byte, reply any) error {
	var refused struct {
		Error *rig.Refusal `json:"error"`
	}
	if err := json.Unmarshal(data, &refused); err != nil {
		return fmt.Errorf("the answer was %q: %w", data, err)
	}
	if refused.Error != nil {
		return refused.Error
	}
	if raw, ok := reply.(*[]byte); ok {
		*raw = data
		return nil
	}
	return json.Unmarshal(data, reply)
}

// told is how an operation ended, by its error.
func told(err error) (what, code string) {
	if err == nil {
		return wasOK, ""
	}
	if r, ok := errors.AsType[*rig.Refusal](err); ok {
		return wasFail, r.Code
	}
	return wasInfo, err.Error()
}

// task is a dispatch as it goes over the wire.
type task struct {
	Task         taskHead       `json:"task"`
	Requirements map[string]any `json:"requirements,omitempty"`
	Deadline     *time.Time     `json:"deadline,omitempty"`
	Brief        string         `json:"brief"`
}

type taskHead struct {
	ID           string   `json:"task_id,omitempty"`
	Key          string   `json:"idempotency_key,omitempty"`
	Priority     string   `json:"priority,omitempty"`
	Timeout      float64  `json:"timeout_seconds,omitzero"`
	Session      string   `json:"session_id,omitempty"`
	Run          string   `json:"run_id,omitempty"`
	Agent        string   `json:"agent,omitempty"`
	Alternatives []string `json:"alternatives,omitempty"`
	Escalate     string   `json:"escalate,omitempty"`
	OnBlocked    string   `json:"on_blocked,omitempty"`
	Budget       int64    `json:"token_budget,omitzero"`
	OfSession    int64    `json:"session_token_budget,omitzero"`
	OfRun        int64    `json:"run_token_budget,omitzero"`
	MaxRetries   *int     `json:"max_retries,omitempty"`
	MaxLosses    int      `json:"max_losses,omitzero"`
	GiveUpAfter  float64  `json:"give_up_after,omitzero"`
}

// bosses are who gives plain tasks, and inFlight how many dispatches of each
// may wait for their acknowledgement.
const (
	bosses   = 8
	inFlight = 16
)

// dispatches gives plain tasks, their ids counted by client. What was not given
// while nobody took it is given afterwards.
func (l *load) dispatches(who string, rng *rand.Rand, rate float64) {
	var follow sync.WaitGroup
	defer follow.Wait()
	room := make(chan struct{}, inFlight)
	l.every(time.Duration(float64(time.Second)/rate), func(n int) {
		t, note, then := l.plain(who, n, rng)
		raw := rng.IntN(5) == 0
		room <- struct{}{} // the load ends when everything is given
		follow.Go(func() {
			id := l.dispatch(who, t, note, raw)
			<-room
			if id != "" && then != nil {
				then(id)
			}
		})
	})
}

// plain is the nth task of a client, and what its client does once it is
// acknowledged. Most are done as they come.
func (l *load) plain(who string, n int, rng *rand.Rand) (t task, note line, then func(id string)) {
	t = task{Task: taskHead{
		ID: fmt.Sprintf("%s-%d", who, n), Timeout: 20, Escalate: "never",
		Priority: priorities[rng.IntN(len(priorities))],
	}, Brief: script(rng)}
	note = line{Client: who, Op: "dispatch"}
	switch dice := rng.IntN(100); {
	case dice < 3: // by key
		t.Task.Key, t.Task.ID = t.Task.ID, ""
		note.Key = t.Task.Key
		then = func(string) { l.again(who, t, note) }
	case dice < 10:
		note.Kind = []string{"even", "odd"}[rng.IntN(2)]
		t.Requirements = map[string]any{"labels": map[string]string{"kind": note.Kind}}
	case dice < 12:
		at := time.Now().Add(2 * time.Second)
		t.Task.Timeout = []float64{1.5, 20}[rng.IntN(2)] // the second attempt comes too late, or there is none
		t.Deadline, t.Brief = &at, rig.Play(rig.Step{Do: rig.DoSilent})
		if rng.IntN(2) == 0 { // or not even the first: it waits for somebody who is not there
			t.Task.OnBlocked, note.Kind = "wait", "neither"
			t.Requirements = map[string]any{"labels": map[string]string{"kind": note.Kind}}
		}
	case dice < 15: // worth one more try, then it is another agent's
		once := 1
		t.Task.MaxRetries = &once
		fail := rig.Step{Do: rig.DoError}
		t.Brief = rig.Play(fail, fail, fail, rig.Step{Do: rig.DoDone})
	case dice < 17: // one of two fails it for good, the other one does it
		t.Requirements = map[string]any{"labels": map[string]string{"duo": strconv.Itoa(rng.IntN(castsInAll))}}
		t.Brief = rig.Play(rig.Step{Do: rig.DoFatal}, rig.Step{Do: rig.DoDone})
	case dice < 18: // the second attempt spends what is left
		t.Task.Budget = rig.Tokens + 1
		fail := rig.Step{Do: rig.DoError}
		t.Brief = rig.Play(fail, fail, rig.Step{Do: rig.DoDone})
	case dice < 20:
		if rng.IntN(2) == 0 { // and its agent must be told; by the raw door it may be refused
			t.Brief = rig.Play(rig.Step{Do: rig.DoSilent}, rig.Step{Do: rig.DoDone})
		}
		then = func(id string) { l.cancel(who, id, 100*time.Millisecond) }
	case dice < 23:
		then = func(id string) { l.await(who, id) }
	case dice < 25:
		then = func(id string) { l.looks(who, id) }
	}
	note.ID = t.Task.ID
	return t, note, then
}

// script is what a task's agents do: mostly it is done at the first attempt.
func script(rng *rand.Rand) string {
	var steps []rig.Step
	for len(steps) < 4 {
		ms := rng.IntN(30)
		s := rig.Step{Do: rig.DoDone, MS: ms}
		switch p := rng.IntN(100); {
		case p < 80:
		case p < 86:
			s.MS = 200 + 30*ms
		case p < 90:
			s.Do = rig.DoError
		case p < 92:
			s.Do = rig.DoFatal
		case p < 94:
			s.Do = rig.DoBlocked
		case p < 95:
			s.Do = rig.DoReturned
		case p < 97:
			s.Do = rig.DoPartial
		default:
			s.Do = rig.DoArtifact
		}
		steps = append(steps, s)
		if s.Do == rig.DoDone {
			break
		}
	}
	return rig.Play(append(steps, rig.Step{Do: rig.DoDone})...)
}

// dispatch gives one task, by the API or the raw door, until that is
// acknowledged; the id that it then has.
func (l *load) dispatch(who string, t task, note line, raw bool) string {
	end := l.journal.begin(note)
	var err error
	var reply rig.View
	t = marked(t)
	if raw && t.Task.ID != "" {
		var data []byte
		if data, err = json.Marshal(t); err == nil {
			reply.TaskID = t.Task.ID
			err = rig.Boss{NC: l.nc, Name: who}.Drop(l.hard, t.Task.ID, data)
		}
	} else {
		err = l.ask(l.hard, who, "task", "dispatch", t, &reply)
	}
	what, code := told(err)
	end(what, line{ID: reply.TaskID, Key: note.Key, Code: code, State: reply.State})
	if err != nil {
		return ""
	}
	l.begun.Add(1)
	l.known.add("task", reply.TaskID)
	return reply.TaskID
}

// again dispatches by a key that was used: the same, then something else.
func (l *load) again(who string, t task, note line) {
	note.Op = "again"
	l.dispatch(who, t, note, false)
	t.Brief = "something else"
	note.Op = "misuse"
	l.dispatch(who, t, note, false)
}

func (l *load) cancel(who, id string, after time.Duration) {
	if pause(l.hard, after) != nil {
		return
	}
	end := l.journal.begin(line{Client: who, Op: "cancel", ID: id})
	var v rig.View
	err := l.ask(l.hard, who, "task", "cancel", map[string]string{"task_id": id, "reason": "enough"}, &v)
	what, code := told(err)
	end(what, line{State: v.State, Code: code})
}

// await asks for a task's end until it is told.
func (l *load) await(who, id string) {
	end := l.journal.begin(line{Client: who, Op: "wait", ID: id})
	for {
		var v rig.View
		l.waits <- struct{}{}
		err := l.ask(l.hard, who, "task", "wait", map[string]any{"task_id": id, "timeout_seconds": 4}, &v)
		<-l.waits
		if err != nil || terminal(v.State) {
			what, code := told(err)
			end(what, line{State: v.State, Code: code})
			return
		}
	}
}

func terminal(state string) bool {
	r := rig.Record{State: state}
	return r.Terminal()
}
