package fleet_test

import (
	"testing"

	"parley/subjects/fleet"
)

func TestTraceOf(t *testing.T) {
	t.Parallel()
	const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	tr := fleet.TraceOf("t1", given)
	if got := tr.Traceparent(tr.Parent); got != given || tr.Derived() {
		t.Errorf("the trace of %s gives %s", given, got)
	}
	attempt := tr.Span(fleet.SpanAttempt, 1)
	if got := tr.Traceparent(attempt); !fleet.ValidTraceparent(got) || got[:36] != given[:36] || got == given {
		t.Errorf("the attempt hands on %s", got)
	}
	seen := map[[8]byte]bool{tr.Parent: true}
	for _, id := range [][8]byte{
		attempt, tr.Span(fleet.SpanAttempt, 2), tr.Span(fleet.SpanTask, 0), tr.Span(fleet.SpanWait, 1),
		fleet.TraceOf("t2", given).Span(fleet.SpanAttempt, 1),
	} {
		if seen[id] {
			t.Errorf("two spans have the id %x", id)
		}
		seen[id] = true
	}
	for _, bad := range []string{"", "00-zz", given + "x"} {
		a, b := fleet.TraceOf("t1", bad), fleet.TraceOf("t1", "")
		if a != b || !a.Derived() || a.Parent != [8]byte{} || a.ID == fleet.TraceOf("t2", "").ID || !fleet.ValidTraceparent(a.Traceparent(a.Span(fleet.SpanTask, 0))) {
			t.Errorf("traceparent %q gives %+v", bad, a)
		}
	}
}
