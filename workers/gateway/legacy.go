package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpcv0 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"github.com/a2aproject/a2a-go/v2/a2apb/v1/pbconv"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/protobuf/proto"

	"parley/subjects"
)

// This file serves clients of version 0.3 through the SDK's compat package: it
// translates, and the operations are the same.

const (
	legacyVersion  = "0.3"
	legacyREST     = "/v1/" // below pathRPC
	legacyPathGRPC = "/a2a.v1.A2AService/"
	legacyCardPath = "/.well-known/agent.json"

	legacyExtensions = "X-A2A-Extensions"
)

// isLegacy reports whether a version, as a request names it, is 0.3. A request
// that names none is.
func isLegacy(v string) bool {
	v = strings.TrimSpace(v)
	return v == "" || v == legacyVersion || strings.HasPrefix(v, legacyVersion+".")
}

// isLegacyRPC reports whether a JSON-RPC request is one of version 0.3: its
// methods have a slash in their names.
func isLegacyRPC(r *http.Request, method string) bool {
	return strings.Contains(method, "/") && isLegacy(pick(r.Header.Get(headerVersion), queryVersion(r)))
}

// legacyPath reads a path of HTTP+JSON of version 0.3, below pathRPC: what it asks
// for, and of which agent, which 0.3 has no other way to say.
func legacyPath(r *http.Request) (agent subjects.AgentID, path string, ok bool) {
	if !isLegacy(pick(r.Header.Get(headerVersion), queryVersion(r))) {
		return "", "", false
	}
	rest := strings.TrimPrefix(r.URL.Path, pathRPC)
	if strings.HasPrefix(rest, legacyREST) {
		return "", rest, true
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	agent, err := subjects.ParseAgentID(name)
	if err != nil || collection(name) {
		return "", "", false
	}
	return agent, "/" + rest, strings.HasPrefix("/"+rest, legacyREST)
}

// serveLegacyPath serves the paths of version 0.3; false if this is none.
func (w *Worker) serveLegacyPath(rw http.ResponseWriter, r *http.Request) bool {
	agent, path, ok := legacyPath(r)
	if !ok || w.cfg.NoLegacy {
		return false
	}
	var body []byte
	if r.Method == http.MethodPost && r.ContentLength != 0 {
		var err error
		if body, err = readBody(rw, r); err != nil {
			w.restFault(rw, r, err)
			return true
		}
	}
	if strings.Contains(path, "/message:") {
		body = withJSONNames(body)
	}
	c, err := w.admitHTTP(rw, r, true)
	if err != nil {
		w.restFault(rw, r, err)
		return true
	}
	w.serveLegacy(rw, r, c, legacyRequest{agent, path, body}, a2av0.NewRESTHandler)
	return true
}

// withJSONNames is a message to send of version 0.3 as the SDK reads one. It knows the
// names of JSON alone, and readers of ProtoJSON must take those of the protocol buffer,
// too, which the official Python client writes. What is no object stays as it is.
func withJSONNames(body []byte) []byte {
	var request map[string]any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&request) != nil || request == nil {
		return body
	}
	if m, there := request["request"]; there && request["message"] == nil {
		request["message"] = m
		delete(request, "request")
	}
	renameMembers(request)
	if m, ok := request["message"].(map[string]any); ok && m["role"] == json.Number("1") {
		m["role"] = "ROLE_USER"
	}
	return mustJSON(request)
}

// renameMembers gives the members of v the names of JSON. What the caller names itself
// stays as it is.
func renameMembers(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			renameMembers(item)
		}
	case map[string]any:
		for _, name := range slices.Collect(maps.Keys(v)) {
			item := v[name]
			if name != "metadata" && name != "data" {
				renameMembers(item)
			}
			if as := camelCase(name); v[as] == nil {
				delete(v, name)
				v[as] = item
			}
		}
	}
}

// camelCase is the name of JSON of a field of a protocol buffer.
func camelCase(name string) string {
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

// serveLegacyRPC serves a JSON-RPC request of version 0.3 that was read.
func (w *Worker) serveLegacyRPC(rw http.ResponseWriter, r *http.Request, agent subjects.AgentID, id json.RawMessage, body []byte) {
	c, err := w.admitHTTP(rw, r, true)
	if err != nil {
		f := w.told(rw, r, err)
		rw.Header()[headerVersion] = []string{legacyVersion}
		writeJSON(rw, f.kind.http, "application/json", json.RawMessage(mendError(mustJSON(rpcFailure{"2.0", id, f.rpcError(time.Now())}))))
		return
	}
	w.serveLegacy(rw, r, c, legacyRequest{agent, "/", body}, a2av0.NewJSONRPCHandler)
}

// legacyRequest is a request of version 0.3, as far as it was read.
type legacyRequest struct {
	agent subjects.AgentID // that it is for; "" the fleet
	path  string           // as the SDK's handlers know it
	body  []byte
}

// legacyHandler makes one of the SDK's handlers of version 0.3.
type legacyHandler func(a2asrv.RequestHandler, ...a2asrv.TransportOption) http.Handler

// serveLegacy serves a request of version 0.3 that was admitted, and whose body, if
// it has one, was read.
func (w *Worker) serveLegacy(rw http.ResponseWriter, r *http.Request, c *call, q legacyRequest, handler legacyHandler) {
	rw.Header()[headerVersion] = []string{legacyVersion}
	ctx, cancel := w.during(r.Context())
	defer cancel()
	r = r.Clone(ctx)
	r.URL.Path, r.URL.RawPath = q.path, ""
	r.Body = io.NopCloser(bytes.NewReader(q.body))
	l := &legacy{w: w, agent: q.agent, admit: func(context.Context) (*call, error) { return c, nil }}
	handler(l, a2asrv.WithTransportKeepAlive(w.cfg.KeepAlive), a2asrv.WithTransportPanicHandler(w.legacyPanic)).ServeHTTP(slowly{w.impatient(rw)}, r)
}

func (w *Worker) legacyPanic(p any) error {
	w.log.Error("answer a request of version 0.3", slog.Any("panic", p))
	return a2a.NewError(a2a.ErrInternalError, "an internal error; the gateway's log has more")
}

// slowly is impatient, and mends what the SDK writes.
type slowly struct{ *impatient }

// Write writes p as it should be.
func (s slowly) Write(p []byte) (int, error) {
	if _, err := s.impatient.Write(mendError(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// mendError makes the details of an error an object, if p is a JSON-RPC response
// with one: the SDK writes the list of version 1.0, which its own client of 0.3
// cannot read.
func mendError(p []byte) []byte {
	prefix, body := []byte(nil), p
	if after, ok := bytes.CutPrefix(p, []byte("data: ")); ok {
		prefix, body = []byte("data: "), after
	}
	if !bytes.Contains(body, []byte(`"error":`)) {
		return p
	}
	var response, failure map[string]json.RawMessage
	if json.Unmarshal(body, &response) != nil || json.Unmarshal(response["error"], &failure) != nil || firstByte(failure["data"]) != '[' {
		return p
	}
	failure["data"] = mustJSON(map[string]json.RawMessage{"details": failure["data"]})
	response["error"] = mustJSON(failure)
	end := body[len(bytes.TrimRight(body, "\n")):]
	return slices.Concat(prefix, mustJSON(response), end)
}

// legacyGRPC serves gRPC of version 0.3.
func (s *rpcServer) legacyGRPC() *grpcv0.Handler {
	return grpcv0.NewHandler(&legacy{w: s.w, admit: func(ctx context.Context) (*call, error) { return s.admitGRPC(ctx, true) }})
}

// legacy is the gateway as the SDK's handlers want it.
type legacy struct {
	w     *Worker
	agent subjects.AgentID // that the request is for; "" the fleet
	admit func(context.Context) (*call, error)
}

var _ a2asrv.RequestHandler = (*legacy)(nil)

// sentinels are the SDK's errors by our kinds, where there is one.
var sentinels = map[*kind]error{
	kindParse: a2a.ErrParseError, kindInvalidRequest: a2a.ErrInvalidRequest, kindNoMethod: a2a.ErrMethodNotFound,
	kindInvalidParams: a2a.ErrInvalidParams, kindTaskNotFound: a2a.ErrTaskNotFound, kindNotCancelable: a2a.ErrTaskNotCancelable,
	kindNoPush: a2a.ErrPushNotificationNotSupported, kindUnsupported: a2a.ErrUnsupportedOperation,
	kindContentType: a2a.ErrUnsupportedContentType, kindVersion: a2a.ErrVersionNotSupported, kindConflict: a2a.ErrInvalidParams,
	kindTooLarge: a2a.ErrInvalidRequest, kindUnauthenticated: a2a.ErrUnauthenticated, kindUnauthorized: a2a.ErrUnauthorized,
	kindRateLimited: a2a.ErrServerError, kindUnavailable: a2a.ErrServerError,
}

// told is an error as the SDK tells it: with exactly one of its own in it.
func (l *legacy) told(err error) error {
	f := asFault(err)
	if f.kind == kindInternal {
		l.w.log.Error("answer a request of version 0.3", slog.Any("error", f.reason()))
	}
	own := sentinels[f.kind]
	if own == nil {
		own = a2a.ErrInternalError
	}
	return a2a.NewError(own, f.message)
}

// through runs an operation of ours for a request of the SDK's.
func through[Q, R proto.Message, S any](
	ctx context.Context, l *legacy, name string, req func() (Q, error), res func(R) (S, error),
) (out S, err error) {
	c, err := l.admit(ctx)
	if err != nil {
		return out, l.told(err)
	}
	q, err := req()
	if err != nil {
		return out, l.told(badField("params", clip(err.Error())))
	}
	if err := setTenant(q, l.agent); err != nil {
		return out, l.told(err)
	}
	ctx, cancel := l.w.during(ctx)
	defer cancel()
	m, err := l.w.ops[name].unary(ctx, c, q)
	if err != nil {
		return out, l.told(err)
	}
	r, _ := m.(R)
	if out, err = res(r); err != nil {
		return out, l.told(err)
	}
	return out, nil
}

// stream runs a streaming operation of ours.
func stream[Q proto.Message](ctx context.Context, l *legacy, name string, req func() (Q, error)) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		c, err := l.admit(ctx)
		if err != nil {
			yield(nil, l.told(err))
			return
		}
		q, err := req()
		if err != nil {
			yield(nil, l.told(badField("params", clip(err.Error()))))
			return
		}
		if err := setTenant(q, l.agent); err != nil {
			yield(nil, l.told(err))
			return
		}
		during, cancel := l.w.during(ctx)
		defer cancel()
		began, gone := false, false
		err = l.w.ops[name].stream(during, c, q, func(f frame) error {
			if f.msg == nil {
				return nil
			}
			e, perr := pbconv.FromProtoStreamResponse(f.msg)
			if perr != nil {
				return perr
			}
			began = true
			if gone = !yield(e, nil); gone {
				return errStop
			}
			return nil
		})
		stopping := errors.Is(err, errDraining) // what has begun is taken up elsewhere
		if err != nil && !gone && (stopping && !began || !stopping && ctx.Err() == nil) {
			yield(nil, l.told(err))
		}
	}
}

func from[Q, P any](convert func(Q) (P, error), q Q) func() (P, error) {
	return func() (P, error) { return convert(q) }
}

// GetTask and those below are the operations.
func (l *legacy) GetTask(ctx context.Context, q *a2a.GetTaskRequest) (*a2a.Task, error) {
	return through(ctx, l, opGet, from(pbconv.ToProtoGetTaskRequest, q), pbconv.FromProtoTask)
}

// ListTasks serves the operation of its name.
func (l *legacy) ListTasks(ctx context.Context, q *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	return through(ctx, l, opList, from(pbconv.ToProtoListTasksRequest, q), pbconv.FromProtoListTasksResponse)
}

// CancelTask serves the operation of its name.
func (l *legacy) CancelTask(ctx context.Context, q *a2a.CancelTaskRequest) (*a2a.Task, error) {
	return through(ctx, l, opCancel, from(pbconv.ToProtoCancelTaskRequest, q), pbconv.FromProtoTask)
}

// SendMessage serves the operation of its name.
func (l *legacy) SendMessage(ctx context.Context, q *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	return through(ctx, l, opSend, from(pbconv.ToProtoSendMessageRequest, q), pbconv.FromProtoSendMessageResponse)
}

// SubscribeToTask serves the operation of its name.
func (l *legacy) SubscribeToTask(ctx context.Context, q *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	return stream(ctx, l, opSubscribe, from(pbconv.ToProtoSubscribeToTaskRequest, q))
}

// SendStreamingMessage serves the operation of its name.
func (l *legacy) SendStreamingMessage(ctx context.Context, q *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	return stream(ctx, l, opStream, from(pbconv.ToProtoSendMessageRequest, q))
}

// GetTaskPushConfig serves the operation of its name.
func (l *legacy) GetTaskPushConfig(ctx context.Context, q *a2a.GetTaskPushConfigRequest) (*a2a.PushConfig, error) {
	return through(ctx, l, opGetPush, from(pbconv.ToProtoGetTaskPushConfigRequest, q), pbconv.FromProtoTaskPushConfig)
}

// ListTaskPushConfigs serves the operation of its name.
func (l *legacy) ListTaskPushConfigs(ctx context.Context, q *a2a.ListTaskPushConfigRequest) (*a2a.ListTaskPushConfigResponse, error) {
	return through(ctx, l, opListPush, from(pbconv.ToProtoListTaskPushConfigRequest, q), pbconv.FromProtoListTaskPushConfigResponse)
}

// CreateTaskPushConfig serves the operation of its name.
func (l *legacy) CreateTaskPushConfig(ctx context.Context, q *a2a.PushConfig) (*a2a.PushConfig, error) {
	return through(ctx, l, opCreatePush, from(pbconv.ToProtoTaskPushConfig, q), pbconv.FromProtoTaskPushConfig)
}

// DeleteTaskPushConfig serves the operation of its name.
func (l *legacy) DeleteTaskPushConfig(ctx context.Context, q *a2a.DeleteTaskPushConfigRequest) error {
	_, err := through(ctx, l, opDeletePush, from(pbconv.ToProtoDeleteTaskPushConfigRequest, q),
		func(proto.Message) (struct{}, error) { return struct{}{}, nil })
	return err
}

// GetExtendedAgentCard serves the operation of its name.
func (l *legacy) GetExtendedAgentCard(ctx context.Context, q *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
	return through(ctx, l, opCard, from(pbconv.ToProtoGetExtendedAgentCardRequest, q), func(card *a2apb.AgentCard) (*a2a.AgentCard, error) {
		card.Signatures = nil // they hold for the card of 1.0
		return pbconv.FromProtoAgentCard(card)
	})
}

// withLegacy adds to a card what clients of version 0.3 read of it. Those of 1.0
// ignore it, as what they do not know.
func withLegacy(ctx context.Context, body []byte, card *a2apb.AgentCard, at base) ([]byte, error) {
	c, err := pbconv.FromProtoAgentCard(card)
	if err != nil {
		return nil, err
	}
	url := at.url + pathRPC
	if len(c.SupportedInterfaces) > 0 && c.SupportedInterfaces[0].Tenant != "" {
		url += "/" + c.SupportedInterfaces[0].Tenant
	}
	c.SupportedInterfaces = []*a2a.AgentInterface{
		{URL: url, ProtocolBinding: a2a.TransportProtocolJSONRPC, ProtocolVersion: a2av0.Version},
		{URL: url, ProtocolBinding: a2a.TransportProtocolHTTPJSON, ProtocolVersion: a2av0.Version},
	}
	if url == at.url+pathRPC {
		c.SupportedInterfaces = append(c.SupportedInterfaces, &a2a.AgentInterface{
			URL: at.host, ProtocolBinding: a2a.TransportProtocolGRPC, ProtocolVersion: a2av0.Version,
		})
	}
	producer, ok := a2av0.NewStaticAgentCardProducer(c).(a2asrv.AgentCardJSONProducer)
	if !ok {
		return nil, errors.New("the SDK's card of version 0.3 is not JSON")
	}
	data, err := producer.CardJSON(ctx)
	if err != nil {
		return nil, err
	}
	var now, old map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(body, &now), json.Unmarshal(data, &old)); err != nil {
		return nil, err
	}
	delete(now, "signatures") // they hold for the card of 1.0
	for _, name := range []string{"url", "protocolVersion", "preferredTransport", "additionalInterfaces", "supportsAuthenticatedExtendedCard"} {
		if v, there := old[name]; there {
			now[name] = v
		}
	}
	if v, there := old["security"]; there { // the SDK writes no scopes as null
		now["security"] = bytes.ReplaceAll(v, []byte("null"), []byte("[]"))
	}
	if len(now["securitySchemes"]) > 0 {
		now["securitySchemes"] = bothSchemes(now["securitySchemes"], old["securitySchemes"])
	}
	return json.Marshal(now)
}

// bothSchemes are security schemes as both versions write them. The SDK does
// that too, but does not call the members of 1.0 as 1.0 does.
func bothSchemes(now, old json.RawMessage) json.RawMessage {
	var all, theirs map[string]map[string]json.RawMessage
	if json.Unmarshal(now, &all) != nil || json.Unmarshal(old, &theirs) != nil {
		return now
	}
	for name, members := range theirs {
		for key, v := range members {
			if all[name] != nil && (firstByte(v) != '{' || key == "flows") {
				all[name][key] = v
			}
		}
	}
	return mustJSON(all)
}
