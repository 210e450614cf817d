package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"parley/subjects"
)

// Trace is the W3C trace that a task belongs to, or a run, or a webhook
// delivery. Its spans have ids that follow from the id of that, so that whoever
// tells of one names the same.
type Trace struct {
	ID      [16]byte
	Parent  [8]byte // the span that began it; zero: none
	Flags   byte    // bit 0: whoever began the trace records it
	of      string
	derived bool
}

// Kinds of span, for Trace.Span.
const (
	SpanTask     = "task"     // the whole task, number 0
	SpanWait     = "wait"     // for an agent, from 1
	SpanAttempt  = "attempt"  // by its number; the offer names it
	SpanQuestion = "question" // of an agent, from 1
	SpanHuman    = "human"    // the wait for one, from 1
	SpanEscalate = "escalate" // by the seq of the record
	SpanRun      = "run"      // the whole run, number 0
	SpanWebhook  = "webhook"  // the whole delivery, number 0
	SpanPost     = "post"     // of a delivery, by the number of the attempt
)

// TraceOf is the trace of what has an id: that of the traceparent that it came
// with, or one that follows from the id.
func TraceOf[ID ~string](id ID, traceparent string) Trace {
	t := Trace{of: string(id), Flags: 1}
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

// TraceID is the trace's id, in hexadecimal.
func (t Trace) TraceID() string { return hex.EncodeToString(t.ID[:]) }

// Derived reports whether the trace follows from the id alone.
func (t Trace) Derived() bool { return t.derived }

// Span is the id of one of its spans.
func (t Trace) Span(kind string, n int) (id [8]byte) {
	sum := sha256.Sum256([]byte(t.of + "\x00" + kind + "\x00" + strconv.Itoa(n)))
	copy(id[:], sum[:])
	return id
}

// Traceparent is what is handed on to whom a span calls.
func (t Trace) Traceparent(span [8]byte) string {
	return "00-" + hex.EncodeToString(t.ID[:]) + "-" + hex.EncodeToString(span[:]) + "-" + hex.EncodeToString([]byte{t.Flags})
}

// In is the traceparent of one of its spans.
func (t Trace) In(kind string, n int) string { return t.Traceparent(t.Span(kind, n)) }

// Trace is the task's.
func (e *Event) Trace() Trace { return TraceOf(e.TaskID, e.Facts.Traceparent) }

// Escalates is the level of escalation that the record is, 0 for none, unless
// the task waited for a human before. A loss or a limit uses up no level: the
// attempt that follows it is published as level 1 (the same agent) or 2.
func (e *Event) Escalates() int {
	switch {
	case e.Kind == KindWorking:
		return e.takeoverLevel()
	case e.Kind == KindRetry:
		return 1
	case e.Kind == KindReroute:
		return 2
	case e.Kind == KindHuman, e.Kind == KindOutcome && e.Seq > 1 && (e.State == StateError || e.State == StateBlocked):
		return 3
	}
	return 0
}

// takeoverLevel is the level at which an attempt begins after one that was lost
// or limited, or by others than those who come first; 0 otherwise.
func (e *Event) takeoverLevel() int {
	n := len(e.Facts.Attempts)
	if n == 0 {
		return 0
	}
	last := &e.Facts.Attempts[n-1]
	switch same := last.AgentID == e.AgentID; {
	case !same && (e.Facts.Widened > 0 || last.Requeued()):
		return 2
	case last.Requeued():
		return 1
	}
	return 0
}

// Requeued reports whether the attempt ended by a loss or a limit, after which
// the task is queued again without using up a retry.
func (a *Attempt) Requeued() bool {
	return a.Level == 0 && (a.Code == subjects.CodeAgentLost || a.Code == subjects.CodeRateLimited)
}

// Called is the traceparent for whoever is told of the escalation that the
// record is, or that its task waits for.
func (e *Event) Called() string {
	return e.Trace().In(SpanEscalate, int(cmp.Or(e.Facts.AskedSeq, e.Seq)))
}
