package router

import (
	"log/slog"
	"testing"

	"parley/bus"
)

// What this router has counted itself is not counted again when the watch tells
// of it, and nothing is counted twice.
func TestLedgerCountsOnce(t *testing.T) {
	t.Parallel()
	l := &ledger{spent: map[string]int64{"session.s": 10}, own: map[uint64]struct{}{5: {}}}
	for _, tt := range []struct {
		name  string
		entry bus.Entry
		want  int64
	}{
		{"its own", bus.Entry{Key: "session.s.t.1", Revision: 5, Value: []byte("10")}, 10},
		{"its own again", bus.Entry{Key: "session.s.t.1", Revision: 5, Value: []byte("10")}, 10},
		{"another's", bus.Entry{Key: "session.s.u.1", Revision: 6, Value: []byte("7")}, 17},
		{"another's again", bus.Entry{Key: "session.s.u.1", Revision: 6, Value: []byte("7")}, 17},
		{"gone", bus.Entry{Key: "session.s.u.1", Revision: 7, Deleted: true}, 17},
		{"not a number", bus.Entry{Key: "session.s.v.1", Revision: 8, Value: []byte("x")}, 17},
		{"another session's", bus.Entry{Key: "session.z.v.1", Revision: 9, Value: []byte("3")}, 17},
	} {
		l.take(tt.entry, slog.New(slog.DiscardHandler))
		if got := l.spent["session.s"]; got != tt.want {
			t.Errorf("after %s: %d tokens, want %d", tt.name, got, tt.want)
		}
	}
	if len(l.own) != 0 || l.spent["session.z"] != 3 {
		t.Errorf("own = %v, the other session has %d", l.own, l.spent["session.z"])
	}
}
