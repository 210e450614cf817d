package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// TestSession, TestHandshake, TestContext, TestAudit and a part of TestA2E run on
// an authenticated embedded broker, as TestIdentity does; TestClustered does the
// same at three servers, as TestTenants does for identities.
func TestClustered(t *testing.T) {
	t.Parallel()
	g := withAgents(t, newClustered(t))
	throughSession(t, g)
	throughHandshake(t, g)
	throughContext(t, g)
	throughA2E(t, g)
	throughAudit(t, g)
}

// newSessions is a guarded fleet with an agent at work and two who use it.
func newSessions(t *testing.T) *guarded {
	t.Helper()
	return withAgents(t, newGuarded(t, nil, "default"))
}

func withAgents(t *testing.T, g *guarded) *guarded {
	t.Helper()
	for _, add := range [][]string{{"add-agent", "claude"}, {"add-orchestrator", "boss"}, {"add-orchestrator", "eve"}} {
		g.must(g.run(nil, append([]string{"auth"}, add...)...))
	}
	g.agent("claude")
	g.eventually("claude", func() bool { return strings.Contains(g.as("boss", "agent", "ls", "--live").stdout, "claude") })
	return g
}

// refused checks that a command ended with an error code.
func refused(t *testing.T, d did, code subjects.Code) {
	t.Helper()
	if d.code == 0 || !strings.Contains(d.stderr, "("+string(code)+")") {
		t.Errorf("parley %q: exit %d, want %s:\n%s", d.args, d.code, code, d.stderr)
	}
}

// TestSession goes through a session's life, each step by the credentials of
// who takes it.
func TestSession(t *testing.T) {
	t.Parallel()
	throughSession(t, newSessions(t))
}

func throughSession(t *testing.T, g *guarded) {
	t.Helper()
	file := filepath.Join(g.dir, "token")
	id := strings.TrimSpace(g.must(g.as("boss", "session", "create", "--type", "single-agent", "--token-file", file)))
	token, err := readFile(file)
	if err != nil {
		t.Fatal(err)
	}
	eve := []string{"PARLEY_CREDS=" + g.creds("default", "eve"), "PARLEY_SESSION_TOKEN_FILE=" + file}
	refused(t, g.as("eve", "session", "get", id), subjects.CodeNotFound)
	g.must(g.run(eve, "session", "get", id))
	refused(t, g.run(eve, "session", "update", id), subjects.CodeNotFound)
	g.must(g.as("boss", "session", "update", id, "--priority", "high"))
	if out := g.must(g.as("eve", "session", "ls")); strings.Contains(out, id) {
		t.Errorf("eve's sessions are\n%s", out)
	}
	if out := g.must(g.as("operator", "session", "ls")); !strings.Contains(out, id) {
		t.Errorf("the operator's sessions are\n%s", out)
	}

	// Any sessions worker takes the token of another: the keys are kept.
	g.restart()
	g.must(g.run(eve, "session", "get", id))
	g.must(g.as("boss", "session", "delete", id))
	refused(t, g.run(eve, "session", "get", id), subjects.CodeNotFound)
	if d := g.run(eve, "session", "get", id); strings.Contains(d.stdout+d.stderr, token) {
		t.Error("the token was printed")
	}
}

// TestHandshake asks an agent to begin, through the broker that knows who asks.
func TestHandshake(t *testing.T) {
	t.Parallel()
	throughHandshake(t, newSessions(t))
}

func throughHandshake(t *testing.T, g *guarded) {
	t.Helper()
	id := subjects.SessionID(strings.TrimSpace(g.must(g.as("boss", "session", "create"))))
	g.must(g.as("boss", "session", "append", string(id), "what came before"))
	greet := handshake.Greet{Init: handshake.Init{
		Header:    handshake.Header{ProtocolVersion: handshake.Version, MessageType: handshake.TypeInit},
		SessionID: id, Timestamp: time.Now().UTC(),
		Initiator: handshake.Party{AgentID: "boss"}, Target: handshake.Party{AgentID: "claude"},
		Task: handshake.Task{TaskID: "t1", Description: "status"},
	}}
	nc := g.connect("boss")
	code, reply := asked(t, nc, "fleet.api.boss.session.handshake", fleet.MustEncode(greet))
	ack, err := handshake.DecodeAck([]byte(reply))
	if code != "" || err != nil || !ack.Accepted || ack.SessionID != id {
		t.Fatalf("the handshake answers %s, %v", reply, err)
	}
	// Another's name, by its own credentials and by others'.
	eve := g.connect("eve")
	if code, reply := asked(t, eve, "fleet.api.eve.session.handshake", fleet.MustEncode(greet)); code != subjects.CodeForbidden {
		t.Errorf("eve as boss: %s: %s", code, reply)
	}
	g.eventually("the handshake in the audit", func() bool {
		out := g.audit("--session", string(id))
		return strings.Contains(out, `"event_type":"handshake_init"`) && strings.Contains(out, `"event_type":"handshake_ack"`) &&
			strings.Contains(out, `"event_type":"context_exchange"`) &&
			strings.Contains(g.audit("--agent", "eve"), `"code":"forbidden","action":"request","subject":"fleet.api.eve.session.handshake"`)
	})
}

// TestContext has several append to one context at once, and a task read it and
// add to it.
func TestContext(t *testing.T) {
	t.Parallel()
	throughContext(t, newSessions(t))
}

func throughContext(t *testing.T, g *guarded) {
	t.Helper()
	file := filepath.Join(g.dir, "token")
	id := strings.TrimSpace(g.must(g.as("boss", "session", "create", "--token-file", file)))
	token, err := readFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const each = 40
	var all sync.WaitGroup
	for _, who := range []string{"boss", "eve", "claude"} {
		nc := g.connect(who)
		all.Go(func() {
			for n := range each {
				req := handshake.Append{SessionID: subjects.SessionID(id), Token: token, Key: fmt.Sprintf("%s-%d", who, n)}
				req.Entry.Status, req.Entry.Output = "completed", json.RawMessage(fmt.Sprintf(`"%s %d"`, who, n))
				m, err := nc.Request("fleet.api."+who+".session.append", fleet.MustEncode(req), patience)
				if err != nil || strings.Contains(string(m.Data), `"error"`) {
					t.Errorf("%s appends: %v", who, err)
					return
				}
			}
		})
	}
	all.Wait()
	seen := map[string]int{}
	out := g.must(g.as("boss", "session", "context", id, "-o", "jsonl"))
	for n, line := range strings.Split(strings.TrimSpace(out), "\n") {
		r, err := handshake.DecodeRecord([]byte(line))
		if err != nil || r.Version != uint64(n+1) {
			t.Fatalf("line %d of the context is %s, %v", n+1, line, err)
		}
		seen[string(r.Entry.AgentID)+string(r.Entry.Output)]++
	}
	if len(seen) != 3*each {
		t.Errorf("the context has %d entries, want %d", len(seen), 3*each)
	}
	const leak = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"
	if d := g.as("boss", "session", "append", id, leak); strings.Contains(d.stderr, leak) {
		t.Error("the error shows the secret")
	} else {
		refused(t, d, subjects.CodeSecretInContext)
	}
	result := filepath.Join(g.dir, "result.json")
	g.must(g.as("boss", "invoke", "claude", result, "--session", id, "say hello"))
	g.eventually("the task's result in the context", func() bool {
		return strings.Contains(g.must(g.as("boss", "session", "context", id, "-o", "jsonl", "--after", strconv.Itoa(3*each))), "say hello")
	})
}

// TestAudit exports and verifies what a session has left, also after the
// process that wrote it was killed.
func TestAudit(t *testing.T) {
	t.Parallel()
	throughAudit(t, newSessions(t))
}

func throughAudit(t *testing.T, g *guarded) {
	t.Helper()
	id := strings.TrimSpace(g.must(g.as("boss", "session", "create")))
	g.must(g.as("boss", "invoke", "claude", filepath.Join(g.dir, "result.json"), "--session", id, "say hello"))
	g.eventually("the task's end in the audit", func() bool {
		return strings.Contains(g.audit("--session", id), `"event_type":"execution_complete"`)
	})
	g.restart()
	g.must(g.as("boss", "session", "delete", id))
	g.eventually("the session's end in the audit", func() bool {
		return strings.Contains(g.audit("--session", id), `"event_type":"session_delete"`)
	})
	refused(t, g.as("boss", "audit", "export"), subjects.CodeForbidden)
	if out := g.must(g.as("operator", "audit", "verify")); !strings.Contains(out, "nothing was changed") {
		t.Errorf("audit verify: %s", out)
	}
	logs := filepath.Join(g.dir, "logs")
	g.must(g.as("operator", "audit", "export", "--since", "1h", "--dir", logs))
	for _, name := range []string{id + ".log", id + "-claude.log", id + "-boss.log"} {
		if data, err := os.ReadFile(filepath.Join(logs, name)); err != nil || len(data) == 0 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}

// throughA2E uses the fleet by A2E over NATS, where the broker knows who asks.
func throughA2E(t *testing.T, g *guarded) {
	t.Helper()
	f := &a2eFleet{TB: t, dir: g.dir, nc: g.connect("boss")}
	as := func(who string) *a2eTalk {
		return f.requests(func(ctx context.Context, what, line string) ([]byte, error) {
			m, err := f.nc.RequestWithContext(ctx, "fleet.api.boss.a2e."+what, []byte(strings.Replace(line, `"my-agent"`, `"`+who+`"`, 1)))
			if err != nil {
				return nil, err
			}
			return m.Data, nil
		})
	}
	if m := as("eve").shake("1.0", "", "tools"); m.OK || m.Reason != "auth_failed" {
		t.Errorf("boss as eve: %+v", m)
	}
	talk := as("boss")
	if m := talk.shake("1.0", "", "tools", "env", "memory"); !m.OK {
		t.Fatalf("handshake = %+v", m)
	}
	task := map[string]any{"task": map[string]any{"agent": "claude"}, "brief": "by A2E"}
	if m := talk.asks("1", "dispatch", task, 60); m.Result.State != "done" || m.Result.Result.Output != "by A2E" {
		t.Errorf("dispatch = %+v", m)
	}
}
