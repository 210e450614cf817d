package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/bus"
	"parley/bus/bustest"
	"parley/subjects"
	"parley/subjects/handshake"
	"parley/workers"
	"parley/workers/access"
)

// told is a line of the audit.
type told struct {
	subject string
	who     subjects.AgentID
	event   string
	data    map[string]any
}

// store takes what is told.
type store struct {
	t     *testing.T
	fail  error
	lines chan told
}

func (s store) Store(_ context.Context, subject string, line []byte, id string, _ bus.Header) (uint64, error) {
	l, err := handshake.DecodeLogLine(line)
	if err != nil || id == "" {
		s.t.Errorf("line %s, id %q: %v", line, id, err)
		return 0, err
	}
	var data map[string]any
	if err := json.Unmarshal(l.Data, &data); err != nil {
		s.t.Error(err)
	}
	s.lines <- told{subject, l.AgentID, l.EventType, data}
	return 1, s.fail
}

// start runs a worker in a bubble, and gives what it tells.
func start(t *testing.T, fail error) (*access.Worker, func() []told) {
	t.Helper()
	lines := make(chan told, 4096)
	w, err := access.New(access.Config{
		Notes: workers.NewNotes(store{t, fail, lines}, slog.New(slog.DiscardHandler)),
		Whose: func(key string) (subjects.AgentID, bool) {
			switch key {
			case "bob's":
				return "bob", true
			case "another tenant's":
				return "spy", false
			}
			return access.Unknown, true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, w.Run)
	return w, func() (all []told) {
		synctest.Wait()
		for len(lines) > 0 {
			all = append(all, <-lines)
		}
		return all
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name string
		do   func(*access.Worker)
		who  subjects.AgentID // "": nothing is told
		want map[string]any
	}{
		{"publish", func(w *access.Worker) {
			w.Refused(access.Refusal{Key: "bob's", Action: access.Publish, Subject: "fleet.result.eve.t", Address: "127.0.0.1:1"})
		}, "bob", map[string]any{"code": "forbidden", "action": "publish", "subject": "fleet.result.eve.t", "address": "127.0.0.1:1"}},
		{"long", func(w *access.Worker) {
			w.Refused(access.Refusal{Key: "bob's", Action: access.Subscribe, Subject: long})
		}, "bob", map[string]any{"code": "forbidden", "action": "subscribe", "subject": long[:200] + "…"}},
		{"connect", func(w *access.Worker) { w.Refused(access.Refusal{Action: access.Connect}) }, "unknown", map[string]any{"code": "auth_failed", "action": "connect"}},
		{"connect as bob, who did not prove it", func(w *access.Worker) { w.Refused(access.Refusal{Key: "bob's", Action: access.Connect}) }, "unknown", map[string]any{"code": "auth_failed", "action": "connect", "claimed": "bob"}},
		{"another tenant", func(w *access.Worker) {
			w.Refused(access.Refusal{Key: "another tenant's", Action: access.Publish, Subject: "x"})
		}, "", nil},
		{"request", func(w *access.Worker) {
			w.Asked("fleet.api.eve.task.get", subjects.Errorf(subjects.CodeForbidden, "no"))
		}, "eve", map[string]any{"code": "forbidden", "action": "request", "subject": "fleet.api.eve.task.get"}},
		{"everyday's", func(w *access.Worker) {
			w.Asked("fleet.api.eve.task.get", subjects.Errorf(subjects.CodeNotFound, "no"))
		}, "", nil},
		{"a session's token", func(w *access.Worker) {
			w.Asked("fleet.api.eve.session.get", subjects.Errorf(subjects.CodeAuthFailed, "no"))
		}, "", nil},
		{"no subject of the API", func(w *access.Worker) { w.Asked("x", subjects.Errorf(subjects.CodeForbidden, "no")) }, "", nil},
		{"a worker's", func(w *access.Worker) {
			w.Asked("fleet.api.router.session.offer", subjects.Errorf(subjects.CodeForbidden, "no"))
		}, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, lines := start(t, nil)
				c.do(w)
				got := lines()
				if c.who == "" {
					if len(got) > 0 {
						t.Errorf("told %+v", got)
					}
					return
				}
				if len(got) != 1 || got[0].who != c.who || got[0].event != handshake.EventRefused || got[0].subject != subjects.Log("", c.who) {
					t.Fatalf("told %+v", got)
				}
				for k, v := range c.want {
					if got[0].data[k] != v {
						t.Errorf("%s is %v, want %v", k, got[0].data[k], v)
					}
				}
				if len(got[0].data) != len(c.want) {
					t.Errorf("data %v, want %v", got[0].data, c.want)
				}
			})
		})
	}
}

// Whoever is refused over and over does not fill the audit; how often is told.
func TestFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, lines := start(t, errors.New("the store is away")) // which stops nobody
		const flood = 5000
		for range flood {
			w.Refused(access.Refusal{Key: "bob's", Action: access.Publish, Subject: "x"})
		}
		all := lines()
		said := len(all)
		if said < 100 || said > 120 {
			t.Errorf("%d of %d were told, want about 100", said, flood)
		}
		time.Sleep(time.Second)
		w.Refused(access.Refusal{Key: "bob's", Action: access.Publish, Subject: "x"})
		unsaid := 0.0
		for _, l := range append(all, lines()...) {
			n, _ := l.data["unsaid"].(float64)
			unsaid += n
		}
		if unsaid != float64(flood-said) {
			t.Errorf("%v are counted as unsaid, want %d", unsaid, flood-said)
		}
	})
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := access.New(access.Config{}); err == nil {
		t.Error("New of nothing succeeds")
	}
}
