package escalation

import "parley/subjects"

// Class says whose failure the end of an attempt is. It decides which counter
// grows, who is left out and what comes next (ADR 23).
type Class string

// The classes.
const (
	ClassResult    Class = "result"    // what was handed in is wrong
	ClassAgent     Class = "agent"     // the agent tried and failed
	ClassLoss      Class = "loss"      // the process, the machine or the network is gone
	ClassHandBack  Class = "hand_back" // the agent shuts down, or drains
	ClassCapacity  Class = "capacity"  // the provider of the model limits the account
	ClassCondition Class = "condition" // something that the instance needs is not well
	ClassStatement Class = "statement" // the agent says that it cannot, or may not
	ClassBudget    Class = "budget"    // the tokens are spent
)

// ClassOf is the class of an attempt that ended with code. A code that is not
// known is the agent's own failure.
func ClassOf(code subjects.Code) Class {
	switch code {
	case subjects.CodeResultInvalid, subjects.CodeCheckFailed, subjects.CodeSecretInChanges:
		return ClassResult
	case subjects.CodeAgentLost:
		return ClassLoss
	case subjects.CodeAgentBusy:
		return ClassHandBack
	case subjects.CodeRateLimited:
		return ClassCapacity
	case subjects.CodeMCPUnhealthy, subjects.CodeDirtyRepo, subjects.CodeLoginRequired, subjects.CodeSetupFailed:
		return ClassCondition
	case subjects.CodeNoCapableAgent, subjects.CodeForbidden, subjects.CodeHostNotAllowed, subjects.CodePermissionDenied:
		return ClassStatement
	case subjects.CodeBudgetExhausted:
		return ClassBudget
	}
	return ClassAgent
}

// CountsAsTry reports whether an attempt of the class was a try at the work:
// only these use up retries and exclude the agent for it.
func (c Class) CountsAsTry() bool { return c == ClassResult || c == ClassAgent }

// Blocks reports whether the agent could not begin, so that on_blocked decides.
func (c Class) Blocks() bool { return c == ClassCondition || c == ClassStatement }

// Requeues reports whether the task goes back to its queue whatever its policy
// says, within the bounds of losses and attempts.
func (c Class) Requeues() bool {
	return c == ClassLoss || c == ClassHandBack || c == ClassCapacity
}

// SaidByAgent is the code that counts where an agent reports code itself: an agent
// cannot say that it is lost.
func SaidByAgent(code subjects.Code) subjects.Code {
	if code == "" || code == subjects.CodeAgentLost {
		return subjects.CodeAgentError
	}
	return code
}
