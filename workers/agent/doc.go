// Package agent is the harness of an agent: it announces the agent to the
// fleet, takes the tasks that routers offer, runs a Handler for each, and hands
// in what comes of it. Importing it is all that it takes to write an agent; see
// the example. Two handlers come with it: Echo, for tests and benchmarks, and
// Exec, which runs a command (a CLI agent, say) per task.
//
// What it promises:
//
//   - Never more than Config.MaxParallel handlers run, whatever routers believe:
//     a slot is reserved before an offer is answered.
//   - An offer that cannot be served (an MCP server is down, the work tree is
//     dirty, the deadline is over) is answered as blocked before anything is
//     spent on it.
//   - Accepting is idempotent per task: an offer of a task that is already in
//     hand is accepted again, and everything sent from then on carries the new
//     attempt.
//   - A CANCEL of an offer that was not answered in time ends what that offer
//     began, and never what a later offer of the same attempt did, in whichever
//     order the two come.
//   - A task is listed in the heartbeats' holding from its acceptance until its
//     handler has returned and its result, if it has one to hand in, was
//     answered. A handler runs once per acceptance; execution as a whole is
//     at least once.
//   - A result is sent as a request and repeated until a router answers with
//     something final. With Config.Spool it is on disk before it is sent, and a
//     new process sends what its predecessor could not.
//   - When Run's context ends, nothing more is taken, the work in hand has
//     Config.Grace to end, and is then canceled and handed back to the fleet, as
//     unfailed. Run returns when every goroutine and every process it started
//     has ended; a handler that ignores its context therefore holds it up.
//
// Progress is best effort and rate-limited; artifacts and questions are
// requests that are repeated until answered, in the order of the calls.
// Backpressure is the fleet's: a task waits there, never here, and an offer
// beyond the free slots is refused as agent_busy.
//
// The package reads neither the environment nor the command line: whatever a
// child process may see of them is given in Config and ExecConfig.
package agent
