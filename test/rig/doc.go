// Package rig is what the end-to-end tests and the chaos suite are made of:
// agents that play scripts and keep a journal (agents.go, script.go,
// journal.go), somebody who dispatches through raw NATS (boss.go), a reader of
// the task records in the stream (record.go), and the checker, which believes
// nothing but records and journals (check.go). Of Parley's code it uses the
// agents' harness alone.
package rig
