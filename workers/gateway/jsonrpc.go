package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	gojson "github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"parley/subjects"
)

// rpcRequest is a JSON-RPC 2.0 request.
type rpcRequest struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

// rpcResult is a JSON-RPC 2.0 response.
type rpcResult struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
}

type rpcFailure struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   any             `json:"error"`
}

var nullID = json.RawMessage("null")

// readRPC reads a request; its id is known even where it is refused, if it is
// there.
func readRPC(body []byte) (*rpcRequest, error) {
	q := &rpcRequest{}
	if !json.Valid(body) {
		q.ID = nullID
		return q, faultf(kindParse, "the body is not JSON")
	}
	err := gojson.Unmarshal(body, q)
	switch first := firstByte(q.ID); {
	case first == '"', first == '-', first >= '0' && first <= '9':
	case first == 'n' && err == nil:
	default:
		q.ID = nullID
		if err == nil {
			return q, faultf(kindInvalidRequest, "id must be a string, a number or null")
		}
	}
	switch {
	case err != nil:
		return q, &fault{kind: kindInvalidRequest, message: "the body is not one JSON-RPC request", cause: err}
	case q.Version != "2.0":
		return q, faultf(kindInvalidRequest, `jsonrpc must be "2.0"`)
	case q.Method == "":
		return q, faultf(kindInvalidRequest, "method is missing")
	}
	return q, nil
}

func firstByte(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// serveRPC serves the JSON-RPC binding for the fleet.
func (w *Worker) serveRPC(rw http.ResponseWriter, r *http.Request) { w.serveRPCFor(rw, r, "") }

// rpcPath reads a path below pathRPC at which JSON-RPC is served: the fleet's with
// a slash behind it, as some clients write it, or that of one agent.
func rpcPath(r *http.Request) (agent subjects.AgentID, ok bool) {
	name := strings.TrimPrefix(r.URL.Path, pathRPC+"/")
	if name == "" {
		return "", true
	}
	name = strings.TrimSuffix(name, "/")
	agent, err := subjects.ParseAgentID(name)
	return agent, err == nil && r.Method == http.MethodPost && !collection(name)
}

// serveRPCFor serves the JSON-RPC binding for one agent, or for the fleet if agent
// is "".
func (w *Worker) serveRPCFor(rw http.ResponseWriter, r *http.Request, agent subjects.AgentID) {
	if r.Method != http.MethodPost {
		rw.Header().Set("Allow", http.MethodPost)
		w.rpcFault(rw, r, nullID, http.StatusMethodNotAllowed, faultf(kindInvalidRequest, "JSON-RPC is spoken by POST"))
		return
	}
	body, err := readBody(rw, r)
	if err != nil {
		w.rpcFault(rw, r, nullID, 0, err)
		return
	}
	q, err := readRPC(body)
	if err != nil {
		w.rpcFault(rw, r, q.ID, 0, err)
		return
	}
	if !w.cfg.NoLegacy && isLegacyRPC(r, q.Method) {
		w.serveLegacyRPC(rw, r, agent, q.ID, body)
		return
	}
	c, err := w.admitHTTP(rw, r, false)
	if err != nil {
		w.rpcFault(rw, r, q.ID, 0, err)
		return
	}
	op := w.ops[q.Method]
	if op == nil {
		w.rpcFault(rw, r, q.ID, 0, faultf(kindNoMethod, "there is no method "+clip(q.Method)))
		return
	}
	req, err := rpcParams(op, q.Params)
	if err == nil {
		err = setTenant(req, agent)
	}
	if err != nil {
		w.rpcFault(rw, r, q.ID, 0, err)
		return
	}
	if op.stream != nil {
		w.serveStream(rw, r, c, op, req, dialect{
			wrap:   func(result json.RawMessage) ([]byte, error) { return json.Marshal(rpcResult{"2.0", q.ID, result}) },
			refuse: func(err error) { w.rpcFault(rw, r, q.ID, 0, err) },
			last:   func(f *fault) []byte { return mustJSON(rpcFailure{"2.0", q.ID, f.rpcError(time.Now())}) },
		})
		return
	}
	ctx, cancel := w.during(r.Context())
	defer cancel()
	res, err := op.unary(ctx, c, req)
	var data json.RawMessage
	if err == nil {
		data, err = encode(res)
	}
	if err != nil {
		w.rpcFault(rw, r, q.ID, 0, err)
		return
	}
	writeJSON(rw, http.StatusOK, "application/json", rpcResult{"2.0", q.ID, data})
}

// rpcParams reads the params of a method; none are the empty request.
func rpcParams(op *operation, params json.RawMessage) (proto.Message, error) {
	req := op.request()
	switch firstByte(params) {
	case 0, 'n':
		return req, nil
	case '{':
		return req, decode(params, req)
	}
	return nil, faultf(kindInvalidParams, "params must be an object")
}

// setTenant sets the tenant of a request whose path names it; the request itself
// must not name another one.
func setTenant(req proto.Message, agent subjects.AgentID) error {
	m := req.ProtoReflect()
	fd := m.Descriptor().Fields().ByName("tenant")
	if fd == nil || agent == "" {
		return nil
	}
	if own := m.Get(fd).String(); own != "" && own != string(agent) {
		return badField("tenant", "the path names another one")
	}
	m.Set(fd, protoreflect.ValueOfString(string(agent)))
	return nil
}

// rpcFault answers an error. Those of the protocol travel in a response of
// status 200; those that the transport must know have their own.
func (w *Worker) rpcFault(rw http.ResponseWriter, r *http.Request, id json.RawMessage, code int, err error) {
	f := w.told(rw, r, err)
	if code == 0 {
		switch code = f.kind.http; f.kind {
		case kindUnauthenticated, kindUnauthorized, kindRateLimited, kindUnavailable, kindTooLarge:
		default:
			code = http.StatusOK
		}
	}
	writeJSON(rw, code, "application/json", rpcFailure{"2.0", id, f.rpcError(time.Now())})
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"error":{"code":-32603,"message":"an internal error"}}`)
	}
	return data
}
