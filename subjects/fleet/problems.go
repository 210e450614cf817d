package fleet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"parley/subjects"
)

// maxProblems is how many problems of one message are told.
const maxProblems = 16

// maxCount is the largest number that JSON carries exactly everywhere, so
// sums of counts never overflow.
const maxCount = 1<<53 - 1

// Bounds of names and labels in messages.
const (
	maxName   = 256 // bytes
	maxLabels = 32
)

func invalid(pointer, format string, args ...any) *subjects.Error {
	return subjects.Errorf(subjects.CodeInvalidMessage, format, args...).At(pointer)
}

// problems collects what is wrong with one message.
type problems struct {
	first *subjects.Error
	count int
}

func (p *problems) add(e *subjects.Error) {
	if p.count++; p.first == nil {
		p.first = e
	} else if p.count <= maxProblems {
		p.first.Also = append(p.first.Also, e)
	}
}

func (p *problems) invalid(pointer, format string, args ...any) {
	p.add(invalid(pointer, format, args...))
}

// err returns the first problem with the others in its Also.
func (p *problems) err() error {
	if p.first == nil {
		return nil // not a nil *subjects.Error in an error
	}
	return p.first
}

func (p *problems) id(pointer string, err error) {
	if err != nil {
		p.add(subjects.AsError(err).At(pointer))
	}
}

func (p *problems) missing(pointer string) {
	p.invalid(pointer, "expected an identifier, got nothing")
}

func (p *problems) taskID(pointer string, id subjects.TaskID, required bool) {
	switch {
	case id != "":
		if !subjects.ValidToken(string(id)) {
			_, err := subjects.ParseTaskID(string(id))
			p.id(pointer, err)
		}
	case required:
		p.missing(pointer)
	}
}

func (p *problems) agentID(pointer string, id subjects.AgentID, required bool) {
	switch {
	case id != "":
		_, err := subjects.ParseAgentID(string(id))
		p.id(pointer, err)
	case required:
		p.missing(pointer)
	}
}

func (p *problems) instanceID(pointer string, id subjects.InstanceID) {
	_, err := subjects.ParseInstanceID(string(id))
	p.id(pointer, err)
}

func (p *problems) sessionID(pointer string, id subjects.SessionID) {
	if id != "" {
		_, err := subjects.ParseSessionID(string(id))
		p.id(pointer, err)
	}
}

func (p *problems) runID(pointer string, id subjects.RunID) {
	if id != "" {
		_, err := subjects.ParseRunID(string(id))
		p.id(pointer, err)
	}
}

func (p *problems) between(pointer string, v, least, most float64) {
	if v < least || v > most {
		p.invalid(pointer, "expected %s to %s, got %s", number(least), number(most), number(v))
	}
}

func (p *problems) counted(pointer string, v, most int64) {
	if v < 0 || v > most {
		p.invalid(pointer, "expected an integer from 0 to %d, got %d", most, v)
	}
}

func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// oneOf checks an enumeration; empty is absent.
func (p *problems) oneOf(pointer, v string, values ...string) {
	if v != "" && !slices.Contains(values, v) {
		p.invalid(pointer, "expected one of %s, got %q", strings.Join(values, ", "), clip(v))
	}
}

// word checks a free name without spaces; empty is absent.
func (p *problems) word(pointer, v string) {
	if len(v) > subjects.MaxIDLen || !printable(v, '!') {
		p.invalid(pointer, "expected at most %d printable ASCII characters without spaces, got %q", subjects.MaxIDLen, clip(v))
	}
}

// printable reports whether s is ASCII from least (a space, or what follows it)
// to the tilde.
func printable(s string, least byte) bool {
	for i := range len(s) {
		if s[i] < least || s[i] > '~' {
			return false
		}
	}
	return true
}

// names checks a list of names; most is 0 for no bound.
func (p *problems) names(pointer string, list []string, most int) {
	if most > 0 && len(list) > most {
		p.invalid(pointer, "expected at most %d entries, got %d", most, len(list))
		return
	}
	for i, s := range list {
		if s == "" || len(s) > maxName {
			p.invalid(index(pointer, i), "expected 1 to %d bytes, got %d", maxName, len(s))
		}
	}
}

func (p *problems) labels(pointer string, labels map[string]string) {
	if len(labels) > maxLabels {
		p.invalid(pointer, "expected at most %d labels, got %d", maxLabels, len(labels))
		return
	}
	for _, k := range sortedKeys(labels) {
		switch {
		case k == "" || len(k) > maxName:
			p.invalid(pointer, "expected label names of 1 to %d bytes, got %q", maxName, clip(k))
		case len(labels[k]) > maxName:
			p.invalid(member(pointer, k), "expected at most %d bytes, got %d", maxName, len(labels[k]))
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	if len(m) == 0 {
		return nil
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (p *problems) state(s State, terminal bool) {
	switch {
	case s == "":
	case terminal && !s.Terminal():
		p.invalid("/state", "expected done, partial, error, blocked, canceled or expired, got %q", clip(string(s)))
	case !s.Terminal() && s != StateQueued && s != StateWorking && s != StateInputRequired:
		p.invalid("/state", "expected queued, working, input_required, done, partial, error, blocked, canceled or expired, got %q", clip(string(s)))
	}
}

// reason checks a reason that is there.
func (p *problems) reason(pointer string, r *Reason) {
	if r != nil && r.Code == "" {
		p.invalid(pointer+"/code", "expected a code, got nothing")
	}
}

func (p *problems) parts(pointer string, parts []Part) {
	for i := range parts {
		p.part(index(pointer, i), &parts[i])
	}
}

// part checks the rule of A2A: exactly one content. A null counts as absent,
// except that {"data": null} alone is the value null.
func (p *problems) part(pointer string, a *Part) {
	var has [4]string
	n := 0
	note := func(there bool, name string) {
		if there {
			has[n] = name
			n++
		}
	}
	note(a.Text != nil, "text")
	note(a.Data != nil && !null(a.Data), "data")
	note(a.URL != "", "url")
	note(a.Raw != "", "raw")
	switch {
	case n > 1:
		p.invalid(pointer, "expected exactly one of text, data, url, raw, got %s", strings.Join(has[:n], " and "))
	case n == 0 && a.Data == nil:
		p.invalid(pointer, "expected exactly one of text, data, url, raw, got nothing")
	}
	if a.Raw != "" {
		if _, err := base64.StdEncoding.Strict().DecodeString(a.Raw); err != nil || strings.ContainsAny(a.Raw, "\r\n") {
			p.invalid(pointer+"/raw", "expected base64 (standard alphabet, padded)")
		}
	}
}

func null(raw json.RawMessage) bool { return string(raw) == "null" }

// object checks that raw, if it is there, begins as an object; null is absent.
func (p *problems) object(pointer string, raw *json.RawMessage) {
	switch {
	case len(*raw) == 0:
	case null(*raw):
		*raw = nil
	case (*raw)[0] != '{':
		p.invalid(pointer, "expected object, got %s", kindOf(*raw))
	}
}

// kindOf names the kind of raw JSON.
func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return fmt.Sprintf("number %s", clip(string(raw)))
	}
}
