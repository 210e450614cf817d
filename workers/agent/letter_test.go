package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

// meshSide plays the mesh for one agent.
type meshSide struct {
	t    *testing.T
	b    *bus.Bus
	done chan mesh.Done
}

// runInbox runs an agent with an inbox until stop is called.
func runInbox(t *testing.T, most int, inbox agent.InboxFunc) (m *meshSide, stop func()) {
	t.Helper()
	return runInboxOn(t, bustest.New(t), most, inbox)
}

// runInboxOn is runInbox on a server that is there.
func runInboxOn(t *testing.T, s *bustest.Server, most int, inbox agent.InboxFunc) (m *meshSide, stop func()) {
	t.Helper()
	m = &meshSide{t: t, b: s.Bus(t), done: make(chan mesh.Done, 100)}
	if _, err := m.b.Subscribe(subjects.API("bob", "mesh", "done"), "", func(msg bus.Msg) {
		d, err := fleet.DecodeRequest[mesh.Done](msg.Data)
		if err != nil {
			t.Errorf("done: %v", err)
		}
		m.done <- d
		_ = msg.Respond(fleet.MustEncode(&mesh.Ack{MessageID: d.MessageID, From: d.From}), nil)
	}); err != nil {
		t.Fatal(err)
	}
	if err := m.b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	w, err := agent.New(agent.Config{
		ID: "bob", Instance: "one", Bus: s.Connect(t), Handler: agent.Echo{}, Inbox: inbox, MaxMessages: most, Grace: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	stop = bustest.Run(t, w.Run)
	bustest.Eventually(t, "an agent", func() bool { return w.Ready() == nil })
	return m, stop
}

// hand hands a message over and returns what the agent says to it.
func (m *meshSide) hand(msg mesh.Message) mesh.Delivery {
	m.t.Helper()
	msg.From = "ann"
	r, err := m.b.Request(m.t.Context(), subjects.Inbox("bob", "one"), fleet.MustEncode(&msg), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	d, err := fleet.DecodeReply[mesh.Delivery](r.Data)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

func (m *meshSide) next() mesh.Done {
	m.t.Helper()
	select {
	case d := <-m.done:
		return d
	case <-time.After(patience):
		m.t.Fatal("nothing is reported")
		return mesh.Done{}
	}
}

// A message is dealt with once, however often it is handed over; its answer
// goes back by itself, and is the same message when it is sent again.
func TestInboxDealsOnce(t *testing.T) {
	t.Parallel()
	calls := make(chan string, 10)
	m, _ := runInbox(t, 2, func(_ context.Context, m *mesh.Message) (agent.LetterReply, error) {
		calls <- m.Text
		return agent.LetterReply{Text: "re " + m.Text, TokensSpent: 7}, nil
	})
	msg := mesh.Message{MessageID: "m1", ThreadID: "t1", Hops: 2, Text: "x", Reply: mesh.Yes, Attempt: 1, TaskID: "task"}
	if d := m.hand(msg); !d.OK {
		t.Fatalf("it says %+v", d)
	}
	first := m.next()
	if first.From != "ann" || first.MessageID != "m1" || first.Attempt != 1 || first.InstanceID != "one" || first.TokensSpent != 7 || first.ReplyID == "" {
		t.Errorf("reported %+v", first)
	}
	stored, err := m.b.Last(t.Context(), subjects.StreamMesh, subjects.Mesh("ann", "bob"))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := mesh.DecodeMessage(stored.Data)
	if err != nil || reply.MessageID != first.ReplyID || reply.Ref != "m1" || reply.ThreadID != "t1" || reply.Hops != 3 ||
		reply.Reply != mesh.No || reply.Text != "re x" || reply.TaskID != "task" || reply.TokensSpent != 7 {
		t.Errorf("the answer is %+v, %v", reply, err)
	}
	msg.Attempt = 2 // the mesh did not hear of it
	if d := m.hand(msg); !d.OK {
		t.Fatalf("it says %+v", d)
	}
	if d := m.next(); d.Attempt != 2 || d.ReplyID != first.ReplyID {
		t.Errorf("reported %+v, want what was said before, of attempt 2", d)
	}
	if len(calls) != 1 {
		t.Errorf("dealt with %d times", len(calls))
	}
}

// Beyond its hands an agent says that it is busy; what fails is told; what it
// cannot finish when it stops goes back.
func TestInboxHands(t *testing.T) {
	t.Parallel()
	began := make(chan bool, 10)
	m, stop := runInbox(t, 2, func(ctx context.Context, m *mesh.Message) (agent.LetterReply, error) {
		switch m.Text {
		case "panic":
			panic("boo")
		case "fail":
			return agent.LetterReply{}, errors.New("no idea")
		case "silent":
			return agent.LetterReply{}, nil
		}
		began <- true
		<-ctx.Done()
		return agent.LetterReply{}, context.Cause(ctx)
	})
	for _, text := range []string{"panic", "fail"} {
		m.hand(mesh.Message{MessageID: mesh.MessageID(text), ThreadID: "t", Text: text, Reply: mesh.Yes, Attempt: 1})
		if d := m.next(); d.Error == nil || d.Released || d.ReplyID != "" {
			t.Errorf("%s: reported %+v", text, d)
		}
	}
	m.hand(mesh.Message{MessageID: "silent", ThreadID: "t", Text: "silent", Reply: mesh.Yes, Attempt: 1})
	if d := m.next(); d.Error != nil || d.ReplyID == "" {
		t.Errorf("reported %+v", d)
	}
	for _, id := range []mesh.MessageID{"a", "b"} {
		if d := m.hand(mesh.Message{MessageID: id, ThreadID: "t", Text: "wait", Attempt: 1}); !d.OK {
			t.Errorf("%s: it says %+v", id, d)
		}
		<-began
	}
	if d := m.hand(mesh.Message{MessageID: "c", ThreadID: "t", Text: "wait", Attempt: 1}); d.OK || d.Error == nil || d.Error.Code != subjects.CodeAgentBusy {
		t.Errorf("the third: it says %+v, want agent_busy", d)
	}
	if d := m.hand(mesh.Message{MessageID: "a", ThreadID: "t", Text: "wait", Attempt: 1}); !d.OK {
		t.Errorf("again: it says %+v, want that it has it", d)
	}
	go stop()
	for range 2 {
		if d := m.next(); !d.Released || d.Error != nil {
			t.Errorf("reported %+v, want that it is given back", d)
		}
	}
	stop()
}

// An inbox that hangs is told to end when the time for its message is over, the
// sender hears so, and the next message is taken.
func TestInboxHasNoMoreTimeThanItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		m, _ := runInboxOn(t, bustest.NewFake(t), 1, func(ctx context.Context, _ *mesh.Message) (agent.LetterReply, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return agent.LetterReply{}, ctx.Err()
		})
		for i, c := range []struct {
			msg   mesh.Message
			limit time.Duration
		}{
			{mesh.Message{TTLSeconds: 5, Reply: mesh.No}, 5 * time.Second},
			{mesh.Message{ReplyTimeoutSeconds: 7, Reply: mesh.Yes}, 7 * time.Second},
			{mesh.Message{ReplyTimeoutSeconds: 7, TTLSeconds: 9, Reply: mesh.No}, 9 * time.Second},
			{mesh.Message{Reply: mesh.No}, fleet.DefaultTimeout},
		} {
			c.msg.MessageID, c.msg.ThreadID, c.msg.Text, c.msg.Attempt = mesh.MessageID(fmt.Sprint("m", i)), "t", "hang", 1
			if d := m.hand(c.msg); !d.OK {
				t.Fatalf("message %d: it says %+v", i, d)
			}
			time.Sleep(c.limit - time.Second)
			if len(m.done) > 0 || len(ended) > 0 {
				t.Errorf("message %d is over before its time", i)
			}
			time.Sleep(2 * time.Second)
			if len(m.done) == 0 {
				t.Fatalf("message %d: nothing is reported %s after its time", i, time.Second)
			}
			if d := m.next(); d.Error == nil || d.Error.Code != subjects.CodeAgentTimeout || d.Released {
				t.Errorf("message %d: reported %+v, want agent_timeout", i, d)
			}
			if err := <-ended; !errors.Is(err, agent.ErrTimeout) {
				t.Errorf("message %d was ended for %v, want ErrTimeout", i, err)
			}
		}
	})
}

// A command gets a message as a brief that says whose words these are, and what
// it prints is the answer.
func TestBriefInbox(t *testing.T) {
	t.Parallel()
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	e, err := agent.NewExec(agent.ExecConfig{Command: []string{"/bin/sh", "-c", `cat; echo "$PARLEY_FROM $PARLEY_MESSAGE_ID $PARLEY_THREAD_ID $PARLEY_TASK_ID $PARLEY_TOKEN_BUDGET $TRACEPARENT"; exit "$CODE"`}, Set: []string{"CODE=0"}})
	if err != nil {
		t.Fatal(err)
	}
	msg := &mesh.Message{MessageID: "m1", ThreadID: "t1", From: "ann", Action: mesh.Do, Reply: mesh.Yes, Text: "look at it", TaskID: "task1", TokenBudget: 9, Traceparent: trace}
	r, err := agent.BriefInbox(e).Receive(t.Context(), msg)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{mesh.Brief(msg), "ann m1 t1 task1 9 " + trace} {
		if !strings.Contains(r.Text, want) {
			t.Errorf("the answer lacks %q:\n%s", want, r.Text)
		}
	}
	e, err = agent.NewExec(agent.ExecConfig{Command: []string{"/bin/sh", "-c", "echo no >&2; exit 1"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.BriefInbox(e).Receive(t.Context(), msg); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("a command that fails: %v", err)
	}
}
