package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/test/rig"
)

// A scenario is a little story that passes crash points. Its router dies at
// one of them and another takes over; the story goes on all the same.
type scenario struct {
	name   string
	act    func(ctx context.Context, s *stage) error // what the users do, until all of it was answered
	want   string                                    // state of the task in the end
	points []string                                  // NAME, or NAME:N for the Nth time it is passed
	left   func(t *testing.T, s *stage)              // looks at what there is in the end; may be nil
}

// stage is where a scenario plays: agents a and b, one process each.
type stage struct {
	*testFleet
	boss   boss
	agents map[string]*process
}

const theTask = "t"

// heartbeats of the agents on stage: so quick that a test of a lost one is soon over,
// and not so quick that one on a busy machine is taken for lost.
const quick = 500 * time.Millisecond

var scenarios = []scenario{
	{
		name: "done", want: "done", act: plays(play(step{Do: doDone, MS: 50})),
		points: []string{
			"after_decode", "before_store_queued", "after_store_queued", "before_offer", "after_offer", "after_accept",
			"before_store_working", "after_store_working", "after_result", "before_store_outcome", "after_store_outcome",
		},
	},
	{ // the agent works on while nobody's record says so
		name: "slow", want: "done", act: plays(play(step{Do: doDone, MS: 1500})),
		points: []string{"after_offer", "after_accept", "before_store_working"},
	},
	{
		name: "retry", want: "done", act: plays(play(step{Do: doError, MS: 20}, step{Do: doDone})),
		points: []string{
			"before_store_retry", "after_store_retry", "before_offer:2", "after_offer:2", "after_accept:2",
			"before_store_working:2", "after_store_working:2", "after_result:2", "before_store_outcome",
		},
	},
	{
		name: "reroute", want: "done", act: plays(play(step{Do: doFatal, MS: 20}, step{Do: doDone})),
		points: []string{"before_store_reroute", "after_store_reroute", "after_result"},
	},
	{
		name: "returned", want: "done", act: plays(play(step{Do: doReturned, MS: 20}, step{Do: doDone})),
		points: []string{"before_store_returned", "after_store_returned"},
	},
	{
		name: "artifact", want: "done", act: plays(play(step{Do: doArtifact, MS: 20})),
		points: []string{"before_store_artifact", "after_store_artifact"},
	},
	{
		name: "question", want: "done", act: asks,
		points: []string{"before_store_question", "after_store_question", "before_store_answer", "after_store_answer"},
	},
	{
		name: "message", want: "done", act: adds,
		points: []string{"before_store_message", "after_store_message"},
	},
	{
		name: "timeout", want: "done", act: sends(dispatch{
			Task: dispatchTask{TaskID: theTask, TimeoutSeconds: 2}, Brief: play(step{Do: doSilent}, step{Do: doDone}),
		}),
		points: []string{"before_store_retry"},
	},
	{name: "deadline", want: "expired", act: expires, points: []string{"before_store_outcome", "after_store_outcome"}},
	{name: "cancel", want: "canceled", act: cancels, points: []string{"before_store_outcome", "after_store_outcome"}},
	{
		name: "human", want: "done", act: asksHuman,
		points: []string{"before_store_human", "after_store_human", "before_store_resumed", "after_store_resumed"},
	},
	{name: "lost", want: "done", act: loses, points: []string{"before_store_lost", "after_store_lost"}},
	{
		name: "hopeless", want: "blocked", act: sends(dispatch{
			Task: dispatchTask{TaskID: theTask}, Brief: "do it", Requirements: dispatchRequirements{Labels: map[string]string{"who": "nobody"}},
		}),
		points: []string{"before_store_outcome", "after_store_outcome"},
	},
	{
		name: "key", want: "done", act: sends(dispatch{Task: dispatchTask{IdempotencyKey: "k"}, Brief: play(step{Do: doDone})}),
		points: []string{"after_key", "before_store_queued", "after_store_queued"},
	},
	{name: "key of a refused one", want: "done", act: asksForTwo, points: []string{"after_key_back"}, left: keeps("FLEET_IDEM")},
	{name: "spending", want: "done", act: spends, points: []string{"after_charge"}, left: keeps("FLEET_LEDGER", "session."+spender+".t.1=7")},
	{name: "rest", want: "done", act: plays(play(step{Do: doLimited}, step{Do: doDone})), points: []string{"after_limit"}, left: rests},
	{name: "drain", want: "done", act: drains, points: []string{"after_drain", "after_drain:2"}, left: keeps("FLEET_AGENTS")},
	{
		name: "raw", want: "done", act: drops(`{"task":{"task_id":"t"},"brief":"do it"}`),
		points: []string{"after_decode", "before_store_queued", "after_store_queued", "before_inbox_ack"},
	},
	{
		name: "raw without id", want: "done", act: drops(`do it`),
		points: []string{"before_store_queued", "after_store_queued", "before_inbox_ack"},
	},
	{name: "raw and wrong", want: "error", act: drops(`{"task": nonsense}`), points: []string{"before_store_outcome", "after_store_outcome"}},
}

// unreachable are points that no scenario passes, and why.
var unreachable = map[string]string{
	"after_cool":           "it takes three agents that are lost in a row",
	"before_store_widened": "it takes an agent that is away for its lease; as before_store_lost",
	"after_store_widened":  "it takes an agent that is away for its lease; as after_store_lost",
	"before_cause":         "people are notified after minutes of waiting",
	"after_cause":          "people are notified after minutes of waiting",
	"after_cause_end":      "people are notified after minutes of waiting",
	"before_store_spent":   "what an attempt spent that had ended is told again until it is answered, and counted once: TestSpentLate",
	"after_store_spent":    "see before_store_spent",
}

// TestCrashPoints kills a router between every two steps of a task's life, by
// SIGKILL at each named crash point of the sources in turn, and has another
// one take over.
func TestCrashPoints(t *testing.T) {
	swept := map[string]bool{}
	for _, sc := range scenarios {
		for _, p := range sc.points {
			name, _, _ := strings.Cut(p, ":")
			swept[name] = true
		}
	}
	// TestWebhookCrash, TestEscalation, TestScheduleCrash, TestRunCrash, TestContextCrash, TestMeshCrash, TestPushCrash, TestA2ECrash,
	// TestHousekeepingCrash, TestSessionCrash, TestSilenceCrash, TestCalloutCrash, TestRegistryCrash
	for _, p := range slices.Concat(webhookPoints, poisonPoints, escalationPoints, schedulePoints, runPoints, appendPoints, auditPoints, meshPoints,
		pushPoints, a2ePoints, housePoints, sessionPoints, silencePoints, calloutPoints, registryPoints) {
		name, _, _ := strings.Cut(p, ":")
		swept[name] = true
	}
	points := sourcePoints(t)
	for _, p := range points {
		if why, skip := unreachable[p]; skip != !swept[p] {
			t.Errorf("crash point %s is in the sources; in the sweep: %v; known as unreachable: %q", p, swept[p], why)
		}
	}
	for p := range swept {
		if !slices.Contains(points, p) {
			t.Errorf("crash point %s is in the sweep and not in the sources", p)
		}
	}
	const page = "../../docs/reference/reliability.md"
	text, err := readFile(page)
	if want := fmt.Sprintf("%d named points", len(points)); err != nil || !strings.Contains(text, want) {
		t.Errorf("%s does not speak of %s (%v)", page, want, err)
	}
	crashBinary(t) // before the clocks run
	two := make(chan struct{}, 2)
	for _, sc := range scenarios {
		for _, p := range sc.points {
			if *pointFlag != "" && p != *pointFlag && sc.name+"/"+p != *pointFlag {
				continue
			}
			t.Run(sc.name+"/"+p, func(t *testing.T) {
				t.Parallel()
				two <- struct{}{}
				defer func() { <-two }()
				sc.crash(t, p)
			})
		}
	}
}

// crash plays the scenario with a router that dies at point.
func (sc scenario) crash(t *testing.T, point string) {
	sc.play(t, crashEnv(point), func(f *testFleet, first *process) {
		dies(t, first, point)
		f.router("router-2", crashBinary(t))
	})
}

// play plays the scenario with a router that something happens to by its
// environment, and gives the kinds of the records whose acknowledgement that
// router lost. meanwhile is called while the users act.
func (sc scenario) play(t *testing.T, env string, meanwhile func(f *testFleet, first *process)) []string {
	t.Helper()
	f := newFleet(t, "registry")
	f.hasteInbox()
	s := &stage{testFleet: f, boss: boss{NC: f.nc, Name: "boss"}, agents: map[string]*process{}}
	slots := map[string]int{"a": 2, "b": 2}
	for a, n := range slots {
		s.agents[a] = f.agents("agent-"+a, cast{Heartbeat: quick, Try: tryFor, Agents: []actor{{ID: a, Instance: "main", MaxParallel: n}}})
	}
	f.awaitAgents("a", "b")
	first := f.router("router-1", crashBinary(t), env)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	acted := make(chan error, 1)
	go func() { acted <- sc.act(ctx, s) }()
	if meanwhile != nil {
		meanwhile(f, first)
	}
	if err := <-acted; err != nil {
		t.Fatal(err)
	}
	r := newReader(t, f.nc)
	all := r.Until(t, "the outcome", patience, func(h history) bool { return len(h) > 0 && h.Ended() == len(h) })
	if len(all) != 1 {
		t.Errorf("%d tasks, want 1", len(all))
	}
	var living []string
	for a, p := range s.agents {
		if p.runs() {
			living = append(living, a)
		}
	}
	f.awaitIdle(living...)
	e := evidence{Records: r.Whole(t), Journals: f.journals(), Slots: slots}
	for task := range e.Records {
		e.Acked = append(e.Acked, task)
		if got := e.Records.Last(task).State; got != sc.want {
			t.Errorf("the task is %s, want %s\n%s%s", got, sc.want, e.Records.Story(task), e.Story(task))
		}
	}
	e.Check(t)
	if sc.left != nil {
		sc.left(t, s)
	}
	return lostKinds(t, first)
}

// jetstream is the fleet's, for whoever is no worker.
func (f *testFleet) jetstream() jetstream.JetStream {
	f.tb.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		f.tb.Fatal(err)
	}
	return js
}

// hasteInbox makes what a dead router took from the inbox come again at once
// rather than after half a minute.
func (f *testFleet) hasteInbox() {
	f.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	js := f.jetstream()
	c, err := js.Consumer(ctx, "FLEET_INBOX", "routers")
	if err != nil {
		f.tb.Fatal(err)
	}
	cfg := c.CachedInfo().Config
	cfg.AckWait = time.Second
	if _, err := js.UpdateConsumer(ctx, "FLEET_INBOX", cfg); err != nil {
		f.tb.Fatal(err)
	}
}

// shrinkInbox leaves the inbox room for a few messages, so that what is done does
// not stay for its ten minutes. A router that starts makes the room what it was.
func (f *testFleet) shrinkInbox() {
	f.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	js := f.jetstream()
	s, err := js.Stream(ctx, "FLEET_INBOX")
	if err != nil {
		f.tb.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = 8
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		f.tb.Fatal(err)
	}
}

// sends dispatches d.
func sends(d dispatch) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		_, err := s.boss.Dispatch(ctx, d)
		return err
	}
}

// plays dispatches a task with the brief given.
func plays(brief string) func(context.Context, *stage) error {
	return sends(dispatch{Task: dispatchTask{TaskID: theTask}, Brief: brief})
}

// drops puts body into the raw door.
func drops(body string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error { return s.boss.Drop(ctx, "once", []byte(body)) }
}

// await reads records until the task has one of this kind.
func (s *stage) await(ctx context.Context, kind string) (record, error) {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return record{}, err
	}
	for r := (&reader{JS: js, Next: 1, All: history{}}); ; {
		err := r.CatchUp(ctx)
		for _, rec := range r.All[theTask] {
			if rec.Kind == kind {
				return rec, nil
			}
		}
		if pause(ctx, 10*time.Millisecond) != nil {
			return record{}, fmt.Errorf("no record %s: %w (last: %w)", kind, ctx.Err(), err)
		}
	}
}

// asks has an agent ask, and answers.
func asks(ctx context.Context, s *stage) error {
	if err := plays(play(step{Do: doAsk}))(ctx, s); err != nil {
		return err
	}
	rec, err := s.await(ctx, "question")
	if err != nil {
		return err
	}
	return s.boss.Answer(ctx, theTask, rec.Data.Question.ID, "this one")
}

// adds says more while somebody works on the task.
func adds(ctx context.Context, s *stage) error {
	said := filepath.Join(s.dir, "said")
	if err := plays(play(step{Do: doDone, Once: said}))(ctx, s); err != nil {
		return err
	}
	if _, err := s.await(ctx, "working"); err != nil {
		return err
	}
	if _, err := s.boss.Call(ctx, "task", "message", map[string]string{"task_id": theTask, "id": "m1", "text": "and be quick"}); err != nil {
		return err
	}
	return os.WriteFile(said, nil, 0o600)
}

// expires dispatches a task that cannot be done in time.
func expires(ctx context.Context, s *stage) error {
	return inTime(1200*time.Millisecond, func(at time.Time) error {
		return sends(dispatch{Task: dispatchTask{TaskID: theTask}, Deadline: &at, Brief: play(step{Do: doSilent})})(ctx, s)
	})
}

// inTime asks for something at a time, and once more for a later one where a busy
// machine was so slow that the time had come before it was asked.
func inTime(in time.Duration, ask func(at time.Time) error) error {
	for {
		err := ask(time.Now().Add(in))
		if refused, ok := errors.AsType[*rig.Refusal](err); !ok || refused.Code != "deadline_exceeded" {
			return err
		}
		in *= 2
	}
}

// cancels ends a task that somebody works on.
func cancels(ctx context.Context, s *stage) error {
	if err := plays(play(step{Do: doSilent}))(ctx, s); err != nil {
		return err
	}
	if _, err := s.await(ctx, "working"); err != nil {
		return err
	}
	v, err := s.boss.Call(ctx, "task", "cancel", map[string]string{"task_id": theTask, "reason": "enough"})
	if err == nil && v.State != "canceled" {
		err = fmt.Errorf("cancel was answered %s", v.State)
	}
	return err
}

// loses kills the agent that has the task.
func loses(ctx context.Context, s *stage) error {
	if err := plays(play(step{Do: doSilent}, step{Do: doDone}))(ctx, s); err != nil {
		return err
	}
	rec, err := s.await(ctx, "working")
	if err != nil {
		return err
	}
	s.agents[rec.AgentID].kill()
	return nil
}

// asksForTwo gives a task, and another one under its id with a key, which is
// refused.
func asksForTwo(ctx context.Context, s *stage) error {
	if err := plays(play(step{Do: doDone}))(ctx, s); err != nil {
		return err
	}
	_, err := s.boss.Dispatch(ctx, dispatch{Task: dispatchTask{TaskID: theTask, IdempotencyKey: "k"}, Brief: "another"})
	if refused, ok := errors.AsType[*rig.Refusal](err); !ok || refused.Code != "idempotency_conflict" {
		return fmt.Errorf("another task of that id is answered: %w", err)
	}
	return nil
}

// spender is a session whose tasks share a budget.
const spender = "a2a-20260101T000000Z-0123456789abcdef0123456789abcdef"

func spends(ctx context.Context, s *stage) error {
	_, err := s.boss.Call(ctx, "task", "dispatch", map[string]any{
		"task": map[string]any{"task_id": theTask, "session_id": spender, "session_token_budget": 1000}, "brief": play(step{Do: doDone}),
	})
	return err
}

// drains has nothing more given to agent a, so that the other one does the
// task, and takes that back.
func drains(ctx context.Context, s *stage) error {
	operator := boss{NC: s.nc, Name: "operator"}
	if _, err := operator.Call(ctx, "agent", "drain", map[string]string{"agent_id": "a"}); err != nil {
		return err
	}
	if err := plays(play(step{Do: doDone}))(ctx, s); err != nil {
		return err
	}
	rec, err := s.await(ctx, "outcome")
	if err != nil {
		return err
	}
	if rec.AgentID != "b" {
		return fmt.Errorf("%s did it, though it is drained", rec.AgentID)
	}
	_, err = operator.Call(ctx, "agent", "resume", map[string]string{"agent_id": "a"})
	return err
}

// rests checks that an agent that asked for a rest has it, by what is stored.
func rests(t *testing.T, s *stage) {
	until(t, "one limit", func() bool {
		has := s.kept(t, "FLEET_AGENTS")
		return len(has) == 1 && strings.HasPrefix(has[0], "limit.")
	})
}

// keeps checks what a bucket has, KEY=VALUE each.
func keeps(bucket string, want ...string) func(*testing.T, *stage) {
	return func(t *testing.T, s *stage) {
		t.Helper()
		if has := s.kept(t, bucket); !slices.Equal(has, want) {
			t.Errorf("%s has %v, want %v", bucket, has, want)
		}
	}
}

// kept is what a bucket has, KEY=VALUE each.
func (f *testFleet) kept(t *testing.T, bucket string) (list []string) {
	t.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for k := range keys.Keys() {
		e, err := kv.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, k+"="+string(e.Value()))
	}
	slices.Sort(list)
	return list
}

// deadLetters reads what was buried.
func (f *testFleet) deadLetters() (reasons []string) {
	f.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	js := f.jetstream()
	s, err := js.Stream(ctx, "FLEET_DLQ")
	if err != nil {
		f.tb.Fatal(err)
	}
	for seq := uint64(1); ; seq++ {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject("fleet.dlq.>"))
		if err != nil {
			return reasons
		}
		seq = m.Sequence
		reasons = append(reasons, m.Header.Get("Fleet-Dead-Reason"))
	}
}

var _ = json.Marshal
