package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	routers       = 3
	agentsInAll   = 20
	agentsPerCast = 4
	slotsPerAgent = 4
	dispatchers   = 8
)

// TestKillsWhileWorking lets three routers share many tasks over twenty agents
// while all of them are killed, or put to sleep, and started again at random.
func TestKillsWhileWorking(t *testing.T) {
	rng := rand.New(rand.NewPCG(*seedFlag, 1))
	f := newFleet(t, "registry")
	var victims []victim
	for i := range routers {
		victims = append(victims, victim{
			name: fmt.Sprintf("router-%d", i), least: 2 * time.Second, most: 8 * time.Second,
			start: func() *process { return f.router(fmt.Sprintf("router-%d", i), parleyBinary(t)) },
		})
	}
	var ids []string
	slots := map[string]int{}
	for i := range agentsInAll / agentsPerCast {
		name, c := fmt.Sprintf("agents-%d", i), cast{Heartbeat: 300 * time.Millisecond}
		for k := range agentsPerCast {
			a := actor{ID: fmt.Sprintf("agent-%d-%d", i, k), MaxParallel: slotsPerAgent}
			if k%2 == 0 { // comes back as the same instance, and keeps its results
				a.Instance, a.Spool = "main", "yes"
			}
			ids = append(ids, a.ID)
			slots[a.ID] = a.MaxParallel
			c.Agents = append(c.Agents, a)
		}
		victims = append(victims, victim{
			name: name, least: 4 * time.Second, most: 16 * time.Second,
			start: func() *process { return f.agents(name, c) },
		})
	}
	tasks := chaosTasks(rng, *tasksFlag)
	plan := misfortunes(rng, victims, *chaosFlag)

	heard := listen(t, f.nc)
	for i := range victims {
		victims[i].process = victims[i].start()
	}
	f.awaitAgents(ids...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := boss{NC: f.nc, Name: "boss"}
	var work sync.WaitGroup
	work.Go(func() { answerAll(ctx, t, b, heard) })
	var acked []string
	var dispatched error
	dispatching := make(chan struct{})
	begin := time.Now()
	go func() { // joined below
		defer close(dispatching)
		acked, dispatched = dispatchAll(ctx, b, tasks, *chaosFlag*9/10)
	}()
	done := suffer(t, victims, plan)
	<-dispatching
	if dispatched != nil {
		t.Fatal(dispatched)
	}
	r := newReader(t, f.nc)
	r.Until(t, "an outcome of every task", 3*patience, func(h history) bool { return h.Ended() >= len(tasks) })
	took := time.Since(begin)
	f.awaitIdle(ids...)
	cancel()
	work.Wait()

	e := evidence{Acked: acked, Records: r.Whole(t), Journals: f.journals(), Slots: slots}
	e.Check(t)
	heard.check(t, e.Records)
	if len(acked) != len(tasks) || len(e.Records) != len(tasks) {
		t.Errorf("%d tasks, %d acknowledged, %d in the stream", len(tasks), len(acked), len(e.Records))
	}
	if len(plan) > 0 && done[kill] == 0 {
		t.Error("nothing was killed: this run proves nothing")
	}
	fmt.Printf("e2e: kills: seed %d: %s; %d kills, %d sleeps, in %s\n",
		*seedFlag, e.Summary(), done[kill], done[stop], took.Round(100*time.Millisecond))
}

// chaosTasks makes n tasks, most of which get done at the first attempt.
func chaosTasks(rng *rand.Rand, n int) []dispatch {
	tasks := make([]dispatch, n)
	for i := range tasks {
		d := &tasks[i]
		d.Task = dispatchTask{
			TaskID: "task-" + strconv.Itoa(i), TimeoutSeconds: 20,
			Priority: []string{"critical", "high", "normal", "low"}[rng.IntN(4)],
		}
		var steps []step
		for {
			s := chaosStep(rng)
			if s.Do == doSilent {
				d.Task.TimeoutSeconds = 1.5
			}
			steps = append(steps, s)
			if len(steps) == 5 || s.Do == doDone {
				break
			}
		}
		d.Brief = play(append(steps, step{Do: doDone})...)
	}
	return tasks
}

// chaosStep is what an agent does at random.
func chaosStep(rng *rand.Rand) step {
	p, ms := rng.IntN(100), rng.IntN(40)
	switch {
	case p < 65:
		return step{Do: doDone, MS: ms}
	case p < 80:
		return step{Do: doDone, MS: 200 + 20*ms}
	case p < 86:
		return step{Do: doError, MS: ms}
	case p < 88:
		return step{Do: doFatal, MS: ms}
	case p < 90:
		return step{Do: doBlocked, MS: ms}
	case p < 91:
		return step{Do: doSilent, MS: 0}
	case p < 92:
		return step{Do: doReturned, MS: ms}
	case p < 93:
		return step{Do: doLimited, MS: ms}
	case p < 94:
		return step{Do: doPartial, MS: ms}
	case p < 97:
		return step{Do: doArtifact, MS: ms}
	}
	return step{Do: doAsk, MS: ms}
}

// dispatchAll dispatches the tasks, spread over a while, every fifth by the raw
// door, and returns those that were acknowledged.
func dispatchAll(ctx context.Context, b boss, tasks []dispatch, over time.Duration) (acked []string, err error) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	begin := time.Now()
	for k := range dispatchers {
		wg.Go(func() {
			for i := k; i < len(tasks); i += dispatchers {
				if pause(ctx, time.Until(begin.Add(over*time.Duration(i)/time.Duration(len(tasks))))) != nil {
					return
				}
				err := b.Give(ctx, tasks[i], i%5 == 0)
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					acked = append(acked, tasks[i].Task.TaskID)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return acked, errors.Join(errs...)
}

// ears hear every event as it is republished.
type ears struct {
	mu        sync.Mutex
	seqs      map[string][]int // guarded by mu; by task
	questions chan record
}

// listen hears events from now on.
func listen(tb testing.TB, nc *nats.Conn) *ears {
	tb.Helper()
	e := &ears{seqs: map[string][]int{}, questions: make(chan record, 10_000)}
	sub, err := nc.Subscribe("fleet.event.*", func(m *nats.Msg) {
		var r record
		if err := json.Unmarshal(m.Data, &r); err != nil {
			tb.Errorf("event on %s: %v", m.Subject, err)
			return
		}
		task := strings.TrimPrefix(m.Subject, "fleet.event.")
		e.mu.Lock()
		e.seqs[task] = append(e.seqs[task], r.Seq)
		e.mu.Unlock()
		if r.Kind == "question" {
			e.questions <- r
		}
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sub.Unsubscribe() })
	return e
}

// check holds what was heard against what is stored: each record once, and in
// its order.
func (e *ears) check(tb testing.TB, records history) {
	tb.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for task, list := range records {
		seqs := e.seqs[task]
		ok := len(seqs) == len(list)
		for i, seq := range seqs {
			ok = ok && seq == i+1
		}
		if !ok {
			tb.Errorf("of task %s the events %v were heard, the records are 1 to %d", task, seqs, len(list))
		}
	}
}

// answerAll answers every question that is heard. One that is closed meanwhile,
// because its agent was lost, needs no answer.
func answerAll(ctx context.Context, tb testing.TB, b boss, e *ears) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-e.questions:
			wg.Go(func() {
				if err := b.Answer(ctx, r.TaskID, r.Data.Question.ID, "this one"); err != nil {
					tb.Logf("the answer to question %s of task %s: %v", r.Data.Question.ID, r.TaskID, err)
				}
			})
		}
	}
}
