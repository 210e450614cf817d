// Package remote lets an A2A agent anywhere serve in the fleet as an ordinary
// agent. A Remote is the agent.Handler that hands each task to it, and what
// watches its card; it also is the client behind the command line.
//
// # Promises
//
// An attempt is one task of the remote agent. Its message has an id that stays
// the same for the whole attempt, and an idempotency key, so that a message that
// may have arrived is not work done twice where the agent honours either; where
// it lists its tasks, a task that a lost answer told of is found again. A message
// whose answer came and cannot be read is not sent again: the attempt fails for good.
//
// What the agent tells is told on, in order, each once: a status as progress, an
// artifact as an artifact, input-required as a question whose answer goes back. A
// stream that breaks is taken up again with SubscribeToTask: behind the last
// event where the agent resumes by Last-Event-ID, otherwise from the task as it
// then is, of which only the news count. An agent that does not stream is asked
// with GetTask. An attempt that ends before the remote task does, for whatever
// reason, cancels it.
//
// What is asked of the agent for a task is part of the attempt's trace: it has
// the header traceparent.
//
// A message that has gone through this agent before is refused as a cycle, and
// one that has gone through too many as too far.
//
// # Trust
//
// The operator names the address of the card, which may be anywhere. The card is
// the agent's, so it can name only interfaces on a host that the operator has
// named too; a redirect to another host is not followed, and credentials never
// leave those hosts. Answers are bounded.
package remote
