// Package mesh delivers messages between agents: durable, one way, with
// acknowledgements to the sender.
//
// A message is the bus's once JetStream has acknowledged it (stream
// FLEET_MESH). From then on exactly one thing becomes of it: an instance of the
// receiver deals with it, or its sender is told that nobody did, or why it was
// refused. What is known of a message is its record in FLEET_MESH_STATE,
// written by compare-and-set alone, so any number of mesh workers may run.
//
// There is no consumer per agent: every worker reads both streams and keeps an
// index of the messages (some 600 bytes each), and the owner of an inbox, by
// rendezvous hashing over the workers that live, hands its messages over as
// requests. 10 000 agents are 10 000 plain subscriptions.
//
// # Promises
//
//   - Once per message id. An instance is written down before a message is
//     handed to it, and no other one gets it unless the first is lost, has
//     given it back, or has said that it does not take it. An instance that
//     vanishes with a message in hand may have dealt with it; the next one gets
//     it with a higher attempt.
//   - In order per sender and receiver: a message is handed over when the one
//     before it is dealt with, has expired or was refused.
//   - A receiver that sleeps loses nothing: its messages wait, at most for their
//     time to live, and are handed over when an instance announces itself.
//   - A message whose answer does not come within its time says so to its
//     sender.
//   - Loops end: a message that more than MaxHops messages led to is refused,
//     and so is what goes beyond the rates. Hops are counted here, by what a
//     message answers and by its thread, whatever it says itself.
//   - What agents write is cleaned of hidden characters, and marked, before
//     another agent sees it.
//
// # Backpressure
//
// The rates bound what one agent sends. An instance that is busy says so, and
// is asked again when it has dealt with something, or half a second later. When
// FLEET_MESH is full, JetStream refuses to take more.
package mesh
