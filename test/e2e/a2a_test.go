package e2e_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"parley/bus"
	"parley/subjects/fleet"
	"parley/workers/agent"
	"parley/workers/gateway/a2anats"
)

// TestA2A drives parley up with clients of other people's: the official Go SDK's
// client over all three bindings, its command line, and the JavaScript SDK.
func TestA2A(t *testing.T) {
	t.Parallel()
	url := upWithA2A(t)
	for _, transport := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC, a2anats.Binding} {
		t.Run("Go SDK over "+string(transport), func(t *testing.T) {
			t.Parallel()
			driveGo(t, url, transport)
		})
	}
	for _, transport := range []string{"any", "jsonrpc", "rest", "grpc"} {
		t.Run("a2a command over "+transport, func(t *testing.T) {
			t.Parallel()
			driveCommand(t, url, transport)
		})
	}
	t.Run("JavaScript SDK", func(t *testing.T) {
		t.Parallel()
		driveJS(t, url)
	})
	t.Run("long headers", func(t *testing.T) {
		t.Parallel()
		for length, want := range map[int]int{32 << 10: http.StatusOK, 128 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/.well-known/agent-card.json", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Long", strings.Repeat("x", length))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("a header of %d bytes: %d, want %d", length, res.StatusCode, want)
			}
		}
	})
}

// upWithA2A starts parley up, and an agent that echoes, or asks when it is told
// to. It gives the address of the gateway.
func upWithA2A(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	up := start(t, dir, program{
		name: "up", path: parleyBinary(t),
		args: []string{
			"up", "--data", filepath.Join(dir, "jetstream"), "--port", "-1", "--http", "127.0.0.1:0", "--sync=1m",
			"--webhook-allow", "127.0.0.1", "--a2a-key", filepath.Join(dir, "key.pem"),
			"-o", "json", "--log-format", "text",
		},
	})
	out := up.waitOutput("banner", func(s string) bool { return strings.Contains(s, "}") })
	var banner struct {
		NATS string `json:"nats"`
		HTTP string `json:"http"`
	}
	if err = json.Unmarshal([]byte(out), &banner); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	agentIn(t, banner.NATS, agent.Config{ID: "worker", MaxParallel: 32, Grace: -1, Handler: agent.HandlerFunc(
		func(ctx context.Context, t *agent.Task) (fleet.Result, error) {
			if t.Dispatch.Brief != "ask" {
				return agent.Text(t.Dispatch.Brief), nil
			}
			answer, askErr := t.Ask(ctx, "which one?")
			return agent.Text(answer.Text), askErr
		})})
	wait, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !listed(wait, banner.HTTP) {
		if pause(wait, 20*time.Millisecond) != nil {
			t.Fatal("the agent is not listed")
		}
	}
	return banner.HTTP
}

// listed reports whether the gateway lists an agent.
func listed(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/agents", nil)
	if err != nil {
		return false
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	var l struct {
		Agents []struct{ Live bool }
	}
	return json.NewDecoder(res.Body).Decode(&l) == nil && len(l.Agents) == 1 && l.Agents[0].Live
}

// driveGo does everything that the Go SDK's client can.
func driveGo(t *testing.T, url string, transport a2a.TransportProtocol) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	card, err := agentcard.DefaultResolver.Resolve(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	card.SupportedInterfaces = slices.DeleteFunc(card.SupportedInterfaces, func(i *a2a.AgentInterface) bool { return i.ProtocolBinding != transport })
	options := []a2aclient.FactoryOption{a2agrpc.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials()))}
	if transport == a2anats.Binding {
		at, _, _ := strings.Cut(strings.TrimPrefix(card.SupportedInterfaces[0].URL, "nats://"), "/")
		b, connectErr := bus.Connect(ctx, bus.Config{URL: "nats://" + at, Name: "client"})
		if connectErr != nil {
			t.Fatal(connectErr)
		}
		defer b.Close()
		options = append(options, a2anats.With(a2anats.Config{Bus: b, From: "erin"}))
	}
	c, err := a2aclient.NewFromCard(ctx, card, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Destroy() }()
	text := func(s string) *a2a.SendMessageRequest {
		return &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(s))}
	}
	send := func(req *a2a.SendMessageRequest, want a2a.TaskState) *a2a.Task {
		t.Helper()
		r, err := c.SendMessage(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		task, ok := r.(*a2a.Task)
		if !ok || task.Status.State != want {
			t.Fatalf("SendMessage = %+v, want a task that is %s", r, want)
		}
		return task
	}
	hello := send(text("hello"), a2a.TaskStateCompleted)
	if got := hello.Artifacts[0].Parts[0].Text(); got != "hello" {
		t.Errorf("output %q", got)
	}
	var story []string
	for e, err := range c.SendStreamingMessage(ctx, text("again")) {
		if err != nil {
			t.Fatal(err)
		}
		story = append(story, strings.TrimPrefix(strings.TrimPrefix(typeName(e), "*a2a."), "Task"))
	}
	if got := strings.Join(story, " "); got != " StatusUpdateEvent ArtifactUpdateEvent StatusUpdateEvent" {
		t.Errorf("stream = %q", got)
	}
	if got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: hello.ID}); err != nil || got.ContextID != hello.ContextID {
		t.Errorf("GetTask = %+v, %v", got, err)
	}
	if l, err := c.ListTasks(ctx, &a2a.ListTasksRequest{ContextID: hello.ContextID}); err != nil || len(l.Tasks) != 1 || l.TotalSize != 1 {
		t.Errorf("ListTasks = %+v, %v", l, err)
	}
	asked := send(text("ask"), a2a.TaskStateInputRequired)
	answer := text("blue")
	answer.Message.TaskID = asked.ID
	if got := send(answer, a2a.TaskStateCompleted).Artifacts[0].Parts[0].Text(); got != "blue" {
		t.Errorf("answer %q", got)
	}
	goPush(ctx, t, c)
	goSubscribe(ctx, t, c, send(text("ask"), a2a.TaskStateInputRequired).ID)
	for what, err := range map[string]error{
		"get": second(c.GetTask(ctx, &a2a.GetTaskRequest{ID: "nothing"})), "cancel": second(c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: "nothing"})),
	} {
		if !errors.Is(err, a2a.ErrTaskNotFound) {
			t.Errorf("%s an unknown task: %v", what, err)
		}
	}
	if _, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: hello.ID}); !errors.Is(err, a2a.ErrTaskNotCancelable) {
		t.Errorf("cancel an ended task: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func typeName(v any) string {
	switch v.(type) {
	case *a2a.Task:
		return "*a2a.Task"
	case *a2a.TaskStatusUpdateEvent:
		return "*a2a.TaskStatusUpdateEvent"
	case *a2a.TaskArtifactUpdateEvent:
		return "*a2a.TaskArtifactUpdateEvent"
	}
	return "?"
}

// goSubscribe subscribes to a task, cancels it, and sees it end.
func goSubscribe(ctx context.Context, t *testing.T, c *a2aclient.Client, id a2a.TaskID) {
	t.Helper()
	var last a2a.TaskState
	for e, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: id}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := e.(type) {
		case *a2a.Task:
			if got, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: id}); err != nil || got.Status.State != a2a.TaskStateCanceled {
				t.Errorf("CancelTask = %+v, %v", got, err)
			}
		case *a2a.TaskStatusUpdateEvent:
			last = e.Status.State
		}
	}
	if last != a2a.TaskStateCanceled {
		t.Errorf("the subscription ended with %s", last)
	}
}

// goPush has the events of a task pushed.
func goPush(ctx context.Context, t *testing.T, c *a2aclient.Client) {
	t.Helper()
	pushed := make(chan string, 16)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m a2a.StreamResponse
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil || r.Header.Get("A2A-Notification-Token") != "t1" {
			t.Errorf("pushed: %v, headers %v", err, r.Header)
		}
		pushed <- typeName(m.Event)
	}))
	defer hook.Close()
	req := &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("push")), Config: &a2a.SendMessageConfig{
		PushConfig: &a2a.PushConfig{URL: hook.URL, Token: "t1"},
	}}
	r, err := c.SendMessage(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for range 4 {
		select {
		case s := <-pushed:
			got = append(got, s)
		case <-ctx.Done():
			t.Fatalf("pushed %v, want four events", got)
		}
	}
	if want := []string{"*a2a.Task", "*a2a.TaskStatusUpdateEvent", "*a2a.TaskArtifactUpdateEvent", "*a2a.TaskStatusUpdateEvent"}; !slices.Equal(got, want) {
		t.Errorf("pushed %v, want %v", got, want)
	}
	id := r.TaskInfo().TaskID
	if l, err := c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: id}); err != nil || len(l) != 1 || l[0].URL != hook.URL {
		t.Errorf("ListTaskPushConfigs = %+v, %v", l, err)
	} else if err := c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: id, ID: l[0].ID}); err != nil {
		t.Error(err)
	}
}

// driveCommand uses the SDK's command line.
func driveCommand(t *testing.T, url, transport string) {
	t.Helper()
	path := binaries.a2a.build(t, "../a2acli", "a2a", "github.com/a2aproject/a2a-go/v2/cmd/a2a")
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if transport != "any" {
			args = append(args, "--transport", transport)
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = bareEnv(t.TempDir())
		if transport == "grpc" {
			cmd.Args = append(cmd.Args, "--insecure")
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("a2a %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out := run("discover", url); !strings.Contains(out, "Parley") {
		t.Errorf("discover: %s", out)
	}
	if transport == "jsonrpc" || transport == "rest" {
		url += "/a2a" // with a transport forced, it does not ask the card where
	}
	var task struct {
		ID string `json:"id"`
	}
	out := run("send", url, "hello there", "-o", "json")
	if err := json.Unmarshal([]byte(out), &task); err != nil || task.ID == "" || !strings.Contains(out, "TASK_STATE_COMPLETED") {
		var wrapped struct {
			Task struct {
				ID string `json:"id"`
			} `json:"task"`
		}
		if json.Unmarshal([]byte(out), &wrapped) != nil || wrapped.Task.ID == "" {
			t.Fatalf("send: %v: %s", err, out)
		}
		task.ID = wrapped.Task.ID
	}
	if out := run("get", "task", url, task.ID); !strings.Contains(out, task.ID) {
		t.Errorf("get: %s", out)
	}
	if out := run("list", "tasks", url); !strings.Contains(out, task.ID) {
		t.Errorf("list: %s", out)
	}
	if out := run("send", url, "--stream", "in a stream"); !strings.Contains(out, "in a stream") {
		t.Errorf("send --stream: %s", out)
	}
}

// driveJS uses the JavaScript SDK, over both bindings that it has without more
// packages.
func driveJS(t *testing.T, url string) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing: the JavaScript SDK is not tried", program)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		data, err := os.ReadFile(filepath.Join("testdata", "a2a-js", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	for _, binding := range []string{"JSONRPC", "HTTP+JSON"} {
		run("node", "client.mjs", url, binding)
	}
}
