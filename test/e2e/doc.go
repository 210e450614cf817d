// Package e2e holds the end-to-end tests: real processes on the loopback, as a
// user runs them, and SIGKILL for all of them.
//
// TestMain builds the binaries once: parley, parley with the crash points in
// it, and, unless PARLEY_NATS_CLI names one, the stock nats command line. The
// agents are the test binary itself, run once more (see agents_test.go): one
// process holds several agents, and a journal of what each was offered, began
// and handed in. What a task does to its agent stands in its brief (script).
//
// No test believes what the fleet says of itself: the checker (check_test.go)
// reads the records in the stream through raw nats.go, and the agents'
// journals, and nothing else. TestCheckerFindsFaults shows that it can fail.
//
// TestStorm alone has its workers inside the test: its figures are many, and
// its waits short. -e2e.storm=10000 makes it the storm of the promise.
//
// TestAppenders makes fewer appends than its promise is about, for their time:
// -e2e.appends=10000 makes them all.
//
// Whatever is random comes from one seed, which is printed and can be given:
//
//	go test ./test/e2e -run TestKillsWhileWorking -e2e.seed=42 -e2e.tasks=20000 -e2e.chaos=10m -timeout 1h
//
// With -e2e.race the binaries under test are built with the race detector;
// with -e2e.keep=DIR journals, logs and the broker's data stay in DIR. Nothing
// here needs root.
package e2e
