package telemetry

import (
	"strconv"
	"time"

	"parley/subjects/fleet"
)

// span is one of a task's trace.
type span struct {
	kind       string
	n          int
	name       string
	parentKind string // "" only of the task's own
	parentN    int
	start, end time.Time
	attrs      []attr
	failed     string // why; "" when it has not
}

// attr is text or a number.
type attr struct {
	key  string
	text string
	n    int64
}

func text(key, v string) attr         { return attr{key: key, text: v} }
func number(key string, n int64) attr { return attr{key: key, n: n} }

// tree makes the spans of a task from its records, oldest first, of which the
// last one is its outcome. The first span is the task's own, of which the
// others hang, questions from their attempt.
func tree(records []*fleet.Event) []span {
	last := records[len(records)-1]
	t := &growing{records: records, attempt: -1, wait: -1, human: -1, question: -1}
	t.spans = []span{root(last)}
	t.begin(&t.wait, span{kind: fleet.SpanWait, n: t.next(fleet.SpanWait), name: "wait for an agent", start: last.Facts.Created})
	for _, e := range records {
		t.grow(e)
	}
	return t.spans
}

func root(last *fleet.Event) span {
	f := &last.Facts
	s := span{
		kind: fleet.SpanTask, name: "task", start: f.Created, end: last.Time,
		attrs: []attr{
			text("messaging.system", "nats"), text("parley.task.id", string(last.TaskID)), text("parley.task.from", string(f.From)),
			text("parley.task.priority", string(f.Priority)), text("parley.task.outcome", string(last.State)),
			number("parley.task.tokens", f.TokensSpent), number("parley.task.attempts", int64(last.Attempt)),
		},
	}
	for key, id := range map[string]string{"parley.session.id": string(f.SessionID), "parley.run.id": string(f.RunID)} {
		if id != "" {
			s.attrs = append(s.attrs, text(key, id))
		}
	}
	if last.State != fleet.StateDone && last.State != fleet.StatePartial {
		s.failed = string(last.State)
		if last.Reason != nil {
			s.failed += ": " + string(last.Reason.Code)
		}
	}
	return s
}

// growing is a tree under way. What is open is an index of spans, -1 for none.
type growing struct {
	records                        []*fleet.Event
	spans                          []span
	attempt, wait, human, question int
	numbers                        map[string]int
}

// next numbers spans of a kind, from 1.
func (t *growing) next(kind string) int {
	if t.numbers == nil {
		t.numbers = make(map[string]int)
	}
	t.numbers[kind]++
	return t.numbers[kind]
}

func (t *growing) begin(open *int, s span) {
	if s.parentKind == "" {
		s.parentKind = fleet.SpanTask
	}
	*open = len(t.spans)
	t.spans = append(t.spans, s)
}

func (t *growing) end(open *int, at time.Time) {
	if *open >= 0 {
		t.spans[*open].end = at
		*open = -1
	}
}

// grow takes the next record in.
func (t *growing) grow(e *fleet.Event) {
	switch e.Kind {
	case fleet.KindWorking:
		t.end(&t.wait, e.Time)
		t.begin(&t.attempt, attemptSpan(e.Attempt, string(e.AgentID), string(e.InstanceID), e.Time))
	case fleet.KindQuestion:
		t.begin(&t.question, span{
			kind: fleet.SpanQuestion, n: t.next(fleet.SpanQuestion), name: "wait for an answer",
			parentKind: fleet.SpanAttempt, parentN: e.Attempt, start: e.Time,
		})
	case fleet.KindAnswer:
		t.end(&t.question, e.Time)
	case fleet.KindRetry, fleet.KindReroute, fleet.KindReturned, fleet.KindLost:
		t.ended(e)
		if t.wait < 0 {
			t.begin(&t.wait, span{kind: fleet.SpanWait, n: t.next(fleet.SpanWait), name: "wait for an agent", start: e.Time})
		}
	case fleet.KindHuman:
		t.ended(e)
		t.end(&t.wait, e.Time)
		t.begin(&t.human, span{kind: fleet.SpanHuman, n: t.next(fleet.SpanHuman), name: "wait for a human", start: e.Time})
	case fleet.KindResumed:
		t.end(&t.human, e.Time)
		t.begin(&t.wait, span{kind: fleet.SpanWait, n: t.next(fleet.SpanWait), name: "wait for an agent", start: e.Time})
	case fleet.KindOutcome:
		t.ended(e)
		t.end(&t.wait, e.Time)
		t.end(&t.human, e.Time)
	}
}

func attemptSpan(n int, agent, instance string, start time.Time) span {
	return span{
		kind: fleet.SpanAttempt, n: n, name: "invoke_agent " + agent, start: start,
		attrs: []attr{
			text("gen_ai.operation.name", "invoke_agent"), text("gen_ai.agent.name", agent),
			text("parley.agent.instance", instance), number("parley.attempt", int64(n)),
		},
	}
}

// ended closes the attempt that e ends, and marks the escalation that e is.
func (t *growing) ended(e *fleet.Event) {
	t.close(e)
	t.escalate(e)
}

// close closes the attempt that e ends. An offer that was refused is an attempt
// that no record began.
func (t *growing) close(e *fleet.Event) {
	t.end(&t.question, e.Time)
	var last *fleet.Attempt
	if n := len(e.Facts.Attempts); n > 0 && e.Facts.Attempts[n-1].Ended.Equal(e.Time) {
		last = &e.Facts.Attempts[n-1]
		if t.attempt < 0 {
			t.begin(&t.attempt, attemptSpan(last.Attempt, string(last.AgentID), string(last.InstanceID), e.Time))
		}
	}
	if t.attempt < 0 {
		return
	}
	s := &t.spans[t.attempt]
	switch {
	case last != nil:
		s.failed = string(last.Code)
		s.attrs = append(s.attrs, text("error.type", string(last.Code)), number("parley.attempt.tokens", last.Tokens))
	case e.State == fleet.StateDone, e.State == fleet.StatePartial:
		tokens := e.Facts.TokensSpent
		for _, a := range e.Facts.Attempts {
			tokens -= a.Tokens
		}
		s.attrs = append(s.attrs, number("parley.attempt.tokens", max(tokens, 0)))
	default: // canceled or expired under it
		s.failed = string(e.State)
		if e.Data.Spent != nil {
			s.attrs = append(s.attrs, number("parley.attempt.tokens", e.Data.Spent.Tokens))
		}
	}
	t.end(&t.attempt, e.Time)
}

// escalate marks the escalation that e is; a task that waits for a human
// already knows no further one.
func (t *growing) escalate(e *fleet.Event) {
	level := e.Escalates()
	if level == 0 || t.human >= 0 {
		return
	}
	s := span{
		kind: fleet.SpanEscalate, n: int(e.Seq), name: "escalate to level " + strconv.Itoa(level),
		parentKind: fleet.SpanTask, start: e.Time, end: e.Time,
		attrs: []attr{number("parley.escalation.level", int64(level))},
	}
	if e.Reason != nil {
		s.attrs = append(s.attrs, text("error.type", string(e.Reason.Code)))
	}
	t.spans = append(t.spans, s)
}
