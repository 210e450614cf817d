package conformance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	a2alegacy "github.com/a2aproject/a2a-go/a2a"
	legacyclient "github.com/a2aproject/a2a-go/a2aclient"
	legacycard "github.com/a2aproject/a2a-go/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"parley/bus/bustest"
	"parley/workers/gateway"
)

// TestLegacy drives the gateway with the official Go SDK of version 0.3 itself,
// over the bindings that it has, for the fleet and for one agent.
func TestLegacy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name, base string
		transport  a2alegacy.TransportProtocol
	}{
		{"fleet over JSONRPC", w.open, a2alegacy.TransportProtocolJSONRPC},
		{"fleet over gRPC", w.open, a2alegacy.TransportProtocolGRPC},
		{"agent over JSONRPC", w.open + "/agents/second", a2alegacy.TransportProtocolJSONRPC},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			card, err := legacycard.DefaultResolver.Resolve(t.Context(), c.base)
			if err != nil {
				t.Fatal(err)
			}
			if card.ProtocolVersion != "0.3" {
				t.Errorf("the card's protocolVersion is %q", card.ProtocolVersion)
			}
			client, err := legacyclient.NewFromCard(
				t.Context(), card, legacyclient.WithConfig(legacyclient.Config{PreferredTransports: []a2alegacy.TransportProtocol{c.transport}}),
				legacyclient.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials())),
			)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Destroy() }()
			driveLegacy(t, w, client, strings.ReplaceAll(c.name, " ", "-"))
			if c.name != "agent over JSONRPC" {
				return
			}
			who, err := client.SendMessage(t.Context(), oldMessage("who"))
			if task, ok := who.(*a2alegacy.Task); err != nil || !ok || oldText(task) != "second" {
				t.Errorf("who = %+v, %v", who, err)
			}
		})
	}
}

func oldMessage(text string) *a2alegacy.MessageSendParams {
	return &a2alegacy.MessageSendParams{Message: a2alegacy.NewMessage(a2alegacy.MessageRoleUser, a2alegacy.TextPart{Text: text})}
}

func oldText(t *a2alegacy.Task) string {
	for _, a := range t.Artifacts {
		for _, p := range a.Parts {
			if text, ok := p.(a2alegacy.TextPart); ok {
				return text.Text
			}
		}
	}
	return ""
}

// driveLegacy uses every operation of version 0.3.
func driveLegacy(t *testing.T, w *world, c *legacyclient.Client, name string) {
	t.Helper()
	ctx := t.Context()
	send := func(m *a2alegacy.MessageSendParams, want a2alegacy.TaskState) *a2alegacy.Task {
		t.Helper()
		r, err := c.SendMessage(ctx, m)
		task, ok := r.(*a2alegacy.Task)
		if err != nil || !ok || task.Status.State != want {
			t.Fatalf("SendMessage = %+v, %v; want a task that is %s", r, err, want)
		}
		return task
	}
	hello := send(oldMessage("hello there"), a2alegacy.TaskStateCompleted)
	if got := oldText(hello); got != "hello there" {
		t.Errorf("output %q", got)
	}
	var story []string
	for e, err := range c.SendStreamingMessage(ctx, oldMessage("chunks")) {
		if err != nil {
			t.Fatal(err)
		}
		story = append(story, oldStory(e))
	}
	end := "completed!"
	if strings.HasSuffix(name, "gRPC") {
		end = "completed" // there, the SDK's compat package does not say that it is final
	}
	if got := strings.Join(story, " "); got != "submitted working log log log result "+end {
		t.Errorf("stream = %s", got)
	}
	if got, err := c.GetTask(ctx, &a2alegacy.TaskQueryParams{ID: hello.ID}); err != nil || got.ContextID != hello.ContextID {
		t.Errorf("GetTask = %+v, %v", got, err)
	}
	asked := send(oldMessage("ask"), a2alegacy.TaskStateInputRequired)
	answer := oldMessage("blue")
	answer.Message.TaskID = asked.ID
	if got := oldText(send(answer, a2alegacy.TaskStateCompleted)); got != "blue" {
		t.Errorf("answer %q", got)
	}
	now := oldMessage("gate " + name)
	now.Config = &a2alegacy.MessageSendConfig{Blocking: new(false)}
	r, err := c.SendMessage(ctx, now)
	task, ok := r.(*a2alegacy.Task)
	if err != nil || !ok || task.Status.State.Terminal() {
		t.Fatalf("SendMessage without blocking = %+v, %v", r, err)
	}
	story = nil
	for e, err := range c.ResubscribeToTask(ctx, &a2alegacy.TaskIDParams{ID: task.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		if story = append(story, oldStory(e)); len(story) == 1 {
			w.pass(name)
		}
	}
	if got := strings.Join(story, " "); !strings.HasSuffix(got, "result "+end) {
		t.Errorf("resubscribed to %s", got)
	}
	hang := send(oldMessage("ask"), a2alegacy.TaskStateInputRequired)
	if got, err := c.CancelTask(ctx, &a2alegacy.TaskIDParams{ID: hang.ID}); err != nil || got.Status.State != a2alegacy.TaskStateCanceled {
		t.Errorf("CancelTask = %+v, %v", got, err)
	}
	legacyErrors(t, c, hello.ID)
	legacyPush(t, w, c, hello.ID)
}

func legacyErrors(t *testing.T, c *legacyclient.Client, ended a2alegacy.TaskID) {
	t.Helper()
	if _, err := c.GetTask(t.Context(), &a2alegacy.TaskQueryParams{ID: "nothing"}); !errors.Is(err, a2alegacy.ErrTaskNotFound) {
		t.Errorf("get an unknown task: %v", err)
	}
	if _, err := c.CancelTask(t.Context(), &a2alegacy.TaskIDParams{ID: ended}); !errors.Is(err, a2alegacy.ErrTaskNotCancelable) {
		t.Errorf("cancel an ended task: %v", err)
	}
	for e, err := range c.ResubscribeToTask(t.Context(), &a2alegacy.TaskIDParams{ID: "nothing"}) {
		if !errors.Is(err, a2alegacy.ErrTaskNotFound) {
			t.Errorf("subscribe to an unknown task: %+v, %v", e, err)
		}
	}
}

func legacyPush(t *testing.T, w *world, c *legacyclient.Client, id a2alegacy.TaskID) {
	t.Helper()
	p, err := c.SetTaskPushConfig(t.Context(), &a2alegacy.TaskPushConfig{TaskID: id, Config: a2alegacy.PushConfig{ID: "p1", URL: w.hooks.url + "/old"}})
	if err != nil || p.Config.ID != "p1" {
		t.Errorf("SetTaskPushConfig = %+v, %v", p, err)
	}
	l, err := c.ListTaskPushConfig(t.Context(), &a2alegacy.ListTaskPushConfigParams{TaskID: id})
	if err != nil || len(l) != 1 {
		t.Errorf("ListTaskPushConfig = %+v, %v", l, err)
	}
	if _, err := c.GetTaskPushConfig(t.Context(), &a2alegacy.GetTaskPushConfigParams{TaskID: id, ConfigID: "p1"}); err != nil {
		t.Errorf("GetTaskPushConfig: %v", err)
	}
	if err := c.DeleteTaskPushConfig(t.Context(), &a2alegacy.DeleteTaskPushConfigParams{TaskID: id, ConfigID: "p1"}); err != nil {
		t.Errorf("DeleteTaskPushConfig: %v", err)
	}
}

func oldStory(e a2alegacy.Event) string {
	switch e := e.(type) {
	case *a2alegacy.Task:
		return string(e.Status.State)
	case *a2alegacy.TaskStatusUpdateEvent:
		if e.Final {
			return string(e.Status.State) + "!"
		}
		return string(e.Status.State)
	case *a2alegacy.TaskArtifactUpdateEvent:
		return e.Artifact.Name
	}
	return fmt.Sprintf("%T", e)
}

// TestLegacyREST drives HTTP+JSON of version 0.3, which the SDK of that version
// has not, by the compat client.
func TestLegacyREST(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{"/a2a", "/a2a/second"} {
		c, err := a2aclient.NewFromEndpoints(t.Context(), []*a2a.AgentInterface{
			{URL: w.open + path, ProtocolBinding: a2a.TransportProtocolHTTPJSON, ProtocolVersion: a2av0.Version},
		}, a2av0.WithRESTTransport(a2av0.RESTTransportConfig{}))
		if err != nil {
			t.Fatal(err)
		}
		text := func(s string) *a2a.SendMessageRequest {
			return &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(s))}
		}
		r, err := c.SendMessage(t.Context(), text("hello"))
		task, ok := r.(*a2a.Task)
		if err != nil || !ok || task.Status.State != a2a.TaskStateCompleted {
			t.Fatalf("%s: SendMessage = %+v, %v", path, r, err)
		}
		if got, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: task.ID}); err != nil || got.ID != task.ID {
			t.Errorf("%s: GetTask = %+v, %v", path, got, err)
		}
		n := 0
		for _, err := range c.SendStreamingMessage(t.Context(), text("chunks")) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 7 {
			t.Errorf("%s: %d events in the stream, want 7", path, n)
		}
		if _, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: "nothing"}); err == nil { // which of the errors it is the SDK does not say over this binding
			t.Errorf("%s: get an unknown task: %v", path, err)
		}
	}
}

// TestLegacyAsked checks that version 0.3 is no way around authentication.
func TestLegacyAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"1","role":"user","parts":[{"kind":"text","text":"hi"}]}}}`
	for _, c := range []struct {
		path, body, token string
		want              int
	}{
		{"/a2a", body, "", 401},
		{"/a2a/second", body, "", 401},
		{"/a2a/v1/message:send", `{"message":{"messageId":"1","role":"ROLE_USER","content":[{"text":"hi"}]}}`, "", 401},
		{"/a2a", body, aliceToken, 200},
		{"/a2a", strings.Replace(body, "message/send", "message/fly", 1), aliceToken, 200},
		{"/a2a", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":null}}`, aliceToken, 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.asked+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		res, err := httpClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != c.want || !json.Valid(answer) {
			t.Errorf("%s %s: %d %s, want %d", c.path, c.body, res.StatusCode, answer, c.want)
		}
	}
}

// TestRegistry has a gateway tell a shared registry of the fleet's card: at the
// start, again after a failure, and when the card has changed.
func TestRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var cards []a2a.AgentCard
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 1 {
			http.Error(rw, "not now", http.StatusServiceUnavailable)
			return
		}
		var c a2a.AgentCard
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil || r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer s3cret" {
			t.Errorf("%s %s: %v, headers %v", r.Method, r.URL.Path, err, r.Header)
		}
		cards = append(cards, c)
		rw.WriteHeader(http.StatusCreated)
	}))
	defer s.Close()
	got := func() []a2a.AgentCard {
		mu.Lock()
		defer mu.Unlock()
		return cards
	}
	w.gateway(gateway.Config{URL: "https://fleet.example.org", Registry: gateway.Registry{URL: s.URL + "/agents", Token: "s3cret", Each: 200 * time.Millisecond}})
	bustest.Eventually(t, "the card is told, and told again", func() bool { return len(got()) >= 2 })
	if c := got()[0]; c.SupportedInterfaces[0].URL != "https://fleet.example.org/a2a" {
		t.Errorf("the card names %s", c.SupportedInterfaces[0].URL)
	}
	w.agent("third")
	bustest.Eventually(t, "the new card", func() bool {
		all := got()
		return len(all[len(all)-1].Skills) == 3
	})
	if _, err := gateway.New(gateway.Config{Bus: w.bus, Registry: gateway.Registry{URL: s.URL}}); err == nil {
		t.Error("a registry without an address of the gateway is taken")
	}
}
