// Package schedules carries out schedules: it dispatches a task, starts a run
// or sends a message, again and again or at one time, in the name of whoever
// created the schedule.
//
// # Promises
//
// The record of a schedule (bucket FLEET_SCHEDULES, by compare-and-set) is all
// that there is to know of it; advance decides what follows from it, and is
// pure. What is to be begun is written down before it is begun, under an id that
// follows from schedule, generation and time. So however often a time is told,
// and whoever takes a schedule over in the middle of it, one time is one task,
// run or message.
//
// When a schedule is due next is a message schedule of JetStream (stream
// FLEET_TIMERS), which survives the loss of every worker and of the broker. What
// comes out of it says when to look, and nothing else: what is due follows from
// the record and from the clock, so it does no harm if somebody publishes there
// who should not be able to. A timer that is lost is made up for within
// seconds, as long as a worker lives.
//
// Of several times that have passed when a worker looks, the last one counts and
// the others were missed; it was missed too if it is later than the grace time.
// Whether a missed time is made up for, once, is the schedule's own policy, and
// so is what becomes of one that comes while what was begun before is under way.
//
// Any number of workers may run. Each schedule is carried on by its owner
// (rendezvous hashing over the workers that live); where two believe to own it,
// compare-and-set decides, and what they begin is the same.
//
// # Backpressure
//
// The fleet's: a refusal as rate_limited or unavailable is tried again after a
// second, and the schedule goes on from there. A worker carries on 64 schedules
// at a time. At most 100 times of a schedule wait for the one before them, and
// an agent has at most 1000 schedules.
package schedules
