package main

import (
	"strings"
	"testing"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
)

// TestAuditWithJunk: what a stranger puts into the audit's stream stops neither
// the audit nor its readers, who name it, and parley up starts again.
func TestAuditWithJunk(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	j, url := s.up(t)
	junk := func() {
		t.Helper()
		b, err := bus.Connect(t.Context(), bus.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for _, text := range []string{"junk", "", "{}", `{"first":1,"prev":"","hash":"x","lines":["x"]}`} {
			if _, err := b.Store(t.Context(), subjects.Audit, []byte(text), "", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := func(args ...string) ran {
		t.Helper()
		return s.run(t, append(args, "--server", url)...)
	}
	drained := func(agent string) {
		t.Helper()
		at("agent", "drain", agent).check(t, 0, "", "")
		bustest.Eventually(t, "a line about "+agent, func() bool { return strings.Contains(at("audit", "export").stdout, `"agent_id":"`+agent+`"`) })
	}
	drained("a1")
	junk()
	drained("a2")
	out := at("audit", "verify")
	out.check(t, 0, "nothing was changed", "")
	out.check(t, 0, "4 entries of the stream are not of the audit", "")
	out.check(t, 0, "number 2, 4 bytes, of ", "")
	at("audit", "verify", "-o", "json").check(t, 0, `"foreign_count": 4`, "")
	at("audit", "export").check(t, 0, `"a2"`, "parley audit verify  names them")
	doctor := at("doctor", "-o", "json")
	doctor.check(t, exitFailed, "FLEET_AUDIT: 4 skipped, the first is message 2 on fleet.audit", "")
	doctor.check(t, exitFailed, "nats stream rmm FLEET_AUDIT 2", "")
	junk()
	if code := j.end(t); code != 0 {
		t.Fatalf("exit %d", code)
	}
	_, url = s.up(t)
	drained("a3")
	at("audit", "verify").check(t, 0, "8 entries of the stream are not of the audit", "")
	at("doctor", "-o", "json").check(t, exitFailed, "FLEET_AUDIT: ", "")
}
