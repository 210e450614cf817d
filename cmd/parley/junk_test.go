package main

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// junkKeys are the keys of every bucket that a worker asks for by name, or reads
// by what they begin with. A new bucket has to be here.
func junkKeys() map[string][]string {
	const session = "a2a-20251122T120000Z-7f3a9c21"
	return map[string][]string{
		subjects.BucketIdem:       {"k"},
		subjects.BucketAgents:     {"drain.junk", "cool.junk"},
		subjects.BucketPush:       {"t1.c1"},
		subjects.BucketAlerts:     {"key", "task.t1", "alert.a1", "silence.s1", "old.a1"},
		subjects.BucketLedger:     {"session." + session + ".t1.1"},
		subjects.BucketSessions:   {session},
		subjects.BucketWorkers:    {"session-keys", "identity-seal"},
		subjects.BucketScratch:    {"canary", "escalation", "sessions"},
		subjects.BucketIdentities: {"id.junk", "v1.junk"},
		subjects.BucketNonces:     {"n"},
		subjects.BucketSchedules:  {"boss.daily"},
		subjects.BucketA2E:        {session},
		subjects.ObjectsIndex:     {"cm91dGVyLWluZGV4"}, // router-index
		subjects.ObjectsOutputs:   {"eA=="},
	}
}

// junkShapes are bodies that no decoder may take, or only as what they say they
// are.
func junkShapes() []string {
	return []string{
		"", "junk", "{}", "null", "[]", `"x"`, "0", "{", "\x00\xff\xfe", strings.Repeat("[", 70_000), strings.Repeat("a", 64<<10),
		`{"a":1,"a":2}`, `{"task_id":1,"seq":"x","data":[]}`, `{"type":"TASK_EVENT","protocol_version":"9.0"}`,
		`{"seq":18446744073709551615,"attempt":-1,"epoch":-1,"time":"9999-12-31T23:59:59Z","state":"nowhere","kind":"nothing"}`,
		`{"task_id":"t1","seq":1,"kind":"queued","state":"queued","time":"0001-01-01T00:00:00Z"}`,
		`{"session":{"session_id":null},"definition":{"agents":[{}]},"nodes":{"x":null},"keys":[null],"tasks":[null]}`,
		`{"until":"9999-12-31T23:59:59Z","alert_id":"","task":{"task_id":""},"group":""}`,
		`[{"id":"","secret":"","created":"0001-01-01T00:00:00Z"}]`, `{"nuid":"x","size":-1,"chunks":4294967295,"digest":"SHA-256=x"}`,
	}
}

// junkHeaders are what comes beside them.
func junkHeaders() []bus.Header {
	return []bus.Header{
		nil,
		{"KV-Operation": {"DEL"}},
		{"KV-Operation": {"NONE"}},
		{"Nats-Marker-Reason": {"MaxAge"}},
		{subjects.HeaderKind: {"outcome"}, subjects.HeaderSession: {"a2a-20251122T120000Z-7f3a9c21"}, subjects.HeaderLevel: {"3"}},
		{subjects.HeaderKind: {"\xff"}, subjects.HeaderLevel: {"x"}, subjects.HeaderWriteID: {"w"}, subjects.HeaderTask: {"t 1"}},
		{subjects.HeaderLevel: {"0"}},
		{subjects.HeaderLevel: {"300"}},
		{"Nats-Msg-Id": {"m"}, "Fleet-Trace": {""}},
	}
}

// junkSubjects are subjects of a stream or of the catalogue, junk where the
// pattern leaves a token free.
func junkSubjects(t *testing.T, pattern string) []string {
	t.Helper()
	root, name, _ := strings.Cut(strings.TrimSuffix(pattern, ".>"), ".")
	keys := junkKeys()
	if root == "$KV" || root == "$O" {
		name, _, _ = strings.Cut(name, ".")
		if keys[name] == nil {
			t.Errorf("the bucket %s has no junk in this test", name)
		}
		out := []string{strings.TrimSuffix(pattern, ">") + "junk", strings.TrimSuffix(pattern, ">") + "a.b.c.d"}
		for _, k := range keys[name] {
			out = append(out, strings.TrimSuffix(pattern, ">")+k)
		}
		return out
	}
	var out []string
	for _, token := range []string{"junk", "jünk", "3", "a2a-20251122T120000Z-7f3a9c21", strings.Repeat("x", 200)} {
		out = append(out, strings.ReplaceAll(strings.ReplaceAll(pattern, "*", token), ">", token))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// vandal is a stranger on an open fleet.
type vandal struct{ bus *bus.Bus }

func newVandal(t *testing.T, url string) vandal {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return vandal{b}
}

// streams are all of the fleet's, with the patterns of their subjects.
func (v vandal) streams(t *testing.T) map[string][]string {
	t.Helper()
	list, err := v.bus.Streams(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for i := range list {
		name := list[i].Name
		patterns := []string{subjects.ToldPattern(name)} // nowhere, where a stream keeps no lines
		if bucket, ok := strings.CutPrefix(name, "KV_"); ok {
			patterns = append(patterns, "$KV."+bucket+".>")
		}
		if bucket, ok := strings.CutPrefix(name, "OBJ_"); ok {
			patterns = append(patterns, "$O."+bucket+".C.>", "$O."+bucket+".M.>")
		}
		for _, e := range subjects.Catalogue() {
			if e.Stream == name {
				tokens := strings.Split(e.Pattern, ".")
				for i, token := range tokens {
					if strings.HasPrefix(token, "<") {
						tokens[i] = "*"
					}
				}
				patterns = append(patterns, strings.Join(tokens, "."))
			}
		}
		if len(patterns) < 2 {
			t.Errorf("the catalogue has no subject of the stream %s", name)
		}
		all[name] = patterns
	}
	return all
}

// genuine are some messages of each stream: payloads to be said again where they
// do not belong.
func (v vandal) genuine(t *testing.T, streams map[string][]string) (all []bus.Msg) {
	t.Helper()
	for name := range streams {
		state, err := v.bus.StreamState(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, seq := range []uint64{state.FirstSeq, (state.FirstSeq + state.LastSeq) / 2, state.LastSeq} {
			if m, err := v.bus.Get(t.Context(), name, max(seq, 1)); err == nil && len(m.Data) < 64<<10 {
				all = append(all, m)
			}
		}
	}
	return all
}

// smash says junk on every subject of every stream and of the catalogue.
func (v vandal) smash(t *testing.T) {
	t.Helper()
	streams := v.streams(t)
	var where []string
	for _, patterns := range streams {
		for _, pattern := range patterns {
			where = append(where, junkSubjects(t, pattern)...)
		}
	}
	stored := slices.Clone(where) // what was genuine once is no junk where it is a call
	for _, e := range subjects.Catalogue() {
		where = append(where, subjects.Named(e, "junk"), subjects.Named(e, "operator"))
	}
	slices.Sort(where)
	where = slices.Compact(where)
	say := func(subject string, h bus.Header, data []byte) {
		if err := v.bus.Publish(subject, data, h); err != nil {
			t.Fatal(err)
		}
	}
	shapes, headers, genuine := junkShapes(), junkHeaders(), v.genuine(t, streams)
	for _, subject := range where {
		for i, shape := range shapes {
			say(subject, headers[i%len(headers)], []byte(shape))
		}
		for _, h := range headers {
			say(subject, h, []byte("{}"))
		}
	}
	for _, m := range genuine {
		for _, subject := range stored {
			say(subject, m.Header, m.Data)
			say(subject, nil, m.Data[:len(m.Data)/2])
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.bus.Ping(ctx); err != nil {
		t.Fatal(err)
	}
}

// readByNobody are streams of which a worker reads only what it asks for.
func readByNobody() []string {
	return []string{
		subjects.StreamDLQ, subjects.StreamProgress, "KV_" + subjects.BucketIdem, "KV_" + subjects.BucketWorkers, "KV_" + subjects.BucketScratch, "KV_" + subjects.BucketNonces,
		"KV_" + subjects.BucketA2E, "OBJ_" + subjects.ObjectsIndex, "OBJ_" + subjects.ObjectsOutputs,
	}
}

// TestJunk: whatever a stranger says on any subject, in any stream and any
// bucket, the fleet goes on, names it, and starts again.
func TestJunk(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, url := s.up(t)
	s.environ = append(s.environ, "NATS_URL="+url)
	s.agent(t, "echo", "--driver", "echo", "--heartbeat", "1s")
	s.use(t, "before")
	v := newVandal(t, url)
	v.smash(t)
	s.use(t, "amid")

	b, err := bus.Connect(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	skipped := map[string]bus.Skipped{}
	bustest.Eventually(t, "every stream's junk to be counted", func() bool {
		services, err := b.Services(t.Context())
		if err != nil {
			return false
		}
		for _, service := range services {
			for _, p := range service.Skipped {
				skipped[p.Place] = p
			}
		}
		for name := range v.streams(t) {
			if _, ok := skipped[name]; !ok && !slices.Contains(readByNobody(), name) {
				t.Logf("nothing is skipped in %s", name)
				return false
			}
		}
		return true
	})
	logged := map[string]int{} // warnings by place, or else by what they say
	for line := range strings.Lines(j.stderr.String()) {
		var l struct{ Level, Msg, Component, Stream, Subject string }
		if json.Unmarshal([]byte(line), &l) != nil || l.Level != "WARN" && l.Level != "ERROR" {
			continue
		}
		key := l.Component + ": " + l.Msg
		if strings.HasPrefix(l.Msg, "message skipped") {
			key += " " + cmp.Or(l.Stream, strings.Join(strings.SplitN(l.Subject, ".", 3)[:2], "."))
		}
		logged[key]++
	}
	for what, n := range logged {
		if most := 10; strings.Contains(what, "message skipped") && n > 1 || n > most {
			t.Errorf("logged %d times: %s", n, what)
		}
	}
	var found []finding
	doctor := s.run(t, "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(doctor.stdout), &found); err != nil {
		t.Fatalf("%v: %s", err, doctor.stdout)
	}
	i := slices.IndexFunc(found, func(f finding) bool { return f.Check == "junk" })
	if i < 0 || found[i].OK || !strings.Contains(found[i].Found, subjects.StreamAudit) || !strings.Contains(found[i].Found, subjects.StreamTasks) {
		t.Errorf("doctor does not name the junk: %s", doctor.stdout)
	}
	if code := j.end(t); code != 0 {
		t.Fatalf("exit %d:\n%s", code, j.stderr)
	}
	_, url = s.up(t)
	s.environ = append(s.environ[:len(s.environ)-1], "NATS_URL="+url)
	s.agent(t, "echo2", "--driver", "echo", "--heartbeat", "1s")
	s.use(t, "after")
}

// use has the fleet do a little of everything.
func (s *shell) use(t *testing.T, name string) {
	t.Helper()
	agents := "echo"
	if name == "after" {
		agents = "echo2"
	}
	s.ok(t, "task", "send", "--id", "t-"+name, "--agent", agents, "say "+name)
	s.done(t, "t-"+name)
	session := strings.TrimSpace(s.ok(t, "session", "create"))
	s.ok(t, "session", "append", session, "output "+name)
	if !strings.Contains(s.ok(t, "session", "context", session), "output "+name) {
		t.Errorf("%s: the session has no context", name)
	}
	s.ok(t, "schedule", "create", "s-"+name, "--every", "1h", "mesh", "--to", agents, "hello")
	s.ok(t, "schedule", "run-now", "s-"+name)
	s.ok(t, "mesh", "send", "--to", agents, "hello "+name)
	s.ok(t, "agent", "drain", "d-"+name)
	bustest.Eventually(t, "a line of the audit about "+name, func() bool {
		return strings.Contains(s.ok(t, "audit", "export"), `"agent_id":"d-`+name+`"`)
	})
	s.ok(t, "audit", "verify")
	s.ok(t, "escalation", "ls")
	s.ok(t, "webhook", "ls")
	s.ok(t, "agent", "ls")
	s.ok(t, "run", "ls")
	if got := s.pipe(t, "task_id: r-"+name+"\nagents:\n- {id: a, brief: run "+name+", agent_id: "+agents+"}\n", "run", "start", "-"); got.code != 0 {
		t.Errorf("%s: run: %d %s%s", name, got.code, got.stdout, got.stderr)
	}
	bustest.Eventually(t, "the run "+name, func() bool {
		return strings.Contains(s.ok(t, "run", "get", "r-"+name, "-o", "json"), `"state": "done"`)
	})
}

// done waits for the end of a task.
func (s *shell) done(t *testing.T, task string) {
	t.Helper()
	got := s.run(t, "task", "wait", task, "--for", "20s")
	if got.code != 0 {
		t.Fatalf("%s: exit %d\n%s%s\n%s", task, got.code, got.stdout, got.stderr, s.run(t, "task", "explain", task).stdout)
	}
}

// ok runs a command that must succeed, and gives its output.
func (s *shell) ok(t *testing.T, args ...string) string {
	t.Helper()
	got := s.run(t, args...)
	if got.code != 0 {
		t.Errorf("%s: exit %d\n%s%s", strings.Join(args, " "), got.code, got.stdout, got.stderr)
	}
	return got.stdout
}
