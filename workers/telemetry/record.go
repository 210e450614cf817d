package telemetry

import (
	"time"

	"github.com/go-json-experiment/json"

	"parley/subjects"
	"parley/subjects/fleet"
)

// record is what is counted of a task's record; see fleet.Event.
type record struct {
	TaskID  subjects.TaskID  `json:"task_id"`
	Kind    string           `json:"kind"`
	State   fleet.State      `json:"state"`
	AgentID subjects.AgentID `json:"agent_id"`
	Time    time.Time        `json:"time"`
	Data    struct {
		Spent *fleet.Spent `json:"spent"`
	} `json:"data"`
	Facts struct {
		Created   time.Time          `json:"created"`
		Priority  fleet.Priority     `json:"priority"`
		SessionID subjects.SessionID `json:"session_id"`
		Tokens    int64              `json:"tokens_spent"`
		Attempts  []struct {
			AgentID subjects.AgentID `json:"agent_id"`
			Ended   time.Time        `json:"ended"`
			Code    subjects.Code    `json:"code"`
			Tokens  int64            `json:"tokens"`
			Level   int              `json:"level"`
		} `json:"attempts"`
	} `json:"facts"`
}

func decode(data []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}

// counted reports whether a kind of record changes any metric; the others are
// not decoded.
func counted(kind string) bool {
	switch kind {
	case fleet.KindQueued, fleet.KindWorking, fleet.KindRetry, fleet.KindReroute, fleet.KindReturned, fleet.KindLost, fleet.KindHuman, fleet.KindSpent, fleet.KindOutcome:
		return true
	}
	return false
}

// ended is the attempt that the record ends, if it ends one.
func (r *record) ended() (end attempt, ok bool) {
	if n := len(r.Facts.Attempts); n > 0 {
		if a := r.Facts.Attempts[n-1]; a.Ended.Equal(r.Time) {
			return attempt{a.AgentID, a.Code, a.Level, a.Tokens}, true
		}
	}
	if r.Kind != fleet.KindOutcome || r.AgentID == "" || r.State != fleet.StateDone && r.State != fleet.StatePartial {
		return attempt{}, false
	}
	tokens := r.Facts.Tokens
	for _, a := range r.Facts.Attempts {
		tokens -= a.Tokens
	}
	return attempt{r.AgentID, codeOK, 0, max(tokens, 0)}, true
}

// codeOK is the code of an attempt that did the task.
const codeOK subjects.Code = "ok"

// attempt is one that has ended.
type attempt struct {
	agent  subjects.AgentID
	code   subjects.Code
	level  int
	tokens int64
}

// waited is how long the task has waited for the agent that now has it: since
// it was dispatched, or since its last attempt ended.
func (r *record) waited() time.Duration {
	since := r.Facts.Created
	if n := len(r.Facts.Attempts); n > 0 {
		since = r.Facts.Attempts[n-1].Ended
	}
	return max(0, r.Time.Sub(since))
}
