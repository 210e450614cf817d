package handshake

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"parley/subjects"
)

// Bounds of what a message holds.
const (
	maxProblems = 16
	maxSeconds  = 30 * 24 * 3600
	maxNames    = 64
	maxName     = 256 // bytes
	maxWord     = 64  // bytes
	maxPath     = 1024
)

func invalid(pointer, format string, args ...any) *subjects.Error {
	return subjects.Errorf(subjects.CodeInvalidMessage, format, args...).At(pointer)
}

// clip bounds text of strangers for a message of ours.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
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

func (p *problems) agentID(pointer string, id subjects.AgentID) {
	_, err := subjects.ParseAgentID(string(id))
	p.id(pointer, err)
}

func (p *problems) taskID(pointer string, id subjects.TaskID, required bool) {
	if id != "" || required {
		_, err := subjects.ParseTaskID(string(id))
		p.id(pointer, err)
	}
}

func (p *problems) sessionID(id subjects.SessionID) {
	_, err := subjects.ParseSessionID(string(id))
	p.id("/session_id", err)
}

func (p *problems) time(pointer string, t time.Time) {
	if t.IsZero() {
		p.add(invalid(pointer, "expected a time (RFC 3339, like 2025-11-22T12:00:00Z), got nothing"))
	}
}

func (p *problems) seconds(pointer string, v float64) {
	if v < 0 || v > maxSeconds {
		p.add(invalid(pointer, "expected 0 to %d seconds, got %g", maxSeconds, v))
	}
}

func (p *problems) oneOf(pointer, v string, values ...string) {
	if v != "" && !slices.Contains(values, v) {
		p.add(invalid(pointer, "expected one of %s, got %q", strings.Join(values, ", "), clip(v)))
	}
}

// word checks a short text; required says whether it may be empty.
func (p *problems) word(pointer, v string, most int, required bool) {
	if len(v) > most || required && v == "" {
		p.add(invalid(pointer, "expected 1 to %d bytes, got %d", most, len(v)))
	}
}

func (p *problems) names(pointer string, list []string) {
	if len(list) > maxNames {
		p.add(invalid(pointer, "expected at most %d entries, got %d", maxNames, len(list)))
		return
	}
	for i, s := range list {
		p.word(pointer+"/"+strconv.Itoa(i), s, maxName, true)
	}
}

// object checks that raw, if it is there, is an object; null is absent.
func (p *problems) object(pointer string, raw *json.RawMessage) {
	switch s := string(*raw); {
	case s == "":
	case s == "null":
		*raw = nil
	case s[0] != '{':
		p.add(invalid(pointer, "expected object, got %s", clip(s)))
	}
}
