package a2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	messages "parley/subjects/a2e"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
	"parley/workers/a2e"
)

// vector is a message of the source, and the code that it expects.
func vector(t *testing.T, name string) (data []byte, expect string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "subjects", "a2e", "testdata", "vectors", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err = json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	expect, _ = m["$expect"].(string)
	delete(m, "$expect")
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return data, expect
}

var secret = map[string]subjects.AgentID{"dev-secret": "my-agent", "other-secret": "other"}

// overHTTP posts to a page.
func overHTTP(t *testing.T, pages http.Handler, path string, body []byte, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(string(body)))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rw := httptest.NewRecorder()
	pages.ServeHTTP(rw, r)
	return rw
}

func mux(w *a2e.Worker, identify func(*http.Request) (subjects.AgentID, error)) http.Handler {
	m := http.NewServeMux()
	for pattern, page := range w.Handlers(identify) {
		m.Handle(pattern, page)
	}
	return m
}

func nobody(*http.Request) (subjects.AgentID, error) { return "", nil }

// TestVectorsAtEveryDoor: each message of the source behaves as it says, over
// NATS, HTTP and a connection.
func TestVectorsAtEveryDoor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := listener(t)
	w, _ := s.start(s.b, a2e.Config{Tokens: secret, Listener: l})
	pages := mux(w, nobody)
	doors := map[string]func(data []byte) []byte{
		"nats": func(data []byte) []byte {
			m, err := s.b.Request(t.Context(), subjects.API("my-agent", "a2e", "handshake"), data, nil)
			if err != nil {
				t.Fatal(err)
			}
			return m.Data
		},
		"http":   func(data []byte) []byte { return overHTTP(t, pages, "/a2e/v1/handshake", data).Body.Bytes() },
		"socket": func(data []byte) []byte { c := dial(t, l); c.send(data); return c.read() },
	}
	for _, name := range []string{"handshake-req", "bad-version", "bad-token", "bad-no-caps"} {
		data, expect := vector(t, name)
		for door, ask := range doors {
			r, err := messages.DecodeResponse(ask(data))
			if err != nil {
				t.Fatalf("%s by %s: %v", name, door, err)
			}
			if r.Reason != expect || r.OK != (expect == "") || r.ReqID != "a1b2c3d4" {
				t.Errorf("%s by %s = %+v, want reason %q", name, door, r, expect)
			}
			if expect != "" {
				continue
			}
			answer, _ := vector(t, "handshake-resp")
			want, err := messages.DecodeResponse(answer)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, r, cmpopts.IgnoreFields(messages.Header{}, "ID", "TS"),
				cmpopts.IgnoreFields(messages.Response{}, "SessionID"), cmpopts.IgnoreFields(messages.Accepted{}, "Metadata")); diff != "" {
				t.Errorf("%s (-vector +got):\n%s", door, diff)
			}
		}
	}
}

// TestServerError: without what a session rests on there is none, and the
// answer says that it may be repeated.
func TestServerError(t *testing.T) {
	t.Parallel()
	server := bustest.New(t)
	s := &stage{t: t, server: server, b: server.Bus(t)}
	s.serve("sessions", map[string]handler{"session.create": func(subjects.AgentID, []byte) (any, error) {
		return nil, subjects.Errorf(subjects.CodeUnavailable, "the store does not answer")
	}})
	s.start(s.b, a2e.Config{})
	r, err := overNATS[messages.Response](s, "ada", "handshake", hello("ada", "", messages.Memory))
	if err != nil || r.OK || r.Reason != messages.ReasonServer || r.Error.Code != subjects.CodeUnavailable {
		t.Errorf("handshake = %+v, %v, want server_error", r, err)
	}
}

func TestWhoIsLetIn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.start(s.b, a2e.Config{Tokens: secret})
	refusedBy := func(*http.Request) (subjects.AgentID, error) {
		return "", subjects.Errorf(subjects.CodeAuthFailed, "the request does not say who calls")
	}
	as := func(id subjects.AgentID) func(*http.Request) (subjects.AgentID, error) {
		return func(*http.Request) (subjects.AgentID, error) { return id, nil }
	}
	for name, tt := range map[string]struct {
		identify     func(*http.Request) (subjects.AgentID, error)
		agent        subjects.AgentID
		token        string
		status       int
		authenticate bool
	}{
		"token":                     {nobody, "my-agent", "dev-secret", 200, false},
		"token of another":          {nobody, "my-agent", "other-secret", 401, true},
		"no token":                  {nobody, "my-agent", "", 401, true},
		"bearer":                    {as("my-agent"), "my-agent", "", 200, false},
		"bearer of another":         {as("other"), "my-agent", "dev-secret", 403, false},
		"bearer missing, but token": {refusedBy, "my-agent", "dev-secret", 200, false},
		"bearer missing":            {refusedBy, "my-agent", "wrong", 401, true},
	} {
		rw := overHTTP(t, mux(w, tt.identify), "/a2e/v1/handshake", hello(tt.agent, tt.token, messages.Tools))
		if rw.Code != tt.status || (rw.Header().Get("WWW-Authenticate") != "") != tt.authenticate || (rw.Header().Get("A2E-Session-Token") != "") != (tt.status == 200) {
			t.Errorf("%s: %d %v %s, want %d", name, rw.Code, rw.Header(), rw.Body, tt.status)
		}
		if strings.Contains(rw.Body.String(), "secret") {
			t.Errorf("%s: the answer shows a token: %s", name, rw.Body)
		}
	}
	// Over NATS the subject says who asks, and the token must prove it too.
	for _, tt := range []struct {
		as, agent subjects.AgentID
		token     string
		ok        bool
	}{{"my-agent", "my-agent", "dev-secret", true}, {"my-agent", "my-agent", "", false}, {"other", "my-agent", "dev-secret", false}} {
		r, err := overNATS[messages.Response](s, tt.as, "handshake", hello(tt.agent, tt.token, messages.Tools))
		if err != nil || r.OK != tt.ok || !tt.ok && r.Reason != messages.ReasonAuth {
			t.Errorf("%+v: %+v, %v", tt, r, err)
		}
	}
	// An open worker behind a gateway that asks: the gateway's word counts.
	open, _ := s.start(s.server.Connect(t), a2e.Config{})
	if rw := overHTTP(t, mux(open, refusedBy), "/a2e/v1/handshake", hello("x", "anything", messages.Tools)); rw.Code != 401 {
		t.Errorf("without a bearer: %d %s", rw.Code, rw.Body)
	}
}

func TestHTTPBounds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.start(s.b, a2e.Config{})
	pages := mux(w, nobody)
	limited := mux(w, func(*http.Request) (subjects.AgentID, error) {
		return "", subjects.Errorf(subjects.CodeRateLimited, "too many calls").RetryAfter(time.Second)
	})
	for name, tt := range map[string]struct {
		pages  http.Handler
		body   []byte
		kind   string
		status int
		code   subjects.Code
	}{
		"not JSON by its header": {pages, hello("ada", ""), "text/plain", 400, subjects.CodeInvalidMessage},
		"not JSON":               {pages, []byte("hello"), "application/json", 400, subjects.CodeInvalidMessage},
		"no handshake":           {pages, callOf("1", "", messages.Get, nil), "application/json", 400, subjects.CodeInvalidMessage},
		"too long":               {pages, []byte(strings.Repeat("x", 2<<20)), "application/json", 413, subjects.CodePayloadTooLarge},
		"too often":              {limited, hello("ada", ""), "application/json", 429, subjects.CodeRateLimited},
	} {
		rw := overHTTP(t, tt.pages, "/a2e/v1/handshake", tt.body, "Content-Type", tt.kind)
		_, err := fleet.DecodeReply[fleet.Unknown](rw.Body.Bytes())
		if rw.Code != tt.status || subjects.CodeOf(err) != tt.code {
			t.Errorf("%s: %d %s, want %d %s", name, rw.Code, rw.Body, tt.status, tt.code)
		}
	}
}

// TestHTTPSession: over HTTP a session is used with its token alone.
func TestHTTPSession(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w, _ := s.start(s.b, a2e.Config{})
	pages := mux(w, nobody)
	rw := overHTTP(t, pages, "/a2e/v1/handshake", hello("ada", "", messages.Tools, messages.Memory))
	r, err := messages.DecodeResponse(rw.Body.Bytes())
	token := rw.Header().Get("A2E-Session-Token")
	if err != nil || token == "" {
		t.Fatalf("%s, %v, token %q", rw.Body, err, token)
	}
	quick := callOf("1", r.SessionID, messages.Dispatch, brief("t1", "quick"))
	for name, tt := range map[string]struct {
		headers []string
		status  int
		code    subjects.Code
	}{
		"no token":    {nil, 401, subjects.CodeAuthFailed},
		"wrong token": {[]string{"A2E-Session-Token", "parley1.bad"}, 401, subjects.CodeAuthFailed},
		// Whoever gets a task of the session has that.
		"token of an offer": {[]string{"A2E-Session-Token", goodSessionToken}, 401, subjects.CodeAuthFailed},
		"token":             {[]string{"A2E-Session-Token", token}, 200, ""},
	} {
		rw := overHTTP(t, pages, "/a2e/v1/call", quick, tt.headers...)
		answer, err := messages.DecodeReply(rw.Body.Bytes())
		if err != nil || rw.Code != tt.status {
			t.Fatalf("%s: %d %s %v", name, rw.Code, rw.Body, err)
		}
		wants(t, name, *answer, tt.code)
	}
	strange := overHTTP(t, mux(w, func(*http.Request) (subjects.AgentID, error) { return "eve", nil }), "/a2e/v1/call", quick, "A2E-Session-Token", token)
	if strange.Code != 410 {
		t.Errorf("by another caller: %d %s", strange.Code, strange.Body)
	}
}

// TestMaxParallel: a session never has more under way than it may; the call
// beyond that is refused at once, whatever worker it reaches.
func TestMaxParallel(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, stop := s.start(s.b, a2e.Config{})
	id := s.shaken()
	for i := range 4 {
		task := subjects.TaskID("t" + strconv.Itoa(i))
		r := wants(t, string(task), s.said(callOf("d", id, messages.Dispatch, brief(task, "slow"), 0)), "")
		if got := stateOf(t, r); got != fleet.StateWorking {
			t.Errorf("%s is %s", task, got)
		}
	}
	full := wants(t, "the fifth", s.said(callOf("5", id, messages.Dispatch, brief("t5", "slow"))), subjects.CodeRateLimited)
	if !strings.Contains(full.Error.Message, "t0, t1, t2, t3") || full.ReqID != "5" {
		t.Errorf("refused as %+v", full)
	}
	s.mu.Lock()
	if s.tasks["t5"] != nil {
		t.Error("what was refused has been dispatched")
	}
	s.mu.Unlock()
	wants(t, "the same task again", s.said(callOf("1", id, messages.Dispatch, brief("t1", "slow"), 0)), "")
	wants(t, "its id for something else", s.said(callOf("1", id, messages.Dispatch, brief("t1", "refuse"))), subjects.CodeIdempotencyConflict)
	wants(t, "the fifth, beside it", s.said(callOf("5", id, messages.Dispatch, brief("t5", "slow"))), subjects.CodeRateLimited)
	wants(t, "a look", s.said(callOf("6", id, messages.Get, messages.Work{TaskID: "t0"})), "")

	// Another worker knows what is under way.
	stop()
	s.start(s.server.Connect(t), a2e.Config{})
	wants(t, "the fifth, by another worker", s.said(callOf("5", id, messages.Dispatch, brief("t5", "slow"))), subjects.CodeRateLimited)
	wants(t, "cancel", s.said(callOf("7", id, messages.Cancel, messages.Work{TaskID: "t2"})), "")
	wants(t, "one for the one that was canceled", s.said(callOf("8", id, messages.Dispatch, brief("t5", "slow"), 0)), "")
	wants(t, "a sixth", s.said(callOf("9", id, messages.Dispatch, brief("t6", "slow"))), subjects.CodeRateLimited)
	s.end("t0") // nobody asks for it
	r := wants(t, "one for the one that has ended", s.said(callOf("9", id, messages.Dispatch, brief("t6", "quick"))), "")
	if got := stateOf(t, r); got != fleet.StateDone {
		t.Errorf("t6 is %s, want done", got)
	}
	wants(t, "and one for t6", s.said(callOf("10", id, messages.Dispatch, brief("t7", "slow"), 0)), "")
	wants(t, "a refused dispatch", s.said(callOf("11", s.shaken(), messages.Dispatch, brief("t8", "refuse"))), subjects.CodeIdempotencyConflict)
	wants(t, "another session", s.said(callOf("12", s.shaken(), messages.Dispatch, brief("t9", "quick"))), "")
}

// TestMaxParallelUnderRace: many at once, and never more than four get in.
func TestMaxParallelUnderRace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.start(s.b, a2e.Config{})
	s.start(s.server.Connect(t), a2e.Config{})
	id := s.shaken()
	codes := make(chan subjects.Code, 16)
	for i := range cap(codes) {
		go func() {
			m, err := s.b.Request(t.Context(), subjects.API("ada", "a2e", "call"),
				callOf("c", id, messages.Dispatch, brief(subjects.TaskID("t"+strconv.Itoa(i)), "slow"), 0), nil)
			if err != nil {
				codes <- subjects.Code(err.Error())
				return
			}
			r, err := messages.DecodeReply(m.Data)
			switch {
			case err != nil:
				codes <- subjects.CodeOf(err)
			case r.Error != nil:
				codes <- r.Error.Code
			default:
				codes <- ""
			}
		}()
	}
	count := map[subjects.Code]int{}
	for range cap(codes) {
		count[<-codes]++
	}
	if count[""] != 4 || count[subjects.CodeRateLimited] != 12 {
		t.Errorf("answers %v, want 4 that got in and 12 rate_limited", count)
	}
}

// TestSessionsAreTheirCallers: nobody uses another's session, or one that is over.
func TestSessionsAreTheirCallers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.start(s.b, a2e.Config{})
	id := s.shaken(messages.Tools)
	eve, err := overNATS[messages.Reply](s, "eve", "call", callOf("1", id, messages.Get, messages.Work{TaskID: "t"}))
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "by eve", eve, subjects.CodeSessionExpired)
	wants(t, "of no session", s.said(callOf("1", "a2a-20251122T120000Z-7f3a9c21", messages.Get, messages.Work{TaskID: "t"})), subjects.CodeSessionExpired)
	wants(t, "without one", s.said(callOf("1", "", messages.Get, messages.Work{TaskID: "t"})), subjects.CodeInvalidMessage)
	wants(t, "the context without memory", s.said(callOf("1", id, messages.Context, nil)), subjects.CodeForbidden)
	wants(t, "a run without chains", s.said(callOf("1", id, messages.Run, map[string]any{})), subjects.CodeForbidden)
	d := brief("t", "quick")
	d.Task.SessionID = "a2a-20251122T120000Z-7f3a9c21"
	wants(t, "a task of another session", s.said(callOf("1", id, messages.Dispatch, d)), subjects.CodeForbidden)
	bad := wants(t, "a bad dispatch", s.said(callOf("1", id, messages.Dispatch, map[string]any{"task": map[string]any{"priority": "soon"}, "brief": "x"})), subjects.CodeInvalidMessage)
	if bad.Error != nil && bad.Error.Pointer != "/params/task/priority" {
		t.Errorf("refused at %s", bad.Error.Pointer)
	}
	wants(t, "an empty dispatch", s.said(callOf("1", id, messages.Dispatch, nil)), subjects.CodeInvalidMessage)
	wants(t, "a get of nothing", s.said(callOf("1", id, messages.Get, map[string]any{})), subjects.CodeInvalidMessage)
	wants(t, "a get of what is not there", s.said(callOf("1", id, messages.Get, messages.Work{TaskID: "none"})), subjects.CodeNotFound)
	wants(t, "no call", s.said([]byte(`{"a2e":"1.0","type":"call/req","id":"1","ts":1,"call":"fly"}`)), subjects.CodeInvalidMessage)
	wants(t, "close", s.said(callOf("1", id, messages.Close, nil)), "")
	wants(t, "after the close", s.said(callOf("1", id, messages.Get, messages.Work{TaskID: "t"})), subjects.CodeSessionExpired)
	if s.shaken(messages.Memory) == id {
		t.Error("a session twice")
	}
	only := s.shaken(messages.Memory)
	wants(t, "a dispatch with memory alone", s.said(callOf("1", only, messages.Dispatch, brief("t", "quick"))), subjects.CodeForbidden)
}

// TestContextAndRuns: the other calls reach their workers, as the agent, in the
// session.
func TestContextAndRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.withRuns()
	s.start(s.b, a2e.Config{MaxParallel: 1})
	id := s.shaken()
	entry := map[string]any{"entry": map[string]any{"status": "completed", "output": "x"}}
	wants(t, "append", s.said(callOf("1", id, messages.Append, entry)), "")
	wants(t, "append again", s.said(callOf("1", id, messages.Append, entry)), "")
	read := wants(t, "context", s.said(callOf("2", id, messages.Context, map[string]any{"after_version": 1})), "")
	var c handshake.ReadReply
	if json.Unmarshal(read.Result, &c) != nil || c.Version != 2 || string(c.SessionID) != id {
		t.Errorf("context = %s", read.Result)
	}
	wants(t, "a bad append", s.said(callOf("1", id, messages.Append, map[string]any{"entry": map[string]any{}})), subjects.CodeInvalidMessage)

	definition := map[string]any{"task_id": "r1", "agents": []any{map[string]any{"agent_id": "ada", "brief": "x"}}}
	wants(t, "run", s.said(callOf("3", id, messages.Run, definition)), "")
	wants(t, "a task beside the run", s.said(callOf("4", id, messages.Dispatch, brief("t", "quick"))), subjects.CodeRateLimited)
	if got := s.said(callOf("5", id, messages.Get, messages.Work{RunID: "r1"})); !strings.Contains(string(got.Result), "running") {
		t.Errorf("get = %s", got.Result)
	}
	wants(t, "cancel", s.said(callOf("6", id, messages.Cancel, messages.Work{RunID: "r1", Reason: "enough"})), "")
	wants(t, "a task after the run", s.said(callOf("7", id, messages.Dispatch, brief("t", "quick"))), "")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, want := range []string{"session.append by ada", "run.start by ada", "task.dispatch by ada"} {
		if !slices.Contains(s.asked, want) {
			t.Errorf("nobody asked %s", want)
		}
	}
	if got := s.tasks["t"].session; string(got) != id {
		t.Errorf("the task is of session %s, want %s", got, id)
	}
}

// TestAuditHearsOfHandshakes: who was let in, and who was not, and never a token.
func TestAuditHearsOfHandshakes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.start(s.b, a2e.Config{Tokens: secret})
	for _, token := range []string{"dev-secret", "wrong-secret"} {
		if _, err := overNATS[messages.Response](s, "my-agent", "handshake", hello("my-agent", token, messages.Tools)); err != nil {
			t.Fatal(err)
		}
	}
	var lines []bus.Msg
	bustest.Eventually(t, "three lines", func() bool {
		var err error
		lines, _, err = s.b.History(t.Context(), subjects.StreamLog, subjects.LogPattern, 1, 10)
		return err == nil && len(lines) == 3
	})
	var got []string
	for _, m := range lines {
		l, err := handshake.DecodeLogLine(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %v", l.AgentID, l.EventType, l.SessionID != ""))
		if strings.Contains(string(m.Data), "secret") {
			t.Errorf("a token in %s", m.Data)
		}
	}
	want := []string{"my-agent handshake_init true", "my-agent handshake_ack true", "my-agent access_refused false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
