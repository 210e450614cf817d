package e2e_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// stock is the stock nats command line against a fleet.
type stock struct {
	*testFleet
	path string
}

// run gives what a command prints; it must succeed.
func (s stock) run(args ...string) string {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.path, append([]string{"--server", s.url}, args...)...)
	cmd.Env = bareEnv(s.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.tb.Fatalf("nats %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ask is nats req; the reply alone.
func (s stock) ask(subject, body string) string {
	s.tb.Helper()
	return s.run("req", "--raw", "--timeout", "60s", subject, body)
}

// background starts a command that goes on until the test ends, and waits until
// it has said on standard error that it listens.
func (s stock) background(name, says string, args ...string) *process {
	s.tb.Helper()
	p := start(s.tb, s.dir, program{name: name, path: s.path, args: append([]string{"--server", s.url}, args...)})
	ctx, cancel := context.WithTimeout(s.tb.Context(), patience)
	defer cancel()
	for !strings.Contains(tail(p.log, 4000), says) {
		if pause(ctx, 10*time.Millisecond) != nil {
			s.tb.Fatalf("nats %s does not say %q: %s", name, says, tail(p.log, 4000))
		}
	}
	return p
}

// view asks for a task until it is in the state wanted.
func (s stock) until(task, state string) map[string]any {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), patience)
	defer cancel()
	for {
		reply := s.ask("fleet.api.boss.task.get", `{"task_id":"`+task+`"}`)
		var v map[string]any
		if json.Unmarshal([]byte(reply), &v) == nil && v["state"] == state {
			return v
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			s.tb.Fatalf("task %s is not %s: %s", task, state, reply)
		}
	}
}

func (s stock) want(what, got string, parts ...string) {
	s.tb.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			s.tb.Errorf("%s: %q is not in:\n%s", what, p, got)
		}
	}
}

// TestStockNATSCLI does everything with the stock nats command line alone:
// announce, dispatch by both doors, be an agent, watch, read the outcome.
func TestStockNATSCLI(t *testing.T) {
	t.Parallel()
	s := stock{newFleet(t, "registry,router"), natsBinary(t)}
	events := s.background("events", "Subscribing", "sub", "fleet.event.*")
	outcomes := s.background("outcomes", "Subscribing", "sub", "fleet.outcome.boss.*")

	// Somebody at a terminal is an agent: no heartbeats, and a nats reply.
	s.want("announce", s.run("pub", "-J", "fleet.announce.bob.main", `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0",
	  "worker":{"agent_id":"bob","model_tier":"opus"},"capabilities":{"tools":["terminal"],"mcp_servers":[]},
	  "heartbeat_seconds":0}`), "Stored in Stream: FLEET_ANNOUNCE")
	offers := s.background("offers", "Listening", "reply", "fleet.offer.bob.*", `{"accepted":true}`)
	until(t, "bob to be known", func() bool {
		known := s.ask("fleet.api.operator.agent.list", `{}`)
		return strings.Contains(known, `"agent_id":"bob"`) && strings.Contains(known, `"live":true`)
	})

	// JSON by the API's door.
	s.want("dispatch", s.ask("fleet.api.boss.task.dispatch", `{"task":{"task_id":"json","priority":"high"},
	  "requirements":{"required_capabilities":["terminal"]},"brief":"tidy the desk"}`), `"task_id":"json"`, `"state":"queued"`)
	s.until("json", "working")
	offers.waitOutput("the offer", func(o string) bool { return strings.Contains(o, "tidy the desk") })
	s.want("result", s.ask("fleet.result.bob.json", `{"type":"TASK_RESULT","status":"done","tokens_spent":3,"output":"tidy"}`), `"ok":true`)
	if v := s.until("json", "done"); v["tokens_spent"] != 3.0 || v["agent_id"] != "bob" {
		t.Errorf("the outcome is %v", v)
	}

	// Plain text by the raw door; the answer is prose.
	s.want("raw door", s.ask("fleet.dispatch.boss", "TASK DISPATCH (inline)\ntask_id: inline\nrequired_capabilities: [terminal]\n\nBrief: water the plants"),
		`"stream":"FLEET_INBOX"`)
	s.until("inline", "working")
	s.want("prose", s.ask("fleet.result.bob.inline", "All of them are watered."), `"state":"done"`)
	outcomes.waitOutput("the outcome", func(o string) bool { return strings.Contains(o, "All of them are watered.") })
	events.waitOutput("the events", func(o string) bool {
		return strings.Contains(o, "fleet.event.json") && strings.Contains(o, "fleet.event.inline") && strings.Contains(o, "Fleet-Kind: outcome")
	})
	s.want("the kept outcome", s.run("stream", "get", "FLEET_TASKS", "--last-for", "fleet.task.inline"), `"state":"done"`, "All of them are watered.")

	s.traps()
	s.want("services", s.run("micro", "ls"), "fleet", "registry")
	s.want("endpoints", s.run("micro", "info", "fleet"), "fleet.api.*.task.dispatch")
}

// traps are what the stock command line makes easy to do wrong: each is met
// with an answer that helps.
func (s stock) traps() {
	s.tb.Helper()
	// echo … | nats pub without a terminal sends nothing at all.
	s.want("an empty dispatch", s.ask("fleet.api.boss.task.dispatch", ""), `"code":"invalid_message"`, "--force-stdin")
	s.want("an empty raw dispatch", s.ask("fleet.dispatch.boss", ""), `"stream":"FLEET_INBOX"`)
	list := regexp.MustCompile(`"task_id":"([0-9a-f-]{36})"`)
	ctx, cancel := context.WithTimeout(s.tb.Context(), patience)
	defer cancel()
	for {
		reply := s.ask("fleet.api.boss.task.list", `{"state":"error"}`)
		if m := list.FindStringSubmatch(reply); m != nil {
			s.want("its outcome", s.ask("fleet.api.boss.task.get", `{"task_id":"`+m[1]+`"}`), `"code":"invalid_message"`, "--force-stdin")
			break
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			s.tb.Fatalf("the empty dispatch has no outcome: %s", reply)
		}
	}
	for len(s.deadLetters()) != 1 {
		if pause(ctx, 20*time.Millisecond) != nil {
			s.tb.Fatalf("dead letters: %q, want one", s.deadLetters())
		}
	}
	s.want("bad JSON", s.ask("fleet.api.boss.task.dispatch", `{"task":{"priority":3},"brief":"x"}`), `"pointer":"/task/priority"`, "string")
	s.want("another version", s.ask("fleet.api.boss.task.dispatch", `{"protocol_version":"3.0","brief":"x"}`), `"code":"version_mismatch"`)
	s.want("somebody else's name", s.ask("fleet.api.boss.task.dispatch", `{"from":"eve","brief":"x"}`), `"code":"forbidden"`)
	s.want("a task that is not", s.ask("fleet.api.boss.task.get", `{"task_id":"nothing"}`), `"code":"not_found"`)
}
