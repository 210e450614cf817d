package sessions

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus/bustest"
	"parley/subjects"
)

// TestMissedResults: a result whose record was purged before it was read is told
// of, unless it is so old that its session is gone, too.
func TestMissedResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bustest.NewFake(t).Bus(t)
		var log bytes.Buffer
		w, err := New(Config{Bus: b, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		const id = subjects.SessionID("a2a-20251122T120000Z-7f3a9c21")
		finish(t, b, "t1", id, "here I was")
		m, err := b.Last(t.Context(), subjects.StreamTasks, subjects.Task("t1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Purge(t.Context(), subjects.StreamTasks, subjects.Task("t1")); err != nil {
			t.Fatal(err)
		}
		m.Data = nil
		for _, tt := range []struct {
			age  time.Duration
			said bool
		}{{time.Minute, true}, {23 * time.Hour, true}, {25 * time.Hour, false}} {
			log.Reset()
			m.Time = time.Now().Add(-tt.age)
			if err := w.appendOutcome(t.Context(), m); err != nil {
				t.Errorf("after %s: %v", tt.age, err)
			}
			line := log.String()
			if said := strings.Contains(line, "level=WARN") && strings.Contains(line, "task_id=t1") && strings.Contains(line, "session_id="+string(id)); said != tt.said {
				t.Errorf("after %s it says %q, want a warning that names the task: %t", tt.age, line, tt.said)
			}
		}
	})
}
