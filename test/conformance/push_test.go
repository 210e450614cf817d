package conformance_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"parley/bus/bustest"
	"parley/subjects"
	"parley/workers/gateway"
)

// TestPushConfigsAreTheirCallers: who sees a task of somebody else's, as operators
// do, neither sees nor changes the push notification configs that these have made.
func TestPushConfigsAreTheirCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const human = "token-of-operator-0123456789"
	at, _ := w.gateway(gateway.Config{Push: true, Auth: gateway.Auth{Tokens: map[string]subjects.AgentID{aliceToken: "alice", human: "operator"}}})
	alice := &client{T: t, w: w, b: rpc{}, at: at, h: v10.with("Authorization", "Bearer "+aliceToken)}
	operator := &client{T: t, w: w, b: rpc{}, at: at, h: v10.with("Authorization", "Bearer "+human)}
	task := alice.send(say("echo")).GetId()
	made := &a2apb.TaskPushNotificationConfig{
		TaskId: task, Id: "hers", Url: "https://example.org/x", Authentication: &a2apb.AuthenticationInfo{Scheme: "Bearer", Credentials: "secret"},
	}
	alice.call("CreateTaskPushNotificationConfig", made, new(a2apb.TaskPushNotificationConfig))
	operator.get(task)
	operator.is(operator.fails("GetTaskPushNotificationConfig", &a2apb.GetTaskPushNotificationConfigRequest{TaskId: task, Id: "hers"}), taskNotFound)
	list := new(a2apb.ListTaskPushNotificationConfigsResponse)
	operator.call("ListTaskPushNotificationConfigs", &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: task}, list)
	if len(list.GetConfigs()) != 0 {
		t.Errorf("the operator sees %v", list.GetConfigs())
	}
	operator.is(operator.fails("CreateTaskPushNotificationConfig", made), invalidParams)
	operator.call("DeleteTaskPushNotificationConfig", &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: task, Id: "hers"}, new(emptypb.Empty))
	alice.call("GetTaskPushNotificationConfig", &a2apb.GetTaskPushNotificationConfigRequest{TaskId: task, Id: "hers"}, new(a2apb.TaskPushNotificationConfig))
}

var pushChecks = []check{
	{"3.1.7", "MUST", "a push notification config can be made, read, listed and deleted, also on an ended task", "", func(c *client) {
		task := c.send(say("echo")).GetId()
		made := new(a2apb.TaskPushNotificationConfig)
		c.call("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{
			TaskId: task, Id: "any id/of mine", Url: c.w.hooks.url + "/x", Token: "t", Authentication: &a2apb.AuthenticationInfo{Scheme: "Bearer", Credentials: "s"},
		}, made)
		c.call("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: task, Url: c.w.hooks.url + "/y"}, made)
		if made.GetId() == "" || made.GetTaskId() != task {
			c.Fatalf("made %v, want an id", made)
		}
		got := new(a2apb.TaskPushNotificationConfig)
		c.call("GetTaskPushNotificationConfig", &a2apb.GetTaskPushNotificationConfigRequest{TaskId: task, Id: made.GetId()}, got)
		if got.GetUrl() != c.w.hooks.url+"/y" {
			c.Errorf("got %v", got)
		}
		list := new(a2apb.ListTaskPushNotificationConfigsResponse)
		c.call("ListTaskPushNotificationConfigs", &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: task}, list)
		if len(list.GetConfigs()) != 2 || !slices.ContainsFunc(list.GetConfigs(), func(p *a2apb.TaskPushNotificationConfig) bool {
			return p.GetId() == "any id/of mine" && p.GetToken() == "t" && p.GetAuthentication().GetScheme() == "Bearer"
		}) {
			c.Errorf("list %v", list)
		}
		for range 2 {
			c.call("DeleteTaskPushNotificationConfig", &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: task, Id: made.GetId()}, new(emptypb.Empty))
		}
		c.is(c.fails("GetTaskPushNotificationConfig", &a2apb.GetTaskPushNotificationConfigRequest{TaskId: task, Id: made.GetId()}), taskNotFound)
	}},
	{"3.1.7", "MUST", "configs come in pages, and a page token that is none is refused", "", func(c *client) {
		task := c.send(say("echo")).GetId()
		for _, id := range []string{"a", "b", "c"} {
			c.call("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: task, Id: id, Url: "https://example.org/" + id}, new(a2apb.TaskPushNotificationConfig))
		}
		ask := func(size int32, token string) *a2apb.ListTaskPushNotificationConfigsRequest {
			return &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: task, PageSize: size, PageToken: token}
		}
		var got []string
		for token, n := "", 0; n == 0 || token != ""; n++ {
			list := new(a2apb.ListTaskPushNotificationConfigsResponse)
			c.call("ListTaskPushNotificationConfigs", ask(2, token), list)
			for _, p := range list.GetConfigs() {
				got = append(got, p.GetId())
			}
			token = list.GetNextPageToken()
		}
		if !slices.Equal(got, []string{"a", "b", "c"}) {
			c.Errorf("configs %q", got)
		}
		for _, bad := range []*a2apb.ListTaskPushNotificationConfigsRequest{ask(2, "garbage"), ask(2, "Yg"), ask(2, "é"), ask(-1, "")} {
			c.is(c.fails("ListTaskPushNotificationConfigs", bad), invalidParams)
		}
		for _, token := range []string{"garbage", "é", "MSA3IHggeA"} { // the last is "1 7 x x"
			c.is(c.fails("ListTasks", &a2apb.ListTasksRequest{PageToken: token}), invalidParams)
		}
	}},
	{"3.1.7", "MUST", "configs of unknown tasks, and addresses that are none, are refused", "", func(c *client) {
		c.is(c.fails("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: "nothing", Url: "https://example.org"}), taskNotFound)
		c.is(c.fails("DeleteTaskPushNotificationConfig", &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: "nothing", Id: "1"}), taskNotFound)
		task := c.send(say("echo")).GetId()
		for _, u := range []string{"", "ftp://example.org", "nowhere", "http://user:secret@example.org/"} {
			c.is(c.fails("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: task, Url: u}), invalidParams)
		}
		req := say("echo")
		req.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{Url: "nowhere"}}
		c.is(c.fails("SendMessage", req), invalidParams)
	}},
	{"4.3.3", "MUST", "every event is pushed, in order, with the credentials that the client gave", "", func(c *client) {
		path := "/events-" + strings.ReplaceAll(c.b.name(), "+", "-")
		req := say("chunks")
		req.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{
			Url: c.w.hooks.url + path, Token: "token-1", Authentication: &a2apb.AuthenticationInfo{Scheme: "Bearer", Credentials: "secret-1"},
		}}
		c.send(req)
		bustest.Eventually(c.T, "every notification", func() bool { return len(c.w.hooks.at(path)) >= 7 })
		var events []event
		for _, n := range c.w.hooks.at(path) {
			events = append(events, event{msg: n.msg})
			if n.header.Get("Authorization") != "Bearer secret-1" || n.header.Get("A2A-Notification-Token") != "token-1" ||
				n.header.Get("Content-Type") != "application/a2a+json" || !strings.HasPrefix(n.header.Get("Webhook-Signature"), "v1,") {
				c.Errorf("headers %v", n.header)
			}
		}
		if got, want := story(events), "task:submitted working log +log +log. result. completed"; got != want {
			c.Errorf("pushed %s, want %s", got, want)
		}
	}},
	{"3.3.1", "MUST", "an idempotency key makes a repeat the same push notification config", "", func(c *client) {
		path := "/repeat-" + strings.ReplaceAll(c.b.name(), "+", "-")
		c.h = v10.with("Idempotency-Key", path)
		req := say("echo")
		req.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{Url: c.w.hooks.url + path}}
		task := c.send(req).GetId()
		c.send(req)
		list := new(a2apb.ListTaskPushNotificationConfigsResponse)
		c.call("ListTaskPushNotificationConfigs", &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: task}, list)
		if len(list.GetConfigs()) != 1 {
			c.Errorf("configs %v, want one", list.GetConfigs())
		}
	}},
	{"3.1.7", "MUST", "a config that is made at the same time several times is one", "", func(c *client) {
		task := c.send(say("echo")).GetId()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				req := &a2apb.TaskPushNotificationConfig{TaskId: task, Id: "same", Url: c.w.hooks.url + "/same"}
				if _, err := c.b.call(c.T, c.at, "CreateTaskPushNotificationConfig", c.h, req, new(a2apb.TaskPushNotificationConfig)); err != nil {
					c.Error(err)
				}
			})
		}
		all.Wait()
	}},
	{"3.1.7", "MUST", "a config that is made later hears what happens from then on; a deleted one hears nothing", "", func(c *client) {
		name := "later-" + strings.ReplaceAll(c.b.name(), "+", "-")
		t := c.send(now("gate " + name))
		c.w.await(c.T, t.GetId(), working)
		for _, id := range []string{"stays", "goes"} {
			c.call("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: t.GetId(), Id: id, Url: c.w.hooks.url + "/" + id + name}, new(a2apb.TaskPushNotificationConfig))
		}
		c.call("DeleteTaskPushNotificationConfig", &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: t.GetId(), Id: "goes"}, new(emptypb.Empty))
		c.w.pass(name)
		bustest.Eventually(c.T, "the notifications", func() bool { return len(c.w.hooks.at("/stays"+name)) >= 2 })
		var events []event
		for _, n := range c.w.hooks.at("/stays" + name) {
			events = append(events, event{msg: n.msg})
		}
		if got, want := story(events), "result. completed"; got != want {
			c.Errorf("pushed %s, want %s", got, want)
		}
		if n := c.w.hooks.at("/goes" + name); len(n) != 0 {
			c.Errorf("the deleted config heard %d events", len(n))
		}
	}},
}
