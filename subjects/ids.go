package subjects

import (
	"encoding/hex"
	"strings"
	"time"
)

// MaxIDLen is the longest identifier, in bytes.
const MaxIDLen = 64

// AgentID names an agent: something that does tasks. One NATS token.
type AgentID string

// InstanceID names one running process of an agent. One NATS token.
type InstanceID string

// TaskID names a task: one dispatch until its one outcome. One NATS token.
type TaskID string

// SessionID names a session. It is exactly a2a-<YYYYMMDDTHHMMSSZ>-<8..32 hex>.
type SessionID string

// RunID names a run: tasks tied by dependencies. One NATS token.
type RunID string

// DefaultInstance is the instance of an agent that does not name one.
const DefaultInstance InstanceID = "main"

// reservedAgents are tokens that workers use where agents have their id.
var reservedAgents = [...]string{"router", "registry"}

// ValidToken reports whether s is one identifier: [A-Za-z0-9_-]{1,64}.
func ValidToken(s string) bool {
	if s == "" || len(s) > MaxIDLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

func parseToken(kind, s string) (string, error) {
	if !ValidToken(s) {
		return "", Errorf(CodeInvalidID, "%s %q is not an identifier", kind, clip(s, 80)).
			WithRemedy("use 1 to 64 of the characters A-Z a-z 0-9 _ -")
	}
	return s, nil
}

// ParseAgentID checks s and returns it as an AgentID; the error is an *Error
// with CodeInvalidID. The names that workers use for themselves are refused.
func ParseAgentID(s string) (AgentID, error) {
	for _, r := range reservedAgents {
		if s == r {
			return "", Errorf(CodeInvalidID, "agent_id %q is reserved for the fleet's own workers", s).
				WithRemedy("choose another agent_id")
		}
	}
	t, err := parseToken("agent_id", s)
	return AgentID(t), err
}

// ParseInstanceID checks s; empty means DefaultInstance.
func ParseInstanceID(s string) (InstanceID, error) {
	if s == "" {
		return DefaultInstance, nil
	}
	t, err := parseToken("instance_id", s)
	return InstanceID(t), err
}

// ParseTaskID checks s and returns it as a TaskID.
func ParseTaskID(s string) (TaskID, error) {
	t, err := parseToken("task_id", s)
	return TaskID(t), err
}

// ParseRunID checks s and returns it as a RunID.
func ParseRunID(s string) (RunID, error) {
	t, err := parseToken("run_id", s)
	return RunID(t), err
}

const sessionTime = "20060102T150405Z"

// ParseSessionID checks s: a2a-<YYYYMMDDTHHMMSSZ>-<8..32 hex digits>.
func ParseSessionID(s string) (SessionID, error) {
	bad := func() (SessionID, error) {
		return "", Errorf(CodeInvalidID, "session_id %q is not a session identifier", clip(s, 80)).
			WithRemedy("a session_id looks like a2a-20251122T120000Z-7f3a9c21; create one with the session API")
	}
	rest, ok := strings.CutPrefix(s, "a2a-")
	if !ok || len(s) > MaxIDLen {
		return bad()
	}
	stamp, random, ok := strings.Cut(rest, "-")
	if !ok || len(random) < 8 || len(random) > 32 {
		return bad()
	}
	// Parse alone would take fractions of a second, which are not one token.
	if _, err := time.Parse(sessionTime, stamp); err != nil || len(stamp) != len(sessionTime) {
		return bad()
	}
	for i := range len(random) {
		if c := random[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return bad()
		}
	}
	return SessionID(s), nil
}

// NewSessionID builds a session id from its time and random bytes (4 to 16).
func NewSessionID(t time.Time, random []byte) SessionID {
	return SessionID("a2a-" + t.UTC().Format(sessionTime) + "-" + hex.EncodeToString(random))
}

// clip bounds text of strangers for an error message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
