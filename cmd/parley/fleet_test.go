package main

import (
	"regexp"
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/fleet"
)

// liveFleet is parley up with agents, all in this process.
func liveFleet(t *testing.T, args ...string) *shell {
	t.Helper()
	s := newShell(t)
	_, url := s.up(t, args...)
	s.environ = append(s.environ, "NATS_URL="+url)
	return s
}

// agent runs an agent and waits until the registry knows it.
func (s *shell) agent(t *testing.T, id string, args ...string) *job {
	t.Helper()
	j := s.start(t, append([]string{"agent", "run", "--id", id, "--grace", "5s"}, args...)...)
	bustest.Eventually(t, "agent "+id, func() bool { return s.run(t, "agent", "get", id).code == 0 })
	return j
}

func TestTaskFromBriefToOutcome(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "upper", "--tools", "shout", "--model", "tiny", "--label", "zone=eu", "--", "tr", "a-z", "A-Z")
	s.run(t, "task", "send", "--wait", "--cap", "shout", "say hello").check(t, 0, "SAY HELLO\n", "done by upper")
	s.run(t, "agent", "ls", "-o", "wide").check(t, 0, "zone=eu", "")

	out := s.run(t, "task", "send", "--cap", "shout", "again")
	id := strings.TrimSpace(out.stdout)
	watch := s.run(t, "task", "watch", id)
	watch.check(t, 0, "AGAIN", "done by upper")
	for n, kind := range []string{"queued", "working", "outcome"} {
		line := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  #` + string(rune('1'+n)) + ` +` + kind)
		if !line.MatchString(watch.stdout) {
			t.Errorf("watch has no line %s:\n%s", line, watch.stdout)
		}
	}
	s.run(t, "task", "watch", id, "-o", "jsonl").check(t, 0, `"kind":"outcome"`, "")
	s.run(t, "task", "wait", id).check(t, 0, "AGAIN\n", "")
	s.run(t, "task", "get", id).check(t, 0, "AGAIN", "")
	s.run(t, "task", "events", id, "--all").check(t, 0, "outcome", "")
	s.run(t, "task", "events", id, "-o", "jsonl").check(t, 0, `"seq":3`, "")
	s.run(t, "task", "explain", id).check(t, 0, "upper", "")
	s.run(t, "task", "ls", "--state", "done", "-o", "jsonl").check(t, 0, id, "")
	s.run(t, "task", "get", id, "--as", "stranger").check(t, 19, "", "not_found")
	s.run(t, "task", "send", "--as", "alice", "--id", "hers", "--cap", "shout", "x").check(t, 0, "hers", "")
	s.run(t, "task", "watch", "--as", "alice", "hers").check(t, 0, "X", "done by upper")
	s.run(t, "task", "send", "--wait", "--cap", "fly", "x").check(t, exitBlocked, "", "fly")
	s.run(t, "__complete", "task", "get", "h").check(t, 0, "hers\tdone\n", "")
	s.run(t, "__complete", "agent", "drain", "").check(t, 0, "upper\n", "")
	s.run(t, "__complete", "task", "send", "--agent", "u").check(t, 0, "upper\n", "")
}

func TestTaskCanceledByAPerson(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "slow", "--", "sleep", "600")
	s.run(t, "task", "send", "--id", "t1", "wait").check(t, 0, "t1", "")
	watch := s.start(t, "task", "watch", "t1")
	watch.stdout.waitFor(t, "working")
	s.run(t, "task", "cancel", "t1", "--reason", "enough").check(t, 0, "", "task t1 is canceled")
	watch.stdout.waitFor(t, "enough")
	if code := <-watch.done; code != exitCanceled {
		t.Errorf("watch exits with %d, want %d", code, exitCanceled)
	}
	watch.done <- exitCanceled
	s.run(t, "task", "cancel", "t1").check(t, 0, "", "task t1 is canceled")
	s.run(t, "agent", "drain", "slow", "--reason", "upgrade").check(t, 0, "", "is offered nothing more")
	bustest.Eventually(t, "a registry that knows", func() bool {
		return strings.Contains(s.run(t, "agent", "ls").stdout, "draining")
	})
	s.run(t, "agent", "resume", "slow").check(t, 0, "", "takes tasks again")
}

func TestInterruptedWaitTellsWhatToDo(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "slow", "--driver", "echo", "--delay", "10m", "--grace", "0s")
	s.run(t, "task", "send", "--id", "t1", "wait").check(t, 0, "t1", "")
	send := s.start(t, "task", "send", "--wait", "--id", "t2", "wait")
	send.stderr.waitFor(t, "task t2")
	if code := send.end(t); code != exitInterrupted {
		t.Errorf("task send --wait exits with %d, want %d", code, exitInterrupted)
	}
	send.stderr.waitFor(t, "the task goes on\n  next:  parley task wait t2  or  parley task cancel t2\n")
	for _, verb := range []string{"wait", "watch"} {
		j := s.start(t, "task", verb, "t1")
		if verb == "watch" {
			j.stdout.waitFor(t, "working")
		}
		if code := j.end(t); code != exitInterrupted {
			t.Errorf("task %s exits with %d, want %d", verb, code, exitInterrupted)
		}
		j.stderr.waitFor(t, "the task goes on\n  next:  parley task wait t1  or  parley task cancel t1\n")
	}
	all := s.start(t, "task", "watch")
	all.stderr.waitFor(t, "watching every task")
	s.run(t, "task", "cancel", "t1").check(t, 0, "", "")
	all.stdout.waitFor(t, "t1  #3")
	if code := all.end(t); code != 0 {
		t.Errorf("task watch exits with %d, want 0", code)
	}
}

func TestQuestionAnswered(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	url := strings.TrimPrefix(s.environ[len(s.environ)-1], "NATS_URL=")
	b, err := bus.Connect(t.Context(), bus.Config{URL: url, Name: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	bob := personAgent(t, b, "bob")
	s.run(t, "task", "send", "--id", "t1", "--agent", "bob", "deploy").check(t, 0, "t1", "")
	watch := s.start(t, "task", "watch", "t1")
	watch.stdout.waitFor(t, "working")
	bob.ask("t1", "Where to?")
	watch.stderr.waitFor(t, "parley task answer t1 TEXT")
	s.run(t, "task", "get", "t1").check(t, 0, "Where to?", "")
	s.run(t, "task", "answer", "t1", "to", "staging").check(t, 0, "", "answered")
	if got := <-bob.answers; got != "to staging" {
		t.Errorf("bob hears %q, want to staging", got)
	}
	bob.done("t1", "deployed")
	watch.stdout.waitFor(t, "deployed")
	if code := <-watch.done; code != 0 {
		t.Errorf("watch exits with %d, want 0", code)
	}
	watch.done <- 0
}

// person is an agent as one may type it, message by message.
type person struct {
	t       *testing.T
	b       *bus.Bus
	id      subjects.AgentID
	answers chan string
}

func personAgent(t *testing.T, b *bus.Bus, id subjects.AgentID) *person {
	t.Helper()
	p := &person{t: t, b: b, id: id, answers: make(chan string, 10)}
	for subject, reply := range map[string]string{
		subjects.Offer(id, "main"): `{"accepted":true}`, subjects.Control(id, "main"): `{"ok":true}`,
	} {
		if _, err := b.Subscribe(subject, "", func(m bus.Msg) {
			if c, err := fleet.DecodeControl(m.Data); err == nil && c.Action == fleet.ActionInput {
				p.answers <- c.Text
			}
			if err := m.Respond([]byte(reply), nil); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	announce := &fleet.Announce{Worker: fleet.Worker{AgentID: id}, HeartbeatSeconds: new(0.0)}
	if _, err := b.Store(t.Context(), subjects.Announce(id, "main"), fleet.MustEncode(announce), "", nil); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *person) ask(task subjects.TaskID, text string) {
	p.t.Helper()
	p.request(subjects.Progress(p.id, task), &fleet.Progress{Question: &fleet.Question{ID: "q1", Text: text}})
}

func (p *person) done(task subjects.TaskID, output string) {
	p.t.Helper()
	p.request(subjects.Result(p.id, task), &fleet.Result{Status: fleet.StatusDone, Output: fleet.MustEncode(output)})
}

func (p *person) request(subject string, v any) {
	p.t.Helper()
	m, err := p.b.Request(p.t.Context(), subject, fleet.MustEncode(v), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := fleet.DecodeReply[fleet.ResultReply](m.Data); err != nil {
		p.t.Fatal(err)
	}
}

// A listing that comes in several replies is one here.
func TestAgentsOfSeveralPages(t *testing.T) {
	t.Parallel()
	s, _ := fakeFleet(t, answers{"agent.list": func(data []byte) (any, error) {
		q, err := fleet.DecodeRequest[fleet.AgentList](data)
		if err != nil {
			return nil, err
		}
		page := fleet.AgentListReply{Agents: agentList.Agents[:1], Next: "claude.one"}
		if q.After == page.Next {
			page = fleet.AgentListReply{Agents: agentList.Agents[1:]}
		}
		return page, nil
	}})
	s.run(t, "agent", "ls").check(t, 0, "hermes", "")
	out := s.run(t, "agent", "ls", "-o", "jsonl").stdout
	if lines := strings.Count(out, "\n"); lines != len(agentList.Agents) || strings.Contains(out, "claude.one") {
		t.Errorf("%d lines, want one for each of %d instances:\n%s", lines, len(agentList.Agents), out)
	}
	s.run(t, "__complete", "agent", "drain", "").check(t, 0, "claude\ncodex\n", "")
}

// Who was stopped is listed no more, who does not come back is forgotten, and so
// is whom an operator has forgotten.
func TestAgentsThatAreGone(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	kept := s.agent(t, "kept", "--driver", "echo", "--instance", "main")
	once := s.agent(t, "once", "--driver", "echo", "--one-off")
	s.run(t, "agent", "forget", "kept").check(t, codeExit(subjects.CodeForbidden), "", "stop it first")
	kept.end(t)
	once.end(t)
	bustest.Eventually(t, "a list without them", func() bool {
		return strings.Contains(s.run(t, "agent", "ls").stderr, "no agents")
	})
	all := s.run(t, "agent", "ls", "--all")
	if !strings.Contains(all.stdout, "stopped") || strings.Contains(all.stdout, "once") {
		t.Errorf("all agents:\n%s", all.stdout)
	}
	s.run(t, "agent", "forget", "kept", "--as", "stranger").check(t, codeExit(subjects.CodeForbidden), "", "may not")
	s.run(t, "agent", "forget", "kept", "--reason", "sold").check(t, 0, "", "agent kept is forgotten; instances: 1")
	s.run(t, "agent", "ls", "--all").check(t, 0, "", "no agents")
}

// What an agent tells while it works can be read afterwards, by whoever may see
// the task.
func TestTaskLogs(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "talker", "--", "sh", "-c", "echo one >&2; sleep 0.3; echo two >&2; sleep 0.3; echo done")
	s.run(t, "task", "send", "--wait", "--id", "talk", "x").check(t, 0, "done", "")
	s.run(t, "task", "logs", "talk", "--follow").check(t, 0, "talker  two\n", "")
	s.run(t, "task", "logs", "talk", "-o", "jsonl").check(t, 0, `"text":"one"`, "")
	s.run(t, "task", "logs", "tal", "--as", "stranger").check(t, 19, "", "there is no task")
}
