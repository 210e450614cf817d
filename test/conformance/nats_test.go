package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/workers/gateway"
	"parley/workers/gateway/a2anats"
)

// natsBinding is our own binding, A2A over NATS, spoken by hand.
type natsBinding struct{}

func (natsBinding) name() string { return "NATS" }

// natsDoor is where the gateway of an address serves it.
type natsDoor struct {
	bus  *bus.Bus
	root string
}

// natsDoors are the doors by the address of their gateway.
var natsDoors sync.Map

// caller is who a token of the other bindings would prove; here the subject is
// the proof, and the server's permissions keep others from it.
func caller(h headers) subjects.AgentID {
	switch strings.TrimPrefix(h["Authorization"], "Bearer ") {
	case aliceToken:
		return "alice"
	case bobToken:
		return "bob"
	}
	return "a2a"
}

func natsHeader(m *bus.Msg) http.Header {
	h := http.Header{}
	for name, values := range m.Header {
		for _, v := range values {
			h.Add(name, v)
		}
	}
	return h
}

// converse sends a request.
func converse(t *testing.T, at, op string, h headers, req proto.Message) *bus.Conversation {
	t.Helper()
	v, ok := natsDoors.Load(at)
	if !ok {
		t.Fatalf("no NATS binding at %s", at)
	}
	door := v.(natsDoor) //nolint:forcetypeassert // nothing else is stored
	data, err := protojson.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	header := bus.Header{}
	for k, v := range h {
		if v != "" && k != "Authorization" {
			header.Set(k, v)
		}
	}
	c, err := door.bus.Converse(a2anats.Subject(door.root, caller(h), op), data, header)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// frameOf is the next frame beside alive ones, which it confirms.
func frameOf(ctx context.Context, c *bus.Conversation) (bus.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, bustest.Patience)
	defer cancel()
	for {
		m, err := c.Next(ctx)
		if err != nil {
			return m, err
		}
		if m.Header.Get(a2anats.HeaderVersion) != "1.0" {
			return m, fmt.Errorf("a frame of version %q", m.Header.Get(a2anats.HeaderVersion))
		}
		switch m.Header.Get(a2anats.HeaderFrame) {
		case a2anats.FrameAlive:
			if err := m.Respond(nil, nil); err != nil {
				return m, err
			}
		case a2anats.FrameError:
			return m, natsRefusal(&m)
		case a2anats.FrameEnd:
			return m, io.EOF
		default:
			return m, nil
		}
	}
}

func natsRefusal(m *bus.Msg) error {
	var e struct {
		Error struct {
			Code    int               `json:"code"`
			Status  string            `json:"status"`
			Message string            `json:"message"`
			Details []json.RawMessage `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &e); err != nil {
		return fmt.Errorf("%w in %s", err, m.Data)
	}
	r := &refusal{code: e.Error.Code, message: e.Error.Message, headers: natsHeader(m)}
	r.wireDetails(e.Error.Details)
	if m.Header.Get(a2anats.HeaderErrorCode) != strconv.Itoa(r.code) || e.Error.Status == "" || !strings.HasPrefix(m.Header.Get(a2anats.HeaderError), r.reason+": ") {
		r.code, r.message = -1, fmt.Sprintf("headers and body differ: %v, %s", m.Header, m.Data)
	}
	return r
}

func (natsBinding) call(t *testing.T, at, op string, h headers, req, into proto.Message) (reply, error) {
	t.Helper()
	c := converse(t, at, op, h, req)
	defer c.Close()
	m, err := frameOf(t.Context(), c)
	if _, refused := errors.AsType[*refusal](err); err != nil && !refused {
		t.Fatalf("%s: %v", op, err)
	}
	if err != nil {
		return reply{natsHeader(&m)}, err
	}
	if kind := m.Header.Get(a2anats.HeaderFrame); kind != a2anats.FrameResponse {
		t.Fatalf("%s: a frame %q", op, kind)
	}
	if err := protojson.Unmarshal(bytes.TrimSpace(m.Data), into); err != nil {
		t.Fatalf("%s: %v in %s", op, err, m.Data)
	}
	return reply{natsHeader(&m)}, nil
}

func (natsBinding) open(t *testing.T, at, op string, h headers, req proto.Message) (*stream, error) {
	t.Helper()
	c := converse(t, at, op, h, req)
	ctx := t.Context()
	m, err := frameOf(ctx, c)
	if err != nil {
		c.Close()
		return nil, err
	}
	first := &m
	return &stream{headers: natsHeader(&m), close: c.Close, next: func() (event, error) {
		m := first
		if first = nil; m == nil {
			another, err := frameOf(ctx, c)
			if err != nil {
				return event{}, err
			}
			m = &another
		}
		e := event{id: m.Header.Get(a2anats.HeaderEvent), msg: new(a2apb.StreamResponse)}
		return e, protojson.Unmarshal(m.Data, e.msg)
	}}, nil
}

// rawNATS sends bytes to an operation, and gives the first frame that says
// something.
func (c *client) rawNATS(from, op, body string) (bus.Msg, error) {
	c.Helper()
	v, _ := natsDoors.Load(c.at)
	door := v.(natsDoor) //nolint:forcetypeassert // nothing else is stored
	h := bus.Header{}
	for k, v := range c.h {
		h.Set(k, v)
	}
	talk, err := door.bus.Converse(a2anats.Subject(door.root, subjects.AgentID(from), op), []byte(body), h)
	if err != nil {
		c.Fatal(err)
	}
	defer talk.Close()
	return frameOf(c.Context(), talk)
}

func (c *client) rawNATSFails(from, op, body string, f fault) {
	c.Helper()
	_, err := c.rawNATS(from, op, body)
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		c.Fatalf("%s(%s) = %v, want a refusal", op, body, err)
	}
	c.is(r, f)
}

// natsChecks are about our own binding: what section 12 wants of it.
var natsChecks = []check{
	{"12.1", "MUST", "the subject says who calls: tasks of others do not exist", "NATS", func(c *client) {
		m, err := c.rawNATS("carol", "SendMessage", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"echo"}]}}`)
		if err != nil {
			c.Fatal(err)
		}
		var sent struct{ Task struct{ ID string } }
		if err := json.Unmarshal(m.Data, &sent); err != nil || sent.Task.ID == "" {
			c.Fatalf("%v: %s", err, m.Data)
		}
		ask := `{"id":"` + sent.Task.ID + `"}`
		if _, err := c.rawNATS("carol", "GetTask", ask); err != nil {
			c.Error(err)
		}
		c.rawNATSFails("dave", "GetTask", ask, taskNotFound)
		c.rawNATSFails(strings.Repeat("x", 65), "GetTask", ask, noAuth)
	}},
	{"12.2", "MUST", "data is ProtoJSON: camelCase, enumerations by name, UTC, lists that are there", "NATS", func(c *client) {
		m, err := c.rawNATS("a2a", "SendMessage", `{"message":{"message_id":"m","role":1,"parts":[{"text":"echo","new":{}}],"context_id":"nats-snake"},"new":[]}`)
		if err != nil {
			c.Fatal(err)
		}
		for _, want := range []string{`"contextId":`, `"TASK_STATE_COMPLETED"`, `"ROLE_USER"`, `"nats-snake"`} {
			if !bytes.Contains(m.Data, []byte(want)) {
				c.Errorf("%s lacks %s", m.Data, want)
			}
		}
		if !timestamp.Match(m.Data) {
			c.Errorf("no time to the millisecond in %s", m.Data)
		}
		if m, err = c.rawNATS("a2a", "ListTasks", `{"contextId":"none"}`); err != nil || !bytes.Contains(m.Data, []byte(`"tasks":[]`)) || !bytes.Contains(m.Data, []byte(`"nextPageToken":""`)) {
			c.Errorf("%v: %s", err, m.Data)
		}
	}},
	{"12.3", "MUST", "service parameters are headers, of any case", "NATS", func(c *client) {
		c.h = headers{"a2a-version": "1.0"}
		if _, err := c.rawNATS("a2a", "ListTasks", ""); err != nil {
			c.Error(err)
		}
		c.h = headers{}
		c.rawNATSFails("a2a", "ListTasks", "", badVersion)
	}},
	{"12.4", "MUST", "what is no request is refused", "NATS", func(c *client) {
		c.rawNATSFails("a2a", "GetTask", "{", parseError)
		c.rawNATSFails("a2a", "GetTask", "[]", invalidParams)
		c.rawNATSFails("a2a", "Explode", "{}", noMethod)
	}},
	{"12.5", "MUST", "a stream ends with a frame that says so, and every event has its id", "NATS", func(c *client) {
		events := c.rest(c.stream("SendStreamingMessage", say("chunks"))) // io.EOF is the frame
		for _, e := range events {
			if e.id == "" {
				c.Errorf("an event without an id in %v", ids(events))
			}
		}
	}},
	{"12.7", "MUST", "the card over NATS is the card over HTTP", "NATS", func(c *client) {
		m, err := c.rawNATS("a2a", a2anats.CardOperation, `{"tenant":"worker"}`)
		if err != nil || !bytes.Contains(m.Data, []byte(`"echo"`)) || !bytes.Contains(m.Data, []byte(`"name":"worker"`)) {
			c.Errorf("%v: %s", err, m.Data)
		}
		c.rawNATSFails("a2a", a2anats.CardOperation, `{"tenant":"nobody"}`, taskNotFound)
	}},
}

// TestNATSAlive holds calls open: a client that confirms keeps its stream, one
// that does not is let go, and so is one that has gone.
func TestNATSAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address, _ := w.gateway(gateway.Config{KeepAlive: 20 * time.Millisecond, WriteTimeout: 10 * time.Second})
	c := &client{T: t, w: w, b: natsBinding{}, at: address, h: v10}
	id := c.send(now("gate alive")).GetId()
	w.await(t, id, working)
	there := c.stream("SubscribeToTask", &a2apb.SubscribeToTaskRequest{Id: id})
	c.next(there)
	silent := converse(t, address, "SubscribeToTask", v10, &a2apb.SubscribeToTaskRequest{Id: id})
	defer silent.Close()
	blocked := converse(t, address, "SendMessage", v10, say("gate blocked"))
	blocked.Close() // gone: its call ends, its task goes on

	// Alive frames come and are confirmed until the gate opens.
	over := make(chan []event, 1)
	go func() { over <- c.rest(there) }()
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	for alive := false; !alive; { // and is never confirmed
		m, err := silent.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		alive = m.Header.Get(a2anats.HeaderFrame) == a2anats.FrameAlive
	}
	// What is not confirmed is not followed by more: the call has ended.
	quiet, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if m, err := silent.Next(quiet); err == nil {
		t.Errorf("a frame %v after one that was not confirmed", m.Header)
	}
	w.pass("alive")
	w.pass("blocked")
	if got := story(<-over); got != "result. completed" {
		t.Errorf("the stream that was confirmed went on with %s", got)
	}
}

// TestNATSConfirmIsTheCallers: nobody ends the calls of others by saying, at their
// own subject, that nobody listens.
func TestNATSConfirmIsTheCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address, _ := w.gateway(gateway.Config{KeepAlive: 20 * time.Millisecond, WriteTimeout: 30 * time.Second})
	c := &client{T: t, w: w, b: natsBinding{}, at: address, h: v10}
	id := c.send(now("gate confirm")).GetId()
	w.await(t, id, working)
	talk := converse(t, address, "SubscribeToTask", v10, &a2apb.SubscribeToTaskRequest{Id: id})
	defer talk.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	for confirmed := 0; confirmed < 2; {
		m, err := talk.Next(ctx)
		if err != nil {
			t.Fatalf("the stream has ended: %v", err)
		}
		if m.Header.Get(a2anats.HeaderFrame) != a2anats.FrameAlive {
			continue
		}
		mallory := strings.Replace(m.Reply, ".a2a.confirm.", ".mallory.confirm.", 1)
		if err := w.bus.Publish(mallory, nil, bus.Header{"Status": {"503"}}); err != nil || mallory == m.Reply {
			t.Fatal(mallory, err)
		}
		if err := w.bus.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		if err := m.Respond(nil, nil); err != nil {
			t.Fatal(err)
		}
		confirmed++
	}
	w.pass("confirm")
	for {
		_, err := frameOf(ctx, talk)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("the stream has ended: %v", err)
		}
	}
}

// TestNATSFailover drives the SDK's client: its stream goes on when its gateway
// is killed.
func TestNATSFailover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, kill := w.gateway(gateway.Config{NATS: "a2a-both"})
	transport, err := a2anats.New(a2anats.Config{Bus: w.bus, From: "erin", Root: "a2a-both"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bustest.Patience)
	defer cancel()
	req := &a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("gate nats-failover"))}
	var got []string
	for ev, err := range transport.SendStreamingMessage(ctx, nil, req) {
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		switch ev := ev.(type) {
		case *a2a.Task:
			got = append(got, "task")
		case *a2a.TaskStatusUpdateEvent:
			got = append(got, string(ev.Status.State))
			if ev.Status.State == a2a.TaskStateWorking {
				w.gateway(gateway.Config{NATS: "a2a-both"})
				kill()
				w.pass("nats-failover")
			}
		case *a2a.TaskArtifactUpdateEvent:
			got = append(got, "artifact")
		}
	}
	want := []string{"task", "TASK_STATE_WORKING", "artifact", "TASK_STATE_COMPLETED"}
	if !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}
