package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"parley/subjects"
)

// Trace is the W3C trace that a task belongs to. Its spans have ids that follow
// from the task, so that whoever tells of one names the same.
type Trace struct {
	ID      [16]byte
	Parent  [8]byte // the span that dispatched the task; zero: none
	Flags   byte    // bit 0: whoever began the trace records it
	task    subjects.TaskID
	derived bool
}

// Kinds of span, for Trace.Span.
const (
	SpanTask     = "task"     // the whole task, number 0
	SpanWait     = "wait"     // for an agent, from 1
	SpanAttempt  = "attempt"  // by its number
	SpanQuestion = "question" // of an agent, from 1
	SpanHuman    = "human"    // the wait for one, from 1
	SpanEscalate = "escalate" // by the number of the attempt
)

// TraceOf is the trace of a task: that of its dispatch's traceparent, or one
// that follows from its id.
func TraceOf(id subjects.TaskID, traceparent string) Trace {
	t := Trace{task: id, Flags: 1}
	if !ValidTraceparent(traceparent) {
		sum := sha256.Sum256([]byte("trace\x00" + string(id)))
		copy(t.ID[:], sum[:])
		t.derived = true
		return t
	}
	// Valid, so it is hexadecimal.
	_, _ = hex.Decode(t.ID[:], []byte(traceparent[3:35]))
	_, _ = hex.Decode(t.Parent[:], []byte(traceparent[36:52]))
	var flags [1]byte
	_, _ = hex.Decode(flags[:], []byte(traceparent[53:55]))
	t.Flags = flags[0]
	return t
}

// Derived reports whether the trace follows from the task's id alone.
func (t Trace) Derived() bool { return t.derived }

// Span is the id of one of the task's spans.
func (t Trace) Span(kind string, n int) (id [8]byte) {
	sum := sha256.Sum256([]byte(string(t.task) + "\x00" + kind + "\x00" + strconv.Itoa(n)))
	copy(id[:], sum[:])
	return id
}

// Traceparent is what is handed on to whom a span calls.
func (t Trace) Traceparent(span [8]byte) string {
	return "00-" + hex.EncodeToString(t.ID[:]) + "-" + hex.EncodeToString(span[:]) + "-" + hex.EncodeToString([]byte{t.Flags})
}
