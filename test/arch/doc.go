// Package arch holds the rules of the house as tests: which package may import
// which, who talks to NATS, who reads the environment and the clock, and how
// long a file may be.
//
// The tests parse the sources themselves. They must not ask the go command:
// Go's test cache sees what a test reads, but not what a program reads that the
// test started, so that a fresh violation would pass as "(cached)".
//
// Each rule says why it exists, and is shown to be able to fail. A justified
// exception goes into the table at the top of arch_test.go with its reason; an
// exception that is no longer needed fails the test as well.
package arch
