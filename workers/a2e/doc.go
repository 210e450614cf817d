// Package a2e is the fleet as the environment of an agent: A2E 1.0. An agent
// shakes hands, hears which of the capabilities that it asks for are there, and
// has a session, in which it hands out tasks and runs, and shares a context.
//
// One Worker serves the API (fleet.api.<from>.a2e.handshake and .call) and HTTP
// (Handlers); a Door serves connections, one session each, as lines of JSON. A
// Door needs a Backend only: a Worker of its process, or the API of another.
//
// # Promises
//
// A capability is accepted if a live agent or worker backs it at that moment,
// see negotiate; a call that needs one that was not accepted is refused.
//
// A session never has more than max_parallel tasks and runs under way, whatever
// worker takes its calls; one more is refused at once. What counts is stored
// before it is dispatched, and no longer counts once it has ended, also if the
// worker that took it was killed. get, cancel, context and append do not count.
//
// The end of a session, of its connection or of a worker ends no task: what was
// acknowledged goes on, and the agent finds it by its id. The context is kept as
// that of any session.
//
// # Backpressure
//
// Calls are bounded by the bus's service. A connection has a bounded number of
// calls in hand, lines and time: what is more is refused, who does not read is
// let go, and so is who says nothing.
package a2e
