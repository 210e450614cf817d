package conformance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// headers are service parameters.
type headers map[string]string

// with is h and more, "" for none.
func (h headers) with(name, value string) headers {
	h = maps.Clone(h)
	h[name] = value
	return h
}

// v10 is what every request says.
var v10 = headers{"A2A-Version": "1.0"}

// refusal is an error as it came over the wire.
type refusal struct {
	code     int // JSON-RPC code, HTTP status or gRPC code
	http     int
	reason   string
	domain   string
	message  string
	meta     map[string]string
	fields   []string
	headers  http.Header
	httpType string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.code, r.reason, r.message) }

// event is one event of a stream.
type event struct {
	id  string
	msg *a2apb.StreamResponse
}

// stream is an open stream. next returns io.EOF at its end.
type stream struct {
	next    func() (event, error)
	close   func()
	headers http.Header
}

// reply is what came with an answer.
type reply struct{ headers http.Header }

// binding speaks A2A in one way.
type binding interface {
	name() string
	call(t *testing.T, at, op string, h headers, req, res proto.Message) (reply, error)
	open(t *testing.T, at, op string, h headers, req proto.Message) (*stream, error)
}

var bindings = []binding{rpc{}, rest{}, grpcBinding{}, natsBinding{}}

// wireDetails reads the details of JSON-RPC and REST.
func (r *refusal) wireDetails(details []json.RawMessage) {
	for _, d := range details {
		var v struct {
			Type            string `json:"@type"`
			Reason, Domain  string
			Metadata        map[string]string
			FieldViolations []struct{ Field string }
		}
		if json.Unmarshal(d, &v) != nil {
			continue
		}
		switch v.Type {
		case "type.googleapis.com/google.rpc.ErrorInfo":
			r.reason, r.domain, r.meta = v.Reason, v.Domain, v.Metadata
		case "type.googleapis.com/google.rpc.BadRequest":
			for _, f := range v.FieldViolations {
				r.fields = append(r.fields, f.Field)
			}
		}
	}
}

func send(ctx context.Context, method, address string, h headers, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for k, v := range h {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	return httpClient.Do(req)
}

// sse reads the events of a response.
func sse(res *http.Response, cancel func(), read func([]byte) (*a2apb.StreamResponse, error)) *stream {
	lines := bufio.NewReader(res.Body)
	return &stream{
		headers: res.Header,
		close:   func() { cancel(); _ = res.Body.Close() },
		next: func() (event, error) {
			var e event
			for {
				line, err := lines.ReadString('\n')
				if err != nil {
					return e, err
				}
				line = strings.TrimSuffix(line, "\n")
				if id, ok := strings.CutPrefix(line, "id: "); ok {
					e.id = id
				}
				if data, ok := strings.CutPrefix(line, "data: "); ok {
					e.msg, err = read([]byte(data))
					if err != nil {
						return e, err
					}
				}
				if line == "" && e.msg != nil {
					return e, nil
				}
			}
		},
	}
}

// rpc is JSON-RPC.
type rpc struct{}

func (rpc) name() string { return "JSON-RPC" }

type rpcAnswer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int               `json:"code"`
		Message string            `json:"message"`
		Data    []json.RawMessage `json:"data"`
	} `json:"error"`
}

func (a *rpcAnswer) err(res *http.Response) error {
	if a.Error == nil {
		return nil
	}
	r := &refusal{code: a.Error.Code, http: res.StatusCode, message: a.Error.Message, headers: res.Header, httpType: res.Header.Get("Content-Type")}
	r.wireDetails(a.Error.Data)
	return r
}

func rpcBody(t *testing.T, op string, req proto.Message) []byte {
	t.Helper()
	params, err := protojson.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"q1","method":%q,"params":%s}`, op, params)
}

func (rpc) call(t *testing.T, at, op string, h headers, req, into proto.Message) (reply, error) {
	t.Helper()
	res, err := send(t.Context(), http.MethodPost, at+"/a2a", h, "application/json", rpcBody(t, op, req))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var a rpcAnswer
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		t.Fatalf("%s: %d: %v", op, res.StatusCode, err)
	}
	if a.Version != "2.0" || string(a.ID) != `"q1"` && res.StatusCode == http.StatusOK {
		t.Errorf("%s: jsonrpc %q, id %s", op, a.Version, a.ID)
	}
	if err := a.err(res); err != nil {
		return reply{res.Header}, err
	}
	if err := protojson.Unmarshal(a.Result, into); err != nil {
		t.Fatalf("%s: %v in %s", op, err, a.Result)
	}
	return reply{res.Header}, nil
}

func (rpc) open(t *testing.T, at, op string, h headers, req proto.Message) (*stream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	res, err := send(ctx, http.MethodPost, at+"/a2a", h, "application/json", rpcBody(t, op, req))
	if err != nil {
		t.Fatal(err)
	}
	read := func(data []byte) (*a2apb.StreamResponse, error) {
		var a rpcAnswer
		if err := json.Unmarshal(data, &a); err != nil {
			return nil, err
		}
		if err := a.err(res); err != nil {
			return nil, err
		}
		m := new(a2apb.StreamResponse)
		return m, protojson.Unmarshal(a.Result, m)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		defer cancel()
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		if _, err := read(body); err != nil {
			return nil, err
		}
		t.Fatalf("%s: no stream: %s", op, body)
	}
	return sse(res, cancel, read), nil
}

// rest is HTTP+JSON.
type rest struct{}

func (rest) name() string { return "HTTP+JSON" }

// restPath is where an operation is, with what is left for the query or body.
func restPath(op string, req proto.Message) (method, path string, body proto.Message, query url.Values) {
	body, query = nil, url.Values{}
	set := func(name, value string) {
		if value != "" && value != "0" {
			query.Set(name, value)
		}
	}
	tenant := ""
	if r, ok := req.(interface{ GetTenant() string }); ok && r.GetTenant() != "" {
		tenant = "/" + r.GetTenant()
	}
	switch r := req.(type) {
	case *a2apb.SendMessageRequest:
		path, method, body = "/message:send", http.MethodPost, req
		if op == "SendStreamingMessage" {
			path = "/message:stream"
		}
	case *a2apb.GetTaskRequest:
		path, method = "/tasks/"+r.GetId(), http.MethodGet
		if r.HistoryLength != nil {
			query.Set("historyLength", strconv.Itoa(int(r.GetHistoryLength())))
		}
	case *a2apb.ListTasksRequest:
		path, method = "/tasks", http.MethodGet
		set("contextId", r.GetContextId())
		set("pageToken", r.GetPageToken())
		if r.Status != 0 {
			set("status", r.GetStatus().String())
		}
		if r.PageSize != nil {
			query.Set("pageSize", strconv.Itoa(int(r.GetPageSize())))
		}
		if r.HistoryLength != nil {
			query.Set("historyLength", strconv.Itoa(int(r.GetHistoryLength())))
		}
		if r.StatusTimestampAfter != nil {
			set("statusTimestampAfter", r.GetStatusTimestampAfter().AsTime().Format("2006-01-02T15:04:05.000Z07:00"))
		}
		if r.IncludeArtifacts != nil {
			set("includeArtifacts", strconv.FormatBool(r.GetIncludeArtifacts()))
		}
	case *a2apb.CancelTaskRequest:
		path, method, body = "/tasks/"+r.GetId()+":cancel", http.MethodPost, &a2apb.CancelTaskRequest{Metadata: r.GetMetadata()}
	case *a2apb.SubscribeToTaskRequest:
		path, method = "/tasks/"+r.GetId()+":subscribe", http.MethodPost
	case *a2apb.TaskPushNotificationConfig:
		path, method, body = "/tasks/"+r.GetTaskId()+"/pushNotificationConfigs", http.MethodPost, req
	case *a2apb.GetTaskPushNotificationConfigRequest:
		path, method = "/tasks/"+r.GetTaskId()+"/pushNotificationConfigs/"+r.GetId(), http.MethodGet
	case *a2apb.ListTaskPushNotificationConfigsRequest:
		set("pageToken", r.GetPageToken())
		set("pageSize", strconv.Itoa(int(r.GetPageSize())))
		path, method = "/tasks/"+r.GetTaskId()+"/pushNotificationConfigs", http.MethodGet
	case *a2apb.DeleteTaskPushNotificationConfigRequest:
		path, method = "/tasks/"+r.GetTaskId()+"/pushNotificationConfigs/"+r.GetId(), http.MethodDelete
	case *a2apb.GetExtendedAgentCardRequest:
		path, method = "/extendedAgentCard", http.MethodGet
	}
	return method, tenant + path, body, query
}

func restSend(ctx context.Context, t *testing.T, at, op string, h headers, req proto.Message) *http.Response {
	t.Helper()
	method, path, body, query := restPath(op, req)
	var data []byte
	contentType := ""
	if body != nil {
		var err error
		if data, err = protojson.Marshal(body); err != nil {
			t.Fatal(err)
		}
		contentType = "application/a2a+json"
	}
	address := at + "/a2a" + path
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	res, err := send(ctx, method, address, h, contentType, data)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func restError(res *http.Response, body []byte) error {
	var e struct {
		Error *struct {
			Code    int               `json:"code"`
			Status  string            `json:"status"`
			Message string            `json:"message"`
			Details []json.RawMessage `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error == nil {
		return nil
	}
	r := &refusal{code: res.StatusCode, http: res.StatusCode, message: e.Error.Message, headers: res.Header, httpType: res.Header.Get("Content-Type")}
	if e.Error.Code != res.StatusCode && res.StatusCode != http.StatusOK || e.Error.Status == "" {
		r.message = "the body's code or status is wrong: " + string(body)
		r.code = -1
	}
	r.wireDetails(e.Error.Details)
	return r
}

func (rest) call(t *testing.T, at, op string, h headers, req, into proto.Message) (reply, error) {
	t.Helper()
	res := restSend(t.Context(), t, at, op, h, req)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := restError(res, body); err != nil {
		return reply{res.Header}, err
	}
	if err := protojson.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %d: %v in %s", op, res.StatusCode, err, body)
	}
	return reply{res.Header}, nil
}

func (rest) open(t *testing.T, at, op string, h headers, req proto.Message) (*stream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	res := restSend(ctx, t, at, op, h, req)
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		defer cancel()
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		if err := restError(res, body); err != nil {
			return nil, err
		}
		t.Fatalf("%s: %d, no stream: %s", op, res.StatusCode, body)
	}
	return sse(res, cancel, func(data []byte) (*a2apb.StreamResponse, error) {
		if err := restError(res, data); err != nil {
			return nil, err
		}
		m := new(a2apb.StreamResponse)
		return m, protojson.Unmarshal(data, m)
	}), nil
}

// grpcBinding is gRPC.
type grpcBinding struct{}

func (grpcBinding) name() string { return "gRPC" }

func dial(t *testing.T, at string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(at, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func outgoing(ctx context.Context, h headers) context.Context {
	md := metadata.MD{}
	for k, v := range h {
		if v != "" {
			md.Set(k, v)
		}
	}
	return metadata.NewOutgoingContext(ctx, md)
}

func grpcRefusal(err error) error {
	st, ok := status.FromError(err)
	if !ok || errors.Is(err, io.EOF) || st.Code() == codes.Canceled {
		return err
	}
	r := &refusal{code: int(st.Code()), message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.reason, r.domain, r.meta = d.GetReason(), d.GetDomain(), d.GetMetadata()
		case *errdetails.BadRequest:
			for _, f := range d.GetFieldViolations() {
				r.fields = append(r.fields, f.GetField())
			}
		}
	}
	return r
}

func header(md metadata.MD) http.Header {
	h := http.Header{}
	for k, v := range md {
		for _, one := range v {
			h.Add(k, one)
		}
	}
	return h
}

func (grpcBinding) call(t *testing.T, at, op string, h headers, req, into proto.Message) (reply, error) {
	t.Helper()
	if _, ok := into.(*emptypb.Empty); ok {
		into = new(emptypb.Empty)
	}
	var md metadata.MD
	err := dial(t, at).Invoke(outgoing(t.Context(), h), "/lf.a2a.v1.A2AService/"+op, req, into, grpc.Header(&md))
	if err != nil {
		return reply{header(md)}, grpcRefusal(err)
	}
	return reply{header(md)}, nil
}

func (grpcBinding) open(t *testing.T, at, op string, h headers, req proto.Message) (*stream, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(outgoing(t.Context(), h))
	s, err := dial(t, at).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/lf.a2a.v1.A2AService/"+op)
	if err == nil {
		err = s.SendMsg(req)
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil {
		cancel()
		return nil, grpcRefusal(err)
	}
	first := new(a2apb.StreamResponse)
	if err := s.RecvMsg(first); err != nil {
		cancel()
		return nil, grpcRefusal(err)
	}
	md, _ := s.Header()
	return &stream{headers: header(md), close: cancel, next: func() (event, error) {
		if m := first; m != nil {
			first = nil
			return event{msg: m}, nil
		}
		m := new(a2apb.StreamResponse)
		if err := s.RecvMsg(m); err != nil {
			return event{}, grpcRefusal(err)
		}
		return event{msg: m}, nil
	}}, nil
}
