package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// record is one record of a task, with just what the checker looks at. It is
// declared here once more, so that a mistake in the fleet's own decoder shows.
type record struct {
	StreamSeq  uint64    `json:"-"`
	Stored     time.Time `json:"-"`
	Subject    string    `json:"-"` // the task it was stored under
	TaskID     string    `json:"task_id"`
	Seq        int       `json:"seq"`
	Kind       string    `json:"kind"`
	State      string    `json:"state"`
	Attempt    int       `json:"attempt"`
	AgentID    string    `json:"agent_id"`
	InstanceID string    `json:"instance_id"`
	Epoch      int64     `json:"epoch"`
	WriteID    string    `json:"write_id"`
	Reason     struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"reason"`
	Data struct {
		Result *struct {
			TaskID     string          `json:"task_id"`
			Status     string          `json:"status"`
			State      string          `json:"state"`
			Attempt    int             `json:"attempt"`
			AgentID    string          `json:"agent_id"`
			InstanceID string          `json:"instance_id"`
			Output     json.RawMessage `json:"output"`
		} `json:"result"`
		Question *struct {
			ID string `json:"id"`
		} `json:"question"`
	} `json:"data"`
	Facts struct {
		From     string    `json:"from"`
		Deadline time.Time `json:"deadline"`
		Policy   struct {
			MaxRetries int `json:"max_retries"`
		} `json:"policy"`
		Attempts []pastAttempt `json:"attempts"`
		Await    string        `json:"await"`
	} `json:"facts"`
}

type pastAttempt struct {
	Attempt    int    `json:"attempt"`
	AgentID    string `json:"agent_id"`
	InstanceID string `json:"instance_id"`
	Epoch      int64  `json:"epoch"`
	Code       string `json:"code"`
	Level      int    `json:"level"`
}

// nonce is that of the execution whose result the record holds.
func (r *record) nonce() string {
	var o output
	if r.Data.Result == nil || json.Unmarshal(r.Data.Result.Output, &o) != nil {
		return ""
	}
	return o.Nonce
}

func (r *record) terminal() bool {
	switch r.State {
	case "done", "partial", "error", "blocked", "canceled", "expired":
		return true
	}
	return false
}

// held reports whether somebody has the task in hand.
func (r *record) held() bool {
	return r.State == "working" || r.State == "input_required" && r.Facts.Await == "agent_question"
}

// history is the records of every task, in the order of the stream.
type history map[string][]record

// last is the latest record of a task.
func (h history) last(task string) record {
	list := h[task]
	if len(list) == 0 {
		return record{}
	}
	return list[len(list)-1]
}

// ended counts the tasks that have ended.
func (h history) ended() (n int) {
	for task := range h {
		if r := h.last(task); r.terminal() {
			n++
		}
	}
	return n
}

// reader reads the task records from the stream itself.
type reader struct {
	js   jetstream.JetStream
	next uint64
	all  history
}

func newReader(tb testing.TB, nc *nats.Conn) *reader {
	tb.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return &reader{js: js, next: 1, all: history{}}
}

// catchUp reads what has been stored since it was last called.
func (r *reader) catchUp(ctx context.Context) error {
	for {
		s, err := r.js.Stream(ctx, "FLEET_TASKS")
		if err != nil {
			return err
		}
		for {
			m, err := s.GetMsg(ctx, r.next, jetstream.WithGetMsgSubject("fleet.task.>"))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			rec := record{StreamSeq: m.Sequence, Stored: m.Time, Subject: strings.TrimPrefix(m.Subject, "fleet.task.")}
			if err := json.Unmarshal(m.Data, &rec); err != nil {
				return fmt.Errorf("record %d: %w", m.Sequence, err)
			}
			r.all[rec.Subject] = append(r.all[rec.Subject], rec)
			r.next = m.Sequence + 1
		}
	}
}

// until reads on until ok is content with what is there.
func (r *reader) until(tb testing.TB, what string, within time.Duration, ok func(history) bool) history {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var err error
	for {
		if err = r.catchUp(ctx); err == nil && ok(r.all) {
			return r.all
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not within %s (%d tasks, %d ended, last error %v)%s",
				what, within, len(r.all), r.all.ended(), err, r.all.unfinished(5))
		}
	}
}

// whole reads the stream from its beginning.
func (r *reader) whole(tb testing.TB) history {
	tb.Helper()
	fresh := &reader{js: r.js, next: 1, all: history{}}
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := fresh.catchUp(ctx); err != nil {
		tb.Fatalf("read the stream: %v", err)
	}
	return fresh.all
}

// unfinished tells of some tasks that have not ended.
func (h history) unfinished(n int) string {
	var b strings.Builder
	for task := range h {
		if r := h.last(task); !r.terminal() && n > 0 {
			n--
			fmt.Fprintf(&b, "\n%s", h.story(task))
		}
	}
	return b.String()
}

// story tells what happened to a task, for a person.
func (h history) story(task string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "task %s:", task)
	for _, r := range h[task] {
		fmt.Fprintf(&b, "\n  #%d %s seq %d %s/%s attempt %d %s/%s/%d by %s",
			r.StreamSeq, r.Stored.Format("15:04:05.000"), r.Seq, r.Kind, r.State, r.Attempt, r.AgentID, r.InstanceID, r.Epoch, r.WriteID)
		if r.Reason.Code != "" {
			fmt.Fprintf(&b, " (%s: %s)", r.Reason.Code, r.Reason.Message)
		}
		if n := r.nonce(); n != "" {
			fmt.Fprintf(&b, " nonce %s", n)
		}
	}
	return b.String()
}
