package fleet

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"parley/subjects"
)

// maxReplyDepth leaves room for what wraps a message in records and replies.
const maxReplyDepth = MaxDepth + 16

// message is what every type with a Header can do.
type message interface {
	header() *Header
	// check adds every problem of the decoded message and settles its defaults.
	check(p *problems)
}

func (h *Header) header() *Header { return h }

// limits bounds what is decoded.
type limits struct {
	size  int // bytes, 0 = whatever the transport lets through
	depth int
}

var (
	strict  = limits{size: MaxMessage, depth: MaxDepth}
	trusted = limits{depth: maxReplyDepth} // what the fleet's own workers write

	// repeating is for what repeats a message, its text beside its parts, and more.
	repeating = limits{size: 3 * MaxMessage, depth: MaxDepth}
)

// decode reads a message of type typ. Its version is judged before anything
// else, then its type: a message of another version or kind has no further
// problems worth telling.
func decode[T any, M interface {
	*T
	message
}](data []byte, typ string, lim limits,
) (*T, error) {
	if err := lim.check(data); err != nil {
		return nil, err
	}
	v := new(T)
	m := M(v)
	if err := decodeInto(data, typ, v, m.header()); err != nil {
		return nil, err
	}
	var p problems
	m.check(&p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return v, nil
}

// decodeInto reads data into v, of which h is the header.
func decodeInto(data []byte, typ string, v any, h *Header) error {
	err := unmarshal(data, v)
	if err != nil {
		// What was read before the error is in h; what comes after it is not.
		*h = peekHeader(data)
	}
	if bad := h.settle(typ); bad != nil {
		return bad
	}
	return err
}

// unmarshal reads a JSON object; the error is in our words.
func unmarshal(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return refuse(err)
	}
	if data = bytes.TrimLeft(data, " \t\r\n"); data[0] == 'n' {
		return invalid("", "expected object, got null")
	}
	return nil
}

// settle judges version and type and fills in what was absent.
func (h *Header) settle(typ string) error {
	switch {
	case h.ProtocolVersion == "":
		h.ProtocolVersion = Version
	case !spoken(h.ProtocolVersion):
		return subjects.Errorf(subjects.CodeVersionMismatch, "protocol_version %q is not spoken here", clip(h.ProtocolVersion)).
			At("/protocol_version").WithRemedy("send version " + Version + "; every 2.x is accepted")
	}
	switch h.Type {
	case typ:
	case "":
		h.Type = typ
	default:
		return invalid("/type", "expected %q, got %q", typ, clip(h.Type)).
			WithRemedy("send it to the subject of its kind, or leave type out")
	}
	return nil
}

// spoken reports whether v is 2 or 2.x (or 2.x.y).
func spoken(v string) bool {
	if v == Version {
		return true
	}
	major, minor, more := strings.Cut(v, ".")
	if major != "2" {
		return false
	}
	for more {
		var part string
		part, minor, more = strings.Cut(minor, ".")
		if part == "" || len(part) > 9 || strings.Trim(part, "0123456789") != "" {
			return false
		}
	}
	return true
}

// checkText bounds a payload of any form.
func (l limits) checkText(data []byte) error {
	if l.size > 0 && len(data) > l.size {
		return tooLarge(len(data))
	}
	if len(bytes.TrimLeft(data, " \t\r\n")) == 0 {
		return empty()
	}
	return nil
}

// check bounds a payload that is to be JSON.
func (l limits) check(data []byte) error {
	if err := l.checkText(data); err != nil {
		return err
	}
	if deeper(data, l.depth) {
		return invalid("", "nested deeper than %d levels", l.depth)
	}
	return nil
}

func tooLarge(size int) *subjects.Error {
	return subjects.Errorf(subjects.CodePayloadTooLarge, "%d bytes (as JSON); at most %d are allowed", size, MaxMessage).
		WithRemedy("pass large content by reference: a part with a url")
}

func empty() *subjects.Error {
	return invalid("", "the payload is empty").WithRemedy("`echo … | nats pub` without a terminal sends 0 bytes: " +
		"add --force-stdin, or give the payload as an argument")
}

// deeper reports whether data nests deeper than limit. Counting brackets tells
// nearly always; only a message that has many is looked at byte by byte.
func deeper(data []byte, limit int) bool {
	if bytes.Count(data, []byte{'{'})+bytes.Count(data, []byte{'['}) <= limit {
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// peekHeader finds type and version of a message that does not decode, as far
// as it can be read.
func peekHeader(data []byte) (h Header) {
	for name, value := range members(data) {
		if value.Kind() != '"' {
			continue
		}
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			continue
		}
		switch name {
		case "type":
			h.Type = string(text)
		case "protocol_version":
			h.ProtocolVersion = string(text)
		}
	}
	return h
}

// members yields the members of the object in data until it ends or breaks.
func members(data []byte) func(yield func(string, jsontext.Value) bool) {
	return func(yield func(string, jsontext.Value) bool) {
		d := jsontext.NewDecoder(bytes.NewReader(data),
			jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
			return
		}
		for d.PeekKind() == '"' {
			name, err := d.ReadToken()
			if err != nil {
				return
			}
			key := name.String()
			value, err := d.ReadValue()
			if err != nil || !yield(key, value) {
				return
			}
		}
	}
}

// TypeOf returns the type that a message says it has, "" when it says none or
// is not a JSON object.
func TypeOf(data []byte) string {
	for name, value := range members(data) {
		if name == "type" && value.Kind() == '"' {
			if text, err := jsontext.AppendUnquote(nil, value); err == nil {
				return string(text)
			}
		}
	}
	return ""
}

// refuse puts an error of the JSON library into our words.
func refuse(err error) *subjects.Error {
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		pointer := string(syntax.JSONPointer)
		switch {
		case errors.Is(syntax.Err, jsontext.ErrDuplicateName):
			return wrap(invalid(pointer, "the member is there twice").WithRemedy("send every member once"), err)
		case errors.Is(syntax.Err, io.ErrUnexpectedEOF), errors.Is(syntax.Err, io.EOF):
			return wrap(invalid(pointer, "the JSON ends too early, after byte %d", syntax.ByteOffset).
				WithRemedy("send the whole message as one JSON object"), err)
		}
		return wrap(invalid(pointer, "not JSON at byte %d: %w", syntax.ByteOffset, syntax.Err).
			WithRemedy("send one JSON object in UTF-8"), err)
	}
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		return wrap(invalid(string(semantic.JSONPointer), "expected %s, got %s", wanted(semantic), given(semantic)), err)
	}
	return wrap(invalid("", "not a valid message"), err)
}

func wrap(e *subjects.Error, cause error) *subjects.Error { e.Err = cause; return e }

var timeType = reflect.TypeFor[time.Time]()

// wanted names what a Go type is in JSON.
func wanted(e *json.SemanticError) string {
	t := e.GoType
	if t == nil {
		return "another value"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == timeType {
		return "a time (RFC 3339, like 2026-05-31T21:00:00Z)"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Uint, reflect.Uint64:
		return "non-negative integer"
	case reflect.Float64:
		if e.JSONKind == '0' {
			return "number that fits 64 bits"
		}
		return "number"
	case reflect.Slice, reflect.Array:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	default:
		return "another value"
	}
}

// given names what came instead.
func given(e *json.SemanticError) string {
	switch e.JSONKind {
	case '"':
		if len(e.JSONValue) > 0 && e.GoType == timeType {
			return clip(string(e.JSONValue))
		}
		return "string"
	case '0':
		if len(e.JSONValue) > 0 {
			return "number " + clip(string(e.JSONValue))
		}
		return "number"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	case '{', '}':
		return "object"
	case '[', ']':
		return "array"
	default:
		return "something else"
	}
}

// clip bounds text of strangers for a message of ours.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// index appends a list index to a JSON pointer.
func index(pointer string, i int) string { return pointer + "/" + strconv.Itoa(i) }

// member appends a member name to a JSON pointer.
func member(pointer, name string) string {
	return string(jsontext.Pointer(pointer).AppendToken(name))
}
