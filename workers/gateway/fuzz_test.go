package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
)

// door is a gateway whose operations check what they are asked, and do nothing:
// what comes through has been read, and makes a dispatch.
func door(tb testing.TB) *Worker {
	tb.Helper()
	w := &Worker{
		cfg: Config{}.withDefaults(), log: slog.New(slog.DiscardHandler), auth: newAuthenticator(Auth{}), limits: newLimits(0),
		feed: newFeed(slog.New(slog.DiscardHandler)),
	}
	w.work, w.stop = context.WithCancel(tb.Context())
	tb.Cleanup(w.stop)
	w.ready.Store(true)
	check := func(_ context.Context, c *call, req proto.Message) error {
		if r, ok := req.(interface{ GetTenant() string }); ok {
			if _, err := tenantOf(r.GetTenant()); err != nil {
				return err
			}
		}
		switch r := req.(type) {
		case *a2apb.SendMessageRequest:
			if err := w.checkConfiguration(c, r.GetConfiguration()); err != nil {
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
	for _, op := range w.ops {
		if op.unary != nil {
			op.unary = func(ctx context.Context, c *call, req proto.Message) (proto.Message, error) {
				return new(a2apb.Task), check(ctx, c, req)
			}
			continue
		}
		op.stream = func(ctx context.Context, c *call, req proto.Message, send func(frame) error) error {
			if err := check(ctx, c, req); err != nil {
				return err
			}
			return send(frame{id: "1", msg: new(a2apb.StreamResponse)})
		}
	}
	return w
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
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	if path == pathRPC {
		w.guarded(http.HandlerFunc(w.serveRPC)).ServeHTTP(rec, r)
	} else {
		w.guarded(http.HandlerFunc(w.serveREST)).ServeHTTP(rec, r)
	}
	if rec.Code >= 500 {
		tb.Errorf("%s %s %q: %d %s", method, path, body, rec.Code, rec.Body)
	}
	if !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/event-stream") && !json.Valid(rec.Body.Bytes()) {
		tb.Errorf("%s %s %q: %s", method, path, body, rec.Body)
	}
}

const seed = `{"tenant":"t","message":{"messageId":"m","contextId":"c","taskId":"t","role":"ROLE_USER","parts":[{"text":"x"},{"data":{"a":[1]}},{"raw":"AAEC"},{"url":"u"}],` +
	`"metadata":{"` + ContractURI + `":{"priority":"high","deadline":"2030-01-01T00:00:00Z","result_schema":{}}},"extensions":["e"]},"configuration":{"historyLength":1}}`

func FuzzRPC(f *testing.F) {
	for _, op := range []string{opSend, opStream, opGet, opList, opCancel, opSubscribe, opCreatePush, opCard, "nothing"} {
		f.Add(`{"jsonrpc":"2.0","id":1,"method":"` + op + `","params":` + seed + `}`)
	}
	f.Add(`{"jsonrpc":"2.0","id":null,"method":"ListTasks","params":{"pageSize":"7","pageToken":"MSAx","status":2,"statusTimestampAfter":"2026-01-01T00:00:00Z"}}`)
	f.Add(`[]`)
	w := door(f)
	f.Fuzz(func(t *testing.T, body string) { knock(t, w, http.MethodPost, pathRPC, body) })
}

func FuzzREST(f *testing.F) {
	for _, s := range [][3]string{
		{"POST", "/a2a/message:send", seed},
		{"POST", "/a2a/t/message:stream", seed},
		{"GET", "/a2a/tasks?pageSize=3&includeArtifacts=true&status=TASK_STATE_WORKING", ""},
		{"GET", "/a2a/tasks/x?historyLength=1", ""},
		{"POST", "/a2a/t/tasks/x:cancel", `{"metadata":{"a":1}}`},
		{"GET", "/a2a/tasks/x:subscribe", ""},
		{"DELETE", "/a2a/tasks/x/pushNotificationConfigs/1", ""},
		{"GET", "/a2a/extendedAgentCard", ""},
		{"PUT", "/a2a//", ""},
	} {
		f.Add(s[0], s[1], s[2])
	}
	w := door(f)
	f.Fuzz(func(t *testing.T, method, path, body string) { knock(t, w, method, path, body) })
}
