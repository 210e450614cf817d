// Package escalation decides what follows a failed attempt (ADR 8, ADR 23). Every
// failure has a class, which says whose failure it is: level 1 is the same agent
// again, level 2 another agent, level 3 a human or the end. A lost agent, a limit
// and a task that was handed back are not failures of the work: they use up no
// level, and the task goes back to its queue. The package is pure: state and time
// go in, state and an action come out. It reads no clock, rolls no dice and does no
// I/O, so that any router can ask it at any time and all get the same answer.
//
// Levels go 1* 2* 3 and never back. Level 2 never returns to an agent that
// failed the task. No action starts an attempt at or after the deadline, or
// with the token budget spent. Level 3 is not reached while somebody may and
// could do the task, except at once for a spent budget, by on_blocked, or for a task
// that its agents do not survive. Whatever fails, the policy ends: one try by each
// agent and max_retries in all, fewer than 4 times max_losses losses, and at most 100
// attempts.
package escalation
