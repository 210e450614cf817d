package a2e

import (
	"embed"
	"slices"
	"strconv"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas returns the names of the messages that have a JSON Schema.
func Schemas() []string {
	return []string{"a2e-handshake-req", "a2e-handshake-resp", "a2e-call-req", "a2e-call-resp"}
}

// Schema returns the JSON Schema (2020-12) of a message; what fleet.Schema
// says of leniency holds here too.
func Schema(name string) ([]byte, error) {
	return subjects.ReadSchema(schemaFiles, Schemas(), name)
}

// Bounds of members.
const (
	maxID    = 128  // bytes of a message id
	maxToken = 4096 // bytes of an auth_token
	maxTS    = 1e11 // seconds
)

// DecodeRequest reads a handshake/req.
func DecodeRequest(data []byte) (*Request, error) { return decode[Request](data, TypeRequest) }

// DecodeResponse reads a handshake/resp.
func DecodeResponse(data []byte) (*Response, error) { return decode[Response](data, TypeResponse) }

// DecodeCall reads a call/req.
func DecodeCall(data []byte) (*Call, error) { return decode[Call](data, TypeCall) }

// DecodeReply reads a call/resp, which may hold what is longer than a message.
func DecodeReply(data []byte) (*Reply, error) {
	r, err := fleet.DecodeStored[Reply](data)
	if err != nil {
		return nil, err
	}
	if err := r.judge(TypeReply); err != nil {
		return nil, err
	}
	if r.ID == "" || len(r.ID) > maxID || r.TS <= 0 || r.TS > maxTS {
		return nil, subjects.Errorf(subjects.CodeInvalidMessage, "expected an id of 1 to %d bytes, and the time as ts", maxID).At("/id")
	}
	return r, nil
}

// ReadHeader reads what identifies a message, as far as that can be had: an
// answer refers to it even if the rest is wrong.
func ReadHeader(data []byte) Header {
	h, err := fleet.DecodeRequest[Header](data)
	if err != nil || len(h.ID) > maxID {
		return Header{}
	}
	return h
}

// decode judges version and type before anything else.
func decode[T any](data []byte, typ string) (*T, error) {
	h, err := fleet.DecodeRequest[Header](data)
	if err != nil {
		return nil, err
	}
	if err := h.judge(typ); err != nil {
		return nil, err
	}
	v, err := fleet.DecodeRequest[T](data)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// judge refuses another version or type.
func (h *Header) judge(typ string) error {
	if !spoken(h.A2E) {
		return subjects.Errorf(subjects.CodeVersionMismatch, "a2e %q is not spoken here", clip(h.A2E)).
			At("/a2e").WithRemedy("send version " + Version + "; every 1.x is accepted")
	}
	if h.Type != typ {
		return subjects.Errorf(subjects.CodeInvalidMessage, "expected %q, got %q", typ, clip(h.Type)).At("/type")
	}
	return nil
}

// spoken reports whether v is 1.x.
func spoken(v string) bool {
	minor, ok := strings.CutPrefix(v, "1.")
	return ok && minor != "" && len(minor) <= 9 && strings.Trim(minor, "0123456789") == ""
}

func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func (h *Header) check(p *fleet.Problems) {
	word(p, "/id", h.ID, maxID)
	if h.TS <= 0 || h.TS > maxTS {
		p.Invalid("/ts", "expected the time in seconds since 1970, got %g", h.TS)
	}
}

// word checks that s is there and not long.
func word(p *fleet.Problems, pointer, s string, most int) {
	if s == "" || len(s) > most {
		p.Invalid(pointer, "expected 1 to %d bytes, got %d", most, len(s))
	}
}

// Check adds every problem of r.
func (r *Request) Check(p *fleet.Problems) {
	r.check(p)
	if _, err := subjects.ParseAgentID(string(r.AgentID)); err != nil {
		p.Add(subjects.AsError(err).At("/agent_id"))
	}
	if len(r.AuthToken) > maxToken {
		p.Invalid("/auth_token", "expected at most %d bytes, got %d", maxToken, len(r.AuthToken))
	}
	for i, c := range r.AgentCaps {
		at := "/agent_caps/" + strconv.Itoa(i)
		capability(p, at, c)
		if slices.Contains(r.AgentCaps[:i], c) {
			p.Invalid(at, "%q is there twice", clip(string(c)))
		}
		if i >= len(Capabilities()) {
			break // one is there twice, or none
		}
	}
}

func capability(p *fleet.Problems, at string, c Capability) {
	if !slices.Contains(Capabilities(), c) {
		p.Invalid(at, "expected one of %s, got %q", join(Capabilities()), clip(string(c)))
	}
}

func join[S ~string](list []S) string {
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

// Check adds every problem of r, and settles the default of max_parallel.
func (r *Response) Check(p *fleet.Problems) {
	r.check(p)
	if !r.OK { // what could not be read has no id to refer to
		if r.Reason != ReasonAuth && r.Reason != ReasonVersion && r.Reason != ReasonNoCaps && r.Reason != ReasonServer {
			p.Invalid("/reason", "expected %s, %s, %s or %s, got %q", ReasonAuth, ReasonVersion, ReasonNoCaps, ReasonServer, clip(r.Reason))
		}
		return
	}
	word(p, "/req_id", r.ReqID, maxID)
	if !subjects.ValidToken(r.SessionID) {
		p.Add(subjects.Errorf(subjects.CodeInvalidID, "session_id %q is not an identifier", clip(r.SessionID)).At("/session_id"))
	}
	for i := range r.AcceptedCaps {
		capability(p, "/accepted_caps/"+strconv.Itoa(i)+"/capability", r.AcceptedCaps[i].Capability)
	}
	if r.MaxParallel == 0 {
		r.MaxParallel = DefaultMaxParallel
	}
	p.Between("/max_parallel", float64(r.MaxParallel), 1, 1e6)
}

// Check adds every problem of c.
func (c *Call) Check(p *fleet.Problems) {
	c.check(p)
	if c.SessionID != "" {
		if _, err := subjects.ParseSessionID(c.SessionID); err != nil {
			p.Add(subjects.AsError(err).At("/session_id"))
		}
	}
	if !slices.Contains(Verbs(), c.Call) {
		p.Invalid("/call", "expected one of %s, got %q", join(Verbs()), clip(string(c.Call)))
	}
	switch s := string(c.Params); {
	case s == "", s == "null":
		c.Params = nil
	case s[0] != '{':
		p.Invalid("/params", "expected object, got %s", clip(s))
	}
	if c.WaitSeconds != nil {
		p.Between("/wait_seconds", *c.WaitSeconds, 0, MaxWait)
	}
}

// Refusal answers a request that is not granted: the reason is the one of the
// four that err's code stands for.
func Refusal(h Header, req string, err error) *Response {
	e := subjects.AsError(err)
	r := &Response{Header: h, ReqID: req, AcceptedCaps: []Accepted{}, Error: e, Reason: ReasonServer}
	switch e.Code {
	case subjects.CodeAuthFailed, subjects.CodeForbidden, subjects.CodeHostNotAllowed:
		r.Reason = ReasonAuth
	case subjects.CodeVersionMismatch:
		r.Reason = ReasonVersion
	case subjects.CodeNoCapableAgent:
		r.Reason = ReasonNoCaps
	}
	return r
}
