package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/mesh"
	"parley/workers/agent"
)

// A command that cannot listen is started once more with what was added while it
// worked, and who added it is told so.
func TestFollowUpsReachACommand(t *testing.T) {
	t.Parallel()
	dir, gate := t.TempDir(), filepath.Join(t.TempDir(), "go")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Skip(err)
	}
	started := newFIFO(t)
	r := newRouter(t)
	a := r.start(agent.Config{Handler: shell(t, `n=$(ls "$D" | wc -l); cat >"$D/$n"; cp "$PARLEY_CONTRACT" "$D/$n.json"
		if [ "$n" = 0 ]; then echo >"$STARTED"; read x <"$GO"; echo "the first answer"; else echo second; fi`,
		agent.ExecConfig{Set: []string{"D=" + dir, "GO=" + gate, "STARTED=" + started.path}})})
	d := dispatch("t1", "Fix it.")
	d.Messages = []fleet.Message{{ID: "m0", Text: "before the offer"}}
	a.give(d)
	started.held()
	for _, c := range []fleet.Control{
		{Action: fleet.ActionInput, TaskID: "t1", ID: "m1", Text: "retry on 409"},
		{Action: fleet.ActionInput, TaskID: "t1", ID: "m1", Text: "retry on 409"}, // once more
		{Action: fleet.ActionInput, TaskID: "t1", QuestionID: "q7", Text: "main"}, // the command asked by itself
	} {
		if p := a.tell(c); !p.OK || p.Delivered != fleet.DeliveredNextAttempt {
			t.Errorf("INPUT %+v = %+v, want next_attempt", c, p)
		}
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.result("t1"); output(t, got) != "second\n" && output(t, got) != "second" {
		t.Errorf("output = %q, want that of the second start", output(t, got))
	}
	first, err := os.ReadFile(filepath.Join(dir, "0"))
	if err != nil || strings.Contains(string(first), "409") || !strings.Contains(string(first), "before the offer") {
		t.Errorf("first start: %s, %v", first, err)
	}
	second, err := os.ReadFile(filepath.Join(dir, "2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Fix it.", "before the offer", "retry on 409", "The answer to the question q7: main", "the first answer"} {
		if strings.Count(string(second), want) != 1 {
			t.Errorf("second start: want %q once in\n%s", want, second)
		}
	}
	if offer, err := os.ReadFile(filepath.Join(dir, "2.json")); err != nil || !strings.Contains(string(offer), "retry on 409") {
		t.Errorf("second contract: %s, %v", offer, err)
	}
}

// A handler that listens has a follow-up now.
func TestFollowUpNow(t *testing.T) {
	t.Parallel()
	r := newRouter(t)
	g := newGate()
	a := r.start(agent.Config{Handler: g})
	a.give(dispatch("t1", "x"))
	if p := a.tell(fleet.Control{Action: fleet.ActionInput, TaskID: "t1", ID: "m1", Text: "more"}); !p.OK || p.Delivered != fleet.DeliveredNow {
		t.Errorf("INPUT = %+v, want now", p)
	}
	g.open <- fleet.Result{}
	r.result("t1")
}

// A message of a thread reaches a command with what was said in it before.
func TestThreadOfAMessage(t *testing.T) {
	t.Parallel()
	s := bustest.New(t)
	b := s.Bus(t)
	view := func(from, to, id, text string) mesh.View {
		return mesh.View{Message: mesh.Message{
			From: subjects.AgentID(from), To: subjects.AgentID(to), MessageID: mesh.MessageID(id), ThreadID: "m1", Text: text,
		}}
	}
	said := []mesh.View{view("ann", "bob", "m1", "use port 7"), view("bob", "ann", "m2", "port 7 it is"), view("ann", "bob", "m3", "which port was it?")}
	done := make(chan mesh.Done, 10)
	for verb, answer := range map[string]func(bus.Msg) any{
		"done": func(m bus.Msg) any {
			d, err := fleet.DecodeRequest[mesh.Done](m.Data)
			if err != nil {
				t.Errorf("done: %v", err)
			}
			done <- d
			return &mesh.Ack{MessageID: d.MessageID, From: d.From}
		},
		"thread": func(m bus.Msg) any {
			if q, err := fleet.DecodeRequest[mesh.Thread](m.Data); err != nil || q.ThreadID != "m1" {
				t.Errorf("thread: %+v, %v", q, err)
			}
			return &mesh.List{Messages: said}
		},
	} {
		if _, err := b.Subscribe(subjects.API("bob", "mesh", verb), "", func(m bus.Msg) { _ = m.Respond(fleet.MustEncode(answer(m)), nil) }); err != nil {
			t.Fatal(err)
		}
	}
	briefs := make(chan string, 10)
	inbox := agent.BriefInbox(agent.HandlerFunc(func(_ context.Context, task *agent.Task) (fleet.Result, error) {
		briefs <- task.Dispatch.Brief
		return agent.Text("7"), nil
	}))
	w, err := agent.New(agent.Config{ID: "bob", Instance: "one", Bus: s.Connect(t), Handler: agent.Echo{}, Inbox: inbox, Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	stop := bustest.Run(t, w.Run)
	defer stop()
	bustest.Eventually(t, "an agent", func() bool { return w.Ready() == nil })
	send := func(v mesh.View) string {
		m := v.Message
		m.Header, m.Action, m.Reply = fleet.Header{Type: mesh.TypeMessage, ProtocolVersion: fleet.Version}, mesh.Info, mesh.No
		if _, err := b.Request(t.Context(), subjects.Inbox("bob", "one"), fleet.MustEncode(&m), nil); err != nil {
			t.Fatal(err)
		}
		next(t, "the end", done)
		return next(t, "the brief", briefs)
	}
	if brief := send(said[0]); strings.Contains(brief, "Earlier in this thread") {
		t.Errorf("the first message has a past:\n%s", brief)
	}
	brief := send(said[2])
	at := -1
	for _, want := range []string{"Earlier in this thread", "The agent ann said:", "use port 7", "You said:", "port 7 it is", "# Now", "which port was it?"} {
		if i := strings.Index(brief, want); i <= at {
			t.Fatalf("want %q next in\n%s", want, brief)
		} else {
			at = i
		}
	}
	if strings.Count(brief, "which port was it?") != 1 {
		t.Errorf("the message is there twice:\n%s", brief)
	}
}
