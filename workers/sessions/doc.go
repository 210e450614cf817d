// Package sessions keeps sessions: working relations of agents, each with a
// token and a context that its agents share.
//
// # Promises
//
// A session lives 24 h from its last renewal; then, or when it is deleted, all
// that it held is gone with it: context and large outputs. Its token lasts one
// hour. The owner and operators renew it; whoever has a token may read and
// append, but not renew.
//
// A context is append-only. Versions are 1, 2, 3 … without gaps; an append that
// was acknowledged is there, once, whatever worker died meanwhile, and whoever
// repeats an append with the same key gets the version it has. A context never
// takes in what looks like a secret: it refuses, or masks if asked to.
//
// The result of a task that was dispatched with a session (by somebody who may
// use it) is appended, at least once tried and never twice there.
//
// # Order and backpressure
//
// The appends of one session are written one after the other, whichever worker
// takes them; those of different sessions run side by side. Calls are bounded
// by the bus's service, and of them those that wait for news: beyond three
// quarters they are refused. Workers share the calls in a queue group, and every
// one follows all outcomes: what several do together counts once.
//
// A result waits until there is room for its version; one whose output alone has
// none, or that takes too long to look through for secrets, goes in without it,
// as it would keep those of all other sessions waiting. So would one that fails
// again and again although the store answers: it is left out, and the log says so.
package sessions
