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

// State is all that the ladder looks at.
type State struct {
	Policy fleet.Policy
	// Attempts have ended, oldest first. The newest is judged; the earlier ones
	// carry in Level what was answered then.
	Attempts     []fleet.Attempt
	Deadline     time.Time
	TokenBudget  int64 // 0 = none
	TokensSpent  int64
	Ceilings     []Ceiling      // budgets that the task shares
	Gone         bool           // the newest attempt's agent is not live any more
	Nobody       []fleet.Reason // set when nobody who may (Only, Excluded) could ever do it: why not
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

// Reassign is level 2: another agent, at once. Only, when not empty, names all
// who may.
type Reassign struct {
	Exclude  []subjects.AgentID
	Only     []subjects.AgentID
	CoolDown *CoolDown // nil: none
}

// CoolDown keeps an agent from being offered anything for a while.
type CoolDown struct {
	Agent subjects.AgentID
	Until time.Time
}

// Return puts a task back into its queue that its agent handed back unfailed:
// not to be offered before At, zero for at once.
type Return struct{ At time.Time }

// Wait leaves a task in its queue until somebody can do it, or its deadline.
type Wait struct{}

// AskHuman is level 3: the task waits for a human.
type AskHuman struct {
	Code     subjects.Code
	Message  string
	CoolDown *CoolDown // nil: none
}

// GiveUp ends the task, as blocked or error.
type GiveUp struct {
	State    fleet.State
	Code     subjects.Code
	Message  string
	CoolDown *CoolDown // nil: none
}

// Expire ends the task: its deadline has passed.
type Expire struct{}

func (Retry) isAction()    {}
func (Reassign) isAction() {}
func (Return) isAction()   {}
func (Wait) isAction()     {}
func (AskHuman) isAction() {}
func (GiveUp) isAction()   {}
func (Expire) isAction()   {}

// Rests is the cool-down that comes with a, nil for none: how an agent failed
// keeps it from other tasks, whatever becomes of this one.
func Rests(a Action) *CoolDown {
	switch a := a.(type) {
	case Reassign:
		return a.CoolDown
	case AskHuman:
		return a.CoolDown
	case GiveUp:
		return a.CoolDown
	default:
		return nil
	}
}

// End is how a level 3 ends that waits for no human.
func (a AskHuman) End() GiveUp { return end(a.Code, a.Message) }

// Next decides what follows the newest attempt; or, with Nobody set, what
// becomes of a queued task that none of those who may could ever do. The state
// that it returns has the newest attempt's Level set; s itself is left as it
// was.
//
// A retry that waits for an agent which has gone meanwhile can be judged again
// with Gone set: level 1 then becomes level 2. Where all that is missing is
// named agents (a pin, alternatives) who could never do it, the state returned
// has an attempt added for each that says so: they count as tried.
func Next(s State, now time.Time) (State, Action) {
	s.Attempts = slices.Clone(s.Attempts)
	switch {
	case !s.Deadline.After(now):
		if n := len(s.Attempts); n > 0 && s.Attempts[n-1].Level == 0 && s.Attempts[n-1].Code != subjects.CodeAgentBusy {
			s.Attempts[n-1].Level = 3
		}
		return s, Expire{}
	case !s.GiveUpAt.IsZero():
		return s, s.unanswered(now)
	case s.Nobody != nil:
		action := s.nobody(now)
		return s, action
	case s.Starting && s.spent():
		action := s.top(subjects.CodeBudgetExhausted, s.budget())
		return s, action
	case s.Starting:
		return s, Wait{}
	case len(s.Attempts) == 0:
		return s, Wait{}
	}
	rest := s.coolDown(len(s.Attempts)-1, now)
	switch a := s.judge(now).(type) {
	case AskHuman:
		a.CoolDown = rest
		return s, a
	case GiveUp:
		a.CoolDown = rest
		return s, a
	default:
		return s, a
	}
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

// judge answers the newest attempt, and notes in it at which level.
func (s *State) judge(now time.Time) Action {
	last := &s.Attempts[len(s.Attempts)-1]
	blocked := Blocked(last.Code)
	switch {
	case last.Code == subjects.CodeBudgetExhausted:
		return s.top(last.Code, last.Message)
	case s.spent():
		return s.top(subjects.CodeBudgetExhausted, fmt.Sprintf("%s; the last attempt ended with %s: %s", s.budget(), last.Code, last.Message))
	case last.Code == subjects.CodeAgentBusy:
		return s.handedBack(now)
	case s.asked():
		return s.top(last.Code, last.Message)
	case blocked && s.Policy.OnBlocked == fleet.OnBlockedFail:
		last.Level = 3
		return end(last.Code, last.Message)
	case blocked && s.Policy.OnBlocked == fleet.OnBlockedEscalate:
		return s.top(last.Code, last.Message)
	}
	if at, ok := s.again(now); ok {
		last.Level = 1
		return Retry{At: at, Agent: last.AgentID}
	}
	return s.another(len(s.Attempts)-1, now)
}

// handedBack puts the task back, for a while if it has only just been handed
// back before; if its agent has left for good and it was to try again, that is
// level 2.
func (s *State) handedBack(now time.Time) Action {
	last := &s.Attempts[len(s.Attempts)-1]
	last.Level = 0
	if k := counted(s.Attempts) - 1; k >= 0 && s.Gone && s.Attempts[k].Level == 1 && s.Attempts[k].AgentID == last.AgentID {
		return s.another(k, now)
	}
	if n := HandedBack(s.Attempts); n > 1 {
		return Return{At: now.Add(s.Backoff.Delay(n-2, s.Seed))}
	}
	return Return{}
}

// HandedBack counts the newest attempts that handed the task back, one after
// another.
func HandedBack(attempts []fleet.Attempt) int {
	n := 0
	for n < len(attempts) && attempts[len(attempts)-1-n].Code == subjects.CodeAgentBusy {
		n++
	}
	return n
}

// asked reports whether a human has had the task: what fails then is the
// human's again.
func (s *State) asked() bool {
	return slices.ContainsFunc(s.Attempts[:len(s.Attempts)-1], func(a fleet.Attempt) bool { return a.Level == 3 })
}

// again decides whether level 1 answers the newest attempt, and when.
func (s *State) again(now time.Time) (time.Time, bool) {
	earlier, last := s.Attempts[:len(s.Attempts)-1], s.Attempts[len(s.Attempts)-1]
	n := retries(earlier)
	above := slices.ContainsFunc(earlier, func(a fleet.Attempt) bool { return a.Level > 1 })
	if above || s.Gone || !retryable(last) || n >= s.Policy.MaxRetries {
		return time.Time{}, false
	}
	at := now.Add(max(s.Backoff.Delay(n, s.Seed), s.RetryAfter))
	return at, at.Before(s.Deadline)
}

// retries counts the attempts that the same agent was allowed to repeat.
func retries(attempts []fleet.Attempt) int {
	n := 0
	for _, a := range attempts {
		if a.Level == 1 || a.Level == 0 && Blocked(a.Code) {
			n++
		}
	}
	return n
}

// retryable reports whether the agent may try again after a. Codes that the
// ladder does not know are the agent's own errors: it says so itself.
func retryable(a fleet.Attempt) bool {
	switch a.Code {
	case subjects.CodeAgentTimeout, subjects.CodeResultInvalid:
		return true
	case subjects.CodeAgentLost, subjects.CodeRateLimited:
		return false
	}
	return a.Retryable && !Blocked(a.Code)
}

// maxFailed is how many agents may fail a task: after that it is not another
// agent that is missing. Every record repeats the attempts before it, so that a
// large fleet would fill the store with one task.
const maxFailed = 100

// another answers attempt k by level 2, or by level 3 if nobody may any more.
func (s *State) another(k int, now time.Time) Action {
	last := &s.Attempts[k]
	last.Level = 2
	failed := Excluded(s.Attempts)
	if len(failed) >= maxFailed {
		return s.top(last.Code, fmt.Sprintf("%d agents have failed it, no more are asked; the last: %s", len(failed), cmp.Or(last.Message, string(last.Code))))
	}
	only, exhausted := candidates(s.Policy, failed)
	if !exhausted {
		return Reassign{Exclude: failed, Only: only, CoolDown: s.coolDown(k, now)}
	}
	if s.waits(k) {
		last.Level = 0
		b := s.Backoff.withDefaults()
		return Reassign{
			Exclude: Excluded(s.Attempts), Only: Only(s.Policy, s.Attempts),
			CoolDown: &CoolDown{Agent: last.AgentID, Until: now.Add(max(s.RetryAfter, b.CoolDown))},
		}
	}
	return s.top(last.Code, last.Message)
}

// coolDown is how the agent of attempt k is to rest, nil for not at all.
func (s *State) coolDown(k int, now time.Time) *CoolDown {
	a := s.Attempts[k]
	rest := s.Backoff.rest(a, s.RetryAfter)
	if rest == 0 {
		return nil
	}
	return &CoolDown{Agent: a.AgentID, Until: now.Add(rest)}
}

// waits reports whether attempt k, by the last agent that may, is one that
// on_blocked: wait bears: what blocks the agent may pass. That is a retry, too.
func (s *State) waits(k int) bool {
	last := s.Attempts[k]
	return s.Policy.OnBlocked == fleet.OnBlockedWait && Blocked(last.Code) && retries(s.Attempts[:k]) < s.Policy.MaxRetries
}

// nobody answers that none of those who may could ever do the task.
func (s *State) nobody(now time.Time) Action {
	k := counted(s.Attempts)
	if s.Decided {
		return s.top(subjects.CodeNoCapableAgent, "who was to do it by a human's decision cannot: "+join(s.Nobody))
	}
	pending := k > 0 && s.Attempts[k-1].Level == 1
	named := Only(s.Policy, s.Attempts)
	if pending || len(named) > 0 {
		if a, ok := s.passOver(pending, named, now); ok {
			return a
		}
	}
	code, message := subjects.CodeNoCapableAgent, "no agent could ever do it: "+join(s.Nobody)
	if k > 0 {
		code = s.Attempts[k-1].Code
		message = cmp.Or(s.Attempts[k-1].Message, string(code)) + "; nobody else could ever do it: " + join(s.Nobody)
	}
	if k == 0 || Blocked(code) {
		switch s.Policy.OnBlocked {
		case fleet.OnBlockedWait:
			return Wait{}
		case fleet.OnBlockedFail:
			return end(code, message)
		}
	}
	return s.top(code, message)
}

// passOver goes on to others when the named agents, or the one that was to try
// again, could never do it; ok says that there may be others.
func (s *State) passOver(pending bool, named []subjects.AgentID, now time.Time) (Action, bool) {
	k := counted(s.Attempts)
	tried := slices.Clone(s.Attempts)
	if pending {
		tried[k-1].Level = 2
	} else {
		for _, id := range named {
			tried = append(tried, fleet.Attempt{
				AgentID: id, Ended: now, Level: 2, Code: subjects.CodeNoCapableAgent,
				Message: "not offered: " + join(s.Nobody),
			})
		}
	}
	failed := Excluded(tried)
	only, exhausted := candidates(s.Policy, failed)
	blocked := k == 0 || !pending && Blocked(s.Attempts[k-1].Code)
	atOnce := blocked && (s.Policy.OnBlocked == fleet.OnBlockedFail || s.Policy.OnBlocked == fleet.OnBlockedEscalate)
	if exhausted || atOnce || s.spent() || k > 0 && s.Attempts[k-1].Level == 3 {
		return nil, false
	}
	s.Attempts = tried
	return Reassign{Exclude: failed, Only: only}, true
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

// top is level 3: a human if there is one to ask, else the end.
func (s *State) top(code subjects.Code, message string) Action {
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
