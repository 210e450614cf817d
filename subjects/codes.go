package subjects

// codeInfo is what a code means at every door.
type codeInfo struct {
	code            Code
	exit, http      int // exit status, HTTP status
	meaning, remedy string
}

// codes lists every code, in the order of the protocol. Exit statuses are part
// of the contract: a new code takes the next free number, none changes.
var codes = [...]codeInfo{
	{CodeInvalidMessage, 10, 400, "The message breaks the protocol's rules.", "Correct what the pointer names; the JSON Schemas list every rule."},
	{CodeInvalidID, 11, 400, "An identifier does not follow its grammar.", "Use 1 to 64 of the characters A-Z a-z 0-9 _ -; create session ids with the session API."},
	{CodePayloadTooLarge, 12, 413, "The message is longer than 1 MiB.", "Pass large content by reference: a part with a url."},
	{CodeVersionMismatch, 13, 400, "The message is of a protocol version that is not spoken here.", "Send one of the versions that the error names."},
	{CodeAuthFailed, 14, 401, "The credentials are missing, wrong or expired.", "Send a valid token or signature."},
	{CodeHostNotAllowed, 15, 403, "The agent may not act from this host.", "Use an allowed host, or have the operator add this one."},
	{CodeForbidden, 16, 403, "The caller may not do this, or names somebody else as itself.", "Act under your own id, or ask an operator."},
	{CodeRateLimited, 17, 429, "Too much at once: calls, tasks that wait, or what there is room for.", "Repeat after retry_after_seconds; where the error has none, do what its remedy says."},
	{CodeIdempotencyConflict, 18, 409, "The same task_id or idempotency_key came with another payload.", "Use a new id or key for a new task."},
	{CodeNotFound, 19, 404, "There is no such thing, or the caller may not see it.", "Check the id; tasks are kept until 24 h after their end."},
	{CodeSessionExpired, 20, 410, "The session is over, or its token is too old.", "Create a new session."},
	{CodeContextConflict, 21, 409, "The context has changed since it was read.", "Read it again and repeat the change."},
	{CodeSecretInContext, 22, 422, "The context holds something that looks like a secret.", "Take it out; agents get secrets from their own environment."},
	{CodeNoCapableAgent, 23, 422, "No agent of the fleet could ever do the task.", "See task explain; change the requirements or add an agent."},
	{CodeMCPUnhealthy, 24, 503, "An MCP server that the task needs is not healthy.", "Repair the server that the message names, or route to another agent."},
	{CodeDirtyRepo, 25, 409, "The agent's work tree has uncommitted changes.", "Commit or stash them, or do without clean_repo."},
	{CodeAgentBusy, 26, 503, "The agent has no free slot.", "Nothing: the task waits for a free one."},
	{CodeAgentLost, 27, 502, "The agent vanished while it held the task.", "Nothing: the task is queued again; see the agent's log."},
	{CodeAgentTimeout, 28, 504, "The attempt took longer than it may.", "Raise timeout_seconds, or make the task smaller."},
	{CodeAgentError, 29, 502, "The agent failed.", "See the message and the agent's log."},
	{CodeResultInvalid, 30, 502, "The result does not match what was asked for.", "See the message; relax result_schema or make the brief clearer."},
	{CodeLateResult, 31, 409, "It came too late: the attempt no longer counts, or a human's answer is no longer asked for.", "Nothing: drop the work; task get shows the task as it is."},
	{CodeSuperseded, 32, 409, "Another attempt holds the task.", "Stop working on it."},
	{CodeBudgetExhausted, 33, 422, "The token budget is spent.", "Dispatch again with a larger token_budget."},
	{CodeDeadlineExceeded, 34, 504, "The deadline has passed.", "Dispatch again with a later deadline."},
	{CodeHopLimit, 35, 508, "The message was passed on too often.", "Break the loop between the agents."},
	{CodeCycle, 36, 422, "The dependencies of a run form a circle, or a task comes back to where it has been.", "Take out one of those that the message names."},
	{CodeCanceled, 37, 409, "The task was canceled.", "Dispatch again if it is still wanted."},
	{CodeUnavailable, 38, 503, "The fleet cannot answer for the moment.", "Repeat after retry_after_seconds; the same task_id makes that safe."},
	{CodeInternal, 39, 500, "A fault of the fleet itself.", "See the worker's log, and report it."},
	{CodeCheckFailed, 40, 422, "The check that the dispatch names failed on the result.", "See the check's output in the message; correct the work or the check."},
	{CodeSecretInChanges, 41, 422, "The changes hold something that looks like a secret.", "Take it out of the changes; agents get secrets from their own environment."},
	{CodeLoginRequired, 42, 401, "The agent's tool is not logged in.", "Log in on the agent's machine; the message names the tool."},
	{CodeSetupFailed, 43, 503, "The agent could not prepare its work place.", "See the message; repair the setup on the agent's machine."},
	{CodePermissionDenied, 44, 403, "The agent was denied something that the task needs.", "Allow it in the agent's configuration, or send the task to another agent."},
}

// Codes returns every code, in the order of the protocol.
func Codes() []Code {
	list := make([]Code, len(codes))
	for i := range codes {
		list[i] = codes[i].code
	}
	return list
}

// CodeInfo tells what a code means, what to do about it, and what it is as exit
// status and as HTTP status. A code from a newer peer is status 1 and 500, with
// no texts.
func CodeInfo(code Code) (meaning, remedy string, exit, httpStatus int) {
	for i := range codes {
		if c := &codes[i]; c.code == code {
			return c.meaning, c.remedy, c.exit, c.http
		}
	}
	return "", "", 1, 500
}
