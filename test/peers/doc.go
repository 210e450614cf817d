// Peers does the work of test/bench with other queues, each with its own
// durable store on this machine: asynq on Redis, River on PostgreSQL, Temporal's
// dev server on SQLite. It is a child of test/bench, which says what to do, and
// prints what it found.
package main
