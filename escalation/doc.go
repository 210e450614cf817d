// Package escalation is the ladder that a failed attempt climbs: level 1 the
// same agent again, level 2 another agent, level 3 a human or the end. It is
// pure: state and time go in, state and an action come out. It reads no clock,
// rolls no dice and does no I/O, so that any router can ask it at any time and
// all get the same answer.
//
// Levels go 1* 2* 3 and never back. Level 2 never returns to an agent that
// failed the task. No action starts an attempt at or after the deadline, or
// with the token budget spent. Level 3 is not reached while somebody may and
// could do the task, except at once for a spent budget or by on_blocked. Whatever
// fails, the ladder ends: one attempt by each agent and max_retries in all.
package escalation
