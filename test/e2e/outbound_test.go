package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects/fleet"
	"parley/workers/agent"
)

// TestGatewayKilled streams a task from one of two gateways, in processes of
// their own, and kills it with SIGKILL in the middle: the client resumes on the
// other one, with no event lost and none told twice.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nats := upWithout(t, dir, "gateway")
	chunks := make(chan string)
	agentIn(t, nats, agent.Config{ID: "worker", MaxParallel: 4, Grace: -1, Handler: agent.HandlerFunc(
		func(ctx context.Context, t *agent.Task) (fleet.Result, error) {
			for n := 0; ; n++ {
				select {
				case text := <-chunks:
					if text == "" {
						return agent.Text("done"), nil
					}
					if err := t.Artifact(ctx, fleet.Artifact{ArtifactID: "log", Parts: []fleet.Part{{Text: &text}}, Append: n > 0}); err != nil {
						return fleet.Result{}, err
					}
				case <-ctx.Done():
					return fleet.Result{}, context.Cause(ctx)
				}
			}
		})})
	first, dying := gatewayProcess(t, dir, "gateway-1", nats)
	second, _ := gatewayProcess(t, dir, "gateway-2", nats)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	feed := func(text string) {
		select {
		case chunks <- text:
		case <-ctx.Done():
			t.Fatal("the agent takes no more")
		}
	}
	go func() {
		for n := range 4 {
			feed(fmt.Sprint(n, ";"))
		}
	}()
	var got []streamed
	stream := openStream(ctx, t, http.MethodPost, first+"/a2a/message:stream", "",
		`{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"count"}]}}`)
	for !strings.Contains(story(got), "3;") {
		e, err := stream.next()
		if err != nil {
			t.Fatalf("%v after %s", err, story(got))
		}
		got = append(got, e)
	}
	dying.kill()
	for {
		e, err := stream.next()
		if err != nil {
			break
		}
		got = append(got, e) // what was on its way
	}
	go func() { // while nobody listens
		for n := range 4 {
			feed(fmt.Sprint(n+4, ";"))
		}
		feed("")
	}()
	last := got[len(got)-1].id
	stream = openStream(ctx, t, http.MethodGet, second+"/a2a/tasks/"+got[0].task+":subscribe", last, "")
	for {
		e, err := stream.next()
		if err != nil {
			break
		}
		got = append(got, e)
	}
	if s := story(got); s != "SUBMITTED WORKING 0; 1; 2; 3; 4; 5; 6; 7; done COMPLETED" {
		t.Errorf("told: %s", s)
	}
	ids := map[string]bool{}
	for _, e := range got {
		if ids[e.id] {
			t.Errorf("the event %s was told twice", e.id)
		}
		ids[e.id] = true
	}
}

// streamed is one event of a stream.
type streamed struct{ id, task, text string }

func story(list []streamed) string {
	var out []string
	for _, e := range list {
		out = append(out, e.text)
	}
	return strings.Join(out, " ")
}

// eventStream reads a stream of the HTTP+JSON binding.
type eventStream struct {
	lines *bufio.Scanner
}

func openStream(ctx context.Context, t *testing.T, method, url, last, body string) *eventStream {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("A2A-Version", "1.0")
	req.Header.Set("Content-Type", "application/json")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(res.Body)
		t.Fatalf("%s: %s %s", url, res.Status, data)
	}
	return &eventStream{bufio.NewScanner(res.Body)}
}

func (s *eventStream) next() (streamed, error) {
	var e streamed
	for s.lines.Scan() {
		line := s.lines.Text()
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			e.id = id
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		type status struct{ State string }
		var m struct {
			Task *struct {
				ID     string
				Status status
			}
			StatusUpdate   *struct{ Status status }
			ArtifactUpdate *struct {
				Artifact struct{ Parts []struct{ Text string } }
			}
		}
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			return e, err
		}
		switch {
		case m.Task != nil:
			e.task, e.text = m.Task.ID, m.Task.Status.State
		case m.StatusUpdate != nil:
			e.text = m.StatusUpdate.Status.State
		case m.ArtifactUpdate != nil && len(m.ArtifactUpdate.Artifact.Parts) > 0:
			e.text = m.ArtifactUpdate.Artifact.Parts[0].Text
		}
		e.text = strings.TrimPrefix(e.text, "TASK_STATE_")
		return e, nil
	}
	return e, io.EOF
}

// upWithout starts parley up without some of its workers, and gives its address.
func upWithout(t *testing.T, dir string, without ...string) string {
	t.Helper()
	workers := slices.DeleteFunc([]string{"registry", "sessions", "audit", "router", "mesh", "runs", "webhooks", "escalation", "gateway"},
		func(w string) bool { return slices.Contains(without, w) })
	up := start(t, dir, program{name: "up", path: parleyBinary(t), args: []string{
		"up", "--data", filepath.Join(dir, "jetstream"), "--port", "-1", "--http", "off", "--sync=1m",
		"--workers", strings.Join(workers, ","), "-o", "json", "--log-format", "text",
	}})
	out := up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "}") })
	var banner struct {
		NATS string `json:"nats"`
	}
	if err := json.Unmarshal([]byte(out), &banner); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return banner.NATS
}

var readyAt = regexp.MustCompile(`"http":"(?:http://)?(127\.0\.0\.1:\d+)`)

// gatewayProcess runs a gateway alone, and gives its address.
func gatewayProcess(t *testing.T, dir, name, nats string, flags ...string) (string, *process) {
	t.Helper()
	p := start(t, dir, program{name: name, path: parleyBinary(t), args: append([]string{
		"serve", "--workers", "gateway", "--server", nats, "--http", "127.0.0.1:0", "--log-format", "json", "--log-level", "info",
	}, flags...)})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		data, err := os.ReadFile(p.log)
		if err != nil {
			t.Fatal(err)
		}
		if m := readyAt.FindSubmatch(data); m != nil {
			return "http://" + string(m[1]), p
		}
		if pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("%s is not ready: %s", name, data)
		}
	}
}

// agentIn runs an agent in this process.
func agentIn(t *testing.T, nats string, c agent.Config) {
	t.Helper()
	b, err := bus.Connect(t.Context(), bus.Config{URL: nats, Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	c.Bus = b
	w, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, w.Run)
}

// TestOutbound has the agents of one fleet serve in another one, all in
// processes of their own: parley a2a registers the first fleet's gateway, and
// parley agent run --driver a2a has it serve in the second.
func TestOutbound(t *testing.T) {
	t.Parallel()
	far, near := t.TempDir(), t.TempDir()
	farNATS := upWithout(t, far, "gateway")
	tokens := filepath.Join(far, "tokens")
	if err := os.WriteFile(tokens, []byte("near token-of-the-near-fleet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ := gatewayProcess(t, far, "gateway", farNATS, "--a2a-tokens", tokens)
	start(t, far, program{name: "upper", path: parleyBinary(t), args: []string{
		"agent", "run", "--id", "upper", "--server", farNATS, "--", "tr", "a-z", "A-Z",
	}})
	nearNATS := upWithout(t, near, "gateway")
	secret := "FAR_TOKEN=token-of-the-near-fleet"
	parley := func(ok bool, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, parleyBinary(t), args...)
		cmd.Env = bareEnv(near, secret)
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok {
			t.Fatalf("parley %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	parley(true, "a2a", "register", address, "--id", "far", "--auth", "bearer", "--auth-env", "FAR_TOKEN")
	if out := parley(false, "a2a", "register", address, "--id", "far"); !strings.Contains(out, "--force") {
		t.Errorf("registered twice: %s", out)
	}
	if out := parley(true, "a2a", "ls"); !strings.Contains(out, "far") || !strings.Contains(out, "FAR_TOKEN") {
		t.Errorf("ls: %s", out)
	}
	if out := parley(true, "a2a", "discover", "far"); !strings.Contains(out, "JSONRPC 1.0") || !strings.Contains(out, "bearer") {
		t.Errorf("discover: %s", out)
	}
	if out := parley(true, "a2a", "send", "far", "straight"); !strings.Contains(out, "STRAIGHT") {
		t.Errorf("send: %s", out)
	}
	if out := parley(false, "a2a", "send", address, "who am I"); !strings.Contains(out, "auth_failed") && !strings.Contains(out, "401") {
		t.Errorf("send without a token: %s", out)
	}
	if out := parley(false, "a2a", "cancel", "far", "nothing"); !strings.Contains(out, "nothing") {
		t.Errorf("cancel: %s", out)
	}
	start(t, near, program{name: "far-agent", path: parleyBinary(t), env: []string{secret}, args: []string{
		"agent", "run", "--id", "far", "--driver", "a2a", "--card", "far", "--poll", "200ms", "--server", nearNATS,
	}})
	if out := parley(true, "task", "send", "--wait", "--server", nearNATS, "--agent", "far", "--on-blocked", "wait", "from afar"); !strings.Contains(out, "FROM AFAR") {
		t.Errorf("task send: %s", out)
	}
	parley(true, "a2a", "rm", "far")
	if out := parley(false, "a2a", "discover", "far"); !strings.Contains(out, "not_found") && !strings.Contains(out, "no agent") {
		t.Errorf("discover what was removed: %s", out)
	}
}
