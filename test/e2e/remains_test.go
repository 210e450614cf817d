package e2e_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/subjects/mesh"
	"parley/subjects/schedule"
	"parley/test/deploy"
)

// keeper leaves one of everything that a fleet keeps, and later sees that it is
// there and goes on: in the data of an earlier build, and in what was restored.
type keeper struct {
	siteUnderTest // without a Site, where it is a fleet of parley up

	as   func(user string) []string // how somebody reaches the fleet
	raw  func() *nats.Conn          // as a worker
	hook *hook                      // the person who is called
	left left
}

// left is what is found by names that the fleet gave.
type left struct {
	Task     string `json:"task"` // that was given under a key, and is done
	Session  string `json:"session"`
	Versions int    `json:"versions"` // of its context
	Large    string `json:"large"`    // a digest
	Letter   string `json:"letter"`   // to an agent that slept
	Delivery string `json:"delivery"` // that was not taken
	Begun    int    `json:"begun"`    // times of the schedule
	A2E      string `json:"a2e"`      // a session
}

// leftFile is where left is, beside the streams.
const leftFile = "left.json"

const theLarge = 10_000 // lines of it

// workers is what the workers are told: whom to call, at an address.
func (k *keeper) workers(url string) []string {
	k.tb.Helper()
	file := writeFile(k.tb, k.dir, "webhooks.json", `{"endpoints":[{"name":"human","url":"`+url+`","secret":"`+webhookSecret+`","allow":["127.0.0.1"],"human":{"steps":["1h"]}}],"allow":["127.0.0.1"]}`)
	return []string{
		"PARLEY_WEBHOOKS_FILE=" + file, "PARLEY_ALERT_CONTACTS=human", "PARLEY_GROUP_WAIT=10ms",
		"PARLEY_SEAL_KEY=what-the-keys-of-this-test-are-sealed-by",
	}
}

// nobody is where a call reaches nobody.
const nobody = "http://127.0.0.1:1"

// answers makes the person who is called, from now on.
func (k *keeper) answers() {
	k.tb.Helper()
	k.hook = newHook(k.tb)
	k.hook.ids = []string{""} // none of them is the first
}

// does gives what a command of somebody's prints.
func (k *keeper) do(user string, args ...string) string {
	k.tb.Helper()
	return strings.TrimSpace(k.does(k.as(user), args...))
}

// shows checks what a command of somebody's prints.
func (k *keeper) shows(want, user string, args ...string) {
	k.tb.Helper()
	if out := k.do(user, args...); !strings.Contains(out, want) {
		k.tb.Errorf("parley %q has no %q: %s", args, want, out)
	}
}

// comes waits until a command of somebody's prints something.
func (k *keeper) comes(want, user string, args ...string) {
	k.tb.Helper()
	k.until(want, func(context.Context) bool { return strings.Contains(k.do(user, args...), want) })
}

// agent starts claude, who answers messages and fails one task.
func (k *keeper) agent(name string) *process {
	k.tb.Helper()
	return k.parley(name, k.as(deploy.Claude), "agent", "run", "--id", "claude", "--heartbeat", "500ms", "--data", filepath.Join(k.dir, "claude"), "--", "sh", "-c",
		`cat >/dev/null
		case "$PARLEY_TASK_ID" in
		failing) exit 1 ;;
		"") echo "heard" ;;
		*) printf '{"type":"TASK_RESULT","status":"done","tokens_spent":7,"output":"did %s"}' "$PARLEY_TASK_ID" ;;
		esac`)
}

// run is the file of a run of one node.
func (k *keeper) run(id string) string {
	k.tb.Helper()
	return writeFile(k.tb, k.dir, id+".json", `{"task_id":"`+id+`","task_type":"multi-agent-run","agents":[{"agent_id":"claude","brief":"a part"}]}`)
}

// identity is the file with the identity of bot.
func (k *keeper) identity() string { return filepath.Join(k.dir, "bot.identity.json") }

// leave makes one of everything.
func (k *keeper) leave() {
	k.tb.Helper()
	claude := k.agent("claude-before")
	k.do(deploy.Operator, "identity", "add", "bot", "--role", "orchestrator", "--file", k.identity())
	k.left.Session = k.do(deploy.CI, "session", "create")
	k.do(deploy.CI, "session", "append", k.left.Session, "what came before")
	k.do(deploy.CI, "session", "append", k.left.Session, "-f", writeFile(k.tb, k.dir, "large", strings.Repeat("a large output\n", theLarge)))
	k.comes("claude", deploy.CI, "agent", "ls", "--live")
	k.left.Task = k.inSession("--key", "once")
	k.do(deploy.CI, "task", "wait", k.left.Task)
	k.do(deploy.CI, "run", "start", "--wait", k.run("run-ended"))
	k.do(deploy.Operator, "mesh", "send", "--to", "ci", "--no-reply", "for a person")
	k.do(deploy.CI, "task", "send", "--id", "failing", "--agent", "claude", "--max-retries", "0", "--escalate", "always", "do it")
	k.until("a call that nobody took", func(context.Context) bool {
		i := slices.IndexFunc(k.deliveries("failing"), func(d fleet.DeliveryState) bool { return d.Attempts == 1 && d.Error != nil })
		if i >= 0 {
			k.left.Delivery = string(k.deliveries("failing")[i].DeliveryID)
		}
		return i >= 0
	})
	k.until("the result in the context", func(context.Context) bool {
		list := k.context()
		k.left.Versions = len(list)
		return len(list) == 3
	})
	k.left.Large = k.context()[1].Entry.Stored.Digest
	claude.kill()
	k.leaveWaiting()
}

// inSession sends a task of the session.
func (k *keeper) inSession(more ...string) string {
	k.tb.Helper()
	return k.do(deploy.CI, slices.Concat([]string{"task", "send", "--session", k.left.Session, "--session-budget", "1000"}, more, []string{"do it"})...)
}

// leaveWaiting makes what goes on once claude is back.
func (k *keeper) leaveWaiting() {
	k.tb.Helper()
	k.inSession("--id", "waiting")
	k.left.Letter = k.do(deploy.CI, "mesh", "send", "--to", "claude", "are you there")
	k.do(deploy.CI, "run", "start", k.run("run-waiting"))
	k.do(deploy.CI, "schedule", "create", "tick", "--every", "1s", "mesh", "--to", "claude", "--no-reply", "tick")
	k.do(deploy.CI, "schedule", "create", "daily", "--cron", "0 9 * * *", "dispatch", writeFile(k.tb, k.dir, "daily.txt", "good morning"))
	k.do(deploy.Operator, "escalation", "silence", "code=mcp_unhealthy", "--for", "2h", "--reason", "being repaired")
	k.do(deploy.Operator, "agent", "drain", "claude", "--reason", "it sleeps")
	push := k.request("fleet.a2a.ci.CreateTaskPushNotificationConfig", `{"taskId":"waiting","id":"mine","url":"`+nobody+`/push"}`)
	if !strings.Contains(push, "mine") {
		k.tb.Fatalf("the push config: %s", push)
	}
	shaken := k.request("fleet.api.ci.a2e.handshake", `{"a2e":"1.0","type":"handshake/req","id":"1","ts":1716123456.789,"agent_id":"ci","agent_caps":["memory"]}`)
	var a2e a2eMessage
	if err := json.Unmarshal([]byte(shaken), &a2e); err != nil || !a2e.OK {
		k.tb.Fatalf("the handshake of A2E: %s", shaken)
	}
	k.left.A2E = a2e.SessionID
	k.request("fleet.webhook.t.nonsense", "no delivery")
	k.comes("fleet.webhook.t.nonsense", deploy.Worker, "dlq", "ls", "-o", "json")
	k.left.Begun = k.tick().Begun
}

// find sees that all that was left is there, and has it go on.
func (k *keeper) find() {
	k.tb.Helper()
	k.shows("did "+k.left.Task, deploy.CI, "task", "get", k.left.Task, "-o", "json")
	if id := k.inSession("--key", "once"); id != k.left.Task {
		k.tb.Errorf("a task that is sent once more under its key is %s", id)
	}
	k.findSession()
	k.shows("did ", deploy.CI, "run", "output", "run-ended")
	k.shows("for a person", deploy.CI, "mesh", "inbox", "--take", "-o", "json")
	k.shows("fleet.webhook.t.nonsense", deploy.Worker, "dlq", "ls", "-o", "json")
	k.shows("daily", deploy.CI, "schedule", "ls")
	known := k.request("fleet.api.ci.a2e.call", `{"a2e":"1.0","type":"call/req","id":"2","ts":1716123457.5,"session_id":"`+k.left.A2E+`","call":"get","params":{"task_id":"`+k.left.Task+`"}}`)
	if !strings.Contains(known, "did "+k.left.Task) {
		k.tb.Errorf("by A2E the task is %s", known)
	}
	k.findHuman()
	k.findIdentity()

	k.shows(`"waiting"`, deploy.CI, "task", "ls", "--state", "queued", "-o", "json")
	k.agent("claude-after")
	k.until("claude, who rests", func(context.Context) bool {
		return strings.Contains(k.do(deploy.CI, "agent", "ls", "--live", "-o", "json"), `"draining": true`)
	})
	k.do(deploy.Operator, "agent", "resume", "claude")
	k.do(deploy.CI, "task", "wait", "waiting")
	k.shows(`"tokens_spent": 14`, deploy.CI, "task", "get", "waiting", "-o", "json") // of the session
	k.comes("did ", deploy.CI, "run", "watch", "run-waiting")
	k.comes(string(mesh.Answered), deploy.CI, "mesh", "get", k.left.Letter)
	k.until("a push", func(context.Context) bool {
		list := k.deliveries("waiting")
		return len(list) > 0 && list[0].Endpoint == nobody
	})
	k.until("the schedule, by its timer", func(context.Context) bool { return k.tick().Begun >= k.left.Begun+2 })
	k.do(deploy.CI, "task", "send", "--wait", "--agent", "claude", "afterwards")
	k.shows("nothing was changed", deploy.Operator, "audit", "verify")
}

// findSession reads the session, and adds to it.
func (k *keeper) findSession() {
	k.tb.Helper()
	list := k.context()
	if len(list) != k.left.Versions || string(list[0].Entry.Output) != `"what came before"` || !strings.Contains(string(list[2].Entry.Output), "did "+k.left.Task) {
		k.tb.Fatalf("the context is %+v", list)
	}
	if large := k.do(deploy.CI, "session", "fetch", k.left.Session, k.left.Large); strings.Count(large, "a large output") != theLarge {
		k.tb.Errorf("the large output has %d bytes", len(large))
	}
	if v := k.do(deploy.CI, "session", "append", k.left.Session, "what comes after"); v != strconv.Itoa(k.left.Versions+1) {
		k.tb.Errorf("what is added is version %s", v)
	}
}

// findHuman has the call come, and answers.
func (k *keeper) findHuman() {
	k.tb.Helper()
	k.shows("failing", deploy.Operator, "escalation", "ls", "-o", "json")
	k.shows("being repaired", deploy.Operator, "escalation", "ls", "-o", "json")
	k.do(deploy.Operator, "webhook", "replay", k.left.Delivery)
	k.until("the call", func(context.Context) bool { return slices.Contains(k.hook.came(), k.left.Delivery) })
	k.comes(fleet.DeliveryDelivered, deploy.Operator, "webhook", "show", k.left.Delivery)
	k.do(deploy.Operator, "escalation", "complete", "failing", writeFile(k.tb, k.dir, "result.json", `"by hand"`))
	k.shows("by hand", deploy.CI, "task", "wait", "failing", "-o", "json")
	k.until("the end of the alert", func(context.Context) bool {
		return !strings.Contains(k.do(deploy.Operator, "escalation", "ls", "-o", "json"), `"failing"`)
	})
}

// findIdentity gives bot a second key, and lets it in by either.
func (k *keeper) findIdentity() {
	k.tb.Helper()
	second := filepath.Join(k.dir, "bot-2.identity.json")
	k.do(deploy.Operator, "identity", "rotate", "bot", "--overlap", "1h", "--file", second)
	for _, file := range []string{k.identity(), second} {
		k.does(append(k.as(""), "PARLEY_IDENTITY="+file), "task", "ls")
	}
}

// context is that of the session.
func (k *keeper) context() (list []*handshake.Record) {
	k.tb.Helper()
	for line := range strings.Lines(k.do(deploy.CI, "session", "context", k.left.Session, "-o", "jsonl")) {
		r, err := handshake.DecodeRecord([]byte(line))
		if err != nil {
			k.tb.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// deliveries are those of a task.
func (k *keeper) deliveries(task string) []fleet.DeliveryState {
	k.tb.Helper()
	r, err := fleet.DecodeReply[fleet.WebhookListReply]([]byte(k.do(deploy.Operator, "webhook", "ls", "--task", task, "-o", "json")))
	if err != nil {
		k.tb.Fatal(err)
	}
	return r.Deliveries
}

// tick is the schedule that is due each second.
func (k *keeper) tick() *schedule.View {
	k.tb.Helper()
	v, err := fleet.DecodeStored[schedule.View]([]byte(k.do(deploy.CI, "schedule", "get", "tick", "-o", "json")))
	if err != nil {
		k.tb.Fatal(err)
	}
	return v
}

// request asks by raw NATS.
func (k *keeper) request(subject, body string) string {
	k.tb.Helper()
	nc := k.raw()
	defer nc.Close()
	m, err := nc.RequestMsg(&nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{"A2A-Version": {"1.0"}}}, patience)
	if err != nil {
		k.tb.Fatalf("%s: %v", subject, err)
	}
	return string(m.Data)
}

// keep writes what was left beside the streams, with bot's identity.
func (k *keeper) keep(dir string) {
	k.tb.Helper()
	data, err := json.MarshalIndent(k.left, "", "  ")
	if err != nil {
		k.tb.Fatal(err)
	}
	writeFile(k.tb, dir, leftFile, string(data)+"\n")
	bot, err := os.ReadFile(k.identity())
	if err != nil {
		k.tb.Fatal(err)
	}
	writeFile(k.tb, dir, filepath.Base(k.identity()), string(bot))
}

// kept reads it; false where only tasks were left.
func (k *keeper) kept(dir string) bool {
	k.tb.Helper()
	data, err := os.ReadFile(filepath.Join(dir, leftFile))
	if os.IsNotExist(err) {
		return false
	}
	if err == nil {
		err = json.Unmarshal(data, &k.left)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, filepath.Base(k.identity())), k.identity())
	}
	if err != nil {
		k.tb.Fatal(err)
	}
	return true
}
