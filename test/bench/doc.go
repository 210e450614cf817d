// Bench measures Parley beside the lean floor: the same job written by hand on
// raw nats.go, with three durable writes per task and nothing else. It prints
// one Markdown page.
//
//	go run ./test/bench [-quick] [-only throughput,latency,…] [-tasks N] [-json]
//
// # What is compared
//
// Both sides run the same work, 512 B tasks with 128 B results and at most 256
// in flight, against the same kind of server, over separate TCP connections on
// the loopback. Every measurement is a process of its own, which holds server,
// workers, agent and client, so that none inherits the heap or the files of
// another. Floor and fleet take turns (A B A B …), the table shows the median
// with the least and the most, and the ratio of the medians.
//
// The floor ([lean]) is one Limits stream: the producer publishes t.<id>.new
// expecting 0, a durable consumer offers each by core request, the acceptance
// becomes t.<id>.st expecting 0, the result comes back by core request and
// becomes t.<id>.st expecting the former; then it is answered. It has no ids to
// validate, no JSON, no matching, no leases, no deadlines, no events. It runs
// with Go's own pace of garbage collection; a row of its own shows it with the
// pace that parley sets.
//
// Parley ([parley]) is used as anybody would: dispatches by fleet.api.bench.task.dispatch
// through package bus, a router, an agent made with workers/agent, outcomes
// read by subscription and, for a sample, again by task get.
//
// # Profiles
//
// r1-lazy is one server that flushes every two minutes, r1-sync one that syncs
// before it acknowledges, r3-sync three such servers in one process with the
// stream's leader where the clients are.
//
// # Figures
//
// Throughput is first dispatch to last outcome. Latency is the call of dispatch
// to the arrival of the offer at the agent, at 100 tasks a second. Durable
// writes are the growth of the last sequence of all streams; fsyncs are counted
// by strace where it is installed, and include files opened with O_SYNC. CPU is
// user and system time of the whole process, which other load on the machine
// disturbs far less than the clock.
//
// The part storm compares the latency of tasks while nothing else goes on with
// that while 10 000 others fail at once and while those wait for a human whose
// webhook hangs: dispatch to offer at an agent that echoes, and dispatch to
// outcome of tasks that take 250 ms. The agents that fail are a process of their
// own on the same cores; all the rest shares one, as in parley up.
//
// Memory is that of the real binary, parley serve, against a server process of
// its own; its live heap is read from the trace of the garbage collector.
//
// The part a2a compares a blocking SendMessage to an agent that echoes, through
// gateway, router and agent as parley up runs them, with the official SDK's own
// server, which keeps its tasks in memory.
//
// Nothing fails here: PASS and MISS stand beside the targets of the issue.
package main
