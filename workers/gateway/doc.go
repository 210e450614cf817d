// Package gateway lets A2A clients use the fleet: the fleet as one agent, and
// every agent by name. It serves version 1.0 of the protocol over JSON-RPC,
// HTTP+JSON and gRPC, on one port.
//
// A message becomes a dispatch, or a follow-up of a task that is under way. The
// tenant of a request is an agent's id: the task is pinned to it; without a
// tenant the router chooses. The records of a task become the A2A task and the
// events of its streams by one pure function, so that every replica tells the
// same, however often it was restarted.
//
// # Promises
//
// A gateway keeps nothing. A task that a client was told of is the fleet's, with
// all that the fleet promises. A blocked SendMessage always ends, since every
// task does. A stream gives every event of its task, in order, each once; with
// Last-Event-ID it goes on behind that event, on any replica.
//
// A caller sees their own tasks; those of others do not exist.
//
// # Backpressure
//
// One tail of the records is shared by all streams of a replica. A reader that
// is slow has at most 64 records in memory; what it misses is read from the
// store when it is ready. One that does not read for WriteTimeout is let go.
package gateway
