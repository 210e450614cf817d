package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"parley/subjects"
	"parley/subjects/fleet"
)

// maxCalls bounds the calls that a result lists.
const maxCalls = 50

// toolCall is a call of a tool that was refused or has failed.
type toolCall struct {
	Kind  string `json:"kind"`
	Title string `json:"title"`
	// By says who refused the call: rule, human or nobody. It is absent where
	// the tool does not say it.
	By       string `json:"by,omitempty"`
	ExitCode int    `json:"exit_code,omitzero"`
}

// String is the call in one line.
func (c toolCall) String() string { return strings.TrimSpace(c.Kind + " " + c.Title) }

// callLog is what became of the calls of a tool, in their order.
type callLog struct {
	denied []toolCall
	failed []toolCall
	// unresolved counts the last entries of failed after which no call succeeded.
	unresolved int
}

// deny notes a call that was refused. A call that was refused twice counts once.
func (l *callLog) deny(c toolCall) {
	if !slices.ContainsFunc(l.denied, c.same) {
		l.denied = append(l.denied, c)
	}
}

// fail notes a call that was made and failed.
func (l *callLog) fail(c toolCall) {
	l.failed = append(l.failed, c)
	l.unresolved++
}

// succeed notes a call that was made and succeeded: it settles the same call
// that was refused before, and the failures before it were met.
func (l *callLog) succeed(c toolCall) {
	l.denied = slices.DeleteFunc(l.denied, c.same)
	l.unresolved = 0
}

func (c toolCall) same(other toolCall) bool { return c.Kind == other.Kind && c.Title == other.Title }

// remaining names what was not done because of the calls.
func (l *callLog) remaining() (list []string) {
	for _, c := range l.denied {
		list = append(list, "denied: "+c.String())
	}
	for _, c := range l.failed[len(l.failed)-l.unresolved:] {
		s := "failed: " + c.String()
		if c.ExitCode != 0 {
			s += fmt.Sprintf(" (exit status %d)", c.ExitCode)
		}
		list = append(list, s)
	}
	if n := len(list) - maxCalls; n > 0 {
		list = append(list[:maxCalls], fmt.Sprintf("and %d more", n))
	}
	return list
}

// mark lists the calls in the result of a tool that says that it is done, and
// makes it partial if a call is left over. A tool that said nothing is blocked.
func (l *callLog) mark(r *fleet.Result) {
	l.list(r)
	left := l.remaining()
	switch {
	case len(left) == 0:
	case r.Status == fleet.StatusPartial:
		r.Remaining = append(r.Remaining, left...)
	case r.Status != fleet.StatusDone && r.Status != "":
	case len(l.denied) > 0 && (len(r.Output) == 0 || string(r.Output) == `""`):
		*r = refusal(*r, l.blocked())
	default:
		r.Status, r.Remaining = fleet.StatusPartial, append(r.Remaining, left...)
	}
}

// list puts the calls into r.
func (l *callLog) list(r *fleet.Result) {
	for name, calls := range map[string][]toolCall{"denied": l.denied, "failed_calls": l.failed} {
		if len(calls) == 0 {
			continue
		}
		if r.Unknown == nil {
			r.Unknown = fleet.Unknown{}
		}
		r.Unknown[name] = fleet.MustEncode(calls[max(0, len(calls)-maxCalls):])
	}
}

// blocked is why an attempt came to nothing whose calls were refused.
func (l *callLog) blocked() *fleet.ResultError {
	names := make([]string, 0, len(l.denied))
	for _, c := range l.denied {
		names = append(names, c.String())
	}
	return &fleet.ResultError{
		Code:    subjects.CodePermissionDenied,
		Message: "the tool was not allowed to: " + strings.Join(names, "; "),
	}
}

// titleOf is the argument of a call that says most.
func titleOf(input map[string]any) string {
	for _, name := range []string{"command", "file_path", "notebook_path", "path", "url", "pattern", "query"} {
		if s, ok := input[name].(string); ok && s != "" {
			return cmp.Or(firstLine(s), s)
		}
	}
	return ""
}
