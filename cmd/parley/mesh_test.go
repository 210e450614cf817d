package main

import (
	"strings"
	"testing"

	"parley/bus/bustest"
)

func TestMeshFromQuestionToAnswer(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "linda", "--", "sh", "-c", `cat >/dev/null; echo "fine, $PARLEY_FROM"`)
	s.agent(t, "grump", "--", "sh", "-c", `echo "not today" >&2; exit 1`)
	s.agent(t, "deaf", "--driver", "echo", "--no-mesh")

	s.run(t, "mesh", "ask", "--to", "linda", "Is it?").check(t, 0, "linda\nfine, operator\n", "asked linda")
	s.run(t, "mesh", "ask", "--to", "grump,linda", "--first", "--for", "20s", "Is it?").check(t, 0, "", "asked grump, linda")
	s.run(t, "mesh", "ask", "--to", "grump,linda", "--for", "20s", "Is it?").check(t, 28, "fine, operator", "1 of 2 answers came")
	s.run(t, "mesh", "ask", "--to", "grump", "--for", "20s", "-o", "jsonl", "Is it?").check(t, 28, `"state":"failed"`, "")
	s.run(t, "mesh", "ask", "--to", "deaf", "--for", "1s", "Is it?").check(t, 28, "", "deaf: ")
	s.patiently(t, "1 of 2 answers came", "mesh", "ask", "--to", "deaf,linda", "--quorum", "2", "--for", "5s", "Is it?").check(t, 28, "fine, operator", "1 of 2 answers came")

	id := strings.TrimSpace(s.run(t, "mesh", "send", "--to", "linda", "--name", "Ann", "Look at it.").stdout)
	bustest.Eventually(t, "an answer", func() bool { return strings.Contains(s.run(t, "mesh", "get", id).stdout, "answered") })
	s.run(t, "mesh", "inbox", "--wait", "20s").check(t, 0, "fine, operator", "")
	s.run(t, "mesh", "thread", id).check(t, 0, "Look at it.", "")
	s.run(t, "mesh", "thread", id, "-o", "jsonl").check(t, 0, `"sender_name":"Ann"`, "")
	s.run(t, "mesh", "inbox", "--take").check(t, 0, "processed", "")
	if out := s.run(t, "mesh", "inbox"); strings.Contains(out.stdout, "fine") {
		t.Errorf("taken, and still there:\n%s", out.stdout)
	}
	s.run(t, "mesh", "get", id, "--as", "stranger").check(t, 19, "", "not_found")

	s.run(t, "mesh", "send", "--to", "lynda", "x").check(t, 0, "", "agent lynda is not here now, and was not heard of")
	s.run(t, "mesh", "send", "x").check(t, exitUsage, "", "--to is missing")
	s.run(t, "mesh", "ask", "--to", "linda", "--quorum", "2", "x").check(t, exitUsage, "", "expected 1 to 1")
	s.run(t, "mesh", "ask", "--to", "linda", "--first", "--all", "x").check(t, exitUsage, "", "exclude each other")
	s.run(t, "mesh", "send", "--to", "router", "x").check(t, 11, "", "reserved")
}

func TestMeshWatch(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	watch := s.start(t, "mesh", "watch", "--all")
	watch.stderr.waitFor(t, "listening")
	s.run(t, "mesh", "send", "--to", "nobody", "--ttl", "1s", "--no-reply", "hello \x1b[31m").check(t, 0, "", "")
	watch.stdout.waitFor(t, "operator → nobody  do, reply no: hello [31m")
	watch.stdout.waitFor(t, "expired agent_lost")
}

func TestMeshWithoutAWorker(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	_, url := s.up(t, "--workers", "registry")
	s.environ = append(s.environ, "NATS_URL="+url)
	s.run(t, "mesh", "inbox").check(t, 38, "", "parley serve --workers mesh")
}
