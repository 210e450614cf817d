package escalation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"parley/subjects"
	"parley/subjects/fleet"
)

// State is all that the policy looks at.
type State struct {
	Policy fleet.Policy
	// Attempts have ended, oldest first. The newest is judged; the earlier ones
	// carry in Level what was answered then.
	Attempts []fleet.Attempt
	// Counters are those of the record before the newest attempt ended; nil:
	// counted from Attempts.
	Counters     *fleet.Counters
	Made         int // attempts that were begun, the newest included
	Widened      int // steps of candidates that were skipped since the attempt before
	Deadline     time.Time
	TokenBudget  int64 // 0 = none
	TokensSpent  int64
	Ceilings     []Ceiling      // budgets that the task shares
	Nobody       []fleet.Reason // set when none of the candidates could ever do it: why not
	Away         bool           // none of the candidates is there, or all are limited
	RetryAfter   time.Duration  // what the newest failure asked for, 0 = nothing
	HumanContact bool           // this fleet has a human to ask
	// GiveUpAt is set while the task waits for a human: until when.
	GiveUpAt time.Time
	// Decided says that a human has decided who does the task: nobody else is
	// looked for.
	Decided bool
	// Starting asks whether another attempt may begin: only while no budget is
	// spent.
	Starting bool
	Seed     uint64 // of the jitter; the same for all of one task
	Backoff  Backoff
}

// Ceiling is a token budget that a task shares with all others of its session
// or run.
type Ceiling struct {
	Of     string // session or run
	Budget int64
	Spent  int64 // by all of them
}

// Action is what is to be done: exactly one of the types below.
//
//sumtype:decl
type Action interface{ isAction() }

// Retry is level 1: the same agent again, not before At.
type Retry struct {
	At    time.Time
	Agent subjects.AgentID
}

// Reassign is level 2: another agent, at once.
type Reassign struct{}

// Requeue puts a task back into its queue without using up a retry: its agent
// was lost, handed it back, or is limited. It is not offered before At, zero for
// at once.
type Requeue struct{ At time.Time }

// Widen lets the next step of candidates have a queued task, too.
type Widen struct{}

// Wait leaves a task in its queue until somebody can do it, or its deadline.
type Wait struct{}

// AskHuman is level 3: the task waits for a human.
type AskHuman struct {
	Code    subjects.Code
	Message string
}

// GiveUp ends the task, as blocked or error.
type GiveUp struct {
	State   fleet.State
	Code    subjects.Code
	Message string
}

// Expire ends the task: its deadline has passed.
type Expire struct{}

func (Retry) isAction()    {}
func (Reassign) isAction() {}
func (Requeue) isAction()  {}
func (Widen) isAction()    {}
func (Wait) isAction()     {}
func (AskHuman) isAction() {}
func (GiveUp) isAction()   {}
func (Expire) isAction()   {}

// End is how a level 3 ends that waits for no human.
func (a AskHuman) End() GiveUp { return end(a.Code, a.Message) }

// Next decides what follows the newest attempt; or, with Nobody or Away set, what
// becomes of a queued task whose candidates could never do it, or are not there.
// The state that it returns has the newest attempt's Level, the Counters and
// Widened as the next record has them; s itself is left as it was.
func Next(s State, now time.Time) (State, Action) {
	s.Attempts = slices.Clone(s.Attempts)
	judging := s.GiveUpAt.IsZero() && s.Nobody == nil && !s.Away && !s.Starting
	s.Counters = new(s.counters(judging))
	switch {
	case !s.Deadline.After(now):
		if n := len(s.Attempts); n > 0 && s.Attempts[n-1].Level == 0 && !ClassOf(s.Attempts[n-1].Code).Requeues() {
			s.Attempts[n-1].Level = 3
		}
		return s, Expire{}
	case !s.GiveUpAt.IsZero():
		return s, s.unanswered(now)
	case s.Nobody != nil:
		action := s.answerNobody()
		return s, action
	case s.Away:
		action := s.answerAway()
		return s, action
	case s.Starting && s.spent():
		action := s.escalateToHuman(subjects.CodeBudgetExhausted, s.budget())
		return s, action
	case s.Starting:
		return s, Wait{}
	case len(s.Attempts) == 0:
		return s, Wait{}
	}
	s.Widened = 0
	action := s.judge(now)
	return s, action
}

// counters are those of the record, counted from its attempts where a former
// build kept none: without the newest one, if that is to be judged.
func (s *State) counters(judging bool) fleet.Counters {
	if s.Counters != nil {
		return *s.Counters
	}
	attempts := s.Attempts
	if judging && len(attempts) > 0 {
		attempts = attempts[:len(attempts)-1]
	}
	var c fleet.Counters
	for _, a := range attempts {
		switch {
		case a.Level == 1:
			c.Retries++
		case ClassOf(a.Code) == ClassLoss:
			c.Losses++
			c.LossesTotal++
		}
	}
	return c
}

// unanswered goes on waiting for a human, or ends the task.
func (s *State) unanswered(now time.Time) Action {
	if now.Before(s.GiveUpAt) {
		return Wait{}
	}
	code, message := subjects.CodeNoCapableAgent, "no agent could do it"
	if n := len(s.Attempts); n > 0 {
		code, message = s.Attempts[n-1].Code, cmp.Or(s.Attempts[n-1].Message, string(s.Attempts[n-1].Code))
	}
	if s.spent() {
		code = subjects.CodeBudgetExhausted
	}
	return end(code, "no human answered until "+s.GiveUpAt.UTC().Format(time.RFC3339)+"; "+message)
}

// maxAttempts is how many attempts a task has at most: after that it is not
// another agent that is missing. Every record repeats the attempts before it, so
// that a large fleet would fill the store with one task.
const maxAttempts = 100

// judge answers the newest attempt, and notes in it at which level.
func (s *State) judge(now time.Time) Action {
	last := &s.Attempts[len(s.Attempts)-1]
	class := ClassOf(last.Code)
	if class == ClassLoss {
		s.Counters.Losses++
		s.Counters.LossesTotal++
	}
	switch {
	case class == ClassBudget:
		return s.escalateToHuman(last.Code, last.Message)
	case s.spent():
		return s.escalateToHuman(subjects.CodeBudgetExhausted, fmt.Sprintf("%s; the last attempt ended with %s: %s", s.budget(), last.Code, last.Message))
	case class.Requeues():
		return s.requeue(class, now)
	case s.asked():
		return s.escalateToHuman(last.Code, last.Message)
	case class.Blocks() && s.Policy.OnBlocked == fleet.OnBlockedFail:
		last.Level = 3
		return end(last.Code, last.Message)
	case class.Blocks() && s.Policy.OnBlocked == fleet.OnBlockedEscalate:
		return s.escalateToHuman(last.Code, last.Message)
	}
	if at, ok := s.retryAt(now); ok {
		last.Level = 1
		s.Counters.Retries++
		return Retry{At: at, Agent: last.AgentID}
	}
	return s.reassign()
}

// requeue puts a task back that was lost, handed back or limited, unless it was
// so too often.
func (s *State) requeue(class Class, now time.Time) Action {
	last := &s.Attempts[len(s.Attempts)-1]
	last.Level = 0
	most := cmp.Or(s.Policy.MaxLosses, fleet.DefaultMaxLosses)
	switch c := s.Counters; {
	case class == ClassLoss && c.Losses >= most:
		return s.escalateToHuman(last.Code, fmt.Sprintf("lost %s in a row; the last: %s", numbered(c.Losses, "agent"), cmp.Or(last.Message, string(last.Code))))
	case class == ClassLoss && c.LossesTotal >= totalLosses*most:
		return s.escalateToHuman(last.Code, fmt.Sprintf("lost %s in all; the last: %s", numbered(c.LossesTotal, "agent"), cmp.Or(last.Message, string(last.Code))))
	case s.Made >= maxAttempts:
		return s.escalateToHuman(last.Code, fmt.Sprintf("%d attempts have ended, no more are made; the last: %s", s.Made, cmp.Or(last.Message, string(last.Code))))
	case class == ClassLoss && c.Losses > 1:
		return Requeue{At: now.Add(s.Backoff.LossDelay(c.Losses))}
	case class == ClassHandBack:
		if n := HandedBack(s.Attempts); n > 1 {
			return Requeue{At: now.Add(s.Backoff.Delay(n-2, s.Seed))}
		}
	}
	return Requeue{}
}

// totalLosses times max_losses is how many agents a task may lose in all, however
// often the row is broken.
const totalLosses = 4

func numbered(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// HandedBack counts the newest attempts that handed the task back, one after
// another.
func HandedBack(attempts []fleet.Attempt) int {
	n := 0
	for n < len(attempts) && ClassOf(attempts[len(attempts)-1-n].Code) == ClassHandBack {
		n++
	}
	return n
}

// asked reports whether a human has had the task: what fails then is the
// human's again.
func (s *State) asked() bool {
	return slices.ContainsFunc(s.Attempts[:len(s.Attempts)-1], func(a fleet.Attempt) bool { return a.Level == 3 })
}

// retryAt decides whether the newest attempt's agent tries again, and when. Only
// the first agent that failed the task does.
func (s *State) retryAt(now time.Time) (time.Time, bool) {
	earlier, last := s.Attempts[:len(s.Attempts)-1], s.Attempts[len(s.Attempts)-1]
	another := slices.ContainsFunc(earlier, func(a fleet.Attempt) bool {
		return a.Level > 1 || a.Level == 1 && a.AgentID != last.AgentID
	})
	if another || !retryable(last) || s.Counters.Retries >= s.Policy.MaxRetries || s.Made >= maxAttempts {
		return time.Time{}, false
	}
	at := now.Add(max(s.Backoff.Delay(s.Counters.Retries, s.Seed), s.RetryAfter))
	return at, at.Before(s.Deadline)
}

// retryable reports whether the agent may try again after a. Codes that are not
// known are the agent's own errors: it says so itself.
func retryable(a fleet.Attempt) bool {
	switch class := ClassOf(a.Code); {
	case class == ClassResult, a.Code == subjects.CodeAgentTimeout:
		return true
	case class == ClassAgent:
		return a.Retryable
	}
	return false
}

// reassign answers the newest attempt by level 2, or by level 3 if nobody may any
// more.
func (s *State) reassign() Action {
	last := &s.Attempts[len(s.Attempts)-1]
	last.Level = 2
	exclude := Excluded(s.Policy, s.Attempts)
	failed := max(s.Made, len(exclude))
	switch {
	case failed >= maxAttempts:
		return s.escalateToHuman(last.Code, fmt.Sprintf("%d attempts have failed, no more are made; the last: %s", failed, cmp.Or(last.Message, string(last.Code))))
	case exhausted(s.Policy, exclude):
		return s.escalateToHuman(last.Code, last.Message)
	}
	return Reassign{}
}

// answerAway lets others have a task whose candidates are not there. A human's
// decision is kept, and what has no further step waits.
func (s *State) answerAway() Action {
	if s.Decided || s.spent() || !CandidatesOf(s.Policy, s.Attempts, s.Widened, nil).Wider {
		return Wait{}
	}
	s.Widened++
	return Widen{}
}

// answerNobody answers that none of those who may could ever do the task.
func (s *State) answerNobody() Action {
	if s.Decided {
		return s.escalateToHuman(subjects.CodeNoCapableAgent, "who was to do it by a human's decision cannot: "+join(s.Nobody))
	}
	var last *fleet.Attempt // that counts
	for i := range slices.Backward(s.Attempts) {
		if s.Attempts[i].Level > 0 {
			last = &s.Attempts[i]
			break
		}
	}
	byPolicy := last == nil || ClassOf(last.Code).Blocks()
	atOnce := byPolicy && (s.Policy.OnBlocked == fleet.OnBlockedFail || s.Policy.OnBlocked == fleet.OnBlockedEscalate)
	asked := last != nil && last.Level == 3
	if !atOnce && !asked && !s.spent() && CandidatesOf(s.Policy, s.Attempts, s.Widened, nil).Wider {
		s.Widened++
		return Widen{}
	}
	code, message := subjects.CodeNoCapableAgent, "no agent could ever do it: "+join(s.Nobody)
	if last != nil {
		code = last.Code
		message = cmp.Or(last.Message, string(code)) + "; nobody else could ever do it: " + join(s.Nobody)
	}
	if byPolicy {
		switch s.Policy.OnBlocked {
		case fleet.OnBlockedWait:
			return Wait{}
		case fleet.OnBlockedFail:
			return end(code, message)
		}
	}
	return s.escalateToHuman(code, message)
}

func join(reasons []fleet.Reason) string {
	if len(reasons) == 0 {
		return "no agent is known"
	}
	var out []string
	for _, r := range reasons {
		out = append(out, cmp.Or(r.Message, string(r.Code)))
	}
	return strings.Join(out, "; ")
}

func (s *State) spent() bool { return s.budget() != "" }

// budget says which token budget is spent, "" for none.
func (s *State) budget() string {
	if s.TokenBudget > 0 && s.TokensSpent >= s.TokenBudget {
		return fmt.Sprintf("the token budget of %d is spent (%d)", s.TokenBudget, s.TokensSpent)
	}
	for _, c := range s.Ceilings {
		if c.Budget > 0 && c.Spent >= c.Budget {
			return fmt.Sprintf("the %s's token budget of %d is spent (%d)", c.Of, c.Budget, c.Spent)
		}
	}
	return ""
}

// escalateToHuman is level 3: a human if there is one to ask, else the end.
func (s *State) escalateToHuman(code subjects.Code, message string) Action {
	if n := len(s.Attempts); n > 0 {
		s.Attempts[n-1].Level = 3
	}
	ask := s.HumanContact
	switch s.Policy.Escalate {
	case fleet.EscalateAlways:
		ask = true
	case fleet.EscalateNever:
		ask = false
	}
	if ask {
		return AskHuman{Code: code, Message: message}
	}
	return end(code, message)
}

func end(code subjects.Code, message string) GiveUp {
	state := fleet.StateError
	if Blocked(code) {
		state = fleet.StateBlocked
	}
	return GiveUp{State: state, Code: code, Message: message}
}
