package rig

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

// Patience is how long anything may take that takes milliseconds on an idle
// machine: what takes longer hangs, however busy or slow the machine is.
const Patience = 2 * time.Minute

// Record is one record of a task, with just what the checker looks at. It is
// declared here once more, so that a mistake in the fleet's own decoder shows.
type Record struct {
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
	Time       time.Time `json:"time"` // when the router decided
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
		Artifact *struct {
			ID string `json:"artifact_id"`
		} `json:"artifact"`
		Dispatch *struct {
			Input struct {
				MessageID string `json:"message_id"` // of A2A
			} `json:"input"`
		} `json:"dispatch"`
	} `json:"data"`
	Facts struct {
		From      string    `json:"from"`
		RunID     string    `json:"run_id"`
		SessionID string    `json:"session_id"`
		Deadline  time.Time `json:"deadline"`
		Priority  string    `json:"priority"`
		Policy    struct {
			MaxRetries   int      `json:"max_retries"`
			Agent        string   `json:"agent"`
			Alternatives []string `json:"alternatives"`
			OnBlocked    string   `json:"on_blocked"`
			MaxLosses    int      `json:"max_losses"`
		} `json:"policy"`
		Requirements struct {
			Labels map[string]string `json:"labels"`
		} `json:"requirements"`
		Attempts      []PastAttempt `json:"attempts"`
		Counters      Counters      `json:"counters"`
		Widened       int           `json:"widened"`
		Await         string        `json:"await"`
		NotBefore     *time.Time    `json:"not_before"`
		AttemptEnds   *time.Time    `json:"attempt_ends"`
		GiveUpAt      *time.Time    `json:"give_up_at"`
		TokenBudget   int64         `json:"token_budget"`
		SessionBudget int64         `json:"session_token_budget"`
		RunBudget     int64         `json:"run_token_budget"`
		TokensSpent   int64         `json:"tokens_spent"`
		Human         *Decision     `json:"human"`
	} `json:"facts"`
}

// Counters are what the attempts of a task have used up.
type Counters struct {
	Retries     int `json:"retries"`
	Losses      int `json:"losses"` // in a row
	LossesTotal int `json:"losses_total"`
}

// Decision is what a human decided about a task.
type Decision struct {
	AnswerID string `json:"answer_id"`
}

// PastAttempt is an attempt that has ended.
type PastAttempt struct {
	Attempt    int    `json:"attempt"`
	AgentID    string `json:"agent_id"`
	InstanceID string `json:"instance_id"`
	Epoch      int64  `json:"epoch"`
	Code       string `json:"code"`
	Retryable  bool   `json:"retryable"`
	Level      int    `json:"level"`
	Refused    bool   `json:"refused"` // the offer: no record names who did
}

// Requeues reports whether an attempt that ended so goes back to its queue, and
// leaves nobody out: its agent was lost, handed it back, or is limited.
func (a *PastAttempt) Requeues() bool {
	switch a.Code {
	case "agent_lost", "agent_busy", "rate_limited":
		return true
	}
	return false
}

// ByInstance reports whether only the instance is left out that could not begin.
func (a *PastAttempt) ByInstance() bool {
	switch a.Code {
	case "mcp_unhealthy", "dirty_repo", "login_required", "setup_failed":
		return true
	}
	return false
}

// Nonce is that of the execution whose result the record holds.
func (r *Record) Nonce() string {
	var o Output
	if r.Data.Result == nil || json.Unmarshal(r.Data.Result.Output, &o) != nil {
		return ""
	}
	return o.Nonce
}

// Terminal reports whether the task has ended.
func (r *Record) Terminal() bool {
	switch r.State {
	case "done", "partial", "error", "blocked", "canceled", "expired":
		return true
	}
	return false
}

// Held reports whether somebody has the task in hand.
func (r *Record) Held() bool {
	return r.State == "working" || r.State == "input_required" && r.Facts.Await == "agent_question"
}

// History is the records of every task, in the order of the stream.
type History map[string][]Record

// Last is the latest record of a task.
func (h History) Last(task string) Record {
	list := h[task]
	if len(list) == 0 {
		return Record{}
	}
	return list[len(list)-1]
}

// Ended counts the tasks that have ended.
func (h History) Ended() (n int) {
	for task := range h {
		if r := h.Last(task); r.Terminal() {
			n++
		}
	}
	return n
}

// Reader reads the task records from the stream itself.
type Reader struct {
	JS   jetstream.JetStream
	Next uint64
	All  History
}

// NewReader reads from the beginning.
func NewReader(tb testing.TB, nc *nats.Conn) *Reader {
	tb.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return &Reader{JS: js, Next: 1, All: History{}}
}

// CatchUp reads what has been stored since it was last called.
func (r *Reader) CatchUp(ctx context.Context) error {
	for {
		s, err := r.JS.Stream(ctx, "FLEET_TASKS")
		if err != nil {
			return err
		}
		for {
			m, err := s.GetMsg(ctx, r.Next, jetstream.WithGetMsgSubject("fleet.task.>"))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			rec := Record{StreamSeq: m.Sequence, Stored: m.Time, Subject: strings.TrimPrefix(m.Subject, "fleet.task.")}
			if err := json.Unmarshal(m.Data, &rec); err != nil {
				return fmt.Errorf("record %d: %w", m.Sequence, err)
			}
			r.All[rec.Subject] = append(r.All[rec.Subject], rec)
			r.Next = m.Sequence + 1
		}
	}
}

// Until reads on until ok is content with what is there.
func (r *Reader) Until(tb testing.TB, what string, within time.Duration, ok func(History) bool) History {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var err error
	for {
		if err = r.CatchUp(ctx); err == nil && ok(r.All) {
			return r.All
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("%s: not within %s (%d tasks, %d ended, last error %v)%s",
				what, within, len(r.All), r.All.Ended(), err, r.All.Unfinished(5))
		}
	}
}

// Whole reads the stream from its beginning.
func (r *Reader) Whole(tb testing.TB) History {
	tb.Helper()
	fresh := &Reader{JS: r.JS, Next: 1, All: History{}}
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	if err := fresh.CatchUp(ctx); err != nil {
		tb.Fatalf("read the stream: %v", err)
	}
	return fresh.All
}

// Unfinished tells of some tasks that have not ended.
func (h History) Unfinished(n int) string {
	var b strings.Builder
	for task := range h {
		if r := h.Last(task); !r.Terminal() && n > 0 {
			n--
			fmt.Fprintf(&b, "\n%s", h.Story(task))
		}
	}
	return b.String()
}

// Story tells what happened to a task, for a person.
func (h History) Story(task string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "task %s:", task)
	for _, r := range h[task] {
		fmt.Fprintf(&b, "\n  #%d %s seq %d %s/%s attempt %d %s/%s/%d by %s",
			r.StreamSeq, r.Stored.Format("15:04:05.000"), r.Seq, r.Kind, r.State, r.Attempt, r.AgentID, r.InstanceID, r.Epoch, r.WriteID)
		if r.Reason.Code != "" {
			fmt.Fprintf(&b, " (%s: %s)", r.Reason.Code, r.Reason.Message)
		}
		if n := r.Nonce(); n != "" {
			fmt.Fprintf(&b, " nonce %s", n)
		}
	}
	return b.String()
}
