package conformance_test

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"parley/bus/bustest"
)

const (
	submitted     = a2apb.TaskState_TASK_STATE_SUBMITTED
	working       = a2apb.TaskState_TASK_STATE_WORKING
	completed     = a2apb.TaskState_TASK_STATE_COMPLETED
	failed        = a2apb.TaskState_TASK_STATE_FAILED
	canceled      = a2apb.TaskState_TASK_STATE_CANCELED
	inputRequired = a2apb.TaskState_TASK_STATE_INPUT_REQUIRED
	rejected      = a2apb.TaskState_TASK_STATE_REJECTED
)

const contractURI = "https://parley.dev/a2a/extensions/dispatch/v1"

func object(m map[string]any) *structpb.Struct {
	s, err := structpb.NewStruct(m)
	if err != nil {
		panic(err)
	}
	return s
}

var operationChecks = []check{
	{"3.1.1", "MUST", "SendMessage returns a task or a message", "", func(c *client) {
		t := c.send(say("echo me"))
		c.state(t, completed)
		if output(t) != "echo me" || t.GetId() == "" {
			c.Errorf("task %v, want the answer as an artifact", t)
		}
	}},
	{"3.1.1", "MUST", "an agent may answer with a message", "", func(c *client) {
		res := new(a2apb.SendMessageResponse)
		c.call("SendMessage", say("message hi"), res)
		if m := res.GetMessage(); m.GetRole() != a2apb.Role_ROLE_AGENT || m.GetParts()[0].GetText() != "hi" || m.GetMessageId() == "" || m.GetContextId() == "" {
			c.Errorf("answer %v, want a message of the agent", res)
		}
	}},
	{"3.1.1", "MUST", "a message to a task in a terminal state is refused", "", func(c *client) {
		t := c.send(say("echo"))
		for _, op := range []string{"SendMessage", "SendStreamingMessage"} {
			m := say("more")
			m.Message.TaskId = t.GetId()
			c.is(c.fails(op, m), unsupported)
		}
	}},
	{"3.1.3", "MUST", "GetTask gives state, artifacts and history", "", func(c *client) {
		t := c.get(c.send(say("chunks")).GetId())
		c.state(t, completed)
		if len(t.GetArtifacts()) != 2 || len(t.GetArtifacts()[0].GetParts()) != 3 || len(t.GetHistory()) != 1 {
			c.Errorf("task %v, want two artifacts, the first of three parts, and the message", t)
		}
	}},
	{"3.1.3", "MUST", "GetTask of an unknown task is TaskNotFound", "", func(c *client) {
		for _, id := range []string{"nothing", "01a1fd0f-ebf6-7c52-ba52-da777b9f8623", "not.a.token"} {
			c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: id}), taskNotFound)
		}
	}},
	{"3.1.4", "MUST", "ListTasks pages by cursor, newest first, each task once", "", func(c *client) {
		ctx := "page-" + c.b.name()
		var want []string
		for range 5 {
			m := say("echo")
			m.Message.ContextId = ctx
			want = append(want, c.send(m).GetId())
		}
		slices.Reverse(want)
		var got []string
		req := &a2apb.ListTasksRequest{ContextId: ctx, PageSize: new(int32(2))}
		for pages := 0; ; pages++ {
			res := new(a2apb.ListTasksResponse)
			c.call("ListTasks", req, res)
			if res.GetTotalSize() != 5 || res.GetPageSize() != 2 || len(res.GetTasks()) > 2 || pages > 3 {
				c.Fatalf("page %d: %v", pages, res)
			}
			for _, t := range res.GetTasks() {
				got = append(got, t.GetId())
			}
			if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			c.Errorf("listed %v, want %v", got, want)
		}
	}},
	{"3.1.4", "MUST", "ListTasks leaves artifacts out unless they are asked for", "", func(c *client) {
		m := say("echo")
		m.Message.ContextId = "artifacts-" + c.b.name()
		c.send(m)
		for _, include := range []bool{false, true} {
			res := new(a2apb.ListTasksResponse)
			c.call("ListTasks", &a2apb.ListTasksRequest{ContextId: m.GetMessage().GetContextId(), IncludeArtifacts: &include}, res)
			if len(res.GetTasks()) != 1 || (len(res.GetTasks()[0].GetArtifacts()) > 0) != include {
				c.Errorf("includeArtifacts %t: %v", include, res)
			}
		}
	}},
	{"3.1.4", "MUST", "ListTasks filters by status and by time, inclusively", "", func(c *client) {
		ctx := "filter-" + c.b.name()
		m := say("echo")
		m.Message.ContextId = ctx
		done := c.send(m)
		m = now("gate filter-" + c.b.name())
		m.Message.ContextId = ctx
		held := c.send(m)
		c.w.await(c.T, held.GetId(), working)
		for _, q := range []struct {
			req  *a2apb.ListTasksRequest
			want []string
		}{
			{&a2apb.ListTasksRequest{Status: completed}, []string{done.GetId()}},
			{&a2apb.ListTasksRequest{Status: working}, []string{held.GetId()}},
			{&a2apb.ListTasksRequest{Status: failed}, nil},
			{&a2apb.ListTasksRequest{StatusTimestampAfter: done.GetStatus().GetTimestamp()}, []string{held.GetId(), done.GetId()}},
			{&a2apb.ListTasksRequest{StatusTimestampAfter: timestamppb.New(c.get(held.GetId()).GetStatus().GetTimestamp().AsTime().Add(time.Millisecond))}, nil},
		} {
			q.req.ContextId = ctx
			res := new(a2apb.ListTasksResponse)
			c.call("ListTasks", q.req, res)
			var got []string
			for _, t := range res.GetTasks() {
				got = append(got, t.GetId())
			}
			if !slices.Equal(got, q.want) {
				c.Errorf("%v: listed %v, want %v", q.req, got, q.want)
			}
		}
		c.w.pass("filter-" + c.b.name())
	}},
	{"3.1.4", "MUST", "ListTasks refuses sizes, tokens and lengths out of range", "", func(c *client) {
		for _, q := range []*a2apb.ListTasksRequest{
			{PageSize: new(int32(101))},
			{PageSize: new(int32(-1))},
			{PageToken: "nonsense"},
			{HistoryLength: new(int32(-1))},
		} {
			c.is(c.fails("ListTasks", q), invalidParams)
		}
	}},
	{"3.1.5", "MUST", "CancelTask ends a task and returns it", "", func(c *client) {
		t := c.send(now("gate never"))
		got := new(a2apb.Task)
		c.call("CancelTask", &a2apb.CancelTaskRequest{Id: t.GetId(), Metadata: object(map[string]any{"reason": "enough"})}, got)
		c.state(got, canceled)
		if !strings.Contains(got.GetStatus().GetMessage().GetParts()[0].GetText(), "enough") {
			c.Errorf("status %v, want the reason", got.GetStatus())
		}
	}},
	{"3.1.5", "MUST", "CancelTask of an ended or unknown task is refused", "", func(c *client) {
		t := c.send(say("echo"))
		c.is(c.fails("CancelTask", &a2apb.CancelTaskRequest{Id: t.GetId()}), notCancelable)
		c.is(c.fails("CancelTask", &a2apb.CancelTaskRequest{Id: "nothing"}), taskNotFound)
	}},
	{"3.2.2", "MUST", "a blocking send waits for the end, or until input is required", "", func(c *client) {
		c.state(c.send(say("chunks")), completed)
		t := c.send(say("ask"))
		c.state(t, inputRequired)
		if t.GetStatus().GetMessage().GetParts()[0].GetText() != "which one?" {
			c.Errorf("status %v, want the question", t.GetStatus())
		}
		c.state(c.send(say("fail")), failed)
	}},
	{"3.2.2", "MUST", "returnImmediately returns once the task is there", "", func(c *client) {
		t := c.send(now("gate immediately"))
		if s := t.GetStatus().GetState(); s != submitted && s != working {
			c.Errorf("task is %s, want it under way", s)
		}
		c.call("CancelTask", &a2apb.CancelTaskRequest{Id: t.GetId()}, new(a2apb.Task))
	}},
	{"3.2.4", "SHOULD", "historyLength 0 leaves the history out, n gives the latest n", "", func(c *client) {
		t := c.send(say("ask"))
		m := say("that one")
		m.Message.TaskId = t.GetId()
		m.Configuration = &a2apb.SendMessageConfiguration{HistoryLength: new(int32(0))}
		if t = c.send(m); len(t.GetHistory()) != 0 {
			c.Errorf("SendMessage with historyLength 0 has the history %v", t.GetHistory())
		}
		for n, want := range []int{0, 1, 2, 3, 3} {
			got := new(a2apb.Task)
			c.call("GetTask", &a2apb.GetTaskRequest{Id: t.GetId(), HistoryLength: new(int32(n))}, got)
			if len(got.GetHistory()) != want || n > 0 && got.GetHistory()[want-1].GetParts()[0].GetText() != "that one" {
				c.Errorf("historyLength %d has the history %v", n, got.GetHistory())
			}
		}
	}},
	{"3.2.5", "MUST", "metadata of messages and parts is kept", "", func(c *client) {
		m := say("parts")
		m.Message.Metadata = object(map[string]any{"k": []any{1.0, "x"}})
		m.Message.Parts[0].Metadata = object(map[string]any{"p": true})
		m.Message.ReferenceTaskIds = []string{"other"}
		t := c.send(m)
		h := t.GetHistory()[0]
		if h.GetMetadata().GetFields()["k"].GetListValue() == nil || h.GetReferenceTaskIds()[0] != "other" ||
			!h.GetParts()[0].GetMetadata().GetFields()["p"].GetBoolValue() ||
			!t.GetArtifacts()[0].GetParts()[0].GetMetadata().GetFields()["p"].GetBoolValue() {
			c.Errorf("task %v, want the metadata in it", t)
		}
	}},
	{"3.2.5", "MUST", "metadata, extensions and references of an answer or a follow-up are kept, and reach the agent", "", func(c *client) {
		for _, brief := range []string{"ask all", "hear all"} {
			first := say(brief)
			if brief == "hear all" {
				first = now(brief)
			}
			t := c.send(first)
			m := say("more")
			m.Message.TaskId = t.GetId()
			m.Message.Metadata = object(map[string]any{"k": 1.0})
			m.Message.Extensions, m.Message.ReferenceTaskIds = []string{"https://example.org/x"}, []string{"r"}
			t = c.send(m)
			c.state(t, completed)
			h := t.GetHistory()[len(t.GetHistory())-1]
			if h.GetMessageId() != "m-more" || h.GetMetadata().GetFields()["k"].GetNumberValue() != 1 || !slices.Equal(h.GetExtensions(), m.Message.Extensions) ||
				!slices.Equal(h.GetReferenceTaskIds(), m.Message.ReferenceTaskIds) {
				c.Errorf("%s: the history has %v", brief, h)
			}
			got := t.GetArtifacts()[0].GetParts()[0].GetData().GetStructValue().AsMap()
			if got["message_id"] != "m-more" || !reflect.DeepEqual(got["metadata"], map[string]any{"k": 1.0}) ||
				!reflect.DeepEqual(got["extensions"], []any{"https://example.org/x"}) || !reflect.DeepEqual(got["reference_task_ids"], []any{"r"}) {
				c.Errorf("%s: the agent heard %v", brief, got)
			}
		}
	}},
	{"3.3.1", "MUST", "an idempotency key makes a repeat the same task", "", func(c *client) {
		c.h = c.h.with("Idempotency-Key", "key-"+c.b.name())
		one, two := c.send(say("echo once")), c.send(say("echo once"))
		if one.GetId() != two.GetId() || one.GetContextId() != two.GetContextId() {
			c.Errorf("tasks %s and %s, want one", one.GetId(), two.GetId())
		}
		c.is(c.fails("SendMessage", say("echo another")), conflict)
	}},
	{"3.3.1", "MUST", "an idempotency key makes a repeat the same follow-up, and the same answer", "", func(c *client) {
		key := c.h.with("Idempotency-Key", "more-"+c.b.name())
		gate := "more-" + c.b.name()
		t := c.send(now("gate " + gate))
		c.w.await(c.T, t.GetId(), working)
		more := now("more")
		more.Message.TaskId = t.GetId()
		c.h = key
		c.send(more)
		c.send(more)
		other := now("something else")
		other.Message.TaskId = t.GetId()
		c.is(c.fails("SendMessage", other), conflict)
		if n := len(c.get(t.GetId()).GetHistory()); n != 2 {
			c.Errorf("%d messages in the history, want the first and one more", n)
		}
		c.w.pass(gate)
		c.w.await(c.T, t.GetId(), completed)
		more.Configuration = nil
		if again := c.send(more); again.GetStatus().GetState() != completed {
			c.Errorf("repeated after the end: %v", again.GetStatus())
		}

		c.h = v10
		t = c.send(say("ask twice"))
		answer := say("blue")
		answer.Message.TaskId = t.GetId()
		c.h = key
		one := c.send(answer)
		two := c.send(answer) // while the second question is open
		if one.GetStatus().GetState() != inputRequired || two.GetStatus().GetState() != inputRequired {
			c.Errorf("answered once: %v, twice: %v", one.GetStatus(), two.GetStatus())
		}
		c.h = v10
		if done := c.send(answer); done.GetStatus().GetState() != completed {
			c.Errorf("without the key it is another answer: %v", done.GetStatus())
		}
	}},
	{"3.3.1", "MUST", "the same messageId alone is not the same task", "", func(c *client) {
		if one, two := c.send(say("echo")), c.send(say("echo")); one.GetId() == two.GetId() {
			c.Errorf("both are task %s", one.GetId())
		}
	}},
	{"3.3.4", "MUST", "push notifications that the card does not declare are refused", "", func(c *client) {
		c.at, c.h = c.w.asked, v10.with("Authorization", "Bearer "+aliceToken)
		id := c.send(say("echo")).GetId()
		m := say("echo")
		m.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{Url: "https://example.org"}}
		c.is(c.fails("SendMessage", m), noPush)
		c.is(c.fails("CreateTaskPushNotificationConfig", &a2apb.TaskPushNotificationConfig{TaskId: id, Url: "https://example.org"}), noPush)
		c.is(c.fails("GetTaskPushNotificationConfig", &a2apb.GetTaskPushNotificationConfigRequest{TaskId: id, Id: "1"}), noPush)
		c.is(c.fails("ListTaskPushNotificationConfigs", &a2apb.ListTaskPushNotificationConfigsRequest{TaskId: id}), noPush)
		c.is(c.fails("DeleteTaskPushNotificationConfig", &a2apb.DeleteTaskPushNotificationConfigRequest{TaskId: id, Id: "1"}), noPush)
	}},
	{"3.3.4", "MUST", "an extended card that the card does not declare is refused", "", func(c *client) {
		c.is(c.fails("GetExtendedAgentCard", &a2apb.GetExtendedAgentCardRequest{}), unsupported)
	}},
	{"3.4.1", "MUST", "a contextId is generated, or kept as the client gave it", "", func(c *client) {
		if t := c.send(say("echo")); t.GetContextId() == "" || t.GetContextId() == t.GetId() {
			c.Errorf("task %s has the context %q", t.GetId(), t.GetContextId())
		}
		m := say("echo")
		m.Message.ContextId = "mine: 1/2 ä"
		if t := c.send(m); t.GetContextId() != m.GetMessage().GetContextId() || t.GetHistory()[0].GetContextId() != t.GetContextId() {
			c.Errorf("context %q, want %q", t.GetContextId(), m.GetMessage().GetContextId())
		}
	}},
	{"3.4.2", "MUST", "contextId is inferred from taskId, and a mismatch is refused", "", func(c *client) {
		t := c.send(say("ask"))
		m := say("this")
		m.Message.TaskId, m.Message.ContextId = t.GetId(), "another"
		c.is(c.fails("SendMessage", m), invalidParams)
		m.Message.ContextId = ""
		if got := c.send(m); got.GetContextId() != t.GetContextId() {
			c.Errorf("context %q, want %q", got.GetContextId(), t.GetContextId())
		}
	}},
	{"3.4.2", "MUST", "a taskId that the client made up is TaskNotFound", "", func(c *client) {
		m := say("echo")
		m.Message.TaskId = "made-up"
		c.is(c.fails("SendMessage", m), taskNotFound)
	}},
	{"3.4.2", "MUST", "the answer to a question resumes the task", "", func(c *client) {
		t := c.send(say("ask"))
		m := say("the blue one")
		m.Message.TaskId, m.Message.ContextId = t.GetId(), t.GetContextId()
		got := c.send(m)
		c.state(got, completed)
		if output(got) != "the blue one" || len(got.GetHistory()) != 3 {
			c.Errorf("task %v, want the answer, and three messages", got)
		}
	}},
	{"3.4.2", "MUST", "a follow-up reaches the agent at work and stays in the history", "", func(c *client) {
		t := c.send(now("hear"))
		m := say("louder")
		m.Message.TaskId = t.GetId()
		got := c.send(m)
		c.state(got, completed)
		if output(got) != "louder" || len(got.GetHistory()) != 2 || got.GetHistory()[1].GetMessageId() != "m-louder" {
			c.Errorf("task %v, want the follow-up as its output, and in its history", got)
		}
	}},
	{"4.1.6", "MUST", "parts of every kind come through: text, data, url, raw", "", func(c *client) {
		m := say("parts")
		m.Message.Parts = append(m.Message.Parts,
			&a2apb.Part{Content: &a2apb.Part_Data{Data: structpb.NewNumberValue(4.5)}, MediaType: "application/json"},
			&a2apb.Part{Content: &a2apb.Part_Url{Url: "https://example.org/x.png"}, MediaType: "image/png", Filename: "x.png"},
			&a2apb.Part{Content: &a2apb.Part_Raw{Raw: []byte{0, 1, 255}}, MediaType: "application/octet-stream"})
		p := c.send(m).GetArtifacts()[0].GetParts()
		if len(p) != 4 || p[0].GetText() != "parts" || p[1].GetData().GetNumberValue() != 4.5 || p[2].GetUrl() == "" || p[2].GetFilename() != "x.png" || string(p[3].GetRaw()) != "\x00\x01\xff" {
			c.Errorf("parts %v", p)
		}
	}},
	{"4.1.6", "MUST", "data may be null", "", func(c *client) {
		m := say("parts")
		m.Message.Parts = append(m.Message.Parts, &a2apb.Part{Content: &a2apb.Part_Data{Data: structpb.NewNullValue()}})
		t := c.send(m)
		for what, parts := range map[string][]*a2apb.Part{"history": t.GetHistory()[0].GetParts(), "artifact": t.GetArtifacts()[0].GetParts()} {
			if d, ok := parts[1].GetContent().(*a2apb.Part_Data); !ok || d.Data.GetKind() == nil || d.Data.AsInterface() != nil {
				c.Errorf("the %s has the parts %v", what, parts)
			}
		}
	}},
	{"4.6", "MUST", "the terms of a task travel as an extension, and how it went comes back", "", func(c *client) {
		m := say("json")
		m.Message.Metadata = object(map[string]any{contractURI: map[string]any{"priority": "high", "required_capabilities": []any{}, "token_budget": 100}})
		c.h = c.h.with("A2A-Extensions", "https://example.org/other/v1, "+contractURI)
		res := new(a2apb.SendMessageResponse)
		r := c.call("SendMessage", m, res)
		back := res.GetTask().GetMetadata().GetFields()[contractURI].GetStructValue().GetFields()
		if back["priority"].GetStringValue() != "high" || back["status"].GetStringValue() != "done" || back["tokens_spent"].GetNumberValue() != 7 || back["seq"].GetNumberValue() != 3 {
			c.Errorf("metadata %v", back)
		}
		if r.headers.Get("A2A-Extensions") != contractURI {
			c.Errorf("activated %q, want the one that counts", r.headers.Get("A2A-Extensions"))
		}
		m.Message.Metadata = object(map[string]any{contractURI: map[string]any{"prio": "high"}})
		c.is(c.fails("SendMessage", m), invalidParams)
		m.Message.Metadata = object(map[string]any{contractURI: map[string]any{"model_tier": "none such"}})
		if f := c.fails("SendMessage", m); f.reason != "INVALID_PARAMS" {
			c.Errorf("a tier that is no word: %v", f)
		}
	}},
	{"4.6.2", "MUST", "a task tells how it went to clients alone that have activated the extension, also in streams and notifications", "", func(c *client) {
		plain := c.h
		for _, active := range []bool{false, true} {
			if c.h = plain; active {
				c.h = plain.with("A2A-Extensions", contractURI)
			}
			told := func(what string, meta *structpb.Struct) {
				c.Helper()
				if got := meta.GetFields()[contractURI] != nil; got != active || !active && meta != nil {
					c.Errorf("extension active %t: %s has the metadata %v", active, what, meta)
				}
			}
			path := fmt.Sprintf("/reports-%s-%t", strings.ReplaceAll(c.b.name(), "+", "-"), active)
			req := say("chunks")
			req.Configuration = &a2apb.SendMessageConfiguration{TaskPushNotificationConfig: &a2apb.TaskPushNotificationConfig{Url: c.w.hooks.url + path}}
			s := c.stream("SendStreamingMessage", req)
			id := ""
			for _, e := range c.rest(s) {
				told("an event", reportIn(e.msg))
				id = cmp.Or(id, e.msg.GetTask().GetId())
			}
			task := c.get(id)
			told("a task", task.GetMetadata())
			list := new(a2apb.ListTasksResponse)
			c.call("ListTasks", &a2apb.ListTasksRequest{ContextId: task.GetContextId()}, list)
			told("a listed task", list.GetTasks()[0].GetMetadata())
			told("a sent task", c.send(say("echo")).GetMetadata())
			bustest.Eventually(c.T, "every notification", func() bool { return len(c.w.hooks.at(path)) >= 7 })
			for _, n := range c.w.hooks.at(path) {
				told("a notification", reportIn(n.msg))
			}
		}
	}},
	{"4.6.3", "SHOULD", "an extension that is not known is ignored", "", func(c *client) {
		c.h = c.h.with("A2A-Extensions", "https://example.org/other/v1")
		res := new(a2apb.SendMessageResponse)
		if r := c.call("SendMessage", say("echo"), res); r.headers.Get("A2A-Extensions") != "" {
			c.Errorf("activated %q, want none", r.headers.Get("A2A-Extensions"))
		}
	}},
	{"4.4.6", "MUST", "a tenant is one agent: its tasks are pinned to it, and found only under it", "", func(c *client) {
		m := say("who")
		m.Tenant = "second"
		t := c.send(m)
		if output(t) != "second" {
			c.Errorf("done by %q, want second", output(t))
		}
		c.call("GetTask", &a2apb.GetTaskRequest{Id: t.GetId(), Tenant: "second"}, new(a2apb.Task))
		c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: t.GetId(), Tenant: "worker"}), taskNotFound)
		c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: t.GetId(), Tenant: "no.token"}), invalidParams)
		m.Tenant = "nobody"
		c.state(c.send(m), rejected)
	}},
}

// reportIn is the metadata of an event.
func reportIn(m *a2apb.StreamResponse) *structpb.Struct {
	switch {
	case m.GetTask() != nil:
		return m.GetTask().GetMetadata()
	case m.GetStatusUpdate() != nil:
		return m.GetStatusUpdate().GetMetadata()
	}
	return m.GetArtifactUpdate().GetMetadata()
}

// TestLongText: a text of nearly 1 MiB fits, in a first message and in an answer.
func TestLongText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := strings.Repeat("é", 450_000)
	for _, b := range bindings {
		c := &client{T: t, w: w, b: b, at: w.open, h: v10}
		first := say("json " + long)
		first.Message.MessageId = "m"
		c.state(c.send(first), completed)
		m := say(long)
		m.Message.TaskId, m.Message.MessageId = c.send(say("ask")).GetId(), "m"
		if got := output(c.send(m)); got != long {
			c.Errorf("%s: the agent heard %d bytes, want %d", b.name(), len(got), len(long))
		}
	}
}
