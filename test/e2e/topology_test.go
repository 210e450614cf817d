package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"parley/subjects"
	"parley/test/deploy"
)

const pollSite = 50 * time.Millisecond

// everyWorker is what a fleet consists of.
var everyWorker = []string{
	"a2e", "audit", "callout", "escalation", "gateway", "mesh", "registry", "router", "runs", "schedules", "sessions", "telemetry", "webhooks",
}

// TestTopology runs deploy/container/compose.yaml as processes: three servers by
// the configurations that ship, which ask the worker callout, two routers, two
// gateways, one of each other worker, an agent; and one behind a leaf node. Tasks
// get through, also while a server is lost and after it is back; every door opens.
func TestTopology(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	nodes := []string{"cluster-1", "cluster-2", "cluster-3"}
	for _, n := range nodes {
		s.Ask(n)
	}
	set := map[string]string{"CALLOUT_SEED": s.Issuer}
	for _, user := range []string{deploy.Worker, deploy.Claude} {
		set["NATS_"+strings.ToUpper(user)+"_PASSWORD"] = deploy.Password(user)
	}
	c := s.compose(t, set)
	if diff := cmp.Diff(everyWorker, c.workers()); diff != "" {
		t.Errorf("workers of compose.yaml (-want +got):\n%s", diff)
	}
	if r, g := len(c.pages["router"]), len(c.pages["gateway"]); r != 2 || g != 2 {
		t.Errorf("%d routers and %d gateways, want 2 of each", r, g)
	}
	for _, p := range c.started {
		if strings.Contains(tail(p.log, 1<<20), "durability unverified") {
			t.Errorf("%s does not see whether the servers sync", p.name)
		}
	}
	s.broker("leaf")
	s.well(s.Monitor("leaf") + "/healthz")
	s.parley("edge1", s.env("", "leaf"), "agent", "run", "--id", "edge1", "--driver", "echo", "--heartbeat", "500ms", "--data", filepath.Join(s.dir, "edge1"))
	ci := func(first string) []string { // who asks where
		i := slices.Index(nodes, first)
		return append(s.env(deploy.CI, append(slices.Clone(nodes[i:]), nodes[:i]...)...), "PARLEY_AS=ci")
	}
	do := func(where, agent, brief string) {
		t.Helper()
		out := s.does(ci(where), "task", "send", "--wait", "--agent", agent, brief)
		if !strings.Contains(out, brief) {
			t.Errorf("%s did not do %q: %s", agent, brief, out)
		}
	}
	s.until("the agents", func(context.Context) bool {
		out := s.does(ci(nodes[0]), "agent", "ls", "--live")
		return strings.Contains(out, "claude") && strings.Contains(out, "edge1")
	})
	for i, n := range nodes {
		do(n, "claude", "first-"+strconv.Itoa(i))
	}
	do(nodes[0], "edge1", "at-the-edge")
	c.identity(t, nodes)
	c.doors(t)
	c.hangs(t, "webhooks")

	c.brokers[nodes[1]].kill()
	begin := time.Now()
	do(nodes[0], "claude", "with-two-of-three")
	fmt.Printf("e2e: a task took %s from the loss of a server\n", time.Since(begin).Round(time.Millisecond))
	do(nodes[2], "edge1", "at-the-edge-with-two")

	s.broker(nodes[1])
	s.well(s.Monitor(nodes[1]) + "/healthz")
	c.brokers[nodes[0]].kill()
	do(nodes[1], "claude", "by-the-one-that-is-back")
	for _, pages := range c.pages {
		for _, page := range pages {
			s.well(page + "/readyz")
		}
	}
}

// identity lets an agent in by an identity: the servers have no user of its name.
func (c *composedSite) identity(t *testing.T, nodes []string) {
	t.Helper()
	file := filepath.Join(c.dir, "bot.identity.json")
	operator := append(c.env(deploy.Operator, nodes...), "PARLEY_AS=operator")
	c.does(operator, "identity", "add", "bot", "--role", "agent", "--file", file)
	c.parley("bot", append(c.env("", nodes...), "PARLEY_IDENTITY="+file), "agent", "run", "--driver", "echo", "--spool", "off")
	if out := c.does(operator, "task", "send", "--wait", "--agent", "bot", "by-an-identity"); !strings.Contains(out, "by-an-identity") {
		t.Errorf("bot did: %s", out)
	}
}

// doors has the fleet used over HTTP: by A2A at either gateway, and by A2E; and
// its metrics read.
func (c *composedSite) doors(t *testing.T) {
	t.Helper()
	for i, page := range c.pages["gateway"] {
		id := "a2a-" + strconv.Itoa(i)
		out := c.post(t, page+"/a2a", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"`+id+`","role":"ROLE_USER","parts":[{"text":"by-`+id+`"}]}}}`)
		if !strings.Contains(out, "TASK_STATE_COMPLETED") || !strings.Contains(out, "by-"+id) {
			t.Errorf("gateway %d answers %s", i, out)
		}
	}
	out := c.post(t, c.pages["a2e"][0]+"/a2e/v1/handshake", `{"a2e":"1.0","type":"handshake/req","id":"h1","ts":1716123456.789,"agent_id":"visitor","agent_caps":["tools","env"]}`)
	if !strings.Contains(out, `"ok":true`) {
		t.Errorf("A2E answers %s", out)
	}
	out = c.get(t, c.pages["telemetry"][0]+"/metrics")
	for _, want := range []string{"parley_build_info", `parley_workers{worker="router"} 2`, `parley_workers{worker="gateway"} 2`, `parley_workers{worker="telemetry"} 1`} {
		if !strings.Contains(out, want) {
			t.Errorf("/metrics has no %s: %.2000s", want, out)
		}
	}
}

// hangs stops the process of a worker, and sees on the page of metrics that it is
// not there, and there again once it goes on.
func (c *composedSite) hangs(t *testing.T, worker string) {
	t.Helper()
	p := c.started[slices.IndexFunc(c.started, func(p *process) bool { return p.name == worker+"0" })]
	for n, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		p.signal(s)
		want := fmt.Sprintf(`parley_workers{worker=%q} %d`, worker, n)
		c.until(want, func(context.Context) bool {
			return strings.Contains(c.get(t, c.pages["telemetry"][0]+"/metrics"), want)
		})
	}
}

// stockCLI runs the stock command line as a worker.
func (s siteUnderTest) stockCLI(t *testing.T, args ...string) {
	t.Helper()
	p := start(t, s.dir, program{
		name: "nats-" + args[1], path: natsBinary(t),
		args: append([]string{"--server", s.URL("single"), "--user", deploy.Worker, "--password", deploy.Password(deploy.Worker)}, args...),
	})
	if !p.ended(2*patience) || p.cmd.ProcessState.ExitCode() != 0 {
		out, _ := p.printed()
		t.Fatalf("nats %q:\n%s\n%s", args, out, tail(p.log, 4000))
	}
}

// TestBackup stops the workers of a fleet, backs it up with the stock command
// line, loses everything, restores it by the very commands of the guide, and goes
// on.
func TestBackup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Ask("single")
	k := s.keeper("single")
	k.answers()
	broker := s.broker("single")
	s.well(s.Monitor("single") + "/healthz")
	serve := func(name, call string) *process {
		page := deploy.FreeAddress(t)
		env := slices.Concat(s.env(deploy.Worker, "single"), k.workers(call), []string{"PARLEY_CALLOUT_ISSUER=" + s.Issuer, "PARLEY_CALLOUT_ACCOUNT=CLIENTS"})
		p := s.parley(name, env, "serve", "--http", page, "--max-store", "512MiB")
		s.well("http://" + page + "/readyz")
		return p
	}
	workers := serve("serve-1", nobody)
	k.leave()

	workers.signal(syscall.SIGTERM)
	if !workers.ended(2 * patience) {
		t.Fatal("the workers do not stop")
	}
	backup := filepath.Join(s.dir, "backup")
	s.stockCLI(t, "account", "backup", backup, "--force")
	k.request("fleet.dispatch.ci", `{"task":{"task_id":"late"},"brief":"after the backup"}`)
	broker.kill()
	s.wipe("single")

	s.broker("single")
	s.well(s.Monitor("single") + "/healthz")
	s.restore(t, backup)
	serve("serve-2", k.hook.URL)
	k.find()
	if out := k.do(deploy.CI, "task", "ls", "-o", "json"); strings.Contains(out, `"late"`) {
		t.Errorf("what came after the backup is there: %s", out)
	}
}

// restore does what the guide says.
func (s siteUnderTest) restore(t *testing.T, backup string) {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guide/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, how, _ := strings.Cut(string(guide), "```sh\nrm -r ")
	how, _, _ = strings.Cut(how, "\n```")
	remove, commands, _ := strings.Cut(how, "\n")
	for _, part := range []string{subjects.ObjectsIndex, subjects.BucketScratch} { // workers make them anew
		if !strings.Contains(remove, "_"+part) {
			t.Errorf("the guide keeps %s of the backup", part)
		}
	}
	for path := range strings.FieldsSeq(remove) {
		path = strings.Replace(path, "backup", backup, 1)
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	for c := range strings.SplitSeq(commands, "\n") {
		s.stockCLI(t, strings.Fields(strings.Replace(c, "./backup", backup, 1))[1:]...)
	}
}

// keeper is the keeper of a site whose server asks who may connect.
func (s siteUnderTest) keeper(node string) *keeper {
	return &keeper{
		siteUnderTest: s,
		as: func(user string) []string {
			env := s.env(user, node)
			if user == "" || user == deploy.Worker {
				return env
			}
			return append(env, "PARLEY_AS="+user)
		},
		raw: func() *nats.Conn {
			nc, err := nats.Connect(s.URL(node), nats.UserInfo(deploy.Worker, deploy.Password(deploy.Worker)))
			if err != nil {
				s.tb.Fatal(err)
			}
			return nc
		},
	}
}

// TestOneStreamAnew does with a stream what the guide says of one that has no
// leader, by its very commands, in their order.
func TestOneStreamAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.broker("single")
	s.well(s.Monitor("single") + "/healthz")
	worker, ci := s.env(deploy.Worker, "single"), append(s.env(deploy.CI, "single"), "PARLEY_AS=ci")
	served := 0
	serve := func(args ...string) *process {
		served++
		page := deploy.FreeAddress(t)
		p := s.parley(fmt.Sprint("serve-", served), worker, append([]string{"serve", "--http", page, "--max-store", "512MiB"}, args...)...)
		s.well("http://" + page + "/readyz")
		return p
	}
	workers := serve()
	s.does(ci, "task", "send", "--id", "kept", "what is kept")
	workers.kill()

	guide, err := os.ReadFile("../../docs/guide/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, runbook, _ := strings.Cut(string(guide), "\n**A stream has no leader")
	runbook, _, _ = strings.Cut(runbook, "\n**")
	commands := regexp.MustCompile("`((?:nats stream|nats kv|parley serve) [^`]*)`").FindAllStringSubmatch(runbook, -1)
	if len(commands) != 6 {
		t.Fatalf("the guide has the commands %q, want 6", commands)
	}
	for _, c := range commands {
		args := strings.Fields(strings.NewReplacer("STREAM", subjects.StreamTasks, "DIR", filepath.Join(s.dir, "backup")).Replace(c[1]))
		switch {
		case args[0] == "parley":
			serve(args[2:]...)
			continue
		case args[2] == "rm":
			args = append(args, "--force") // nobody is there to say yes
		}
		s.stockCLI(t, args[1:]...)
	}
	if out := s.does(ci, "task", "get", "kept"); !strings.Contains(out, "what is kept") {
		t.Errorf("the task of before: %s", out)
	}
	s.parley("claude", s.env(deploy.Claude, "single"), "agent", "run", "--id", "claude", "--driver", "echo", "--data", filepath.Join(s.dir, "claude"))
	s.does(ci, "task", "wait", "kept")
	s.does(ci, "task", "send", "--wait", "afterwards")
}
