package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"parley/test/deploy"
)

// a2eToken is what proves my-agent in the fleet of TestA2E.
const a2eToken = "dev-secret-of-my-agent"

// a2eFleet is parley up with a door on a Unix socket, another A2E worker with
// one on TCP, and an agent that does as it is told.
type a2eFleet struct {
	testing.TB
	dir     string
	natsURL string
	httpURL string
	unix    string
	tcp     string
	other   *process // the worker with the TCP door
	nc      *nats.Conn
}

func newA2EFleet(t *testing.T) *a2eFleet {
	t.Helper()
	f := &a2eFleet{TB: t, dir: t.TempDir(), tcp: deploy.FreeAddress(t)}
	sockets, err := os.MkdirTemp("", "a2e") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	f.unix = filepath.Join(sockets, "s")
	tokens := filepath.Join(f.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("my-agent "+a2eToken+"\nother the-secret-of-another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := start(t, f.dir, program{name: "up", path: parleyBinary(t), args: []string{
		"up", "--data", filepath.Join(f.dir, "jetstream"), "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m",
		"--a2e-listen", "unix:" + f.unix, "--a2e-tokens", tokens, "-o", "json", "--log-format", "text",
	}})
	var banner struct {
		NATS string `json:"nats"`
		HTTP string `json:"http"`
	}
	out := up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "}") })
	if err := json.Unmarshal([]byte(out), &banner); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.natsURL, f.httpURL = banner.NATS, banner.HTTP
	page := deploy.FreeAddress(t)
	f.other = start(t, f.dir, program{name: "a2e", path: parleyBinary(t), args: []string{
		"serve", "--workers", "a2e", "--server", f.natsURL, "--http", page, "--a2e-listen", f.tcp, "--a2e-tokens", tokens, "--log-format", "text",
	}})
	start(t, f.dir, program{name: "worker", path: parleyBinary(t), args: []string{
		"agent", "run", "--id", "worker", "--tools", "edit", "--max-parallel", "16", "--heartbeat", "500ms", "--server", f.natsURL,
		"--data", filepath.Join(f.dir, "agent"), "--env", "PATH", "--", "sh", "-c",
		`b=$(cat); case "$b" in *hold:*) f=${b##*hold:}; while [ ! -e "$f" ]; do sleep 0.05; done;; esac; echo well done`,
	}})
	if f.nc, err = nats.Connect(f.natsURL, nats.MaxReconnects(-1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.nc.Close)
	f.until("the second worker", func(ctx context.Context) bool { return getOK(ctx, "http://"+page+"/readyz") })
	f.until("the agent", func(ctx context.Context) bool {
		m, err := f.nc.RequestWithContext(ctx, "fleet.api.operator.agent.list", nil)
		return err == nil && bytes.Contains(m.Data, []byte(`"live":true`))
	})
	return f
}

func getOK(ctx context.Context, url string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// until asks until ok.
func (f *a2eFleet) until(what string, ok func(context.Context) bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 2*patience)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, 10*time.Second)
		good := ok(try)
		done()
		if good {
			return
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			f.Fatalf("no %s within %s", what, 2*patience)
		}
	}
}

// hold is a brief that keeps its agent busy until release.
func (f *a2eFleet) hold(name string) (brief string, release func()) {
	path := filepath.Join(f.dir, "release-"+name)
	return "hold:" + path, func() {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			f.Error(err)
		}
	}
}

// a2eMessage is any message of A2E, as a client reads it.
type a2eMessage struct {
	A2E         string `json:"a2e"`
	Type        string `json:"type"`
	ReqID       string `json:"req_id"`
	SessionID   string `json:"session_id"`
	MaxParallel int    `json:"max_parallel"`
	OK          bool   `json:"ok"`
	Reason      string `json:"reason"`
	Caps        []struct {
		Capability string `json:"capability"`
		Enabled    bool   `json:"enabled"`
	} `json:"accepted_caps"`
	Result struct {
		TaskID  string `json:"task_id"`
		State   string `json:"state"`
		Version int    `json:"version"`
		Result  struct {
			Output string `json:"output"`
		} `json:"result"`
	} `json:"result"`
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// a2eTalk is one session by one transport: what is sent is answered in any
// order. close ends it.
type a2eTalk struct {
	f       *a2eFleet
	send    func(line string)
	answers chan a2eMessage // closed at the end
	close   func()
	session string // named in calls where a connection is not the session
}

func (f *a2eFleet) parse(data []byte) (m a2eMessage) {
	f.Helper()
	if err := json.Unmarshal(data, &m); err != nil {
		f.Errorf("%v in %q", err, data)
	}
	return m
}

// lines talks by lines.
func (f *a2eFleet) lines(r io.Reader, w io.Writer, hangUp func()) *a2eTalk {
	t := &a2eTalk{f: f, answers: make(chan a2eMessage, 64), close: hangUp}
	go func() { // ends with the connection, which the test closes
		defer close(t.answers)
		s := bufio.NewScanner(r)
		s.Buffer(nil, 4<<20)
		for s.Scan() {
			t.answers <- f.parse(s.Bytes())
		}
	}()
	t.send = func(line string) {
		if _, err := io.WriteString(w, line+"\n"); err != nil {
			f.Errorf("send %s: %v", line, err)
		}
	}
	return t
}

// transports are the ways to talk, each opening a new one.
func (f *a2eFleet) transports() map[string]func() *a2eTalk {
	dial := func(network, address string) func() *a2eTalk {
		return func() *a2eTalk {
			c, err := net.Dial(network, address)
			if err != nil {
				f.Fatal(err)
			}
			f.Cleanup(func() { _ = c.Close() })
			return f.lines(c, c, func() { _ = c.Close() })
		}
	}
	return map[string]func() *a2eTalk{
		"tcp": dial("tcp", f.tcp), "unix": dial("unix", f.unix), "stdio": f.stdio, "nats": f.overNATS, "http": f.overHTTP,
	}
}

// stdio is parley a2e.
func (f *a2eFleet) stdio() *a2eTalk {
	cmd := exec.Command(parleyBinary(f), "a2e", "--as", "my-agent", "--server", f.natsURL)
	cmd.Env = bareEnv(f.dir)
	cmd.SysProcAttr = dieWithParent()
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		f.Fatal(err)
	}
	end := func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	f.Cleanup(end)
	return f.lines(out, in, end)
}

// requests talks by request and reply.
func (f *a2eFleet) requests(ask func(ctx context.Context, what, line string) ([]byte, error)) *a2eTalk {
	t := &a2eTalk{f: f, answers: make(chan a2eMessage, 64), close: func() {}}
	t.send = func(line string) {
		what := "call"
		if strings.Contains(line, "handshake/req") {
			what = "handshake"
		}
		go func() {
			ctx, cancel := context.WithTimeout(f.Context(), 3*patience)
			defer cancel()
			data, err := ask(ctx, what, line)
			if err != nil {
				f.Errorf("%s: %v", line, err)
				return
			}
			t.answers <- f.parse(data)
		}()
	}
	return t
}

func (f *a2eFleet) overNATS() *a2eTalk {
	return f.requests(func(ctx context.Context, what, line string) ([]byte, error) {
		m, err := f.nc.RequestWithContext(ctx, "fleet.api.my-agent.a2e."+what, []byte(line))
		if err != nil {
			return nil, err
		}
		return m.Data, nil
	})
}

func (f *a2eFleet) overHTTP() *a2eTalk {
	var token string // set by the handshake, before there are calls
	return f.requests(func(ctx context.Context, what, line string) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.httpURL+"/a2e/v1/"+what, strings.NewReader(line))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		if what == "call" {
			r.Header.Set("A2E-Session-Token", token)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		if what == "handshake" {
			token = answer.Header.Get("A2E-Session-Token")
		}
		return io.ReadAll(answer.Body)
	})
}

// next is the next answer.
func (t *a2eTalk) next() a2eMessage {
	t.f.Helper()
	select {
	case m, ok := <-t.answers:
		if !ok {
			t.f.Fatal("the connection has ended")
		}
		return m
	case <-time.After(2 * patience):
		t.f.Fatal("no answer")
	}
	return a2eMessage{}
}

// shake shakes hands.
func (t *a2eTalk) shake(version, token string, caps ...string) a2eMessage {
	t.f.Helper()
	data, err := json.Marshal(map[string]any{
		"a2e": version, "type": "handshake/req", "id": "a1b2c3d4", "ts": 1716123456.789, "agent_id": "my-agent", "agent_caps": caps, "auth_token": token,
	})
	if err != nil {
		t.f.Fatal(err)
	}
	t.send(string(data))
	m := t.next()
	t.session = m.SessionID
	if m.Type != "handshake/resp" || m.ReqID != "a1b2c3d4" {
		t.f.Errorf("handshake answered by %+v", m)
	}
	return m
}

// call sends a call.
func (t *a2eTalk) call(id, call string, params any, wait float64) {
	t.f.Helper()
	m := map[string]any{"a2e": "1.0", "type": "call/req", "id": id, "ts": 1716123457.5, "session_id": t.session, "call": call, "params": params}
	if wait >= 0 {
		m["wait_seconds"] = wait
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.f.Fatal(err)
	}
	t.send(string(data))
}

// asks sends a call, and gives its answer.
func (t *a2eTalk) asks(id, call string, params any, wait float64) a2eMessage {
	t.f.Helper()
	t.call(id, call, params, wait)
	m := t.next()
	if m.ReqID != id || m.Type != "call/resp" {
		t.f.Errorf("%s answered by %+v", id, m)
	}
	return m
}

// TestA2E: agents of other people use the fleet as their environment, over
// every transport: they are let in or refused, hand out tasks to a real agent,
// and never more than they may.
func TestA2E(t *testing.T) {
	t.Parallel()
	f := newA2EFleet(t)
	for name := range f.transports() {
		t.Run(name, func(t *testing.T) {
			own := *f
			own.TB = t
			open := own.transports()[name]
			for _, bad := range []struct {
				reason, version, token string
				caps                   []string
			}{
				{"version_mismatch", "2.0", a2eToken, []string{"tools"}},
				{"auth_failed", "1.0", "the-secret-of-another", []string{"tools"}},
				{"no_caps", "1.0", a2eToken, []string{"learning", "skill"}},
			} {
				if m := open().shake(bad.version, bad.token, bad.caps...); m.OK || m.Reason != bad.reason {
					t.Errorf("%s: %+v", bad.reason, m)
				}
			}
			talk := open()
			defer talk.close()
			hello := talk.shake("1.0", a2eToken, "tools", "memory", "env", "skill")
			if !hello.OK || hello.MaxParallel != 4 || len(hello.Caps) != 4 || !hello.Caps[0].Enabled || !hello.Caps[1].Enabled || !hello.Caps[2].Enabled || hello.Caps[3].Enabled {
				t.Fatalf("handshake = %+v", hello)
			}
			own.work(talk, name)
		})
	}
	t.Run("cut", func(t *testing.T) { f.cut(t) })
	t.Run("by credentials", func(t *testing.T) { throughA2E(t, newSessions(t)) })
}

// work is what a session is used for.
func (f *a2eFleet) work(talk *a2eTalk, name string) {
	f.Helper()
	brief, release := f.hold(name)
	defer release()
	task := func(n int) map[string]any {
		return map[string]any{"task": map[string]any{"task_id": fmt.Sprintf("%s-%d", name, n)}, "brief": brief}
	}
	for n := range 4 {
		if m := talk.asks(strconv.Itoa(n), "dispatch", task(n), 0); !m.OK || m.Result.TaskID != fmt.Sprintf("%s-%d", name, n) {
			f.Fatalf("dispatch %d = %+v", n, m)
		}
	}
	full := talk.asks("4", "dispatch", task(4), 30)
	if full.OK || full.Error.Code != "rate_limited" || !strings.Contains(full.Error.Message, name+"-0") {
		f.Errorf("one more than there may be = %+v", full)
	}
	if m := talk.asks("5", "cancel", map[string]any{"task_id": name + "-3"}, -1); m.Result.State != "canceled" {
		f.Errorf("cancel = %+v", m)
	}
	talk.call("6", "dispatch", task(6), 60) // in the place of the canceled one
	release()
	if m := talk.next(); m.ReqID != "6" || m.Result.State != "done" || strings.TrimSpace(m.Result.Result.Output) != "well done" {
		f.Errorf("dispatch = %+v", m)
	}
	for n := range 3 {
		if m := talk.asks("7", "get", map[string]any{"task_id": fmt.Sprintf("%s-%d", name, n)}, 60); m.Result.State != "done" {
			f.Errorf("get %d = %+v", n, m)
		}
	}
	f.until("the results in the context", func(context.Context) bool {
		m := talk.asks("8", "context", map[string]any{}, -1)
		return m.OK && m.Result.Version >= 4
	})
	if m := talk.asks("9", "get", map[string]any{"task_id": "nobody-knows-it"}, -1); m.Error.Code != "not_found" {
		f.Errorf("get of nothing = %+v", m)
	}
	if m := talk.asks("10", "close", nil, -1); !m.OK {
		f.Errorf("close = %+v", m)
	}
	if m := talk.asks("11", "get", map[string]any{"task_id": name + "-0"}, -1); m.Error.Code != "session_expired" {
		f.Errorf("get after the close = %+v", m)
	}
}

// cut ends connections in mid-task, by each of their ends: the tasks go on, and
// are found again.
func (f *a2eFleet) cut(t *testing.T) {
	own := *f
	own.TB = t
	f = &own
	brief, release := f.hold("cut")
	defer release()
	var tasks []string
	begin := func(name string, talk *a2eTalk) {
		t.Helper()
		if m := talk.shake("1.0", a2eToken, "tools"); !m.OK {
			t.Fatalf("%s: %+v", name, m)
		}
		id := "cut-" + name
		tasks = append(tasks, id)
		talk.call("1", "dispatch", map[string]any{"task": map[string]any{"task_id": id}, "brief": brief}, -1)
		look := f.overNATS()
		look.shake("1.0", a2eToken, "tools")
		f.until(id+" at work", func(context.Context) bool {
			return look.asks("2", "get", map[string]any{"task_id": id}, -1).Result.State == "working"
		})
	}
	gone := func(session string) {
		t.Helper()
		f.until("the end of the session", func(context.Context) bool {
			other := f.overNATS()
			other.session = session
			return other.asks("3", "get", map[string]any{"task_id": "cut-tcp"}, -1).Error.Code == "session_expired"
		})
	}

	c, err := net.Dial("unix", f.unix)
	if err != nil {
		t.Fatal(err)
	}
	broken := f.lines(c, c, func() {})
	begin("unix", broken)
	_ = c.Close()
	gone(broken.session)

	piped := f.stdio()
	begin("stdio", piped)
	piped.close() // SIGKILL

	tcp := f.transports()["tcp"]()
	begin("tcp", tcp)
	f.other.kill() // the worker with the connection
	if m, ok := <-tcp.answers; ok {
		t.Errorf("a killed worker answers %+v", m)
	}

	again := f.transports()["unix"]()
	again.shake("1.0", a2eToken, "tools")
	for _, id := range tasks {
		if m := again.asks("4", "get", map[string]any{"task_id": id}, -1); m.Result.State != "working" {
			t.Errorf("%s after the cut = %+v", id, m)
		}
	}
	release()
	for _, id := range tasks {
		if m := again.asks("5", "get", map[string]any{"task_id": id}, 60); m.Result.State != "done" {
			t.Errorf("%s = %+v", id, m)
		}
	}
}
