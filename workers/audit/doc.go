// Package audit keeps the fleet's audit: one line for every change of a task, a
// run, a schedule, an alert, a webhook, a session, a context, an identity and a
// drain, for every handshake and for every refusal.
//
// # Promises
//
// Every record that is stored becomes its lines, once, however many audit
// workers run and whichever of them dies: each block of lines says how far its
// sources were read, and blocks are written by compare-and-set behind the last
// one. A record that is deleted before any audit worker has read it (tasks go
// 24 h after their end) leaves no line.
//
// Lines are numbered without gaps. Blocks are chained by hash (see package
// subjects/audit), so a change is found, and told where. They are kept 90 days,
// or until the stream's limit drops the oldest.
//
// An entry of the stream that is not of the audit is skipped and counted (see
// bus.Skip), at the start and while the worker runs; so is a message of a source
// that cannot be read.
//
// A line holds what happened, never a brief, an output or a token; what agents
// say of it is cut and escaped.
//
// # Order and backpressure
//
// Lines of one source are in its order; those of different sources are in the
// order in which they were read, about that of their times. The audit follows;
// nobody waits for it. Where it is slower than the fleet it falls behind, and
// catches up.
package audit
