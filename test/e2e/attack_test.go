package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"parley/subjects"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// attacker is somebody's connection, and what the server refused on it.
type attacker struct {
	*nats.Conn
	id string

	mu      sync.Mutex
	refused map[string]bool // by action and subject
}

var violation = regexp.MustCompile(`Permissions Violation for (Publish|Subscription|Publish with Reply)(?: to| of) "([^"]+)"`)

func newAttacker(g *guarded, id string) *attacker {
	g.tb.Helper()
	a := &attacker{id: id, refused: map[string]bool{}}
	a.Conn = g.connect(id, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if m := violation.FindStringSubmatch(err.Error()); m != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.refused[m[1]+" "+m[2]] = true
		}
	}))
	return a
}

func (a *attacker) was(action, subject string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[action+" "+subject]
}

// attempt is something that an identity tries on NATS.
type attempt struct {
	action  string // Publish or Subscription
	subject string
	allowed bool
}

// attempts are what id, in role, tries with every subject of the catalogue as
// other, and as itself. What is allowed is said in words of the catalogue alone:
// whoever writes or reads it in that role may, where the subject does not name
// somebody else.
func attempts(role string, id, other subjects.AgentID) []attempt {
	roles := slices.Compact([]string{role, subjects.RoleOrchestrator})
	may := func(words, pattern string, as subjects.AgentID) bool {
		for _, r := range roles {
			self := "<from>"
			if r == subjects.RoleAgent {
				self = "<agent>"
			}
			if slices.Contains(strings.Split(words, ", "), r) && (as == id || !strings.Contains(pattern, self)) {
				return true
			}
		}
		return false
	}
	var all []attempt
	for _, e := range subjects.Catalogue() {
		for _, as := range []subjects.AgentID{other, id} {
			subject := named(e.Pattern, as)
			all = append(all, attempt{"Publish", subject, may(e.Writer, e.Pattern, as)}, attempt{"Subscription", subject, may(e.Readers, e.Pattern, as)})
		}
	}
	return all
}

// named puts an agent where a pattern names one, and x for every other name.
func named(pattern string, as subjects.AgentID) string {
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		switch {
		case t == "<agent>", t == "<from>":
			tokens[i] = string(as)
		case t == "<instance>":
			tokens[i] = "stray" // no process's
		case strings.HasPrefix(t, "<"), t == ">":
			tokens[i] = "x"
		}
	}
	return strings.Join(tokens, ".")
}

// forbidden is what nobody but a worker may, whatever the catalogue says.
func forbidden() []attempt {
	var all []attempt
	for _, subject := range []string{
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.PURGE.FLEET_TASKS", "$JS.API.STREAM.DELETE.FLEET_TASKS",
		"$JS.API.STREAM.MSG.GET.FLEET_TASKS", "$JS.API.DIRECT.GET.FLEET_TASKS", "$JS.API.CONSUMER.CREATE.FLEET_TASKS", "$JS.ACK.FLEET_INBOX.routers.1.1.1.1.1",
		"$KV.FLEET_SESSIONS.x", "$KV.FLEET_WORKERS.session-keys", "$O.FLEET_OUTPUTS.M.x", "$SYS.REQ.SERVER.PING", "$SYS.REQ.CLAIMS.UPDATE",
		"_INBOX.x", "_INBOX_victim.x", "fleet.api.victim.task.unheard-of", "fleet.heartbeat.router.x", "fleet.unheard-of",
	} {
		all = append(all, attempt{"Publish", subject, false})
	}
	for _, subject := range []string{
		">", "*", "fleet.>", "fleet.*.*", "fleet.*.>", "fleet.api.>", "fleet.offer.>", "fleet.offer.*.*", "fleet.result.*.*", "$JS.API.>", "$JS.>", "$KV.>", "$SYS.>",
		"_INBOX.>", "_INBOX_victim.>", "_INBOX_*.>", "_R_.>", "fleet.mesh.>",
	} {
		all = append(all, attempt{"Subscription", subject, false})
	}
	return all
}

// TestAttacks is what somebody with credentials tries against the fleet: every
// subject of the catalogue as somebody else, JetStream, replies where they do
// not belong, messages that are too large, too deep, in another's name, and
// tokens that do not count. Each is refused; what the project sees is audited.
// All of it is tried twice: where parley auth has given credentials, and where
// the callout lets in who proves an identity.
func TestAttacks(t *testing.T) {
	t.Parallel()
	t.Run("auth", func(t *testing.T) {
		t.Parallel()
		attackCredentials(t)
	})
	t.Run("callout", func(t *testing.T) {
		t.Parallel()
		g := newAsking(t)
		for id, role := range map[string]string{"mallory": "agent", "victim": "agent", "eve": "orchestrator"} {
			g.must(g.as("operator", "identity", "add", id, "--role", role, "--file", g.identity(id)))
		}
		attackFleet(t, g)
		t.Run("proofs", func(t *testing.T) { attackProofs(t, g) })
	})
}

func attackCredentials(t *testing.T) {
	g := newGuarded(t, nil, "default", "other")
	for _, add := range [][]string{{"add-agent", "mallory"}, {"add-agent", "victim"}, {"add-orchestrator", "eve"}, {"add-agent", "spy", "--tenant", "other"}} {
		g.must(g.run(nil, append([]string{"auth"}, add...)...))
	}
	attackFleet(t, g)
	t.Run("tenant", func(t *testing.T) { attackTenant(t, g) })
}

// attackFleet is what mallory and eve try, whatever lets them in.
func attackFleet(t *testing.T, g *guarded) {
	worker := g.connect("worker")
	js, err := jetstream.New(worker)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("catalogue", func(t *testing.T) { attackCatalogue(t, g, worker) })
	t.Run("replies", func(t *testing.T) { attackReplies(t, g, js) })
	t.Run("messages", func(t *testing.T) { attackMessages(t, g) })
	t.Run("sessions", func(t *testing.T) { attackSessions(t, g) })
}

func attackCatalogue(t *testing.T, g *guarded, worker *nats.Conn) {
	heard, err := worker.SubscribeSync("fleet.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Flush(); err != nil {
		t.Fatal(err)
	}
	mark := "mark" + strconv.FormatInt(time.Now().UnixNano(), 10)
	said := map[string]bool{} // what an attacker may publish
	for _, who := range []struct {
		id   string
		role string
	}{{"mallory", subjects.RoleAgent}, {"eve", subjects.RoleOrchestrator}} {
		a := newAttacker(g, who.id)
		all := append(attempts(who.role, subjects.AgentID(who.id), "victim"), forbidden()...)
		var subs []*nats.Subscription
		for _, try := range all {
			if try.action == "Publish" {
				err = a.Publish(try.subject, []byte(mark))
			} else {
				var sub *nats.Subscription
				sub, err = a.Subscribe(try.subject, func(*nats.Msg) {})
				subs = append(subs, sub)
			}
			if err != nil {
				t.Fatalf("%s: %s %s: %v", who.id, try.action, try.subject, err)
			}
		}
		if err := a.Flush(); err != nil {
			t.Fatal(err)
		}
		last := "fleet.unheard-of.last." + who.id // errors are told in their order
		if err := a.Publish(last, nil); err != nil {
			t.Fatal(err)
		}
		g.eventually("the last refusal", func() bool { return a.was("Publish", last) })
		allowed := 0
		for _, try := range all {
			if got := !a.was(try.action, try.subject); got != try.allowed {
				t.Errorf("%s %s %s %s: allowed %v, want %v", who.role, who.id, try.action, try.subject, got, try.allowed)
			}
			if try.allowed {
				allowed++
				said[try.subject] = said[try.subject] || try.action == "Publish"
			}
		}
		if allowed < 10 {
			t.Errorf("%s may do %d things: this test would notice nothing", who.id, allowed)
		}
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
	}
	// What was heard is what they may say.
	for {
		m, err := heard.NextMsg(500 * time.Millisecond)
		if err != nil {
			break
		}
		if string(m.Data) == mark && !said[m.Subject] && !strings.HasPrefix(m.Subject, "fleet.dlq.") {
			t.Errorf("a worker hears %s", m.Subject)
		}
	}
	g.eventually("the refusals in the audit", func() bool {
		out := g.audit("--agent", "mallory")
		return strings.Contains(out, `"code":"forbidden","action":"publish","subject":"fleet.announce.victim.stray"`) &&
			strings.Contains(out, `"code":"forbidden","action":"subscribe"`)
	})
	g.eventually("the count of those unsaid", func() bool {
		a := newAttacker(g, "mallory")
		for range 300 { // more than are said one by one
			_ = a.Publish("fleet.unheard-of", nil)
		}
		_ = a.Flush()
		return strings.Contains(g.audit(), `"unsaid":`) // it is told with the next refusal, of whoever
	})
}

// attackReplies names subjects of the workers as where a request is to be
// answered, and a stream's acknowledgement to go.
func attackReplies(t *testing.T, g *guarded, js jetstream.JetStream) {
	a := newAttacker(g, "mallory")
	victim := g.connect("victim")
	inbox, err := victim.SubscribeSync("_INBOX_victim.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Flush(); err != nil {
		t.Fatal(err)
	}
	before := streams(t, js)
	for _, target := range []string{
		"fleet.task.forged", "fleet.audit", "fleet.run.forged", "$KV.FLEET_WORKERS.session-keys", "$KV.FLEET_SESSIONS.forged",
		"$JS.API.STREAM.PURGE.FLEET_LOG", "$JS.API.STREAM.DELETE.FLEET_LOG",
	} {
		for _, subject := range []string{"fleet.dispatch.mallory", "fleet.announce.mallory.main", "fleet.mesh.victim.mallory", "fleet.api.mallory.task.list", "fleet.result.mallory.x"} {
			if err := a.PublishRequest(subject, target, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, target := range []string{"_R_.x.y", "$JS.ACK.FLEET_INBOX.routers.1.1.1.1.1"} {
		if err := a.PublishRequest("fleet.api.mallory.task.list", target, nil); err != nil {
			t.Fatal(err)
		}
		g.eventually("the refusal of "+target, func() bool { return a.was("Publish with Reply", target) })
	}
	// A request after them all is answered: they have been seen to.
	if _, err := a.Request("fleet.api.mallory.task.list", []byte(`{}`), patience); err != nil {
		t.Fatal(err)
	}
	for name, subject := range map[string]string{
		subjects.StreamTasks: "fleet.task.forged", subjects.StreamRuns: "fleet.run.forged", "KV_" + subjects.BucketSessions: "$KV.FLEET_SESSIONS.forged",
	} {
		s, serr := js.Stream(t.Context(), name)
		if serr != nil {
			t.Fatal(serr)
		}
		if m, err := s.GetLastMsgForSubject(t.Context(), subject); err == nil {
			t.Errorf("%s is in %s: %s", subject, name, m.Data)
		}
	}
	for name := range before {
		if _, still := streams(t, js)[name]; !still {
			t.Errorf("the stream %s is gone", name)
		}
	}
	keys, err := js.Stream(t.Context(), "KV_"+subjects.BucketWorkers)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := keys.GetLastMsgForSubject(t.Context(), "$KV.FLEET_WORKERS.session-keys"); err != nil || !strings.Contains(string(m.Data), "secret") {
		t.Errorf("the session keys are %v, %v", m, err)
	}
	g.must(g.as("operator", "audit", "verify")) // nothing landed in fleet.audit
	if m, err := inbox.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("the victim's inbox has %s: %s", m.Subject, m.Data)
	}
}

func streams(t *testing.T, js jetstream.JetStream) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	list := js.ListStreams(t.Context())
	for s := range list.Info() {
		all[s.Config.Name] = true
	}
	if list.Err() != nil || len(all) == 0 {
		t.Fatalf("%d streams: %v", len(all), list.Err())
	}
	return all
}

// asked is the code of the error that answers a request; "" where it is none.
func asked(t *testing.T, nc *nats.Conn, subject string, body []byte) (subjects.Code, string) {
	t.Helper()
	m, err := nc.Request(subject, body, patience)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	var r fleet.ErrorReply
	if err := json.Unmarshal(m.Data, &r); err != nil {
		t.Fatalf("%s answers %s", subject, m.Data)
	}
	if r.Error == nil {
		return "", string(m.Data)
	}
	return r.Error.Code, string(m.Data)
}

// leaks are what no error may show.
var leaks = regexp.MustCompile(`goroutine |\.go:\d|/tmp/|FLEET_|\bS[UAO][A-Z2-7]{20}|nats:|panic`)

func attackMessages(t *testing.T, g *guarded) {
	nc := g.connect("mallory")
	dispatch := func(more string) []byte {
		return []byte(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"atk1"},"brief":"x"` + more + `}`)
	}
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	const api = "fleet.api.mallory.task.dispatch"
	for _, c := range []struct {
		name, subject string
		body          []byte
		want          subjects.Code
	}{
		{"too large", api, dispatch(`,"x":"` + strings.Repeat("a", 1<<20) + `"`), subjects.CodePayloadTooLarge},
		{"nested 10,000 deep", api, dispatch(`,"x":` + deep), subjects.CodeInvalidMessage},
		{"a key twice", api, dispatch(`,"brief":"y"`), subjects.CodeInvalidMessage},
		{"in another's name", api, dispatch(`,"from":"victim"`), subjects.CodeForbidden},
		{"no JSON", api, []byte("{"), subjects.CodeInvalidMessage},
		{"another's task", "fleet.api.mallory.task.cancel", []byte(`{"task_id":"unheard-of"}`), subjects.CodeNotFound},
		{"a result of a task that is another's", "fleet.result.mallory.unheard-of", []byte(`{"type":"TASK_RESULT","protocol_version":"2.0","task_id":"unheard-of","status":"done"}`), subjects.CodeNotFound},
		{"a message in another's name", "fleet.api.mallory.mesh.send", []byte(`{"to":"victim","from":"victim","text":"x"}`), subjects.CodeForbidden},
		{"an inbox that is another's", "fleet.api.mallory.mesh.inbox", []byte(`{"agent_id":"victim"}`), ""},
	} {
		code, reply := asked(t, nc, c.subject, c.body)
		if code != c.want {
			t.Errorf("%s: %s (%.200s), want %s", c.name, code, reply, c.want)
		}
		if leak := leaks.FindString(reply); leak != "" && code != "" {
			t.Errorf("%s: the error shows %q: %s", c.name, leak, reply)
		}
	}
	g.eventually("the refused messages in the audit", func() bool {
		out := g.audit("--agent", "mallory")
		for _, code := range []subjects.Code{subjects.CodePayloadTooLarge, subjects.CodeInvalidMessage, subjects.CodeForbidden} {
			if !strings.Contains(out, `"code":"`+string(code)+`","action":"request"`) {
				return false
			}
		}
		return true
	})
	// An announcement in another's name.
	announce := `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"agent_id":"victim","instance_id":"fake"},"capabilities":{}}`
	if _, err := nc.Request("fleet.announce.mallory.fake", []byte(announce), patience); err != nil {
		t.Fatal(err)
	}
	out := g.must(g.as("operator", "agent", "ls", "-o", "json"))
	if strings.Contains(out, `"victim"`) {
		t.Errorf("mallory announced the victim:\n%s", out)
	}
}

func attackSessions(t *testing.T, g *guarded) {
	token := filepath.Join(g.dir, "token")
	id := strings.TrimSpace(g.must(g.as("victim", "session", "create", "--token-file", token)))
	own, err := readFile(token)
	if err != nil {
		t.Fatal(err)
	}
	g.must(g.as("victim", "session", "append", id, "a secret plan"))
	nc := g.connect("mallory")
	const get = "fleet.api.mallory.session.get"
	ask := func(token string) []byte {
		return fleet.MustEncode(handshake.Ref{SessionID: subjects.SessionID(id), Token: token})
	}
	forged := own[:len(own)-4] + "AAAA"
	for _, c := range []struct {
		name, token string
		want        subjects.Code
	}{{"no token", "", subjects.CodeNotFound}, {"a forged token", forged, subjects.CodeAuthFailed}, {"no token at all", "x", subjects.CodeAuthFailed}, {"the token", own, ""}} {
		code, reply := asked(t, nc, get, ask(c.token))
		if code != c.want {
			t.Errorf("%s: %s, want %s: %s", c.name, code, c.want, reply)
		}
		if code != "" && (strings.Contains(reply, own) || strings.Contains(reply, "plan") || leaks.MatchString(reply)) {
			t.Errorf("%s: the error shows too much: %s", c.name, reply)
		}
	}
	g.must(g.as("victim", "session", "delete", id))
	if code, reply := asked(t, nc, get, ask(own)); code != subjects.CodeNotFound && code != subjects.CodeSessionExpired {
		t.Errorf("a stale token: %s: %s", code, reply)
	}
	g.eventually("the refused tokens in the audit", func() bool {
		return strings.Contains(g.audit("--agent", "mallory", "--session", id), `"code":"auth_failed"`)
	})
}

// attackTenant has somebody of another tenant try to reach this one.
func attackTenant(t *testing.T, g *guarded) {
	spy := newAttacker(g, "other/spy")
	heard, err := spy.SubscribeSync("fleet.agent.*.*") // which it may, in its own
	if err != nil {
		t.Fatal(err)
	}
	if _, err := spy.Request("fleet.api.spy.task.list", []byte(`{}`), 5*time.Second); err == nil {
		t.Error("the workers of one tenant answer another's")
	}
	agent := g.agent("victim")
	g.eventually("the victim", func() bool { return strings.Contains(g.as("operator", "agent", "ls", "--live").stdout, "victim") })
	if m, err := heard.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("another tenant hears %s", m.Subject)
	}
	agent.kill()
}
