package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"parley/bus"
)

// door is a gateway whose operations check what they are asked, and do nothing:
// what comes through has been read, and makes a dispatch.
func door(tb testing.TB) *Worker {
	tb.Helper()
	w := &Worker{
		cfg: Config{}.withDefaults(), log: slog.New(slog.DiscardHandler), auth: newAuthenticator(Auth{}), limits: newLimits(0),
		feed: newFeed(func(bus.Msg, error) {}),
	}
	w.work, w.stop = context.WithCancel(tb.Context())
	tb.Cleanup(w.stop)
	w.ready.Store(true)
	check := func(ctx context.Context, c *call, req proto.Message) error {
		if r, ok := req.(interface{ GetTenant() string }); ok {
			if _, err := tenantOf(r.GetTenant()); err != nil {
				return err
			}
		}
		switch r := req.(type) {
		case *a2apb.SendMessageRequest:
			if err := w.checkConfiguration(ctx, c, r.GetConfiguration()); err != nil {
				return err
			}
			parts, contract, err := checkMessage(r.GetMessage())
			if err != nil {
				return err
			}
			_, err = newDispatch(c, "", r, parts, contract)
			return err
		case *a2apb.ListTasksRequest:
			_, err := readQuery(c, r)
			return err
		case *a2apb.SubscribeToTaskRequest:
			_, _, _, err := lastEvent(c.lastEventID)
			return err
		}
		return nil
	}
	w.ops = w.operations()
	for name, op := range w.ops {
		if op.unary != nil {
			op.unary = func(ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
				w.cards.of(name) // reached; see TestDoors
				return emptyOf(name), check(ctx, c, req)
			}
			continue
		}
		op.stream = func(ctx context.Context, c *call, req proto.Message, send func(frame) error) error {
			w.cards.of(name)
			if err := check(ctx, c, req); err != nil {
				return err
			}
			return send(frame{id: "1", msg: taskFrame(&picture{task: someTask()}, nil)})
		}
	}
	return w
}

// emptyOf is an empty result of an operation.
func emptyOf(op string) proto.Message {
	switch op {
	case opSend:
		return &a2apb.SendMessageResponse{Payload: &a2apb.SendMessageResponse_Task{Task: someTask()}}
	case opList:
		return &a2apb.ListTasksResponse{Tasks: []*a2apb.Task{someTask()}}
	case opCreatePush, opGetPush:
		return &a2apb.TaskPushNotificationConfig{TaskId: "x", Id: "1", Url: "http://x"}
	case opListPush:
		return new(a2apb.ListTaskPushNotificationConfigsResponse)
	case opDeletePush:
		return new(emptypb.Empty)
	case opCard:
		return &a2apb.AgentCard{
			Name: "n", Description: "d", Version: "1", Capabilities: new(a2apb.AgentCapabilities), DefaultInputModes: []string{"a/b"}, DefaultOutputModes: []string{"a/b"},
			SupportedInterfaces: []*a2apb.AgentInterface{{Url: "http://x", ProtocolBinding: bindingRPC, ProtocolVersion: legacyVersion}},
			Skills:              []*a2apb.AgentSkill{{Id: "s", Name: "s", Description: "s", Tags: []string{"t"}}},
		}
	}
	return someTask()
}

func someTask() *a2apb.Task {
	return &a2apb.Task{Id: "x", ContextId: "y", Status: &a2apb.TaskStatus{State: a2apb.TaskState_TASK_STATE_WORKING}}
}

// TestDoors checks that the seeds of the fuzzers get through the doors, to every
// operation: otherwise they would look at the doors alone.
func TestDoors(t *testing.T) {
	t.Parallel()
	doors := map[string]func(w *Worker){
		"JSON-RPC": func(w *Worker) {
			for _, body := range rpcSeeds() {
				knock(t, w, http.MethodPost, pathRPC, body)
			}
		},
		"REST": func(w *Worker) {
			for _, s := range restSeeds() {
				knock(t, w, s[0], s[1], s[2])
			}
		},
		"0.3": func(w *Worker) {
			for _, s := range legacySeeds() {
				knockLegacy(t, w, s[0], s[1], s[2])
			}
		},
	}
	for name, open := range doors {
		w := door(t)
		open(w)
		for op := range w.ops {
			if _, reached := w.cards.all[sha256.Sum256([]byte(op))]; !reached && (name != "0.3" || op != opList && op != opCard) {
				t.Errorf("%s: no seed reaches %s", name, op)
			}
		}
	}
}

// knock sends a request through a door: no panic, no answer of status 500 or
// more, and whatever is said is JSON or a stream.
func knock(tb testing.TB, w *Worker, method, path, body string) {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, "http://localhost/", strings.NewReader(body))
	if err != nil {
		return
	}
	path, query, _ := strings.Cut(path, "?")
	r.URL.Path, r.URL.RawQuery = path, query
	r.Header.Set(headerVersion, protocolVersion)
	rec := enter(w, r)
	if rec.Code >= 500 {
		tb.Errorf("%s %s %q: %d %s", method, path, body, rec.Code, rec.Body)
	}
	if !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/event-stream") && !json.Valid(rec.Body.Bytes()) {
		tb.Errorf("%s %s %q: %s", method, path, body, rec.Body)
	}
}

// enter sends a request through its door.
func enter(w *Worker, r *http.Request) *httptest.ResponseRecorder {
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	if r.URL.Path == pathRPC {
		w.guarded(http.HandlerFunc(w.serveRPC)).ServeHTTP(rec, r)
	} else {
		w.guarded(http.HandlerFunc(w.serveREST)).ServeHTTP(rec, r)
	}
	return rec
}

// knockLegacy sends a request of version 0.3 through a door: no panic, no answer
// of status 500 or more.
func knockLegacy(tb testing.TB, w *Worker, method, path, body string) {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, "http://localhost/", strings.NewReader(body))
	if err != nil {
		return
	}
	path, r.URL.RawQuery, _ = strings.Cut(path, "?")
	r.URL.Path = path
	if rec := enter(w, r); rec.Code >= 500 {
		tb.Errorf("%s %s %q: %d %s", method, path, body, rec.Code, rec.Body)
	}
}

const seed = `{"tenant":"t","message":{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","parts":[{"text":"x"},{"data":{"a":[1]}},{"raw":"AAEC"},{"url":"u"}],` +
	`"metadata":{"` + ContractURI + `":{"priority":"high","deadline":"2030-01-01T00:00:00Z","result_schema":{}}},"extensions":["e"]},"configuration":{"historyLength":1}}`

func rpcSeeds() []string {
	var out []string
	for _, op := range []string{opSend, opStream, opGet, opCancel, opCreatePush, opGetPush, opListPush, opDeletePush, opCard, "nothing"} {
		out = append(out, `{"jsonrpc":"2.0","id":1,"method":"`+op+`","params":`+seed+`}`)
	}
	return append(
		out, `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"x"}}`, `[]`,
		`{"jsonrpc":"2.0","id":null,"method":"ListTasks","params":{"pageSize":"7","pageToken":"MSAx","status":2,"statusTimestampAfter":"2026-01-01T00:00:00Z"}}`,
	)
}

func restSeeds() [][3]string {
	return [][3]string{
		{"POST", "/a2a/message:send", seed},
		{"POST", "/a2a/t/message:stream", seed},
		{"GET", "/a2a/tasks?pageSize=3&includeArtifacts=true&status=TASK_STATE_WORKING", ""},
		{"GET", "/a2a/tasks/x?historyLength=1", ""},
		{"POST", "/a2a/t/tasks/x:cancel", `{"metadata":{"a":1}}`},
		{"GET", "/a2a/tasks/x:subscribe", ""},
		{"POST", "/a2a/tasks/x/pushNotificationConfigs", `{"url":"http://x"}`},
		{"GET", "/a2a/tasks/x/pushNotificationConfigs", ""},
		{"GET", "/a2a/tasks/x/pushNotificationConfigs/1", ""},
		{"DELETE", "/a2a/tasks/x/pushNotificationConfigs/1", ""},
		{"GET", "/a2a/extendedAgentCard", ""},
		{"PUT", "/a2a//", ""},
	}
}

func legacySeeds() [][3]string {
	var out [][3]string
	const message = `{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"x"},{"kind":"data","data":{"a":[1]}},` +
		`{"kind":"file","file":{"bytes":"AAEC","mimeType":"a/b"}}]},"configuration":{"blocking":true,"historyLength":1}}`
	for _, c := range [][2]string{
		{"message/send", message},
		{"message/stream", message},
		{"tasks/get", `{"id":"x","historyLength":1}`},
		{"tasks/cancel", `{"id":"x"}`},
		{"tasks/resubscribe", `{"id":"x"}`},
		{"tasks/pushNotificationConfig/set", `{"taskId":"x","pushNotificationConfig":{"id":"1","url":"http://x"}}`},
		{"tasks/pushNotificationConfig/get", `{"id":"x","pushNotificationConfigId":"1"}`},
		{"tasks/pushNotificationConfig/list", `{"id":"x"}`},
		{"tasks/pushNotificationConfig/delete", `{"id":"x","pushNotificationConfigId":"1"}`},
		{"agent/getAuthenticatedExtendedCard", `null`},
		{"message/send", `{"message":null}`},
	} {
		out = append(out, [3]string{"POST", "/a2a", `{"jsonrpc":"2.0","id":1,"method":"` + c[0] + `","params":` + c[1] + `}`})
	}
	const rest = `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"x"}]},"configuration":{"blocking":true}}`
	return append(
		out, [3]string{"POST", "/a2a/v1/message:send", rest}, [3]string{"POST", "/a2a/t/v1/message:stream", rest},
		[3]string{"GET", "/a2a/v1/tasks/x?historyLength=1", ""}, [3]string{"POST", "/a2a/v1/tasks/x:cancel", "{}"},
		[3]string{"POST", "/a2a/t", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"x"}}`}, [3]string{"GET", "/a2a/v1/card", ""},
	)
}

func FuzzRPC(f *testing.F) {
	for _, body := range rpcSeeds() {
		f.Add(body)
	}
	w := door(f)
	f.Fuzz(func(t *testing.T, body string) { knock(t, w, http.MethodPost, pathRPC, body) })
}

func FuzzREST(f *testing.F) {
	for _, s := range restSeeds() {
		f.Add(s[0], s[1], s[2])
	}
	w := door(f)
	f.Fuzz(func(t *testing.T, method, path, body string) { knock(t, w, method, path, body) })
}

func FuzzLegacy(f *testing.F) {
	for _, s := range legacySeeds() {
		f.Add(s[0], s[1], s[2])
	}
	w := door(f)
	f.Fuzz(func(t *testing.T, method, path, body string) { knockLegacy(t, w, method, path, body) })
}
