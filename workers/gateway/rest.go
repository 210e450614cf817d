package gateway

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// route is where a REST request goes: an operation, with what its path says.
type route struct {
	op   string
	path map[string]string // fields of the request
	body bool              // the request has one
}

const configs = "pushNotificationConfigs"

// routeREST finds the operation of a request; allow lists the methods that the
// path has, none when there is no such path.
func routeREST(method, path string) (rt route, allow []string) {
	seg := strings.Split(strings.Trim(path, "/"), "/")
	fields := map[string]string{}
	if n := len(seg); n > 1 && !collection(seg[0]) || n > 2 && collection(seg[1]) && seg[1] != configs && seg[0] != "tasks" {
		fields["tenant"] = seg[0]
		seg = seg[1:]
	}
	table := restTable(seg, fields)
	for _, e := range table {
		if e.method == method {
			return route{e.op, fields, e.method == http.MethodPost}, nil
		}
		allow = append(allow, e.method)
	}
	return route{}, allow
}

// collection reports whether a path may begin so without a tenant.
func collection(s string) bool {
	return slices.Contains([]string{"tasks", "message:send", "message:stream", "extendedAgentCard"}, s)
}

type restEntry struct{ method, op string }

// restTable lists what a path can do, and takes the ids out of it.
func restTable(seg []string, fields map[string]string) []restEntry {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	switch {
	case len(seg) == 1:
		switch seg[0] {
		case "message:send":
			return []restEntry{{post, opSend}}
		case "message:stream":
			return []restEntry{{post, opStream}}
		case "extendedAgentCard":
			return []restEntry{{get, opCard}}
		case "tasks":
			return []restEntry{{get, opList}}
		}
	case seg[0] != "tasks" || seg[1] == "":
	case len(seg) == 2:
		id, verb, _ := strings.Cut(seg[1], ":")
		fields["id"] = id
		switch {
		case verb == "" && !strings.Contains(seg[1], ":"):
			return []restEntry{{get, opGet}}
		case verb == "cancel":
			return []restEntry{{post, opCancel}}
		case verb == "subscribe":
			return []restEntry{{get, opSubscribe}, {post, opSubscribe}}
		}
	case len(seg) == 3 && seg[2] == configs:
		fields["taskId"] = seg[1]
		return []restEntry{{post, opCreatePush}, {get, opListPush}}
	case len(seg) == 4 && seg[2] == configs:
		fields["taskId"], fields["id"] = seg[1], seg[3]
		return []restEntry{{get, opGetPush}, {del, opDeletePush}}
	}
	return nil
}

// serveREST serves the HTTP+JSON binding.
func (w *Worker) serveREST(rw http.ResponseWriter, r *http.Request) {
	if agent, ok := rpcPath(r); ok {
		w.serveRPCFor(rw, r, agent)
		return
	}
	if w.serveLegacyPath(rw, r) {
		return
	}
	rt, allow := routeREST(r.Method, strings.TrimPrefix(r.URL.Path, pathRPC+"/"))
	if rt.op == "" {
		f := faultf(kindNoMethod, "there is nothing at this path")
		if len(allow) > 0 {
			rw.Header().Set("Allow", strings.Join(allow, ", "))
			f = faultf(&kind{kindNoMethod.reason, kindNoMethod.rpc, kindNoMethod.grpc, http.StatusMethodNotAllowed}, "this path has the methods "+strings.Join(allow, ", "))
		}
		w.restFault(rw, r, f)
		return
	}
	op := w.ops[rt.op]
	req, err := w.readREST(rw, r, rt, op)
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	c, err := w.admitHTTP(rw, r, false)
	if err != nil {
		w.restFault(rw, r, err)
		return
	}
	if op.stream != nil {
		w.serveStream(rw, r, c, op, req, dialect{
			wrap:   compact,
			refuse: func(err error) { w.restFault(rw, r, err) },
			last:   func(f *fault) []byte { return mustJSON(f.restError(time.Now())) },
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
		w.restFault(rw, r, err)
		return
	}
	writeJSON(rw, http.StatusOK, restType(r), data)
}

// compact is JSON in one line, as an event must be.
func compact(data json.RawMessage) ([]byte, error) { return json.Marshal(data) }

// restType is the media type of an answer: what the client asks for.
func restType(r *http.Request) string {
	for _, accept := range splitList(r.Header.Values("Accept")) {
		if t, _, err := mime.ParseMediaType(accept); err == nil && t == "application/a2a+json" {
			return t
		}
	}
	return "application/json"
}

// readREST puts body, query and path of a request together.
func (w *Worker) readREST(rw http.ResponseWriter, r *http.Request, rt route, op *operation) (proto.Message, error) {
	req := op.request()
	if rt.body && (r.ContentLength != 0 || rt.op == opSend || rt.op == opStream || rt.op == opCreatePush) {
		body, err := readBody(rw, r)
		if err != nil {
			return nil, err
		}
		if !json.Valid(body) && len(body) > 0 {
			return nil, faultf(kindParse, "the body is not JSON")
		}
		if len(body) > 0 {
			if err := decode(body, req); err != nil {
				return nil, err
			}
		}
	}
	fields := map[string]any{}
	known := req.ProtoReflect().Descriptor().Fields()
	for name, values := range r.URL.Query() {
		fd := known.ByJSONName(name)
		if fd == nil {
			fd = known.ByName(protoreflect.Name(name))
		}
		if fd == nil || len(values) == 0 || fd.IsList() || fd.IsMap() {
			continue
		}
		fields[fd.JSONName()] = queryValue(fd, values[0])
	}
	for name, value := range rt.path {
		if name == "tenant" {
			agent, err := tenantOf(value)
			if err == nil {
				err = setTenant(req, agent)
			}
			if err != nil {
				return nil, err
			}
		}
		fields[name] = value
	}
	extra := op.request()
	if err := decode(mustJSON(fields), extra); err != nil {
		return nil, err
	}
	proto.Merge(req, extra)
	return req, nil
}

// queryValue is a value of the query as JSON has it. ProtoJSON reads numbers
// and times from strings, but not true and false.
func queryValue(fd protoreflect.FieldDescriptor, v string) any {
	if fd.Kind() == protoreflect.BoolKind {
		switch v {
		case "true", "1":
			return true
		case "false", "0":
			return false
		}
	}
	return v
}

// restFault answers an error as google.rpc.Status.
func (w *Worker) restFault(rw http.ResponseWriter, r *http.Request, err error) {
	f := w.told(rw, r, err)
	writeJSON(rw, f.kind.http, restType(r), f.restError(time.Now()))
}
