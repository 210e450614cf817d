package rig

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Evidence is what a run leaves behind: all that the checker looks at.
type Evidence struct {
	Acked    []string       // tasks whose dispatch was acknowledged
	Records  History        // what the stream holds
	Journals [][]Entry      // what the agents noted, one list per process; nil: nobody kept any
	Slots    map[string]int // of each agent
}

// Check fails the test for every invariant that does not hold.
func (e Evidence) Check(tb testing.TB) {
	tb.Helper()
	faults := e.Faults()
	shown := map[string]bool{}
	for i, f := range faults {
		if i == 20 {
			tb.Errorf("… and %d more", len(faults)-i)
			break
		}
		tb.Errorf("%s: %s", f.Task, f.What)
		if !shown[f.Task] && len(shown) < 5 {
			shown[f.Task] = true
			tb.Log(e.Records.Story(f.Task) + e.Story(f.Task))
		}
	}
}

// Story tells what the agents noted of a task.
func (e Evidence) Story(task string) (s string) {
	var all []Entry
	for _, list := range e.Journals {
		for _, j := range list {
			if j.Task == task {
				all = append(all, j)
			}
		}
	}
	slices.SortFunc(all, func(a, b Entry) int { return int(a.At - b.At) })
	for _, j := range all {
		s += fmt.Sprintf("\n  %s %s/%s/%d %s attempt %d %s %s %s %s",
			clock(j.At), j.Agent, j.Instance, j.Epoch, j.What, j.Attempt, j.Nonce, j.Status, j.Code, j.State)
	}
	return s
}

func clock(ns int64) string { return time.Unix(0, ns).UTC().Format("15:04:05.000") }

// Fault is an invariant that does not hold.
type Fault struct{ Task, What string }

// who is an agent instance in one of its lives.
type who struct {
	agent, instance string
	epoch           int64
}

func (w who) String() string { return fmt.Sprintf("%s/%s/%d", w.agent, w.instance, w.epoch) }

// holder is who has the task in hand by this record.
func (r *Record) holder() who { return who{r.AgentID, r.InstanceID, r.Epoch} }
func (j *Entry) who() who     { return who{j.Agent, j.Instance, j.Epoch} }

// turn is one attempt at a task by somebody.
type turn struct {
	task    string
	attempt int
	who     who
}

// execution is one run of a handler.
type execution struct {
	task string
	who  who
}

// Faults lists what is wrong. It decides purely.
func (e Evidence) Faults() []Fault {
	c := checker{Evidence: e, offered: map[turn]bool{}, begun: map[string]execution{}, counted: map[string]string{}}
	for _, list := range e.Journals {
		c.readJournal(list)
	}
	for _, task := range e.Acked {
		if len(e.Records[task]) == 0 {
			c.fault(task, "was acknowledged, and there is no record of it")
		}
	}
	for task, list := range e.Records {
		c.walk(task, list)
	}
	for _, list := range e.Journals {
		c.answers(list)
	}
	slices.SortStableFunc(c.found, func(a, b Fault) int {
		if a.Task < b.Task {
			return -1
		}
		return 1
	})
	return c.found
}

type checker struct {
	Evidence
	offered map[turn]bool
	begun   map[string]execution // by nonce
	counted map[string]string    // nonce of the result that became the outcome, by task
	found   []Fault
}

func (c *checker) fault(task, format string, args ...any) {
	c.found = append(c.found, Fault{task, fmt.Sprintf(format, args...)})
}

// readJournal takes in what one process noted, and finds agents that worked on
// more than they had room for.
func (c *checker) readJournal(list []Entry) {
	running := map[who]int{}
	for i := range list {
		j := &list[i]
		switch j.What {
		case WasOffered:
			c.offered[turn{j.Task, j.Attempt, j.who()}] = true
		case WasBegun:
			if _, twice := c.begun[j.Nonce]; twice {
				c.fault(j.Task, "two executions have the nonce %s", j.Nonce)
			}
			c.begun[j.Nonce] = execution{j.Task, j.who()}
			running[j.who()]++
			if slots := c.Slots[j.Agent]; slots > 0 && running[j.who()] > slots {
				c.fault(j.Task, "%s runs %d handlers, it has %d slots", j.who(), running[j.who()], slots)
			}
		case WasEnded:
			running[j.who()]--
		}
	}
}

// walk follows one task from its first record to its last.
func (c *checker) walk(task string, list []Record) {
	var (
		holder  *who // who has it in hand
		attempt int
		ended   bool
		held    = map[int]who{} // by attempt
		retries int
		writes  = map[string]bool{}
		failed  []PastAttempt
	)
	for i := range list {
		r := &list[i]
		if r.Seq != i+1 {
			c.fault(task, "record %d has seq %d", i+1, r.Seq)
		}
		if ended {
			c.fault(task, "seq %d (%s) follows the outcome", r.Seq, r.Kind)
		}
		if r.TaskID != task {
			c.fault(task, "seq %d is of task %s", r.Seq, r.TaskID)
		}
		if r.WriteID == "" || writes[r.WriteID] {
			c.fault(task, "seq %d has the write id %q, which is not unique", r.Seq, r.WriteID)
		}
		writes[r.WriteID] = true
		if i > 0 && r.StreamSeq <= list[i-1].StreamSeq {
			c.fault(task, "seq %d is stored before seq %d", r.Seq, list[i-1].Seq)
		}
		c.first(task, i, r)
		switch {
		case r.Kind == "working":
			if holder != nil {
				c.fault(task, "seq %d: %s takes it while %s holds it: two leases", r.Seq, r.holder(), holder)
			}
			if r.Attempt <= attempt {
				c.fault(task, "seq %d: attempt %d follows attempt %d", r.Seq, r.Attempt, attempt)
			}
			h := r.holder()
			holder, held[r.Attempt] = &h, h
			if r.Facts.Human != nil { // who does it is a human's decision: also one who failed
				c.begins(task, r, nil)
			} else {
				c.begins(task, r, failed)
			}
		case r.Held():
			if holder == nil || *holder != r.holder() || r.Attempt != attempt {
				c.fault(task, "seq %d (%s) names the holder %s of attempt %d; it is %v of attempt %d", r.Seq, r.Kind, r.holder(), r.Attempt, holder, attempt)
			}
		case r.Terminal():
			ended = true
			c.outcome(task, r, held)
			holder = nil
		default:
			holder = nil
			if r.AgentID != "" {
				c.fault(task, "seq %d is %s and names a holder, %s", r.Seq, r.State, r.holder())
			}
		}
		if r.Attempt < attempt {
			c.fault(task, "seq %d is of attempt %d, after attempt %d", r.Seq, r.Attempt, attempt)
		}
		attempt = max(attempt, r.Attempt)
		if r.Kind == "retry" {
			if retries++; retries > r.Facts.Policy.MaxRetries {
				c.fault(task, "seq %d is retry %d of %d", r.Seq, retries, r.Facts.Policy.MaxRetries)
			}
		}
		failed = c.past(task, r, failed)
	}
	if !ended && len(list) > 0 {
		c.fault(task, "has no outcome")
	}
}

// first checks that a task begins as it must: with its dispatch, or (by the
// raw door) with the refusal of one.
func (c *checker) first(task string, i int, r *Record) {
	switch {
	case i == 0 && r.Kind != "queued" && (r.Kind != "outcome" || r.State != "error"):
		c.fault(task, "begins with %s/%s", r.Kind, r.State)
	case i > 0 && r.Kind == "queued":
		c.fault(task, "seq %d begins it once more", r.Seq)
	case (r.Kind == "outcome") != r.Terminal():
		c.fault(task, "seq %d is %s/%s", r.Seq, r.Kind, r.State)
	}
}

// begins checks an attempt that begins: it was offered, and not to somebody
// who failed the task for good.
func (c *checker) begins(task string, r *Record, failed []PastAttempt) {
	if c.Journals != nil && !c.offered[turn{task, r.Attempt, r.holder()}] {
		c.fault(task, "seq %d: attempt %d is held by %s, who was not offered it", r.Seq, r.Attempt, r.holder())
	}
	for i, a := range failed {
		other := a.ByInstance() && a.InstanceID != r.InstanceID
		if a.AgentID == r.AgentID && a.Level >= 2 && !other {
			c.fault(task, "seq %d: %s has it again, after it failed it for good in attempt %d (%d)", r.Seq, r.AgentID, a.Attempt, i)
		}
	}
}

// rowKept is how many attempts in a row that went back to the queue every record
// repeats at least.
const rowKept = 15

// past checks that ended attempts are only ever added. Of a long row that went back
// to the queue the first are left out.
func (c *checker) past(task string, r *Record, before []PastAttempt) []PastAttempt {
	now := r.Facts.Attempts
	k := 0
	for i, a := range before {
		if k < len(now) && now[k].Attempt == a.Attempt {
			if b := now[k]; a.AgentID != b.AgentID || a.Code != b.Code {
				c.fault(task, "seq %d tells ended attempt %d differently: %+v, it was %+v", r.Seq, a.Attempt, b, a)
			}
			k++
			continue
		}
		row := 0
		for row < len(before)-i && before[i+row].Requeues() {
			row++
		}
		if row < rowKept {
			c.fault(task, "seq %d knows nothing of ended attempt %d, which was %+v", r.Seq, a.Attempt, a)
			return now
		}
	}
	return now
}

// outcome checks that what counts was done by somebody whom a record named.
func (c *checker) outcome(task string, r *Record, held map[int]who) {
	res := r.Data.Result
	if res == nil || res.State != r.State || res.TaskID != task {
		c.fault(task, "seq %d, the outcome, has no result of its own: %+v", r.Seq, res)
		return
	}
	if r.State != "done" && r.State != "partial" {
		return
	}
	h, ok := held[r.Attempt]
	switch {
	case !ok || h != r.holder():
		c.fault(task, "seq %d counts attempt %d of %s; the records know %v", r.Seq, r.Attempt, r.holder(), held)
		return
	case res.AgentID != r.AgentID || res.InstanceID != r.InstanceID || res.Attempt != r.Attempt:
		c.fault(task, "seq %d: the result is of attempt %d of %s/%s", r.Seq, res.Attempt, res.AgentID, res.InstanceID)
	}
	if c.Journals == nil {
		return
	}
	x, ok := c.begun[r.Nonce()]
	if !ok || x != (execution{task, r.holder()}) {
		c.fault(task, "seq %d counts the execution %q of %s, which the journals know as %v", r.Seq, r.Nonce(), r.holder(), x)
	}
	c.counted[task] = r.Nonce()
}

// answers checks what agents were told of their results: a result that is said
// to have ended the task did, and any other was refused with a reason that lets
// the agent drop it.
func (c *checker) answers(list []Entry) {
	for i := range list {
		j := &list[i]
		good := j.Status == "done" || j.Status == "partial"
		switch {
		case j.What != WasAnswered:
		case j.Code == "ok" && good && (j.State == "done" || j.State == "partial"):
			if c.counted[j.Task] != j.Nonce {
				c.fault(j.Task, "%s was told that its execution %s counts; %q does", j.who(), j.Nonce, c.counted[j.Task])
			}
		case j.Code == "ok" && good && (j.State == "queued" || j.State == "working"):
			c.fault(j.Task, "%s was told that its execution %s was taken in, and the task is %s", j.who(), j.Nonce, j.State)
		case j.Code == "ok", j.Code == "late_result", j.Code == "superseded", j.Code == "canceled":
		default:
			c.fault(j.Task, "%s was answered %s to its result of attempt %d", j.who(), j.Code, j.Attempt)
		}
	}
}

// Summary counts what happened.
func (e Evidence) Summary() string {
	states, codes := map[string]int{}, map[string]int{}
	attempts, late, begun := 0, 0, 0
	for task := range e.Records {
		last := e.Records.Last(task)
		states[last.State]++
		attempts += len(last.Facts.Attempts)
		for _, a := range last.Facts.Attempts {
			codes[a.Code]++
		}
	}
	for _, list := range e.Journals {
		for _, j := range list {
			switch {
			case j.What == WasBegun:
				begun++
			case j.What == WasAnswered && j.Code != "ok":
				late++
			}
		}
	}
	return fmt.Sprintf("%d tasks ended %v, %d attempts failed %v, %d executions, %d results came too late",
		len(e.Records), states, attempts, codes, begun, late)
}
