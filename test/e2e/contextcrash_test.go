package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"parley/bus"
	"parley/subjects"
	"parley/subjects/audit"
	"parley/subjects/fleet"
	"parley/subjects/handshake"
)

// Crash points of the sessions worker and of the audit worker, :2 in the second
// of its writes.
var (
	appendPoints = []string{"before_context_append", "after_context_append", "before_context_append:2", "after_context_append:2"}
	auditPoints  = []string{"before_audit_block", "after_audit_block", "before_audit_block:2", "after_audit_block:2"}
)

// TestContextCrash has the sessions worker die before and after it appends to a
// context, and the audit worker before and after it writes a block, and another
// one take over, or has them lose acknowledgements. What was appended is there
// once, under the version that it was acknowledged with; so is the result of a
// task, and the line of each in the audit, whose chain holds.
func TestContextCrash(t *testing.T) {
	for worker, points := range map[string][]string{"sessions": appendPoints, "audit": auditPoints} {
		t.Run(worker, func(t *testing.T) {
			sweep(t, points, func(t *testing.T, point string) { crashContext(t, worker, point) })
		})
	}
}

func crashContext(t *testing.T, worker, point string) {
	f := newFleet(t, "registry,router")
	f.man(t, &sleeper{done: map[string]int{}})
	other, subject := "audit", "fleet.context."
	if worker == "audit" {
		other, subject = "sessions", "fleet.audit"
	}
	f.serve(other, parleyBinary(t), other, nil)
	first := f.serve(worker+"-1", crashBinary(t), worker, nil, crashEnv(point))
	b, err := bus.Connect(t.Context(), bus.Config{URL: f.url, Name: "appender", ConnectTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	boss := sessionCaller{t, b, 2 * time.Second}
	acted := make(chan error, 1)
	var alone, shared subjects.SessionID
	versions := make([]uint64, 6)
	go func() { acted <- appendAll(t.Context(), boss, &alone, &shared, versions) }()
	if dies(t, first, point) {
		f.serve(worker+"-2", parleyBinary(t), worker, nil)
	}
	if err := <-acted; err != nil {
		t.Fatal(err)
	}
	boss.check(alone, versions)
	until(t, "the task's result in the context", func() bool {
		page := mustSession[handshake.ReadReply](boss, "context", handshake.Read{SessionID: shared})
		return len(page.Records) > 0
	})
	f.checkAudit(t, map[subjects.SessionID]int{alone: len(versions), shared: 1})
	if page := mustSession[handshake.ReadReply](boss, "context", handshake.Read{SessionID: shared}); len(page.Records) != 1 {
		t.Errorf("the result of one task is %d versions", len(page.Records))
	}
	checkLost(t, first, point, subject)
}

// appendAll appends to one session, half of the entries to the version that it
// knows, and has a task done in another one, once the audit has a block.
func appendAll(ctx context.Context, boss sessionCaller, alone, shared *subjects.SessionID, versions []uint64) error {
	for _, id := range []*subjects.SessionID{alone, shared} {
		opened, err := askSession[handshake.Opened](boss, "create", handshake.Create{})
		if err != nil {
			return err
		}
		*id = opened.Session.SessionID
	}
	for i := range versions {
		q := handshake.Append{SessionID: *alone, Key: strconv.Itoa(i), Entry: handshake.Entry{Status: "completed", Output: fleet.MustEncode(i)}}
		if i%2 == 1 {
			q.AfterVersion = new(uint64(i))
		}
		a, err := askSession[handshake.Appended](boss, "append", q)
		if err != nil {
			return fmt.Errorf("append %d: %w", i, err)
		}
		versions[i] = a.Version
	}
	for {
		_, err := boss.b.Last(ctx, subjects.StreamAudit, subjects.Audit)
		if err == nil {
			break
		}
		if perr := pause(ctx, 50*time.Millisecond); perr != nil {
			return errors.Join(perr, err)
		}
	}
	task := fleet.MustEncode(map[string]any{"task": map[string]any{"task_id": theTask, "session_id": *shared}, "brief": "look"})
	_, err := boss.b.RequestUntil(ctx, subjects.API("boss", "task", "dispatch"), task, nil, boss.try, func(m bus.Msg) bool {
		_, refused := fleet.DecodeReply[fleet.Unknown](m.Data)
		return subjects.CodeOf(refused) == subjects.CodeUnavailable
	})
	return err
}

// checkAudit waits until the audit has a line of each version of the contexts
// and of each record of the task, and checks that it has them once, in a chain
// that holds.
func (f *testFleet) checkAudit(t *testing.T, contexts map[subjects.SessionID]int) {
	t.Helper()
	js, err := jetstream.New(f.nc)
	if err != nil {
		t.Fatal(err)
	}
	all := newReader(t, f.nc).Until(t, "the outcome", patience, func(h history) bool { return len(h) > 0 && h.Ended() == len(h) })
	want := map[string]bool{}
	for id, versions := range contexts {
		for v := range versions {
			want[fmt.Sprint(id, " version ", v+1)] = true
		}
	}
	event := map[string]string{
		"queued": handshake.EventTask, "working": handshake.EventExecutionStart, "outcome": handshake.EventExecutionComplete,
	}
	for _, r := range all[theTask] {
		want[fmt.Sprint("record ", r.Seq, " ", event[r.Kind])] = true
	}
	var times map[string]int
	until(t, "everything in the audit", func() bool {
		times = auditLines(t, js)
		for what := range want {
			if times[what] == 0 {
				return false
			}
		}
		return true
	})
	for what, n := range times {
		if n > 1 {
			t.Errorf("%d lines of %s in the audit", n, what)
		}
	}
}

// auditLines counts the lines of the audit: by what a line tells of, and each
// line by its text.
func auditLines(t *testing.T, js jetstream.JetStream) map[string]int {
	t.Helper()
	times := map[string]int{}
	s, err := js.Stream(t.Context(), "FLEET_AUDIT")
	if err != nil {
		t.Fatal(err)
	}
	var prev *audit.Block
	for seq := uint64(1); ; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			return times
		}
		b, err := audit.Decode(m.Data)
		if err == nil {
			err = audit.Check(prev, b)
		}
		if err != nil {
			t.Fatalf("block %d of the audit: %v", seq, err)
		}
		prev = b
		for _, text := range b.Lines {
			times[text]++
			var l struct {
				SessionID string `json:"session_id"`
				EventType string `json:"event_type"`
				Data      struct {
					TaskID  string `json:"task_id"`
					Seq     int    `json:"seq"`
					Version int    `json:"version"`
				} `json:"data"`
			}
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("the line %s: %v", text, err)
			}
			switch {
			case l.EventType == handshake.EventContext:
				times[fmt.Sprint(l.SessionID, " version ", l.Data.Version)]++
			case l.Data.TaskID == theTask:
				times[fmt.Sprint("record ", l.Data.Seq, " ", l.EventType)]++
			}
		}
	}
}
