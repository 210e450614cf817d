// Package router holds the worker that matches tasks with agents and sees every
// task through to its one outcome. Any number of routers share the work; all
// state is in the task records, so any of them can be lost at any instruction.
//
// Promises. A dispatch is answered only after its record is stored; from then
// on it reaches exactly one outcome. Records change by compare-and-set alone,
// so of two routers that decide at once one decides again. Results are answered
// after they are stored; an agent repeats its result until then. Within a class
// (tasks that ask for the same agents) tasks start by priority, weighted
// 8:4:2:1, oldest first; between classes no order is promised, and a class that
// nobody can serve delays nobody.
//
// Duplication. An agent may be offered a task again after its lease ended or an
// acceptance was lost; it is told to drop what no record gives it.
//
// Backpressure. Above MaxQueued waiting tasks the API answers rate_limited and
// the inbox is no longer drained, so that JetStream refuses there in its turn.
package router
