package conformance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"parley/subjects"
	"parley/workers/gateway"
)

var update = flag.Bool("update", false, "rewrite the generated reference")

// check is one rule of the specification.
type check struct {
	section string // of the specification
	level   string // MUST or SHOULD
	rule    string
	only    string // bindings that it is about; "" is all
	run     func(c *client)
}

func (k check) about(b binding) bool { return k.only == "" || strings.Contains(k.only, b.name()) }

// client is a check at work in one binding.
type client struct {
	*testing.T
	w  *world
	b  binding
	at string
	h  headers
}

func all() []check {
	return slices.Concat(operationChecks, streamChecks, pushChecks, errorChecks, wireChecks, cardChecks, natsChecks)
}

// TestConformance runs every check over every binding.
func TestConformance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, k := range all() {
		for _, b := range bindings {
			if !k.about(b) {
				continue
			}
			t.Run(fmt.Sprintf("%s %s %s/%s", k.section, k.level, k.rule, b.name()), func(t *testing.T) {
				t.Parallel()
				k.run(&client{T: t, w: w, b: b, at: w.open, h: v10})
			})
		}
	}
}

// TestRefusedFrom: who does not say who they are is told of with their address,
// over every binding of the port.
func TestRefusedFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from := make(chan string, 1)
	at, _ := w.gateway(gateway.Config{Auth: gateway.Auth{
		Tokens:  map[string]subjects.AgentID{aliceToken: "alice"},
		Refused: func(_ context.Context, address, _ string) { from <- address },
	}})
	for _, b := range bindings {
		if !strings.Contains(askedBindings, b.name()) {
			continue
		}
		c := &client{T: t, w: w, b: b, at: at, h: v10}
		c.is(c.fails("GetTask", &a2apb.GetTaskRequest{Id: "x"}), noAuth)
		if address := <-from; !strings.HasPrefix(address, "127.0.0.1:") {
			t.Errorf("over %s: from %q", b.name(), address)
		}
	}
}

// TestReference holds the table of checks against its page.
func TestReference(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	s.WriteString("# A2A conformance\n\n<!-- Generated from test/conformance by `go generate ./test/conformance`. Do not edit. -->\n\n")
	s.WriteString("The gateway is held against the [A2A 1.0 specification](https://a2a-protocol.org/v1.0.0/specification) by these checks, each through the\n" +
		"whole path: client, gateway, router, agent, on a real NATS server. All of them pass, or `make test` fails. Numbers are sections\n" +
		"of the specification. A dash says that the rule is about another binding.\n\n")
	s.WriteString("| Section | Level | Rule | JSON-RPC | HTTP+JSON | gRPC | [NATS](a2a-over-nats.md) |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, k := range all() {
		fmt.Fprintf(&s, "| %s | %s | %s |", k.section, k.level, k.rule)
		for _, b := range bindings {
			s.WriteString(map[bool]string{true: " pass |", false: " – |"}[k.about(b)])
		}
		s.WriteByte('\n')
	}
	const path = "../../docs/reference/a2a-conformance.md"
	if *update {
		if err := os.WriteFile(path, []byte(s.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.String(), string(got)); diff != "" {
		t.Errorf("%s differs; run go generate ./test/conformance (-want +got):\n%s", path, diff)
	}
}

// text is a message of one text part.
func text(s string) *a2apb.Message {
	return &a2apb.Message{MessageId: "m-" + s, Role: a2apb.Role_ROLE_USER, Parts: []*a2apb.Part{{Content: &a2apb.Part_Text{Text: s}}}}
}

func say(s string) *a2apb.SendMessageRequest { return &a2apb.SendMessageRequest{Message: text(s)} }

// now asks for an answer at once.
func now(s string) *a2apb.SendMessageRequest {
	r := say(s)
	r.Configuration = &a2apb.SendMessageConfiguration{ReturnImmediately: true}
	return r
}

// call must succeed.
func (c *client) call(op string, req, res proto.Message) reply {
	c.Helper()
	r, err := c.b.call(c.T, c.at, op, c.h, req, res)
	if err != nil {
		c.Fatalf("%s: %v", op, err)
	}
	return r
}

// send must give a task.
func (c *client) send(req *a2apb.SendMessageRequest) *a2apb.Task {
	c.Helper()
	res := new(a2apb.SendMessageResponse)
	c.call("SendMessage", req, res)
	if res.GetTask() == nil {
		c.Fatalf("SendMessage gave %v, want a task", res)
	}
	return res.GetTask()
}

func (c *client) get(id string) *a2apb.Task {
	c.Helper()
	t := new(a2apb.Task)
	c.call("GetTask", &a2apb.GetTaskRequest{Id: id}, t)
	return t
}

// fails must be refused.
func (c *client) fails(op string, req proto.Message) *refusal {
	c.Helper()
	var err error
	if op == "SendStreamingMessage" || op == "SubscribeToTask" {
		var s *stream
		if s, err = c.b.open(c.T, c.at, op, c.h, req); s != nil {
			s.close()
		}
	} else {
		_, err = c.b.call(c.T, c.at, op, c.h, req, answerOf(op))
	}
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		c.Fatalf("%s(%v) = %v, want a refusal", op, req, err)
	}
	return r
}

// answerOf is what an operation answers with.
func answerOf(op string) proto.Message {
	switch op {
	case "SendMessage":
		return new(a2apb.SendMessageResponse)
	case "ListTasks":
		return new(a2apb.ListTasksResponse)
	case "GetExtendedAgentCard":
		return new(a2apb.AgentCard)
	case "ListTaskPushNotificationConfigs":
		return new(a2apb.ListTaskPushNotificationConfigsResponse)
	case "DeleteTaskPushNotificationConfig":
		return new(emptypb.Empty)
	case "CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig":
		return new(a2apb.TaskPushNotificationConfig)
	}
	return new(a2apb.Task)
}

// fault is a row of the table of errors (5.4).
type fault struct {
	reason string
	rpc    int
	http   int
	grpc   codes.Code
}

var (
	taskNotFound   = fault{"TASK_NOT_FOUND", -32001, 404, codes.NotFound}
	notCancelable  = fault{"TASK_NOT_CANCELABLE", -32002, 400, codes.FailedPrecondition}
	noPush         = fault{"PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, codes.FailedPrecondition}
	unsupported    = fault{"UNSUPPORTED_OPERATION", -32004, 400, codes.FailedPrecondition}
	badContentType = fault{"CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, codes.InvalidArgument}
	needsExtension = fault{"EXTENSION_SUPPORT_REQUIRED", -32008, 400, codes.FailedPrecondition}
	badVersion     = fault{"VERSION_NOT_SUPPORTED", -32009, 400, codes.FailedPrecondition}
	invalidParams  = fault{"INVALID_PARAMS", -32602, 400, codes.InvalidArgument}
	parseError     = fault{"PARSE_ERROR", -32700, 400, codes.InvalidArgument}
	invalidRequest = fault{"INVALID_REQUEST", -32600, 400, codes.InvalidArgument}
	noMethod       = fault{"METHOD_NOT_FOUND", -32601, 404, codes.Unimplemented}
	conflict       = fault{"IDEMPOTENCY_CONFLICT", -32602, 409, codes.Aborted}
	noAuth         = fault{"UNAUTHENTICATED", -31401, 401, codes.Unauthenticated}
	tooLarge       = fault{"PAYLOAD_TOO_LARGE", -32600, 413, codes.ResourceExhausted}
)

// is holds a refusal against the table.
func (c *client) is(r *refusal, f fault) {
	c.Helper()
	want := map[string]int{"JSON-RPC": f.rpc, "HTTP+JSON": f.http, "gRPC": int(f.grpc), "NATS": f.http}[c.b.name()]
	if r.code != want || r.reason != f.reason || r.domain != "a2a-protocol.org" || r.message == "" {
		c.Errorf("refused with %d %s of %q (%s), want %d %s", r.code, r.reason, r.domain, r.message, want, f.reason)
	}
}

// stream opens a stream, which the test ends.
func (c *client) stream(op string, req proto.Message) *stream {
	c.Helper()
	s, err := c.b.open(c.T, c.at, op, c.h, req)
	if err != nil {
		c.Fatalf("%s: %v", op, err)
	}
	c.Cleanup(s.close)
	return s
}

func (c *client) next(s *stream) event {
	c.Helper()
	e, err := s.next()
	if err != nil {
		c.Fatalf("the stream ended: %v", err)
	}
	return e
}

// rest reads a stream to its end.
func (c *client) rest(s *stream) []event {
	c.Helper()
	var out []event
	for {
		e, err := s.next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			c.Fatalf("the stream broke: %v", err)
		}
		out = append(out, e)
	}
}

// story is a stream in words.
func story(events []event) string {
	var words []string
	for _, e := range events {
		switch p := e.msg.GetPayload().(type) {
		case *a2apb.StreamResponse_Task:
			words = append(words, "task:"+short(p.Task.GetStatus().GetState()))
		case *a2apb.StreamResponse_StatusUpdate:
			words = append(words, short(p.StatusUpdate.GetStatus().GetState()))
		case *a2apb.StreamResponse_ArtifactUpdate:
			w := p.ArtifactUpdate.GetArtifact().GetName()
			if p.ArtifactUpdate.GetAppend() {
				w = "+" + w
			}
			if p.ArtifactUpdate.GetLastChunk() {
				w += "."
			}
			words = append(words, w)
		case *a2apb.StreamResponse_Message:
			words = append(words, "message")
		}
	}
	return strings.Join(words, " ")
}

func short(s a2apb.TaskState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "TASK_STATE_"))
}

// output is the text of the result of a task.
func output(t *a2apb.Task) string {
	for _, a := range t.GetArtifacts() {
		if a.GetName() == "result" && len(a.GetParts()) > 0 {
			return a.GetParts()[0].GetText()
		}
	}
	return ""
}

func (c *client) state(t *a2apb.Task, want a2apb.TaskState) {
	c.Helper()
	if got := t.GetStatus().GetState(); got != want {
		c.Errorf("task is %s, want %s: %v", got, want, t.GetStatus().GetMessage())
	}
}
