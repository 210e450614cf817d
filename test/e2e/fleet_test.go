package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"parley/test/rig"
)

// testFleet is a fleet of real processes.
type testFleet struct {
	tb     testing.TB
	dir    string
	url    string
	env    []string // of the broker, beside a bare one
	broker *process
	nc     *nats.Conn // raw
}

// newFleet starts a broker in a process of its own: parley up, without a
// router unless workers names it.
func newFleet(tb testing.TB, workers string) *testFleet {
	tb.Helper()
	f := &testFleet{tb: tb, dir: tb.TempDir()}
	if *keepFlag != "" {
		f.dir = filepath.Join(*keepFlag, strings.ReplaceAll(tb.Name(), "/", "_"))
		if err := errors.Join(os.RemoveAll(f.dir), os.MkdirAll(f.dir, 0o700)); err != nil {
			tb.Fatal(err)
		}
	}
	f.startBroker(workers, "-1")
	f.connect()
	return f
}

func (f *testFleet) connect() {
	f.tb.Helper()
	nc, err := nats.Connect(f.url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Name("e2e"))
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(nc.Close)
	f.nc = nc
}

func (f *testFleet) startBroker(workers, port string) {
	f.tb.Helper()
	f.broker = start(f.tb, f.dir, program{
		name: "broker", path: parleyBinary(f.tb), env: f.env,
		args: []string{
			"up", "--data", filepath.Join(f.dir, "jetstream"), "--port", port, "--http", "off",
			"--workers", workers, "-o", "json", "--log-format", "text",
		},
	})
	out := f.broker.waitOutput("banner", func(s string) bool { return strings.Contains(s, "}") })
	var banner struct {
		NATS string `json:"nats"`
	}
	if err := json.Unmarshal([]byte(out), &banner); err != nil {
		f.tb.Fatalf("%v: %s", err, out)
	}
	f.url = banner.NATS
}

// restartBroker kills the broker and starts it again at the same address.
func (f *testFleet) restartBroker(workers string) {
	f.tb.Helper()
	f.broker.kill()
	f.startBroker(workers, f.url[strings.LastIndex(f.url, ":")+1:])
}

// router starts a router of the binary given.
func (f *testFleet) router(name, binary string, env ...string) *process {
	f.tb.Helper()
	return f.serve(name, binary, "router", nil, env...)
}

// serve starts workers of the binary given, in a process of their own.
func (f *testFleet) serve(name, binary, workers string, flags []string, env ...string) *process {
	f.tb.Helper()
	return start(f.tb, f.dir, program{
		name: name, path: binary, env: env,
		args: append([]string{
			"serve", "--workers", workers, "--server", f.url, "--http", "off",
			"--provision", "verify", "--log-format", "text", "--log-level", "debug",
		}, flags...),
	})
}

// agents starts a process of agents, who write their journal to name.journal.
func (f *testFleet) agents(name string, c cast) *process {
	f.tb.Helper()
	self, err := os.Executable()
	if err != nil {
		f.tb.Fatal(err)
	}
	c.URL, c.Journal = f.url, filepath.Join(f.dir, name+".journal")
	for i, a := range c.Agents {
		if a.Spool != "" {
			c.Agents[i].Spool = filepath.Join(f.dir, "spool", a.ID)
		}
	}
	data, err := json.Marshal(c)
	if err != nil {
		f.tb.Fatal(err)
	}
	path := filepath.Join(f.dir, name+".json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.tb.Fatal(err)
	}
	return start(f.tb, f.dir, program{name: name, path: self, env: []string{rig.AgentsEnv + "=" + path}})
}

// journals reads every journal of the fleet.
func (f *testFleet) journals() [][]entry {
	f.tb.Helper()
	paths, err := filepath.Glob(filepath.Join(f.dir, "*.journal"))
	if err != nil {
		f.tb.Fatal(err)
	}
	all, err := rig.ReadJournals(paths...)
	if err != nil {
		f.tb.Fatal(err)
	}
	return all
}

// heartbeat is what an agent says of itself.
type heartbeat struct {
	Holding []struct {
		TaskID  string `json:"task_id"`
		Attempt int    `json:"attempt"`
	} `json:"holding"`
}

// awaitBeats waits until every agent has said something that satisfies ok,
// since awaitBeats was called.
func (f *testFleet) awaitBeats(what string, within time.Duration, agents []string, ok func(heartbeat) bool) {
	f.tb.Helper()
	beats := make(chan *nats.Msg, 1024)
	sub, err := f.nc.ChanSubscribe("fleet.heartbeat.*.*", beats)
	if err != nil {
		f.tb.Fatal(err)
	}
	defer sub.Unsubscribe()
	limit := time.NewTimer(within)
	defer limit.Stop()
	last := map[string]string{}
	missing := map[string]bool{}
	for _, a := range agents {
		missing[a] = true
	}
	for len(missing) > 0 {
		select {
		case m := <-beats:
			agent := strings.Split(m.Subject, ".")[2]
			var h heartbeat
			if err := json.Unmarshal(m.Data, &h); err != nil {
				f.tb.Fatalf("heartbeat of %s: %v: %s", agent, err, m.Data)
			}
			last[agent] = string(m.Data)
			if ok(h) {
				delete(missing, agent)
			} else if missingWas(agents, agent) {
				missing[agent] = true
			}
		case <-limit.C:
			var b strings.Builder
			for a := range missing {
				fmt.Fprintf(&b, "\n  %s: %s", a, last[a])
			}
			f.tb.Fatalf("%s: not within %s; missing:%s", what, within, b.String())
		}
	}
}

func missingWas(agents []string, agent string) bool {
	return slices.Contains(agents, agent)
}

// awaitAgents waits until every agent is heard.
func (f *testFleet) awaitAgents(agents ...string) {
	f.tb.Helper()
	f.awaitBeats("the agents' heartbeats", patience, agents, func(heartbeat) bool { return true })
}

// awaitIdle waits until no agent has anything in hand.
func (f *testFleet) awaitIdle(agents ...string) {
	f.tb.Helper()
	f.awaitBeats("agents with nothing in hand", patience, agents, func(h heartbeat) bool { return len(h.Holding) == 0 })
}
