package router

import (
	"testing"
	"time"

	"parley/bus"
)

// What this router has counted itself is not counted again when the watch tells
// of it, and nothing is counted twice.
func TestLedgerCountsOnce(t *testing.T) {
	t.Parallel()
	l := &ledger{spent: map[string]spending{"session.s": {tokens: 10}}, own: map[uint64]struct{}{5: {}}}
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
		l.take(tt.entry)
		if got := l.spent["session.s"].tokens; got != tt.want {
			t.Errorf("after %s: %d tokens, want %d", tt.name, got, tt.want)
		}
	}
	if len(l.own) != 0 || l.spent["session.z"].tokens != 3 {
		t.Errorf("own = %v, the other session has %d", l.own, l.spent["session.z"].tokens)
	}
}

// An account that nobody has used for as long as spending is kept is forgotten:
// of each session and run there would be one for ever.
func TestLedgerForgets(t *testing.T) {
	t.Parallel()
	l := &ledger{spent: make(map[string]spending), own: make(map[uint64]struct{})}
	spend := func(rev uint64, session string, at time.Time) {
		l.take(bus.Entry{Key: "session." + session + ".t.1", Revision: rev, Value: []byte("10"), Time: at})
	}
	spend(1, "old", now0)
	spend(2, "used", now0)
	spend(3, "used", now0.Add(ledgerTTL))
	spend(4, "new", now0.Add(ledgerTTL+2*time.Hour))
	if _, kept := l.spent["session.old"]; kept || l.spent["session.used"].tokens != 20 || l.spent["session.new"].tokens != 10 {
		t.Errorf("spent = %v", l.spent)
	}
}
