package conformance_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"google.golang.org/protobuf/proto"

	"parley/bus/bustest"
	"parley/workers/gateway"
)

// capabilities are what a card says that its agent can do.
func (c *client) capabilities() (out struct {
	Streaming, PushNotifications bool
	Extensions                   []struct {
		URI      string
		Required bool
		Params   json.RawMessage
	}
},
) {
	c.Helper()
	var card struct{ Capabilities json.RawMessage }
	a := c.ask(http.MethodGet, "/.well-known/agent-card.json", "")
	if json.Unmarshal([]byte(a.body), &card) != nil || json.Unmarshal(card.Capabilities, &out) != nil {
		c.Fatalf("the card %s", a.body)
	}
	return out
}

// TestWithout: what a gateway does without is not declared, and refused.
func TestWithout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const extension = "urn:a2a:tck:required-extension"
	at, _ := w.gateway(gateway.Config{NoStreaming: true, NoLegacy: true, Required: []string{extension}})
	withPush := say("echo")
	withPush.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{Url: "https://example.org"}}
	for _, b := range bindings {
		t.Run(b.name(), func(t *testing.T) {
			t.Parallel()
			c := &client{T: t, w: w, b: b, at: at, h: v10}
			c.is(c.fails("SendMessage", say("echo")), needsExtension)
			c.h = v10.with("A2A-Extensions", extension)
			res := new(a2apb.SendMessageResponse)
			if r := c.call("SendMessage", say("echo"), res); r.headers.Get("A2A-Extensions") != extension {
				t.Errorf("activated %q, want the required one", r.headers.Get("A2A-Extensions"))
			}
			c.is(c.fails("SendMessage", withPush), noPush)
			c.is(c.fails("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: res.GetTask().GetId(), Url: "https://example.org"}), noPush)
			for op, req := range map[string]proto.Message{"SendStreamingMessage": say("echo"), "SubscribeToTask": &a2apb.SubscribeToTaskRequest{Id: res.GetTask().GetId()}} {
				s, err := b.open(t, at, op, c.h, req)
				if err == nil {
					_, err = s.next()
				}
				r, ok := err.(*refusal) //nolint:errorlint // it is made here
				if !ok {
					t.Fatalf("%s: %v, want a refusal", op, err)
				}
				c.is(r, unsupported)
			}
		})
	}
	c := &client{T: t, w: w, b: rpc{}, at: at, h: headers{}}
	can := c.capabilities()
	if can.Streaming || can.PushNotifications || can.Extensions[len(can.Extensions)-1].URI != extension || !can.Extensions[len(can.Extensions)-1].Required {
		t.Errorf("the card declares %+v", can)
	}
	if a := c.ask(http.MethodGet, "/.well-known/agent-card.json", ""); strings.Contains(a.body, "preferredTransport") {
		t.Errorf("the card has members of version 0.3: %s", a.body)
	}
	if a := c.ask(http.MethodGet, "/.well-known/agent.json", ""); a.status != http.StatusNotFound {
		t.Errorf("the card of version 0.3: %d", a.status)
	}
	c.askFails(http.MethodPost, "/a2a", `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{}}`, badVersion)
	c.b = rest{}
	c.askFails(http.MethodPost, "/a2a/v1/message:send", `{}`, badVersion)
}

// TestNobodyDelivers: push notifications are declared and taken only where a worker
// delivers them.
func TestNobodyDelivers(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		w := newWorld(t)
		if !there {
			w = &world{t: t, srv: bustest.New(t)}
			w.bus = w.srv.Bus(t)
		}
		at, _ := w.gateway(gateway.Config{Push: true})
		c := &client{T: t, w: w, b: rpc{}, at: at, h: v10}
		if there {
			if !c.capabilities().PushNotifications {
				t.Error("the card does not declare push notifications")
			}
			continue
		}
		c.is(c.fails("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: "x", Url: "https://example.org"}), noPush)
	}
}

// TestPublicCard: where callers must say who they are, the card for everybody tells
// what the fleet can do, and not which agents there are; nor do the agents' cards.
func TestPublicCard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &client{T: t, w: w, b: rest{}, at: w.asked, h: v10}
	card := c.ask(http.MethodGet, "/.well-known/agent-card.json", "").body
	for _, secret := range []string{"worker", "second", "sonnet", "instance_id"} {
		if strings.Contains(card, secret) {
			t.Errorf("the card for everybody tells %q: %s", secret, card)
		}
	}
	if !strings.Contains(card, `"id":"echo"`) {
		t.Errorf("the card for everybody lacks the skills: %s", card)
	}
	for _, path := range []string{"/agents", "/agents/worker/.well-known/agent-card.json", "/agents/nobody/.well-known/agent-card.json", "/agents/worker/.well-known/agent.json"} {
		if a := c.ask(http.MethodGet, path, ""); a.status != http.StatusUnauthorized || strings.Contains(a.body, "echo") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	c.h = v10.with("Authorization", "Bearer "+aliceToken)
	for _, path := range []string{"/agents/worker/.well-known/agent-card.json", "/a2a/extendedAgentCard"} {
		if a := c.ask(http.MethodGet, path, ""); a.status != http.StatusOK || !strings.Contains(a.body, `"agent_id":"worker"`) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
