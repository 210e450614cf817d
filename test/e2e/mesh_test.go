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
	"github.com/nats-io/nats.go/jetstream"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

const (
	meshAgents   = 50
	meshMessages = 10_000
	meshShort    = 1_000 // of them: to agents that stay away, with little time to live
)

// meshLog is what the agents of TestMesh were handed.
type meshLog struct {
	mu  sync.Mutex
	got map[string][]string // "to from": ids, in the order in which they were dealt with
}

func (l *meshLog) add(m *mesh.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := string(m.To) + " " + string(m.From)
	l.got[k] = append(l.got[k], string(m.MessageID))
}

// meshInstance runs one instance of an agent until ctx ends.
func meshInstance(ctx context.Context, b *bus.Bus, id subjects.AgentID, l *meshLog) error {
	w, err := agent.New(agent.Config{
		ID: id, Bus: b, Handler: agent.Echo{}, Grace: 50 * time.Millisecond, HandIn: time.Minute, MaxMessages: 4,
		Inbox: agent.InboxFunc(func(ctx context.Context, m *mesh.Message) (agent.LetterReply, error) {
			// Most are dealt with at once, some take a moment.
			if m.Hops == 0 && m.MessageID[len(m.MessageID)-1] == '7' {
				t := time.NewTimer(20 * time.Millisecond)
				defer t.Stop()
				select {
				case <-t.C:
				case <-ctx.Done():
					return agent.LetterReply{}, context.Cause(ctx)
				}
			}
			l.add(m)
			return agent.LetterReply{Text: "re " + m.Text}, nil
		}),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// 50 agents, two instances each, send each other 10 000 messages while they
// sleep, wake and restart, and while mesh workers are killed: every message is
// dealt with once, in the order of its sender, or its sender is told that it
// has expired; and loops end.
func TestMesh(t *testing.T) {
	f := newFleet(t, "registry")
	flags := []string{"--mesh-pair-rate", "100000", "--mesh-agent-rate", "1000000"}
	worker := func(n int) *process { return f.serve(fmt.Sprintf("mesh-%d", n), parleyBinary(t), "mesh", flags) }
	workers := []*process{worker(0), worker(1), worker(2)}
	rng := rand.New(rand.NewPCG(*seedFlag, 5))
	l := &meshLog{got: map[string][]string{}}

	life, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	for i := range meshAgents {
		for instance := range 2 {
			own := rand.New(rand.NewPCG(*seedFlag, uint64(10+2*i+instance)))
			all.Go(func() { liveAndSleep(life, f.url, fmt.Sprintf("agent%d", i), own, l, t.Errorf) })
		}
	}
	stopKills := make(chan struct{})
	var kills sync.WaitGroup
	kills.Go(func() {
		tick := time.NewTicker(3 * time.Second)
		defer tick.Stop()
		for n := len(workers); ; n++ {
			select {
			case <-stopKills:
				return
			case <-tick.C:
			}
			victim := n % len(workers)
			workers[victim].kill()
			workers[victim] = worker(n)
		}
	})
	sent := sendMesh(t, f.nc, rng)
	t.Logf("sent %d messages", len(sent))
	waitMesh(t, f.nc, sent, 5*patience)
	close(stopKills)
	kills.Wait()
	end()
	all.Wait()
	checkMesh(t, f.nc, sent, l)
}

// liveAndSleep is the life of one instance: it works, stops, sleeps, and comes
// again as a new process would.
func liveAndSleep(life context.Context, url, id string, rng *rand.Rand, l *meshLog, fail func(string, ...any)) {
	b, err := bus.Connect(life, bus.Config{URL: url, Name: id})
	if err != nil {
		if life.Err() == nil {
			fail("connect: %v", err)
		}
		return
	}
	defer b.Close()
	for life.Err() == nil {
		awake, cancel := context.WithTimeout(life, time.Duration(2+rng.IntN(6))*time.Second)
		if err := meshInstance(awake, b, subjects.AgentID(id), l); err != nil && life.Err() == nil {
			fail("agent: %v", err)
		}
		cancel()
		asleep, cancel := context.WithTimeout(life, time.Duration(rng.IntN(1500))*time.Millisecond)
		<-asleep.Done()
		cancel()
	}
}

// meshSent is a message as it was sent.
type meshSent struct {
	from, to, id string
	reply        bool
}

// sendMesh sends the messages at the raw door: JetStream's acknowledgement is
// the promise. Some are sent twice.
func sendMesh(t *testing.T, nc *nats.Conn, rng *rand.Rand) (sent []meshSent) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for i := range meshMessages {
		m := meshSent{
			from: fmt.Sprintf("agent%d", rng.IntN(meshAgents)), to: fmt.Sprintf("agent%d", rng.IntN(meshAgents)),
			id: fmt.Sprintf("m-%06d", i), reply: i%5 == 0,
		}
		body := map[string]any{"message_id": m.id, "text": strconv.Itoa(i), "action": "info", "reply": "no"}
		if m.reply {
			body["reply"] = "yes"
		}
		if i%(meshMessages/meshShort) == 3 {
			m.to, body["ttl_seconds"] = "sleeper", 1
		}
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + i%100/99 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			_, err := js.Publish(ctx, "fleet.mesh."+m.to+"."+m.from, data)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
		}
		sent = append(sent, m)
	}
	return sent
}

// meshAck is a record, read without any of Parley's code.
type meshAck struct {
	State   string `json:"state"`
	Attempt int    `json:"attempt"`
	ReplyID string `json:"reply_id"`
	Reason  *struct {
		Code string `json:"code"`
	} `json:"reason"`
}

func lastAck(ctx context.Context, s jetstream.Stream, from, id string) (a meshAck, ok bool) {
	m, err := s.GetLastMsgForSubject(ctx, "fleet.meshstate."+from+"."+id)
	if err != nil || json.Unmarshal(m.Data, &a) != nil {
		return a, false
	}
	return a, true
}

// waitMesh waits until every message has come to its end.
func waitMesh(t *testing.T, nc *nats.Conn, sent []meshSent, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	s := meshStates(t, nc)
	open := sent
	for {
		var left []meshSent
		for _, m := range open {
			if a, ok := lastAck(ctx, s, m.from, m.id); !ok || !endedMesh(a.State, m.reply) {
				left = append(left, m)
			}
		}
		if open = left; len(open) == 0 {
			return
		}
		pause := time.NewTimer(500 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			for _, m := range open[:min(len(open), 10)] {
				a, ok := lastAck(t.Context(), s, m.from, m.id)
				t.Errorf("%s from %s to %s (reply %v): %+v %v", m.id, m.from, m.to, m.reply, a, ok)
			}
			t.Fatalf("%d of %d messages have no end", len(open), len(sent))
		}
	}
}

func endedMesh(state string, reply bool) bool {
	switch state {
	case "answered", "expired", "failed", "refused", "unanswered":
		return true
	}
	return state == "processed" && !reply
}

func meshStates(t *testing.T, nc *nats.Conn) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "FLEET_MESH_STATE")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkMesh compares the records with what the agents were handed.
func checkMesh(t *testing.T, nc *nats.Conn, sent []meshSent, l *meshLog) {
	t.Helper()
	s := meshStates(t, nc)
	states := map[string]int{}
	attempts := 0
	want := map[string][]string{}
	for _, m := range sent {
		a, _ := lastAck(t.Context(), s, m.from, m.id)
		states[a.State]++
		attempts = max(attempts, a.Attempt)
		if a.State == "expired" {
			if m.to != "sleeper" {
				t.Errorf("%s to %s expired", m.id, m.to)
			}
			continue
		}
		want[m.to+" "+m.from] = append(want[m.to+" "+m.from], m.id)
	}
	t.Logf("ended: %v; at most %d attempts", states, attempts)
	if states["expired"] != meshShort || states["refused"]+states["failed"]+states["unanswered"] > 0 {
		t.Errorf("ended: %v, want %d expired and none refused, failed or unanswered", states, meshShort)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, ids := range l.got {
		var own []string // answers come between
		for _, id := range ids {
			if strings.HasPrefix(id, "m-") {
				own = append(own, id)
			}
		}
		if fmt.Sprint(own) != fmt.Sprint(want[k]) {
			t.Errorf("%s: dealt with %v, want %v", k, own, want[k])
		}
		delete(want, k)
	}
	for k, ids := range want {
		if len(ids) > 0 {
			t.Errorf("%s: %v were never dealt with", k, ids)
		}
	}
}

// An agent that asks another one in mid-task: the question goes by the mesh,
// the answer comes back into the task, and what it cost counts.
func TestMeshInMidTask(t *testing.T) {
	f := newFleet(t, "registry,router,mesh")
	b, err := bus.Connect(t.Context(), bus.Config{URL: f.url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	life, end := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	budgets := make(chan int64, 2)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	parent := fleet.TraceOf("the-task", trace)
	fromAttempt := parent.Traceparent(parent.Span(fleet.SpanAttempt, 1))
	live := func(c agent.Config) {
		c.Bus, c.Heartbeat = b, time.Second
		w, err := agent.New(c)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := w.Run(life); err != nil {
				t.Errorf("agent: %v", err)
			}
		})
	}
	for _, id := range []subjects.AgentID{"isa", "linda"} {
		live(agent.Config{ID: id, Handler: agent.Echo{}, Inbox: agent.InboxFunc(func(_ context.Context, m *mesh.Message) (agent.LetterReply, error) {
			if m.TaskID != "the-task" || m.From != "lead" || !m.Untrusted || m.Traceparent != fromAttempt {
				return agent.LetterReply{}, fmt.Errorf("it came as %+v", m)
			}
			budgets <- m.TokenBudget
			return agent.LetterReply{Text: string(m.To) + " says yes", TokensSpent: 30}, nil
		})})
	}
	live(agent.Config{ID: "lead", Handler: agent.HandlerFunc(func(ctx context.Context, task *agent.Task) (fleet.Result, error) {
		answers, err := task.AskAgents(ctx, agent.Question{To: []subjects.AgentID{"isa", "linda"}, Text: "ship it?", Timeout: time.Minute})
		if err != nil {
			return fleet.Result{}, err
		}
		var said []string
		for _, a := range answers {
			if a.Reply == nil {
				return fleet.Result{}, errors.New("no answer of " + string(a.To))
			}
			said = append(said, a.Reply.Text)
		}
		r := agent.Text(strings.Join(said, ", "))
		r.TokensSpent = 5
		return r, nil
	})})
	data := `{"task":{"task_id":"the-task","agent":"lead","token_budget":1000},"brief":"decide","traceparent":"` + trace + `"}`
	if m, err := f.nc.Request("fleet.dispatch.boss", []byte(data), patience); err != nil {
		t.Fatal(err, m)
	}
	deadline := time.Now().Add(patience)
	for {
		m, err := f.nc.Request("fleet.api.boss.task.wait", []byte(`{"task_id":"the-task","timeout_seconds":20}`), patience)
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			State  string `json:"state"`
			Tokens int64  `json:"tokens_spent"`
			Result struct {
				Output json.RawMessage `json:"output"`
			} `json:"result"`
		}
		if err := json.Unmarshal(m.Data, &v); err != nil {
			t.Fatal(err)
		}
		if v.State == "done" {
			if v.Tokens != 65 || string(v.Result.Output) != `"isa says yes, linda says yes"` || <-budgets != 1000 {
				t.Errorf("the task ended with %d tokens and %s", v.Tokens, v.Result.Output)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the task is %s", m.Data)
		}
	}
}
