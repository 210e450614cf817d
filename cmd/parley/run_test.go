package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/bus/bustest"
	"parley/subjects/fleet"
	runwire "parley/subjects/run"
)

func (s *shell) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.home(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *shell) runState(t *testing.T, id, want string) {
	t.Helper()
	bustest.Eventually(t, "run "+id+" is "+want, func() bool {
		var r struct {
			State string `json:"state"`
		}
		return json.Unmarshal([]byte(s.run(t, "run", "get", id, "-o", "json").stdout), &r) == nil && r.State == want
	})
}

const twoNodes = `
task_id: two
agents:
  - {id: first, agent_id: upper, brief: hello}
  - {id: second, agent_id: upper, dependencies: [first], brief: "after ${first}"}
output_location: results/two.json
`

func TestRunFromFileToDocument(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	out := filepath.Join(s.home(), "out")
	_, url := s.up(t, "--run-output", out)
	s.environ = append(s.environ, "NATS_URL="+url)
	s.agent(t, "upper", "--", "sh", "-c", `awk '/^# The task/{t=NR+2} {l[NR]=$0} END{print l[t?t:1]}' | tr a-z A-Z`)
	file := s.write(t, "two.yaml", twoNodes)
	s.run(t, "run", "start", file, "--wait").check(t, 0, `"output": "AFTER HELLO"`, "second done")
	s.run(t, "run", "start", file).check(t, 0, "two\n", "")
	s.run(t, "run", "start", s.write(t, "other.yaml", strings.Replace(twoNodes, "hello", "hi", 1))).check(t, 18, "", "another run")
	document, err := os.ReadFile(filepath.Join(out, "results", "two.json"))
	if err != nil || !strings.Contains(string(document), "AFTER HELLO") {
		t.Errorf("the document is %s, %v", document, err)
	}
	s.run(t, "run", "output", "two").check(t, 0, "AFTER HELLO", "")
	s.run(t, "run", "get", "two").check(t, 0, "second", "")
	s.run(t, "run", "get", "two", "--as", "stranger").check(t, 19, "", "not_found")
	s.run(t, "run", "ls").check(t, 0, "2/2", "")
	s.run(t, "run", "graph", file).check(t, 0, "first --> second", "")
	s.run(t, "run", "graph", "--dot", file).check(t, 0, `"first" -> "second"`, "")
	s.run(t, "run", "graph", "two").check(t, 0, `second["second: upper"]:::done`, "")
	s.run(t, "run", "graph", "--dot", "two").check(t, 0, `fillcolor="#d1e7dd"`, "")
	s.run(t, "run", "graph", "three").check(t, 19, "", "not_found")
	again := strings.TrimSpace(s.run(t, "run", "rerun", "two").stdout)
	s.runState(t, again, "done")
	if again == "two" {
		t.Error("it is not run again")
	}
	s.run(t, "run", "rerun", "two", "--wait").check(t, 0, `"output": "AFTER HELLO"`, "second done")
	s.run(t, "run", "graph", "../../docs/examples/infrastructure.yaml").check(t, 0, "secrets-steward --> review-agent", "")
	s.run(t, "orchestrate", "--agents", "upper,upper", "--session-timeout", "300", "shout").check(t, 0, `"node": "2-upper"`, "2-upper done")

	for text, want := range map[string]string{
		strings.Replace(twoNodes, "agent_id: upper, brief", "dependencies: [second], brief", 1): "first → second → first",
		strings.Replace(twoNodes, "results/", "../", 1):                                         "leads out of the output directory",
		strings.Replace(twoNodes, "results/", "/tmp/", 1):                                       "leads out of the output directory",
		"agents: []": "expected 1 to 1000 nodes",
		"a: [":       "not YAML",
	} {
		if r := s.run(t, "run", "start", s.write(t, "bad.yaml", text)); r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: exit %d, %s; want %q", text, r.code, r.stderr, want)
		}
	}
}

func TestRunFailsPausesIsRetriedAndCanceled(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	flag := filepath.Join(s.home(), "mended")
	s.agent(t, "fine", "--", "sh", "-c", "cat >/dev/null; echo fine; echo x >>"+flag+".count")
	s.agent(t, "broken", "--", "sh", "-c", "test -e "+flag+" && echo ok")
	s.agent(t, "slow", "--", "sleep", "600")
	file := s.write(t, "fail.yaml", `
task_id: fail
agents:
  - {agent_id: fine, brief: x}
  - {agent_id: broken, dependencies: [fine], max_retries: 0, brief: x}
  - {id: never, agent_id: fine, dependencies: [broken], brief: x}
`)
	s.run(t, "run", "start", file, "--wait").check(t, 29, `"state": "skipped"`, "the run has failed")
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "run", "retry", "fail").check(t, 0, "", "run fail is running")
	s.run(t, "run", "watch", "fail").check(t, 0, `"generation": 2`, "broken done")
	if n, err := os.ReadFile(flag + ".count"); err != nil || strings.Count(string(n), "x") != 2 { // fine, and never
		t.Errorf("%q, %v: what had succeeded was done again", n, err)
	}
	s.run(t, "run", "retry", "fail").check(t, 0, "", "run fail is done")

	file = s.write(t, "slow.yaml", `
task_id: slow
agents:
  - {agent_id: slow, brief: x}
  - {agent_id: fine, dependencies: [slow], brief: x}
`)
	s.run(t, "run", "start", file).check(t, 0, "slow", "")
	s.patiently(t, "no output yet", "run", "output", "slow").check(t, 38, "", "no output yet")
	s.run(t, "run", "pause", "slow").check(t, 0, "", "run slow is paused")
	s.run(t, "run", "resume", "slow").check(t, 0, "", "run slow is running")
	s.run(t, "run", "retry", "slow").check(t, 10, "", "running still")
	s.run(t, "run", "cancel", "slow", "--reason", "enough").check(t, 0, "", "being canceled")
	s.runState(t, "slow", "canceled")
	s.run(t, "task", "ls", "--state", "canceled", "-o", "jsonl").check(t, 0, `"agent_id":"slow"`, "")
	s.run(t, "run", "output", "slow").check(t, 0, "enough", "")
}

func TestRunFanOutWithConditions(t *testing.T) {
	t.Parallel()
	s := liveFleet(t)
	s.agent(t, "lister", "--", "sh", "-c", `cat >/dev/null; echo '["red","green","blue"]'`)
	s.agent(t, "upper", "--", "sh", "-c", `head -n 1 | tr a-z A-Z`)
	file := s.write(t, "fan.yaml", `
task_id: fan
shared_data: {least: 2}
agents:
  - {agent_id: lister, brief: x, result_schema: {type: array}}
  - {id: paint, agent_id: upper, dependencies: [lister], brief: "${index} ${item}", fan_out: {from: lister, concurrency: 2}}
  - {id: enough, agent_id: upper, dependencies: [paint], brief: yes, when: len(outputs.paint) >= shared.least}
  - {id: too-few, agent_id: upper, dependencies: [paint], brief: no, when: len(outputs.paint) < shared.least}
`)
	s.run(t, "run", "start", file, "--wait").check(t, 0, `"output": "2 BLUE"`, "paint done 3/3")
	s.run(t, "run", "get", "fan").check(t, 0, "not len(outputs.paint)", "")
	s.run(t, "run", "graph", "fan").check(t, 0, "paint: upper 3/3", "")
	s.run(t, "schema", "task-definition").check(t, 0, "fan_out", "")
}

// The examples run as they say.
func TestRunExamples(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	_, url := s.up(t, "--run-output", filepath.Join(s.home(), "out"))
	s.environ = append(s.environ, "NATS_URL="+url)
	for _, id := range []string{"discovery-cartographer", "compose-engineer", "secrets-steward", "review-agent", "writer"} {
		s.agent(t, id, "--", "sh", "../../docs/examples/agent.sh")
	}
	s.agent(t, "lister", "--", "sh", "-c", `cat >/dev/null; echo '["router.go","bus.go","cli.go"]'`)
	s.agent(t, "reviewer", "--", "sh", "-c", `cat >/dev/null; echo '{"severity": 3}'`)
	s.run(t, "run", "start", "../../docs/examples/infrastructure.yaml", "--wait").check(t, 0, `"node": "review-agent"`, "review-agent done")
	s.run(t, "run", "start", "../../docs/examples/review.yaml", "--wait").check(t, 0, `"severity": 3`, "alarm skipped")
	if document, err := os.ReadFile(filepath.Join(s.home(), "out", "results", "multi-agent-run.json")); err != nil || !strings.Contains(string(document), `"state": "done"`) {
		t.Errorf("the document is %s, %v", document, err)
	}
}

// A tree shows each node once, below one that it depends on; a large one what
// matters.
func TestTree(t *testing.T) {
	t.Parallel()
	begun := time.Unix(1_800_000_000, 0)
	ended := begun.Add(3 * time.Second)
	d := runwire.Definition{Agents: []runwire.Node{
		{ID: "a"},
		{ID: "b", Dependencies: []runwire.NodeID{"a"}, Sequence: 2},
		{ID: "c", Dependencies: []runwire.NodeID{"a"}, Sequence: 1},
		{ID: "d", Dependencies: []runwire.NodeID{"a", "b"}},
		{ID: "e", Dependencies: []runwire.NodeID{"c"}},
	}}
	r := &runwire.Record{RunID: "r", State: runwire.Running, Definition: d, Nodes: map[runwire.NodeID]runwire.Status{
		"a": {State: runwire.Done, AgentID: "x", Begun: &begun, Ended: &ended}, "b": {State: runwire.Dispatched, Items: &runwire.Items{Total: 9, Done: 3, Failed: 1}},
		"c": {State: runwire.Failed, Reason: &fleet.Reason{Code: "agent_error", Message: "no\x1b[2J"}}, "d": {State: runwire.Waiting},
		"e": {State: runwire.Skipped, Note: "not true"},
	}}
	want := `r  running
└─ a  done  by x  3s
   ├─ c  failed  agent_error: no�[2J
   │  └─ e  skipped  not true
   └─ b  dispatched 3/9 (1 failed)
      └─ d  waiting  after a`
	if diff := cmp.Diff(want, strings.Join(tree(r, false), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := tree(r, true)[1]; !strings.Contains(got, string(green)+"done"+string(plain)) {
		t.Errorf("in colours %q", got)
	}
	for i := range 100 {
		id := runwire.NodeID(fmt.Sprintf("n%d", i))
		r.Definition.Agents = append(r.Definition.Agents, runwire.Node{ID: id})
		r.Nodes[id] = runwire.Status{State: runwire.Waiting}
	}
	if lines := tree(r, false); len(lines) != maxTree+2 || !strings.Contains(strings.Join(lines, "\n"), "b  dispatched") {
		t.Errorf("a large one has %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	var b strings.Builder
	screen := &redraw{to: &b}
	screen.show([]string{"one", "two"})
	screen.show([]string{"one", "two"})
	screen.show([]string{"three"})
	if b.String() != "\x1b[?7lone\ntwo\n\x1b[?7h\x1b[2A\x1b[J\x1b[?7lthree\n\x1b[?7h" {
		t.Errorf("drawn as %q", b.String())
	}
	odd := &runwire.Definition{Agents: []runwire.Node{{ID: "end"}, {ID: "a--b", Dependencies: []runwire.NodeID{"end"}}}}
	if got := graph(odd, nil, false); !strings.Contains(got, `node_0["end"]`) || !strings.Contains(got, "node_0 --> node_1") {
		t.Errorf("Mermaid would not take\n%s", got)
	}
}
