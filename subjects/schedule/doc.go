// Package schedule is the contract of schedules: a task, a run or a message
// between agents that comes again and again, or at one time, whoever sleeps
// meanwhile.
//
// A Definition says when, what, and what becomes of times that were missed or
// that come while the one before is still under way. When is a Clock, the same
// for those who show it and for those who go by it. A Record says how far a
// schedule has come; only schedules workers write it.
package schedule
