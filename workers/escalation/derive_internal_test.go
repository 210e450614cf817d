package escalation

import (
	"testing"
	"time"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/fleet"
)

// TestIsKept: what is there counts for a record of the same life, or of the same
// time where a former build kept it, which named no lives.
func TestIsKept(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 23, 4, 0, 0, 0, time.UTC)
	e := &fleet.Event{TaskID: "t", Seq: 5, Time: created.Add(time.Minute), State: fleet.StateQueued, Reason: &fleet.Reason{Code: subjects.CodeAgentError, Message: "m"}, Facts: fleet.Facts{Created: created, DispatchSeq: 40}}
	for name, tt := range map[string]struct {
		id   string
		seq  uint64
		time time.Time
		want bool
	}{
		"itself":                        {"t/40/5", 5, e.Time, true},
		"a later one":                   {"t/40/7", 7, e.Time, true},
		"an earlier one":                {"t/40/4", 4, e.Time, false},
		"of a former life":              {"t/4/5", 5, e.Time, false},
		"of a later life":               {"t/400/5", 5, e.Time, false},
		"of a former build":             {"t/5", 5, e.Time, true},
		"of a former build, and life":   {"t/5", 5, created.Add(-time.Second), false},
		"of a former build, an earlier": {"t/4", 4, e.Time, false},
	} {
		was := *e
		was.Seq, was.Time = tt.seq, tt.time
		last := bus.Msg{Header: bus.Header{"Nats-Msg-Id": {tt.id}}, Data: fleet.MustEncode(fleet.NewEscalation(&was, 3))}
		if _, err := fleet.DecodeEscalation(last.Data); err != nil {
			t.Fatal(err)
		}
		if got := isKept(last, e, lifeOf(e, 45)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	if got := lifeOf(&fleet.Event{TaskID: "t", Seq: 1}, 40); got != "t/40/" {
		t.Errorf("the life of record 1 is %s", got)
	}
}
