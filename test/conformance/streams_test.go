package conformance_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/protobuf/proto"

	"parley/bus/bustest"
)

const sseBindings = "JSON-RPC, HTTP+JSON"

// askedBindings are those in which the gateway itself asks who calls, and takes
// the bytes of a request from the wire.
const askedBindings = "JSON-RPC, HTTP+JSON, gRPC"

// await waits until a task is in a state.
func (w *world) await(t *testing.T, id string, want a2apb.TaskState) {
	t.Helper()
	bustest.Eventually(t, "task "+id+" is "+want.String(), func() bool {
		task := new(a2apb.Task)
		_, err := rpc{}.call(t, w.open, "GetTask", v10, &a2apb.GetTaskRequest{Id: id}, task)
		return err == nil && task.GetStatus().GetState() == want
	})
}

var streamChecks = []check{
	{"3.1.2", "MUST", "a stream begins with the task, tells every event in order and ends with the task", "", func(c *client) {
		got := story(c.rest(c.stream("SendStreamingMessage", say("chunks"))))
		if want := "task:submitted working log +log +log. result. completed"; got != want {
			c.Errorf("stream = %s, want %s", got, want)
		}
	}},
	{"3.1.2", "MUST", "a stream ends when input is required, and the answer opens the next", "", func(c *client) {
		s := c.stream("SendStreamingMessage", say("ask"))
		events := c.rest(s)
		if got, want := story(events), "task:submitted working input_required"; got != want {
			c.Fatalf("stream = %s, want %s", got, want)
		}
		m := say("green")
		m.Message.TaskId = events[0].msg.GetTask().GetId()
		events = c.rest(c.stream("SendStreamingMessage", m))
		if got, want := story(events), "task:working result. completed"; got != want {
			c.Errorf("stream = %s, want %s", got, want)
		}
		if h := events[0].msg.GetTask().GetHistory(); len(h) != 3 || h[2].GetParts()[0].GetText() != "green" {
			c.Errorf("history %v, want the answer last", h)
		}
	}},
	{"3.1.6", "MUST", "SubscribeToTask begins with the task as it is and ends with its end", "", func(c *client) {
		gate := "subscribe-" + c.b.name()
		t := c.send(now("gate " + gate))
		c.w.await(c.T, t.GetId(), working)
		s := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()})
		first := c.next(s)
		c.w.pass(gate)
		if got, want := story(append([]event{first}, c.rest(s)...)), "task:working result. completed"; got != want {
			c.Errorf("stream = %s, want %s", got, want)
		}
	}},
	{"3.1.6", "MUST", "SubscribeToTask of an ended task is UnsupportedOperation, of an unknown one TaskNotFound", "", func(c *client) {
		c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: c.send(say("echo")).GetId()}), unsupported)
		c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: "nothing"}), taskNotFound)
	}},
	{"3.1.6", "SHOULD", "a subscription stays open while input is required", "", func(c *client) {
		t := c.send(say("ask"))
		s := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()})
		first := c.next(s)
		m := say("red")
		m.Message.TaskId = t.GetId()
		c.send(m)
		if got, want := story(append([]event{first}, c.rest(s)...)), "task:input_required working result. completed"; got != want {
			c.Errorf("stream = %s, want %s", got, want)
		}
	}},
	{"3.5.2", "MUST", "every stream of a task gets the same events; closing one leaves the others", "", func(c *client) {
		gate := "many-" + c.b.name()
		t := c.send(now("gate " + gate))
		c.w.await(c.T, t.GetId(), working)
		var open []*stream
		for range 4 {
			s := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()})
			c.next(s)
			open = append(open, s)
		}
		open[0].close()
		c.w.pass(gate)
		var want []event
		for _, s := range open[1:] {
			got := c.rest(s)
			if want == nil {
				want = got
			}
			if len(got) != len(want) {
				c.Fatalf("streams tell %s and %s", story(got), story(want))
			}
			for i := range got {
				if !proto.Equal(got[i].msg, want[i].msg) {
					c.Errorf("event %d differs: %v and %v", i, got[i].msg, want[i].msg)
				}
			}
		}
	}},
	{"3.5.2", "SHOULD", "Last-Event-ID resumes behind any event, without gap or repeat", sseBindings + ", NATS", func(c *client) {
		gate := "resume-" + c.b.name()
		t := c.send(now("gate " + gate))
		c.w.await(c.T, t.GetId(), working)
		s := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()})
		events := []event{c.next(s)}
		c.w.pass(gate)
		events = append(events, c.rest(s)...)
		for i := range len(events) - 1 {
			c.h = v10.with("Last-Event-ID", events[i].id)
			again := c.rest(c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()}))
			if got, want := fmt.Sprint(ids(again)), fmt.Sprint(ids(events[i+1:])); got != want {
				c.Errorf("behind %s: %s, want %s", events[i].id, got, want)
			}
		}
		c.h = v10.with("Last-Event-ID", events[len(events)-1].id)
		c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()}), unsupported)
		c.h = v10.with("Last-Event-ID", "nonsense")
		c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()}), invalidParams)
	}},
	{"3.5.2", "SHOULD", "a stream that is resumed begins at once, whether there is news or not", sseBindings, func(c *client) {
		gate := "quiet-" + c.b.name()
		t := c.send(now("gate " + gate))
		c.w.await(c.T, t.GetId(), working)
		first := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()})
		c.h = v10.with("Last-Event-ID", c.next(first).id)
		opened := make(chan *stream, 1)
		go func() { opened <- c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()}) }()
		var resumed *stream
		select {
		case resumed = <-opened:
		case <-time.After(bustest.Patience):
			c.Error("no answer while nothing happens")
		}
		c.w.pass(gate)
		if resumed == nil {
			resumed = <-opened
		}
		if got, want := fmt.Sprint(ids(c.rest(resumed))), fmt.Sprint(ids(c.rest(first))); got != want {
			c.Errorf("resumed with %s, want %s", got, want)
		}
	}},
	{"9.4.2", "MUST", "a stream is text/event-stream, an error before it is not", sseBindings, func(c *client) {
		s := c.stream("SendStreamingMessage", say("echo"))
		if ct := s.headers.Get("Content-Type"); ct != "text/event-stream" || s.headers.Get("A2A-Version") != "1.0" {
			c.Errorf("headers %v", s.headers)
		}
		c.rest(s)
		r := c.fails("SendStreamingMessage", &a2apb.SendMessageRequest{})
		c.is(r, invalidParams)
		if !strings.Contains(r.httpType, "json") {
			c.Errorf("the error is %s", r.httpType)
		}
	}},
}

func ids(events []event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.id)
	}
	return out
}

var errorChecks = []check{
	{"3.3.2", "MUST", "what is missing is refused, and named", "", func(c *client) {
		for field, change := range map[string]func(*a2apb.SendMessageRequest){
			"message":           func(r *a2apb.SendMessageRequest) { r.Message = nil },
			"message.messageId": func(r *a2apb.SendMessageRequest) { r.Message.MessageId = "" },
			"message.role":      func(r *a2apb.SendMessageRequest) { r.Message.Role = a2apb.Role_ROLE_UNSPECIFIED },
			"message.parts":     func(r *a2apb.SendMessageRequest) { r.Message.Parts = nil },
			"message.parts[0]":  func(r *a2apb.SendMessageRequest) { r.Message.Parts[0].Content = nil },
			"configuration.historyLength": func(r *a2apb.SendMessageRequest) {
				r.Configuration = &a2apb.SendMessageConfiguration{HistoryLength: new(int32(-2))}
			},
		} {
			req := say("echo")
			change(req)
			r := c.fails("SendMessage", req)
			c.is(r, invalidParams)
			if len(r.fields) != 1 || r.fields[0] != field {
				c.Errorf("names %v, want %s", r.fields, field)
			}
		}
		c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: "x", HistoryLength: new(int32(-1))}), invalidParams)
	}},
	{"3.6.2", "MUST", "a version that is not supported is refused; none means 0.3", "", func(c *client) {
		for _, v := range []string{"", "0.3", "2.0", "1.1", "one", "1"} {
			c.h = headers{"A2A-Version": v}
			r := c.fails("SendMessage", say("echo"))
			c.is(r, badVersion)
			if r.meta["supportedVersions"] != "1.0" {
				c.Errorf("tells %v, want what is supported", r.meta)
			}
			c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: "x"}), badVersion)
		}
	}},
	{"3.6", "MUST", "the patch number of a version does not count", "", func(c *client) {
		c.h = headers{"A2A-Version": "1.0.1"}
		c.send(say("echo"))
	}},
	{"3.3.2", "MUST", "who does not say who they are is refused, with a challenge", askedBindings, func(c *client) {
		c.at = c.w.asked
		for _, token := range []string{"", "Bearer wrong", "Basic eDp5"} {
			c.h = v10.with("Authorization", token)
			r := c.fails("SendMessage", say("echo"))
			c.is(r, noAuth)
			if c.b.name() != "gRPC" && (r.http != 401 || r.headers.Get("WWW-Authenticate") == "") {
				c.Errorf("status %d, headers %v", r.http, r.headers)
			}
		}
	}},
	{"7.4", "MUST", "every scheme that the card declares lets its callers in", "", func(c *client) {
		c.at = c.w.asked
		for name, value := range map[string]string{"Authorization": "Bearer " + aliceToken, "X-API-Key": aliceToken} {
			c.h = v10.with(name, value)
			c.send(say("echo"))
		}
	}},
	{"13.1", "MUST", "the tasks of others do not exist", "", func(c *client) {
		c.at, c.h = c.w.asked, v10.with("Authorization", "Bearer "+aliceToken)
		gate := "others-" + c.b.name()
		req := now("gate " + gate)
		req.Message.ContextId = gate
		t := c.send(req)
		c.h = v10.with("Authorization", "Bearer "+bobToken)
		c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: t.GetId()}), taskNotFound)
		c.is(c.fails("CancelTask", &a2apb.CancelTaskRequest{Id: t.GetId()}), taskNotFound)
		c.is(c.fails("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: t.GetId()}), taskNotFound)
		m := say("mine now")
		m.Message.TaskId = t.GetId()
		c.is(c.fails("SendMessage", m), taskNotFound)
		res := new(a2apb.ListTasksResponse)
		c.call("ListTasks", &a2apb.ListTasksRequest{ContextId: gate}, res)
		if len(res.GetTasks()) != 0 || res.GetTotalSize() != 0 {
			c.Errorf("lists %v", res)
		}
		c.w.pass(gate)
	}},
	{"3.1.11", "MUST", "the extended card is for callers who say who they are", "", func(c *client) {
		c.at = c.w.asked
		if c.b.name() != (natsBinding{}).name() { // its callers cannot but say who they are
			c.is(c.fails("GetExtendedAgentCard", &a2apb.GetExtendedAgentCardRequest{}), noAuth)
		}
		c.h = v10.with("Authorization", "Bearer "+aliceToken)
		card := new(a2apb.AgentCard)
		c.call("GetExtendedAgentCard", &a2apb.GetExtendedAgentCardRequest{}, card)
		if !strings.Contains(card.GetDescription(), "alice") || len(card.GetSkills()) == 0 {
			c.Errorf("card %v", card)
		}
	}},
	{"3.3.2", "MUST", "a message that is too long is refused", askedBindings, func(c *client) {
		r := c.fails("SendMessage", say(strings.Repeat("x", 2<<20)))
		if c.b.name() != "gRPC" { // gRPC's own limit answers there
			c.is(r, tooLarge)
		}
	}},
	{"5.4", "MUST", "every error has its code, its reason and the domain of A2A", "", func(c *client) {
		for _, e := range []struct {
			f   fault
			op  string
			req proto.Message
		}{
			{taskNotFound, "GetTask", &a2apb.GetTaskRequest{Id: "x"}},
			{notCancelable, "CancelTask", &a2apb.CancelTaskRequest{Id: c.send(say("echo")).GetId()}},
			{taskNotFound, "ListTaskPushNotificationConfigs", &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: "x"}},
			{unsupported, "GetExtendedAgentCard", &a2apb.GetExtendedAgentCardRequest{}},
			{invalidParams, "SendMessage", &a2apb.SendMessageRequest{}},
		} {
			r := c.fails(e.op, e.req)
			c.is(r, e.f)
			if r.meta["timestamp"] == "" {
				c.Error(errors.New("no timestamp in the ErrorInfo"))
			}
		}
	}},
}
